"""The processes around the demo's Ray; no Ray is started."""

import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from openrlhf_cov.cluster import local_ray
from openrlhf_cov.errors import RunStopped


def test_ports_are_different_and_free():
    ports = local_ray.free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_in_use_is_not_free(monkeypatch):
    (port,) = local_ray.free_ports(1)
    monkeypatch.setattr(local_ray, "PORTS", range(port, port + 20))
    with socket.create_server(("127.0.0.1", port)):
        assert port not in local_ray.free_ports(3)
        monkeypatch.setattr(local_ray, "PORTS", range(port, port + 1))
        with pytest.raises(RunStopped):
            local_ray.free_ports(1)


def test_the_environment_names_no_other_ray(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://10.0.0.1:8265")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/home/other/token")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert local_ray.environment() == {
        name: value for name, value in os.environ.items() if not name.startswith(("RAY_A", "RAY_AUTH"))
    }
    assert local_ray.environment()["NCCL_DEBUG"] == "INFO"


def start(script):
    """A process that leads a session; returns when it has printed the id of a child of its."""
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    child = int(process.stdout.readline())
    process.stdout.close()
    return process, child


def is_gone(pid):
    """True once a process has ended; one whose parent has not asked for its status yet is a zombie."""
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_process_is_stopped_with_its_children():
    process, child = start("sleep 60 & echo $!; wait")
    local_ray.stop(process)
    assert process.returncode == -signal.SIGTERM
    assert is_gone(child)


def test_a_process_that_does_not_listen_is_killed(monkeypatch):
    monkeypatch.setattr(local_ray, "STOP_TIMEOUT", 0.2)
    process, child = start("trap '' TERM; sleep 60 & echo $!; wait; wait; sleep 60")
    local_ray.stop(process)
    assert process.returncode == -signal.SIGKILL
    assert is_gone(child)


def test_children_that_outlive_their_parent_are_stopped():
    process, child = start("sleep 60 & echo $!")
    process.wait()
    local_ray.stop(process)
    assert process.returncode == 0
    assert is_gone(child)


def address(port):
    return local_ray.RayAddress(f"http://127.0.0.1:{port}", "", local_ray.own_ray_variables())


@pytest.mark.parametrize("reply", [b"junk\r\n\r\n", b"", b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"])
def test_a_port_on_which_no_ray_answers_is_waited_for(tmp_path, monkeypatch, reply):
    # another program has the port, or the dashboard dies while it answers
    monkeypatch.setattr(local_ray, "START_TIMEOUT", 1.0)

    def serve(server):
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                connection.recv(1000)
                connection.sendall(reply)
                connection.close()

    log = tmp_path / "ray.log"
    log.write_text("--block")
    head = subprocess.Popen(["sleep", "60"], start_new_session=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        with pytest.raises(RunStopped, match="did not answer within 1 s"):
            local_ray._wait_until_up(head, address(server.getsockname()[1]), log)
        server.shutdown(socket.SHUT_RDWR)
    local_ray.stop(head)


def fake_ray(tmp_path, monkeypatch, script):
    """A program that takes the place of ``ray``, and an API that answers."""
    program = tmp_path / "bin" / "ray"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(local_ray.sys, "executable", str(program.with_name("python")))
    monkeypatch.setattr(local_ray, "_answers", lambda request: True)
    monkeypatch.setattr(local_ray, "_client_connects", lambda head, address, deadline: True)
    monkeypatch.setattr(local_ray, "SETTLING", 0.3)


@pytest.mark.slow
def test_a_head_that_gives_up_is_started_again(tmp_path, monkeypatch):
    starts = tmp_path / "starts"
    fake_ray(tmp_path, monkeypatch, f"echo >> {starts}; echo --block; [ $(wc -l < {starts}) = 3 ] && sleep 60; exit 1")
    with local_ray.local_ray(1, 1, tmp_path / "ray.log"):
        assert starts.read_text().count("\n") == 3


@pytest.mark.slow
def test_a_second_head_is_not_taken_for_running_by_the_words_of_the_first(tmp_path, monkeypatch):
    # the first ends after it began to watch; the second never does, and is no running head
    starts = tmp_path / "starts"
    script = f"echo >> {starts}; [ $(wc -l < {starts}) = 1 ] && {{ echo --block; exit 1; }}; sleep 60"
    fake_ray(tmp_path, monkeypatch, script)
    monkeypatch.setattr(local_ray, "START_TIMEOUT", 2.0)
    with pytest.raises(RunStopped, match="did not answer"), local_ray.local_ray(1, 1, tmp_path / "ray.log"):
        pytest.fail("it never watched its processes")


@pytest.mark.slow
def test_heads_that_always_give_up_are_reported(tmp_path, monkeypatch):
    starts = tmp_path / "starts"
    fake_ray(tmp_path, monkeypatch, f"echo >> {starts}; echo --block; exit 7")
    with pytest.raises(RunStopped, match="status 7"), local_ray.local_ray(1, 1, tmp_path / "ray.log"):
        pytest.fail("it never ran")
    assert starts.read_text().count("\n") == local_ray.ATTEMPTS


def fake_client(tmp_path, monkeypatch, program):
    """A Python program that takes the place of the client, for heads that are a ``sleep``."""
    monkeypatch.setattr(local_ray, "CONNECT", program)
    monkeypatch.setattr(local_ray, "_answers", lambda request: True)
    monkeypatch.setattr(local_ray, "SETTLING", 0.0)
    (tmp_path / "ray.log").write_text("--block")
    return tmp_path / "ray.log"


@pytest.fixture
def head():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    local_ray.stop(process)


def test_a_ray_is_up_when_a_client_connected(tmp_path, monkeypatch, head):
    tries = tmp_path / "tries"
    program = f"open({str(tries)!r}, 'a').write('x'); import sys; sys.exit(len(open({str(tries)!r}).read()) < 3)"
    log = fake_client(tmp_path, monkeypatch, program)
    local_ray._wait_until_up(head, address(9), log)
    assert tries.read_text() == "xxx"


def test_a_head_that_dies_under_its_client_is_not_up(tmp_path, monkeypatch, head):
    log = fake_client(tmp_path, monkeypatch, f"import os, time; os.kill({head.pid}, 9); time.sleep(600)")
    with pytest.raises(local_ray.EndedAtStart, match="status -9"):
        local_ray._wait_until_up(head, address(9), log)


def test_rays_own_folder_lies_in_a_private_one(tmp_path, monkeypatch):
    words = tmp_path / "words"
    fake_ray(tmp_path, monkeypatch, f'echo "$@" > {words}; echo --block; exec sleep 60')
    with local_ray.local_ray(1, 1, tmp_path / "ray.log"):
        given = words.read_text().split()
        folder = Path(given[given.index("--temp-dir") + 1])
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        assert given[given.index("--node-ip-address") + 1] == "127.0.0.1"
    assert not folder.parent.exists()
