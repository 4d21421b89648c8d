import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from openrlhf_cov.utils import ray_here

HERE = "10.0.0.1:6379"
VARIABLES = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Function (address that ``ray start`` noted, addresses that run) -> nothing: makes this host one of those."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what is set later is undone
        monkeypatch.delenv(name)

    def make(noted, running):
        monkeypatch.setattr(ray_here, "rays_of_this_host", lambda: frozenset(running))
        if noted:
            (tmp_path / "ray").mkdir()
            (tmp_path / "ray" / "ray_current_cluster").write_text(f"{noted}\n")

    return make


@pytest.mark.parametrize(
    ("noted", "running", "found"),
    [
        (HERE, [HERE, "10.0.0.1:7000"], HERE),
        (HERE, [], None),  # left behind by one that was killed
        (HERE, ["10.0.0.1:7000"], None),
        (None, ["10.0.0.1:7000"], None),  # `ray start --temp-dir`, or `ray.init` of another program
    ],
)
def test_the_ray_of_this_host_is_that_of_ray_start_if_it_runs(host, noted, running, found):
    host(noted, running)
    assert ray_here.ray_of_this_host() == found


def test_that_of_another_user_is_not_taken(host, monkeypatch):
    host(HERE, [HERE])
    monkeypatch.setattr(os, "getuid", lambda: -1)
    assert ray_here.ray_of_this_host() is None


@pytest.mark.parametrize("variable", ["RAY_TMPDIR", "TMPDIR", None])
def test_the_file_is_where_ray_writes_it(tmp_path, monkeypatch, variable):
    from ray._common.utils import get_ray_address_file

    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path))
    assert str(ray_here.address_file()) == get_ray_address_file(None)


def test_a_ray_is_known_by_its_processes():
    code = "import time; time.sleep(600)"
    command = [
        "/venv/ray/core/src/ray/raylet/raylet",
        "-c",
        code,
        "--node_ip_address=10.0.0.1",
        f"--gcs-address={HERE}",
    ]
    raylet = subprocess.Popen(command, executable=sys.executable)
    try:
        while raylet.poll() is None and HERE not in ray_here.rays_of_this_host():
            pass
        assert raylet.poll() is None
    finally:
        raylet.kill()
        raylet.wait()


def test_ray_calls_its_processes_so():
    from ray._private import services

    assert "--gcs-address=" in Path(services.__file__).read_text()
    assert Path(services.RAYLET_EXECUTABLE).name == "raylet"


class TestToken:
    @pytest.mark.parametrize("address", [None, "", "local"])
    def test_a_ray_of_our_own_has_one_that_nobody_knows(self, host, monkeypatch, address):
        host(None, [])
        if address is not None:
            monkeypatch.setenv("RAY_ADDRESS", address)
        tokens = set()
        for _ in range(2):
            monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
            ray_here.protect_own_ray()
            assert os.environ["RAY_AUTH_MODE"] == "token"
            tokens.add(os.environ["RAY_AUTH_TOKEN"])
        assert len(tokens) == 2
        assert {len(token) for token in tokens} == {64}

    @pytest.mark.parametrize("choice", [("RAY_AUTH_MODE", "disabled"), ("RAY_ADDRESS", HERE), ("RAY_ADDRESS", "auto")])
    def test_what_the_user_chose_stays(self, host, monkeypatch, choice):
        host(None, [])
        monkeypatch.setenv(*choice)
        ray_here.protect_own_ray()
        assert "RAY_AUTH_TOKEN" not in os.environ

    def test_a_ray_that_will_be_joined_gets_none(self, host, monkeypatch):
        host(HERE, [HERE])
        ray_here.protect_own_ray()
        assert "RAY_AUTH_TOKEN" not in os.environ
        monkeypatch.setenv("RAY_ADDRESS", "local")
        ray_here.protect_own_ray()
        assert "RAY_AUTH_TOKEN" in os.environ

    @pytest.mark.slow
    @pytest.mark.parametrize("module", ["train_ppo_ray", "evaluate", "demo"])
    def test_commands_import_no_ray_before(self, module):
        code = f"import sys, openrlhf_cov.cli.{module}; sys.exit('ray' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], cwd=tempfile.gettempdir()).returncode == 0
