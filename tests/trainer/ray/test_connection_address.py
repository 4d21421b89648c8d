"""The Ray that RAY_ADDRESS names: joined as it is, or refused in one line."""

import socket
import threading

import pytest

from openrlhf_cov.cluster import connection
from openrlhf_cov.errors import UsageError


@pytest.fixture
def listening():
    """Function (answer) -> host:port of a socket that sends ``answer`` to whoever says something."""
    sockets = []

    def serve(server, answer):
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            connection.sendall(answer)

    def start(answer):
        server = socket.create_server(("127.0.0.1", 0))
        sockets.append(server)
        threading.Thread(target=serve, args=(server, answer), daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server in sockets:
        server.close()


# What the gRPC server of a Ray head sends first.
HTTP2_SETTINGS = b"\x00\x00\x18\x04\x00\x00\x00\x00\x00" + b"\x00" * 24


def test_a_running_ray_is_joined_as_it_is(connect, monkeypatch, listening):
    address = listening(HTTP2_SETTINGS)
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": {"env_vars": {"NCCL_DEBUG": "INFO"}}}')
    asked = connect(True, {})
    assert asked.keys() == {"address", "runtime_env"}
    assert asked["address"] == address
    assert "NCCL_DEBUG" not in asked["runtime_env"]["env_vars"]


def refusal(connect, monkeypatch, address, error=None):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UsageError) as refused:
        connect(True, {}, error)
    message = str(refused.value)
    assert len(message.splitlines()) == 1
    assert f"RAY_ADDRESS={address}" in message
    return message


@pytest.mark.parametrize(
    ("address", "part"),
    [
        *((f"{scheme}://127.0.0.1:8265", "`ray job submit --address` takes") for scheme in ("http", "https")),
        *(
            (address, "is not host:port")
            for address in ("127.0.0.1", "head:", ":6379", "head:port", "127.0.0.1:99999")
        ),
    ],
)
def test_what_is_no_address_of_a_ray_is_refused(connect, monkeypatch, address, part):
    assert part in refusal(connect, monkeypatch, address)


def test_the_dashboard_without_its_scheme_is_refused(connect, monkeypatch, listening):
    # Ray itself would wait three minutes and then end the process
    message = refusal(connect, monkeypatch, listening(b"HTTP/1.0 200 OK\r\n\r\n"))
    assert "is the address of a web server" in message


def test_a_port_without_a_ray_is_refused(connect, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    message = refusal(connect, monkeypatch, f"127.0.0.1:{port}")
    assert message.startswith(f"no Ray answers at RAY_ADDRESS=127.0.0.1:{port} (Connection refused)")


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("auto", ConnectionError("Could not find any running Ray instance.\nPlease specify the one")),
        ("xyz://head:1", RuntimeError("Module: xyz does not exist.\nThis module was parsed from Address")),
        ("xyz://head:1", AssertionError()),
        ("auto", Exception("The current node timed out during startup. This could happen")),  # on busy hosts
    ],
)
def test_what_ray_refuses_is_one_line(connect, monkeypatch, address, error):
    reason = str(error).partition("\n")[0] or type(error).__name__
    message = refusal(connect, monkeypatch, address, error)
    assert message.startswith(f"RAY_ADDRESS={address} cannot be joined; ")
    assert message.endswith(f"({reason})")


HERE = "10.0.0.1:6379"


@pytest.fixture
def running(monkeypatch, connect):
    """Function (addresses of the Rays that run here, that of ``ray start``) -> ``connect`` on such a host."""

    def host(addresses, joined=HERE):
        monkeypatch.setattr(connection, "rays_of_this_host", lambda: frozenset(addresses))
        monkeypatch.setattr(connection, "ray_of_this_host", lambda: joined)
        return connect

    return host


@pytest.mark.parametrize("on_cpu", [True, False])
def test_the_ray_of_this_host_is_joined(running, on_cpu):
    asked = running([HERE, "10.0.0.1:7000"])(on_cpu, {})
    assert asked["address"] == HERE
    assert not {"num_gpus", "num_cpus"} & asked.keys()


@pytest.mark.parametrize(("addresses", "warned"), [([], False), (["10.0.0.1:7000"], True)])
def test_a_ray_that_is_started_beside_another_says_so(running, monkeypatch, addresses, warned):
    said = []
    monkeypatch.setattr(connection.logger, "warning", said.append)
    running(addresses, None)(False, {})
    assert ["10.0.0.1:7000" in line for line in said] == [True] * warned
