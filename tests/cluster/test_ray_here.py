import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from openrlhf_cov.cluster import ray_here

HERE = "10.0.0.1:6379"
VARIABLES = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", *ray_here.LOOPBACK_ONLY, *ray_here.PATIENCE)


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


class TestVariables:
    def test_ray_knows_their_names(self):
        import ray

        folder = Path(ray.__file__).parent
        files = (
            folder / "_private" / "ray_constants.py",
            folder / "core" / "src" / "ray" / "gcs" / "gcs_server",
            folder / "core" / "src" / "ray" / "raylet" / "raylet",
        )
        found = b"".join(file.read_bytes() for file in files)
        for name in (*ray_here.LOOPBACK_ONLY, *ray_here.PATIENCE):
            in_python = name.encode() in found
            in_binaries = name.removeprefix("RAY_").encode() in found
            assert in_python or in_binaries, name

    def test_they_raise_rays_own_limits(self, monkeypatch):
        for name in ray_here.PATIENCE:
            monkeypatch.delenv(name, raising=False)
        variables = ray_here.own_ray_variables()
        assert int(variables["RAY_agent_register_timeout_ms"]) > 100_000
        assert int(variables["RAY_raylet_start_wait_time_s"]) > 60

    @pytest.mark.parametrize("mode", [None, "disabled", "token"])
    def test_a_ray_of_our_own_listens_on_the_loopback_address(self, host, monkeypatch, mode):
        host(None, [])
        if mode:
            monkeypatch.setenv("RAY_AUTH_MODE", mode)
        ray_here.protect_own_ray()
        assert ray_here.LOOPBACK_ONLY.items() <= os.environ.items()

    def test_a_ray_that_is_joined_may_have_other_hosts(self, host, monkeypatch):
        host(HERE, [HERE])
        ray_here.protect_own_ray()
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
        ray_here.protect_own_ray()
        assert not ray_here.LOOPBACK_ONLY.keys() & os.environ.keys()


class TestPrivateFolder:
    @pytest.fixture(autouse=True)
    def short_place(self, monkeypatch):
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            monkeypatch.setenv("RAY_TMPDIR", folder)
            yield Path(folder)

    def test_nobody_else_can_enter_it(self, short_place):
        folder = ray_here.private_folder()
        assert folder.parent == short_place
        assert folder.stat().st_mode & 0o777 == 0o700
        folder.chmod(0o777)  # as Ray did with folders of earlier versions
        assert ray_here.private_folder() == folder
        assert folder.stat().st_mode & 0o777 == 0o700

    def test_what_somebody_else_made_is_not_used(self, short_place):
        name = ray_here.private_folder().name
        (short_place / name).rmdir()
        other = short_place / "other"
        other.mkdir(mode=0o777)
        (short_place / name).symlink_to(other)
        self.assert_another(short_place / name)
        assert other.stat().st_mode & 0o777 != 0o700
        (short_place / name).unlink()
        (short_place / name).touch()
        self.assert_another(short_place / name)

    def test_that_of_another_user_is_not_used(self, short_place, monkeypatch):
        name = ray_here.private_folder().name
        me = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: me + 1)
        (short_place / name).rename(short_place / f"cov-{me + 1}")
        self.assert_another(short_place / f"cov-{me + 1}")

    def test_a_long_name_is_not_used(self, short_place, monkeypatch):
        monkeypatch.setenv("RAY_TMPDIR", str(short_place / ("a" * 60)))
        assert len(str(ray_here.private_folder())) <= ray_here.LONGEST_FOLDER

    def test_a_place_that_cannot_be_written_is_not_used(self, short_place, monkeypatch):
        (short_place / "file").touch()
        for place in ("/proc/nothing", short_place / "file"):
            monkeypatch.setenv("RAY_TMPDIR", str(place))
            self.assert_another(Path(place))

    def test_a_relative_place_is_that_of_this_process(self, short_place, monkeypatch):
        # Ray's processes may run in other folders
        monkeypatch.chdir(short_place)
        monkeypatch.setenv("RAY_TMPDIR", "own")
        assert ray_here.private_folder() == short_place / "own" / f"cov-{os.getuid()}"

    def assert_another(self, taken):
        folder = ray_here.private_folder()
        try:
            assert folder != taken
            assert folder.stat().st_mode & 0o777 == 0o700
        finally:
            folder.rmdir()


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
