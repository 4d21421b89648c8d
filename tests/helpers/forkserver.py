"""Python processes of end-to-end tests that start without importing: a server has imported before, and forks.

Importing PyTorch, transformers, vLLM and DeepSpeed is most of the time of a small run, in each of its processes.
``write_program`` makes a program that takes the place of ``python``: command lines with a word of ``FORKED`` become a
fork of a server, with the arguments, variables, folder and open files of the caller, whose signals they get and with
which they end. All others are Python's own, and so are all while no server listens.
"""

import gc
import importlib
import json
import multiprocessing
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fcntl import F_DUPFD, fcntl
from pathlib import Path
from runpy import run_module, run_path

import psutil
from processes import children_of, command_line

from openrlhf_cov.utils.orphans import die_with_parent

# In a command line: a run, an evaluation, a server of vLLM, a worker of Ray, and a child that one of these starts with
# multiprocessing.
FORKED = (
    "openrlhf_cov.cli.train_ppo_ray",
    "openrlhf_cov.cli.evaluate",
    "vllm.entrypoints.openai.api_server",
    "setup_worker.py",
    "spawn_main",
)
# Without Ray, which reads variables of a process once, when it is imported.
IMPORTED = """
    torch deepspeed transformers transformers.models.llama.modeling_llama datasets peft openrlhf.models
    openrlhf.datasets vllm vllm.engine.arg_utils vllm.v1.worker.cpu_worker vllm.v1.engine.input_processor 
    vllm.v1.engine.output_processor vllm.model_executor.models.llama openrlhf_cov.trainer.preflight.preflight
""".split()
# They take turns from one run to the next, so that no two in a row have the hashes of one process.
SERVERS = 2
# Time that the servers have until they listen: on a busy machine importing takes minutes.
START_SECONDS = 1200.0
# Open files of a request, as many as Linux passes at once.
MAX_FILES = 253
# Above the numbers of open files.
FAR = 1000
# The ``ray`` whose workers are started by a program, beside it.
RAY = """#!{python}
import sys
sys.executable = {program!r}
from ray.scripts.scripts import main
main()
"""

PROGRAM = """#!{python} -ISE
import ctypes, json, os, signal, socket, sys
words = sys.argv[1:]
job = int(os.environ.get("RAY_JOB_ID", "0")[:2], 16)  # 01000000 is the first
with socket.socket(socket.AF_UNIX) as server:
    try:
        if not any(each in " ".join(words[:6]) for each in {forked}):
            raise ConnectionError
        server.connect(f"{{sys.argv[0]}}.{{job % {servers}}}")
    except OSError:
        os.execv({python!r}, [{python!r}, *words])
    if any("spawn_main" in each for each in words):  # as vLLM's core, which ends with the process that started it
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    files = [number for number in files if number != server.fileno() and os.path.exists(f"/proc/self/fd/{{number}}")]
    text = json.dumps(dict(words=words, variables=dict(os.environ), folder=os.getcwd(), files=files)).encode()
    socket.send_fds(server, [len(text).to_bytes(4, "big")], files)
    server.sendall(text)
    answer = server.recv(4)
    if not answer:
        os._exit(1)
    child = int.from_bytes(answer, "big")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: os.kill(child, number))
    ended = server.recv(4)
status = int.from_bytes(ended, "big", signed=True) if ended else 1
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


def write_program(path: Path) -> None:
    """The program, and a ``ray`` beside it whose workers it starts."""
    for place, text in ((path, PROGRAM), (path.with_name("ray"), RAY)):
        place.write_text(text.format(python=sys.executable, program=str(path), servers=SERVERS, forked=FORKED))
        place.chmod(0o755)


@contextmanager
def serving(program: Path, variables: Mapping[str, str]) -> Iterator[Callable[[], None]]:
    """Let the servers of a program run while the body runs, with these variables beside those of this process.

    Yields a function that waits until they listen.
    """
    with ExitStack() as stack:
        servers = {}
        for number in range(SERVERS):
            said = stack.enter_context(program.with_suffix(f".{number}.log").open("w"))
            command = [sys.executable, __file__, str(program), str(number)]
            settings = dict(stdin=subprocess.DEVNULL, stdout=said, stderr=said, env={**os.environ, **variables})
            settings |= dict(preexec_fn=die_with_parent)
            servers[number] = stack.enter_context(subprocess.Popen(command, **settings))
            stack.callback(servers[number].terminate)
        deadline = time.monotonic() + START_SECONDS

        def wait() -> None:
            for number, server in servers.items():
                while not place_of(program, number).exists():
                    log = program.with_suffix(f".{number}.log")
                    assert server.poll() is None, f"expected of a server: to listen\n{log.read_text()}"
                    assert time.monotonic() < deadline, (
                        f"expected of server {number}: to listen within {START_SECONDS:g} s\n{log.read_text()}"
                    )
                    time.sleep(0.05)

        yield wait


def forks() -> list[psutil.Process]:
    """Processes of runs that the servers of this process made and that live; Ray cannot give these its titles."""
    servers = (each for each in children_of(os.getpid(), recursive=False) if __file__ in command_line(each))
    return [child for server in servers for child in children_of(server.pid, recursive=False)]


def place_of(program: Path, number: int) -> Path:
    """Where a server of a program listens."""
    return program.with_name(f"{program.name}.{number}")


@dataclass
class Request:
    """What a caller is to be."""

    # Arguments of Python.
    words: list[str]
    variables: dict[str, str]
    folder: str
    # Number there -> number here.
    files: dict[int, int]


def read_request(caller: socket.socket) -> Request:
    """ConnectionError where the caller ends before all is said."""
    head, received, *_ = socket.recv_fds(caller, 4, MAX_FILES)
    size, text = int.from_bytes(head, "big"), b""
    while head and len(text) < size and (more := caller.recv(size - len(text))):
        text += more
    if not head or len(text) < size:
        for number in received:
            os.close(number)
        raise ConnectionError
    content = json.loads(text)
    return Request(**content | {"files": dict(zip(content["files"], received, strict=True))})


class Server:
    """Forks for its callers."""

    def __init__(self, place: Path) -> None:
        self.events = selectors.DefaultSelector()
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(place))
        self.listening.listen(64)
        self.events.register(self.listening, selectors.EVENT_READ, self.fork)

    def serve(self) -> Request:
        """Returns in the children alone."""
        while True:
            for key, _ in self.events.select():
                if request := key.data():
                    return request

    def fork(self) -> Request | None:
        caller, _ = self.listening.accept()
        try:
            request = read_request(caller)
        except (ConnectionError, LookupError, TypeError, ValueError):
            caller.close()
            return None
        child = os.fork()
        if child == 0:
            for key in list(self.events.get_map().values()):
                os.close(key.fd)
            self.events.close()
            caller.detach()
            return request
        for number in request.files.values():
            os.close(number)
        with suppress(OSError):
            caller.sendall(child.to_bytes(4, "big"))
        watched = os.pidfd_open(child)

        def kill() -> None:  # the caller went away, perhaps after its child, which is waited for by then
            if caller.fileno() >= 0:
                os.kill(child, signal.SIGKILL)

        self.events.register(watched, selectors.EVENT_READ, lambda: self.end(child, watched, caller))
        self.events.register(caller, selectors.EVENT_READ, kill)
        return None

    def end(self, child: int, watched: int, caller: socket.socket) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for each in (watched, caller):
            self.events.unregister(each)
        with suppress(OSError):
            caller.sendall(status.to_bytes(4, "big", signed=True))
        caller.close()
        os.close(watched)


def become(request: Request) -> None:
    """Make this process what the request asks for, before it runs."""
    os.setsid()
    moved = {fcntl(number, F_DUPFD, FAR): there for there, number in request.files.items()}  # out of each other's way
    for number in request.files.values():
        os.close(number)
    for number, there in moved.items():
        os.dup2(number, there)
        os.close(number)
    os.environ.clear()
    os.environ.update(request.variables)
    os.chdir(request.folder)
    take_threads()


def take_threads() -> None:
    """As many as the variables say, which PyTorch has read when it was imported."""
    import torch

    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))


def run(words: Sequence[str]) -> None:
    """What ``python`` does with these arguments."""
    while words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words = words[2 if words[0] in ("-W", "-X") else 1 :]
    how, *rest = words
    if how == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    elif how == "-m":
        sys.argv = rest
        run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        if how.endswith("setup_worker.py"):  # becomes a worker: bash -c "exec python WORDS"
            os.execvp = lambda _, args: run_worker(args[-1])
        sys.argv = list(words)
        run_path(how, run_name="__main__")


def run_worker(line: str) -> None:
    """The worker whose variables are set by now."""
    take_threads()
    run(shlex.split(line)[2:])


if __name__ == "__main__":
    from openrlhf_cov.cluster import cpu_host

    program, number = Path(sys.argv[1]), int(sys.argv[2])
    cpu_host.install()
    gc.disable()
    for name in IMPORTED:
        importlib.import_module(name)
    assert "ray" not in sys.modules
    gc.freeze()
    multiprocessing.set_executable(str(program))
    asked = Server(place_of(program, number)).serve()
    gc.enable()
    become(asked)
    run(asked.words)
