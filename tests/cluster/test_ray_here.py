import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path

import pytest

from openrlhf_cov.cluster import ray_here

HERE = "10.0.0.1:6379"


@contextmanager
def raylet(address):
    """Run a process with the command line of a raylet of the Ray at this address; it waits for its input to end."""
    command = ["/venv/ray/core/src/ray/raylet/raylet", "-c", "read _", "--node_ip_address=10.0.0.1"]
    command.append(f"--gcs-address={address}")
    process = subprocess.Popen(command, executable="/bin/sh", stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate()


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Function (address that ``ray start`` noted, addresses that run) -> nothing: makes this host one of those."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with ExitStack() as running:

        def make(noted, addresses):
            for address in addresses:
                running.enter_context(raylet(address))
            if noted:
                (tmp_path / "ray").mkdir()
                (tmp_path / "ray" / "ray_current_cluster").write_text(f"{noted}\n")

        yield make


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
    assert ray_here.rays_of_this_host() >= set(running)


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


class TestVariables:
    @pytest.mark.slow
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

    def test_they_raise_rays_own_limits(self):
        variables = ray_here.own_ray_variables({})
        assert int(variables["RAY_agent_register_timeout_ms"]) > 100_000
        assert int(variables["RAY_raylet_start_wait_time_s"]) > 60

    def test_a_limit_that_the_user_set_stays(self):
        variables = ray_here.own_ray_variables({"RAY_raylet_start_wait_time_s": "5"})
        assert variables["RAY_raylet_start_wait_time_s"] == "5"


class TestProtection:
    """Of the Ray that a process may start: its token, and the address on which it listens."""

    @pytest.mark.parametrize("address", [{}, {"RAY_ADDRESS": ""}, {"RAY_ADDRESS": "local"}])
    def test_a_ray_of_our_own_has_a_token_that_nobody_knows(self, address):
        both = [ray_here.protection(address, found=None) for _ in range(2)]
        assert [variables["RAY_AUTH_MODE"] for variables in both] == ["token", "token"]
        tokens = {variables["RAY_AUTH_TOKEN"] for variables in both}
        assert len(tokens) == 2
        assert {len(token) for token in tokens} == {64}

    @pytest.mark.parametrize("mode", [{}, {"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token"}])
    def test_a_ray_of_our_own_listens_on_the_loopback_address(self, mode):
        variables = ray_here.protection(mode, found=None)
        assert ray_here.LOOPBACK_ONLY.items() <= variables.items()
        # A user who chose the mode has a token already, or wants none.
        assert ("RAY_AUTH_TOKEN" in variables) == (mode == {})
        assert ("RAY_AUTH_MODE" in variables) == (mode == {})

    @pytest.mark.parametrize(
        ("environ", "found"),
        [({}, HERE), ({"RAY_ADDRESS": "10.0.0.2:6379"}, None), ({"RAY_ADDRESS": "auto"}, None)],
    )
    def test_a_ray_that_will_be_joined_is_left_alone(self, environ, found):
        assert ray_here.protection(environ, found) == {}

    def test_a_second_ray_beside_that_of_this_host_is_protected(self):
        assert "RAY_AUTH_TOKEN" in ray_here.protection({"RAY_ADDRESS": "local"}, found=HERE)

    @pytest.mark.parametrize(("noted", "mode"), [(None, "token"), (HERE, "none")])
    def test_the_process_gets_the_variables(self, host, tmp_path, noted, mode):
        host(noted, [HERE])
        module = "openrlhf_cov.cluster.ray_here"
        code = f"import os, {module} as r; r.protect_own_ray(); print(os.environ.get('RAY_AUTH_MODE', 'none'))"
        command = [sys.executable, "-c", code]
        process = subprocess.run(
            command, env={"RAY_TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=True
        )
        assert process.stdout.strip() == mode

    @pytest.mark.slow
    @pytest.mark.parametrize("module", ["train_ppo_ray", "evaluate", "demo"])
    def test_commands_import_no_ray_before(self, module):
        code = f"import sys, openrlhf_cov.cli.{module}; sys.exit('ray' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], cwd=tempfile.gettempdir()).returncode == 0


class TestPrivateFolder:
    @pytest.fixture
    def short_place(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            yield Path(folder)

    def test_nobody_else_can_enter_it(self, short_place):
        folder = ray_here.private_folder(short_place)
        assert folder.parent == short_place
        assert folder.stat().st_mode & 0o777 == 0o700
        folder.chmod(0o777)  # as Ray did with folders of earlier versions
        assert ray_here.private_folder(short_place) == folder
        assert folder.stat().st_mode & 0o777 == 0o700

    def test_what_somebody_else_made_is_not_used(self, short_place):
        name = ray_here.private_folder(short_place).name
        (short_place / name).rmdir()
        other = short_place / "other"
        other.mkdir(mode=0o777)
        (short_place / name).symlink_to(other)
        self.assert_another(short_place, short_place / name)
        assert other.stat().st_mode & 0o777 != 0o700
        (short_place / name).unlink()
        (short_place / name).touch()
        self.assert_another(short_place, short_place / name)

    def test_that_of_another_user_is_not_used(self, short_place, monkeypatch):
        name = ray_here.private_folder(short_place).name
        me = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: me + 1)
        (short_place / name).rename(short_place / f"cov-{me + 1}")
        self.assert_another(short_place, short_place / f"cov-{me + 1}")

    def test_a_long_name_is_not_used(self, short_place):
        assert len(str(ray_here.private_folder(short_place / ("a" * 60)))) <= ray_here.LONGEST_FOLDER

    def test_a_place_that_cannot_be_written_is_not_used(self, short_place):
        (short_place / "file").touch()
        for place in (Path("/proc/nothing"), short_place / "file"):
            self.assert_another(place, place)

    def test_a_relative_place_is_that_of_this_process(self, short_place):
        # Ray's processes may run in other folders
        with chdir(short_place):
            folder = ray_here.private_folder(Path("own"))
        assert folder == short_place / "own" / f"cov-{os.getuid()}"

    def assert_another(self, parent, taken):
        """Check that a new folder takes the place of one that cannot be used."""
        folder = ray_here.private_folder(parent)
        try:
            assert folder != taken
            assert folder.stat().st_mode & 0o777 == 0o700
        finally:
            folder.rmdir()
