"""A Ray of the demo's own, with small programs in the place of ``ray`` and of its client; no Ray is started."""

import os
import signal
import socket
import subprocess
import sys
import time
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
    environment = local_ray.environment()
    assert {name for name in os.environ if name not in environment} >= {"RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH"}
    assert not [name for name in environment if name.startswith(("RAY_A", "RAY_AUTH"))]
    assert environment["NCCL_DEBUG"] == "INFO"


def is_gone(pid):
    """True once a process has ended; one whose parent has not asked for its status yet is a zombie."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("sleep 60 & echo $!; wait", -signal.SIGTERM),
        ("trap '' TERM; sleep 60 & echo $!; wait; wait; sleep 60", -signal.SIGKILL),  # it does not listen
        ("sleep 60 & echo $!", 0),  # a child that outlives its parent
    ],
)
def test_a_process_is_stopped_with_its_children(monkeypatch, script, status):
    monkeypatch.setattr(local_ray, "STOP_TIMEOUT", 0.2)
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    child = int(process.stdout.readline())
    process.stdout.close()
    if status == 0:
        process.wait()
    local_ray.stop(process)
    assert process.returncode == status
    assert is_gone(child)


# What stands for ``ray``: it notes its flags, and can answer as the dashboard does.
HEAD = """#!{python}
import os, socket, sys, time
with open({starts!r}, "a") as file:
    file.write(str(os.getpid()) + " " + " ".join(sys.argv[1:]) + chr(10))
number = len(open({starts!r}).readlines())
def answer(reply=b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n"):
    server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--dashboard-port") + 1])))
    while True:
        connection, _ = server.accept()
        connection.recv(1000)
        connection.sendall(reply)
        connection.close()
def watch():
    print("--block", flush=True)
{does}
"""
STAYS = "watch()\nanswer()"
OTHER_REPLIES = [b"junk\r\n\r\n", b"", b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Function (what ``ray`` does, what its client does as a shell) -> the context of a local Ray."""

    def run(does, client="exit 0"):
        programs = {
            "ray": HEAD.format(python=sys.executable, starts=str(tmp_path / "starts"), does=does),
            "python": f"#!/bin/sh\n{client}\n",
        }
        for name, text in programs.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        monkeypatch.setattr(local_ray, "SETTLING", 0.3)
        return local_ray.local_ray(1, 1, tmp_path / "ray.log")

    return run


def starts(folder):
    return [line.split() for line in (folder / "starts").read_text().splitlines()]


@pytest.mark.slow
def test_a_ray_is_up_when_a_client_connected_and_its_folder_is_private(tmp_path, start):
    tries = tmp_path / "tries"
    with start(STAYS, f"echo >> {tries}; [ $(wc -l < {tries}) = 3 ]"):
        assert tries.read_text().count("\n") == 3
        ((pid, *given),) = starts(tmp_path)
        folder = Path(given[given.index("--temp-dir") + 1])
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        assert given[given.index("--node-ip-address") + 1] == "127.0.0.1"
    assert not folder.parent.exists()
    assert is_gone(pid)


@pytest.mark.slow
@pytest.mark.parametrize("reply", OTHER_REPLIES)
def test_a_port_on_which_no_ray_answers_is_waited_for(monkeypatch, start, reply):
    # Another program has the port, or the dashboard dies while it answers.
    monkeypatch.setattr(local_ray, "START_TIMEOUT", 1.0)
    with pytest.raises(RunStopped, match="did not answer within 1 s"), start(f"watch()\nanswer({reply!r})"):
        pytest.fail("no Ray answered")


@pytest.mark.slow
def test_a_head_that_gives_up_is_started_again(tmp_path, start):
    with start("watch()\nanswer() if number == 3 else sys.exit(1)"):
        assert len(starts(tmp_path)) == 3


@pytest.mark.slow
def test_heads_that_always_give_up_are_reported(tmp_path, start):
    with pytest.raises(RunStopped, match="status 7"), start("watch()\nsys.exit(7)"):
        pytest.fail("it never ran")
    assert len(starts(tmp_path)) == local_ray.ATTEMPTS


@pytest.mark.slow
def test_a_second_head_is_not_taken_for_running_by_the_words_of_the_first(monkeypatch, start):
    # The first ends after it began to watch; the second never does, and is no running head.
    monkeypatch.setattr(local_ray, "START_TIMEOUT", 3.0)
    with (
        pytest.raises(RunStopped, match="did not answer"),
        start("watch() or sys.exit(1) if number == 1 else answer()"),
    ):
        pytest.fail("it never watched its processes")


@pytest.mark.slow
def test_a_head_that_dies_under_its_client_is_not_up(tmp_path, start):
    kills = f"kill -9 $(tail -n 1 {tmp_path / 'starts'} | cut -d ' ' -f 1); sleep 600"
    with pytest.raises(RunStopped, match="status -9"), start(STAYS, kills):
        pytest.fail("the head is dead")
