import socket
import subprocess
import sys

import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards.serving import listen

# A process whose limit of open files is 256, or the hard limit of this host where that is smaller.
RAISED = """
import resource
from openrlhf_cov.rewards.serving import raise_file_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
raise_file_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))
"""


@pytest.mark.slow
def test_the_limit_of_files_is_raised_to_that_of_the_host():
    process = subprocess.run([sys.executable, "-c", RAISED], capture_output=True, text=True, check=True)
    assert process.stdout == "True\n"


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
