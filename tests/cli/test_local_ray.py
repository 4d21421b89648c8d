"""The processes around the demo's Ray; no Ray is started."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from openrlhf_cov.cli import local_ray
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


def test_connections_take_none_of_the_ports():
    assert local_ray.PORTS.stop <= int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


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
    return local_ray.RayAddress(f"http://127.0.0.1:{port}", "", local_ray.fresh_token())


def test_a_ray_that_ends_while_it_starts_is_reported(tmp_path):
    head = subprocess.Popen(["sh", "-c", "exit 3"])
    head.wait()
    with pytest.raises(RunStopped, match=r"ended while it started \(status 3\); see .*ray\.log"):
        local_ray._wait_until_up(head, address(9), tmp_path / "ray.log")


def test_a_ray_that_does_not_answer_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(local_ray, "START_TIMEOUT", 0.01)
    (port,) = local_ray.free_ports(1)
    head = subprocess.Popen(["sleep", "60"], start_new_session=True)
    with pytest.raises(RunStopped, match="did not answer within 0 s"):
        local_ray._wait_until_up(head, address(port), tmp_path / "ray.log")
    local_ray.stop(head)


def fake_ray(tmp_path, monkeypatch, script):
    """A program that takes the place of ``ray``, and an API that answers."""
    program = tmp_path / "bin" / "ray"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(local_ray.sys, "executable", str(program.with_name("python")))
    monkeypatch.setattr(local_ray, "_answers", lambda request: True)
    monkeypatch.setattr(local_ray, "SETTLING", 0.3)


@pytest.mark.slow
def test_a_head_that_gives_up_is_started_again(tmp_path, monkeypatch):
    starts = tmp_path / "starts"
    fake_ray(tmp_path, monkeypatch, f"echo >> {starts}; echo --block; [ $(wc -l < {starts}) = 3 ] && sleep 60; exit 1")
    with local_ray.local_ray(1, 1, tmp_path / "ray.log"):
        assert starts.read_text().count("\n") == 3


@pytest.mark.slow
def test_heads_that_always_give_up_are_reported(tmp_path, monkeypatch):
    starts = tmp_path / "starts"
    fake_ray(tmp_path, monkeypatch, f"echo >> {starts}; echo --block; exit 7")
    with pytest.raises(RunStopped, match="status 7"), local_ray.local_ray(1, 1, tmp_path / "ray.log"):
        pytest.fail("it never ran")
    assert starts.read_text().count("\n") == local_ray.ATTEMPTS
