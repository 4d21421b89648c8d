import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from openrlhf_cov.cli.host import facts
from openrlhf_cov.cli.host.facts import Gpu, Hub, Process

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:18EB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 00000000e72c9f89
   1: 0100007F:2049 0100007F:18EB 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 00000000e72c9f89
   2: 00000000000000000000000001000000:2049 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 4713 1 0
"""
"""0x18EB is 6379 and 0x2049 is 8265; state 0A listens, 01 is connected."""


def test_gpus_of_nvidia_smi():
    text = "NVIDIA H100 80GB HBM3, 81559, 580.95.05\nNVIDIA GB10, [N/A], 580.95.05\n\nNo devices were found\n"
    assert facts.parse_gpus(text) == (
        Gpu("NVIDIA H100 80GB HBM3", 81559, "580.95.05"),
        Gpu("NVIDIA GB10", 0, "580.95.05"),
    )


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Function (name, shell script) -> None: a command that only this test finds."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(name, script):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return write


def test_nvidia_smi_is_asked(command):
    command("nvidia-smi", "echo 'NVIDIA A100, 40960, 550.1'")
    assert facts.find_gpus() == (Gpu("NVIDIA A100", 40960, "550.1"),)


@pytest.mark.parametrize("script", ["echo 'NVIDIA-SMI has failed'; exit 9", None])
def test_without_a_driver_there_is_no_answer(command, script):
    if script:
        command("nvidia-smi", script)
    assert facts.find_gpus() is None


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        ("g++ (Debian 12.2.0-14) 12.2.0\nCopyright (C) 2022", "g++ (Debian 12.2.0-14) 12.2.0"),
        (
            "nvcc: NVIDIA\nCopyright (c) 2025\nCuda compilation tools, release 13.0, V13.0.88",
            "Cuda compilation tools, release 13.0, V13.0.88",
        ),
        ("no number", None),
    ],
)
def test_the_line_with_the_version(command, printed, line):
    command("some-compiler", f"cat <<'END'\n{printed}\nEND")
    assert facts.version_line("some-compiler") == line


def test_a_command_that_is_not_there_has_no_version():
    assert facts.version_line("no-such-command") is None


def test_the_disk_of_a_folder_that_is_not_there_yet_is_that_of_its_parent(tmp_path):
    found, parent = facts.disk(tmp_path / "a/b"), facts.disk(tmp_path)
    assert (found.path, found.total) == (str(tmp_path / "a/b"), parent.total)
    assert 0 < found.free <= found.total


def test_the_disk_of_a_path_that_cannot_be_looked_at_is_that_of_its_parent(tmp_path):
    path = tmp_path / ("x" * 300)  # OSError: too long a name
    assert facts.disk(path).total == facts.disk(tmp_path).total


class TestPorts:
    def test_listening_sockets(self):
        assert list(facts.listening(TCP)) == [(6379, "4711"), (8265, "4713")]

    @pytest.fixture
    def proc(self, tmp_path):
        (tmp_path / "net").mkdir()
        (tmp_path / "net/tcp").write_text(TCP)
        (tmp_path / "12/fd").mkdir(parents=True)
        (tmp_path / "12/fd/3").symlink_to("socket:[4711]")
        (tmp_path / "12/cmdline").write_bytes(b"redis-server\0*:6379\0")
        (tmp_path / "12/environ").write_bytes(b"HOME=/root\0")
        return tmp_path

    @pytest.mark.parametrize(
        ("environ", "is_open"),
        [
            (b"HOME=/root\0", True),
            (b"HOME=/root\0RAY_AUTH_MODE=disabled\0", True),
            (b"HOME=/root\0RAY_AUTH_MODE=token\0RAY_AUTH_TOKEN=abc\0", False),
        ],
    )
    def test_a_ray_without_a_token(self, proc, environ, is_open):
        (proc / "12/cmdline").write_bytes(b"/venv/gcs_server\0--gcs_server_port=6379\0")
        (proc / "12/environ").write_bytes(environ)
        found = facts.listeners((6379,), proc)
        assert found == {6379: Process(12, "/venv/gcs_server --gcs_server_port=6379", is_open)}
        assert "abc" not in str(found)

    def test_who_listens(self, proc):
        # that of 8265 belongs to another user, whose open files cannot be seen
        assert facts.listeners((6379, 8265, 22), proc) == {
            6379: Process(12, "redis-server *:6379"),
            8265: Process(None, ""),
        }

    def test_other_ports_do_not_matter(self, proc):
        assert facts.listeners((22,), proc) == {}

    def test_without_tables_nobody_listens(self, tmp_path):
        assert facts.listeners((6379,), tmp_path) == {}

    def test_this_process(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            found = facts.listeners((port,))[port]
        assert found.pid == os.getpid()
        assert found.command  # python, unless whoever runs the tests renames its processes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu avx2\n", {"fpu", "avx2"}),
        ("processor\t: 0\nFeatures\t: fp asimd\n", None),  # an Arm CPU
    ],
)
def test_instructions_of_an_x86_cpu(tmp_path, text, expected):
    (tmp_path / "cpuinfo").write_text(text)
    assert facts.instructions(tmp_path / "cpuinfo") == expected
    assert facts.instructions(tmp_path / "missing") is None


@pytest.mark.parametrize(("text", "expected"), [("4096\n", 4096), ("max\n", None)])
def test_memory_of_a_control_group(tmp_path, text, expected):
    (tmp_path / "memory.max").write_text(text)
    assert facts.memory(tmp_path / "memory.max") == (expected or facts.memory(tmp_path / "missing"))
    assert facts.memory(tmp_path / "missing") > 2**28


class TestHub:
    @pytest.fixture(params=[200, 404, 503])
    def url(self, request):
        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self):
                self.send_response(request.param)
                self.end_headers()

            def log_message(self, *arguments):
                """Nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()

    def test_any_answer_is_one(self, url):
        assert facts.find_hub(url) == Hub(url, None)

    def test_silence_and_refusal_are_none(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            assert facts.find_hub(url, timeout=0.2) == Hub(url, "timed out")
        assert "refused" in facts.find_hub(url).fault

    def test_no_url_is_none(self):
        assert facts.find_hub("hub").fault == "unknown url type: 'hub'"


def test_memory_and_disks_are_in_bytes():
    # this file is some kilobytes large
    assert facts.disk(Path(__file__)).total > 2**20
