import resource
import socket

import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards.serving import OTHER_FILES, listen, raise_file_limit

INFINITY = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch):
    """Function (soft, hard, connections): the limits of open files afterwards, None where they were not set."""

    def raised(soft, hard, connections):
        found = []
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: found.append(limits))
        raise_file_limit(connections)
        return found[0] if found else None

    return raised


def test_the_limit_of_files_has_room_for_every_connection(limits):
    # two files a connection, and those that the service has open beside them
    assert limits(1024, 10_000, 2048) == (4096 + OTHER_FILES, 10_000)
    assert limits(1024, INFINITY, 2048) == (4096 + OTHER_FILES, INFINITY)


def test_the_limit_of_files_is_never_above_that_of_the_host_and_never_lowered(limits):
    assert limits(1024, 2000, 2048) == (2000, 2000)
    assert limits(9000, 10_000, 1) == (9000, 10_000)
    assert limits(INFINITY, INFINITY, 2048) is None


def test_a_socket_listens_on_a_free_port():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=30):
            pass
        with pytest.raises(UsageError, match=f"cannot listen on --host 127.0.0.1 --port {port}: "):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_out_of_range_is_refused(port):
    with pytest.raises(UsageError, match=f"--port {port}: must be from 0 to 65535"):
        listen("127.0.0.1", port)
