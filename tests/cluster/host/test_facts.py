import os
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from openrlhf_cov.cluster.host import facts
from openrlhf_cov.cluster.host.facts import Gpu, Hub, Process


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


def test_the_disk_of_a_folder_that_is_not_there_yet_is_that_of_its_parent(tmp_path):
    found, parent = facts.disk(tmp_path / "a/b"), facts.disk(tmp_path)
    assert (found.path, found.total) == (str(tmp_path / "a/b"), parent.total)
    assert 0 < found.free <= found.total


def test_the_disk_of_a_path_that_cannot_be_looked_at_is_that_of_its_parent(tmp_path):
    assert facts.disk(tmp_path / ("x" * 300)).total == facts.disk(tmp_path).total  # OSError: too long a name


class TestPorts:
    @pytest.fixture
    def host(self, monkeypatch):
        """Function (command of a process, its environment) -> nothing: that listens on 6379, one of another user on
        8265; somebody is connected to 22."""

        def make(command, environment=None):
            sockets = [(6379, "LISTEN", 12), (6379, "LISTEN", 12), (8265, "LISTEN", None), (22, "ESTABLISHED", 13)]
            monkeypatch.setattr(
                psutil,
                "net_connections",
                lambda kind: [SimpleNamespace(laddr=SimpleNamespace(port=p), status=s, pid=i) for p, s, i in sockets],
            )
            process = SimpleNamespace(cmdline=command.split, environ=lambda: {"HOME": "/root"} | (environment or {}))
            monkeypatch.setattr(psutil, "Process", {12: process}.__getitem__)

        return make

    @pytest.mark.parametrize(
        ("environment", "is_open"),
        [
            ({}, True),
            ({"RAY_AUTH_MODE": "disabled"}, True),
            ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "abc"}, False),
        ],
    )
    def test_a_ray_without_a_token(self, host, environment, is_open):
        host("/venv/gcs_server --gcs_server_port=6379", environment)
        found = facts.listeners((6379,))
        assert found == {6379: Process(12, "/venv/gcs_server --gcs_server_port=6379", is_open)}
        assert "abc" not in str(found)

    def test_who_listens(self, host):
        host("redis-server *:6379")
        assert facts.listeners((6379, 8265, 22)) == {6379: Process(12, "redis-server *:6379"), 8265: Process(None, "")}

    def test_a_process_that_is_gone_or_of_another_user_is_known_by_its_number(self, host, monkeypatch):
        def denied(pid):
            raise psutil.AccessDenied(pid)

        host("redis-server")
        monkeypatch.setattr(psutil, "Process", denied)
        assert facts.listeners((6379,)) == {6379: Process(12, "")}

    def test_without_psutil_nobody_is_seen(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "psutil", None)
        assert facts.listeners((6379,)) == {}

    def test_this_process(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            found = facts.listeners((port,))[port]
        assert found.pid == os.getpid()
        assert found.command  # python, unless whoever runs the tests renames its processes


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
