"""Processes that are forked from a server are to their callers what Python would be (``helpers/forkserver.py``)."""

import os
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import forkserver
import psutil
import pytest
from forkserver import FORKED, SERVERS, place_of
from processes import HANGS, children_of, command_line

pytestmark = pytest.mark.e2e

LOADED = "import sys; assert 'vllm' in sys.modules"


@pytest.fixture
def start(ray, tmp_path):
    """Function (code, settings of ``Popen``) -> a process that runs it, forked from the server of the first job."""

    with ExitStack() as started:

        def run(code: str, **settings) -> subprocess.Popen:
            command = [ray["COV_TEST_PYTHON"], "-c", f"{code}  # {FORKED[-1]}", "word"]
            settings = {"cwd": tmp_path, "text": True, "stdout": subprocess.PIPE} | settings
            return started.enter_context(subprocess.Popen(command, **settings))

        yield run


def test_it_has_arguments_variables_folder_files_and_status_of_its_caller(start, tmp_path):
    code = (
        f"{LOADED}; import os; print(sys.argv[1], os.environ['OF_TEST'], os.getcwd(), sys.stdin.read()); sys.exit(7)"
    )
    process = start(code, stdin=subprocess.PIPE, env=os.environ | {"OF_TEST": "x"})
    said, _ = process.communicate("asked", timeout=HANGS)
    assert said == f"word x {tmp_path} asked\n"
    assert process.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_gets_the_signals_of_its_caller_and_ends_with_it(start, number):
    process = start("import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    child = psutil.Process(int(process.stdout.readline()))
    process.send_signal(number)
    assert process.wait(timeout=HANGS) == -number
    child.wait(timeout=HANGS)


def test_its_caller_ends_as_it_does(start):
    assert start("import os; os.kill(os.getpid(), 9)").wait(timeout=HANGS) == -signal.SIGKILL


def test_callers_that_break_off_do_not_end_a_server(start, ray):
    places = [place_of(Path(ray["COV_TEST_PYTHON"]), number) for number in range(SERVERS)]
    for place in places:
        for said in (b"", b"\0\0", b"\0\0\0\x09{", b"\0\0\0\x02{}"):
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(str(place))
                caller.sendall(said)
    time.sleep(0.5)
    assert start(LOADED).wait(timeout=HANGS) == 0


def test_a_server_that_does_not_listen_in_time_is_not_waited_for(tmp_path, monkeypatch):
    program = tmp_path / "python"
    monkeypatch.setattr(forkserver, "START_SECONDS", 0.0)
    with (
        pytest.raises(AssertionError, match="expected of server 0: to listen within 0 s"),
        forkserver.serving(program, {}),
    ):
        pass
    assert [child for child in children_of(os.getpid()) if str(program) in command_line(child)] == []
