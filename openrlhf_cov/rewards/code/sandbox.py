"""A sandbox by the operating system for programs that a model wrote: started once, then a fork for each program.

bubblewrap gives one process, ``inside/supervisor.py``, namespaces of its own and a read-only root with Python's
library in it and nothing else; no network, no environment, no file of the host. The supervisor starts each program in
further namespaces with an empty ``/tmp``, limits and a seccomp filter. Here stands what the host sees of it: programs
go in as sealed memory files, and come out as an exit status and whatever they wrote, up to a limit.
"""

import ctypes
import fcntl
import json
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from openrlhf_cov.rewards.code.inside.supervisor import ENDED, LIMITS, READY

BUBBLEWRAP = "bwrap"
INSIDE = Path(__file__).with_name("inside")
# Where Python and the supervisor are inside, wherever they are here.
PYTHON = "/python"
MOUNTED_INSIDE = "/inside"
SUPERVISOR = (f"{PYTHON}/bin/python", "-s", "-S", "-B", f"{MOUNTED_INSIDE}/supervisor.py")
START_SECONDS = 60.0
# How long the end of a killed program may take; more than that is a sandbox that does not work.
KILL_SECONDS = 60.0
# Seconds, at most, by which a deadline is later on a machine that keeps programs waiting for a processor.
MAX_WAITED = 120.0
# Seconds between two looks at the time that programs waited, once a deadline has passed.
LOOK_SECONDS = 0.25
# The end of what a program writes there is kept for a message.
STDERR_BYTES = 2_000
CHUNK = 1 << 16
# User of programs where this process is root, so that limits hold for them; else they run as this process does.
NOBODY = 65534
CLONE_NEWUSER = 0x10000000
SYSTEM_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


class SandboxError(Exception):
    """There is no sandbox on this machine, or it does not work any more; the message is one line that says why."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one process of a program."""

    # CPU time. Wall clock is limited by whoever waits.
    seconds: float
    # Address space, the interpreter's own included.
    memory_mb: int = 1024
    files_mb: int = 64
    # Limit of stdout, and the same limit of stderr.
    output_bytes: int = 1 << 22
    threads: int = 64


Reason = Literal["exited", "time", "output"]
# A function that gives the seconds that are left until a deadline.
Left = Callable[[float], float]


@dataclass(frozen=True, kw_only=True)
class ProgramEnd:
    """The end of a program: by itself, or killed for its time or output."""

    reason: Reason
    # Exit status; -N for a signal N.
    status: int
    # CPU time.
    seconds: float
    stdout: bytes = b""
    stderr: str = ""


class RunningProgram:
    """A program that runs. ``finish`` must be called."""

    def __init__(self, sandbox: "Sandbox", answer: socket.socket, stdout: int, stderr: int, limits: Limits) -> None:
        self._sandbox = sandbox
        self._answer = answer
        self._limits = limits
        self._stdout = stdout
        self._stderr = stderr
        self._open = {stdout, stderr}
        self._kept = {stdout: bytearray(), stderr: bytearray()}
        self._counts = {stdout: 0, stderr: 0}
        self._reason: Reason = "exited"

    def kill(self, reason: Reason) -> None:
        """Ask the supervisor to kill the program. The first ``reason`` is the one that is reported."""
        if self._reason == "exited":
            self._reason = reason
        with suppress(OSError):
            self._answer.shutdown(socket.SHUT_WR)

    def finish(self, deadline: float, left: Left | None = None) -> ProgramEnd:
        """Wait for the end of the program and return how it ended.

        Args:
            deadline: A time of ``time.monotonic`` at which a program that still runs is killed.
            left: A function that gives the seconds until a deadline; None for ``Sandbox.left``.

        Raises:
            SandboxError: The program could not be started, does not end after it was killed, or the sandbox has ended.
        """
        try:
            with self._answer:
                status, seconds, _ = ENDED.unpack(self._wait(deadline, left or self._sandbox.left))
        finally:
            for descriptor in self._open:
                os.close(descriptor)
        if status < 0:
            raise SandboxError(f"no program can be started in the sandbox: {os.strerror(-status)}")
        reason = self._reason
        if reason == "exited" and seconds > self._limits.seconds:
            reason = "time"
        return ProgramEnd(
            reason=reason,
            status=os.waitstatus_to_exitcode(status),
            seconds=seconds,
            stdout=bytes(self._kept[self._stdout]),
            stderr=self._kept[self._stderr].decode(errors="replace"),
        )

    def _wait(self, deadline: float, left_until: Left) -> bytes:
        """Return the final report of the stage after reading everything from the pipes."""
        killed = 0.0
        while True:
            left = killed - time.monotonic() if killed else left_until(deadline)
            if killed and left <= 0:
                raise SandboxError(f"a program did not end within {KILL_SECONDS:g} s after it was killed")
            if left <= 0:
                self.kill("time")
                killed = time.monotonic() + KILL_SECONDS
                left = KILL_SECONDS
            ready = readable([self._answer.fileno(), *self._open], left)
            for descriptor in self._open.intersection(ready):
                self._read(descriptor)
            # The report counts once the pipes have nothing more, so that no output is lost.
            if ready == [self._answer.fileno()]:
                ended = self._answer.recv(ENDED.size)
                if len(ended) != ENDED.size:
                    raise SandboxError("the sandbox ended while a program ran in it")
                return ended

    def _read(self, descriptor: int) -> None:
        """Take what a pipe has; kill a program that writes too much."""
        chunk = os.read(descriptor, CHUNK)
        kept = self._kept[descriptor]
        self._counts[descriptor] += len(chunk)
        if not chunk:
            os.close(descriptor)
            self._open.remove(descriptor)
        elif self._counts[descriptor] > self._limits.output_bytes:
            self.kill("output")
        else:
            kept += chunk
            if descriptor == self._stderr:
                del kept[:-STDERR_BYTES]


class Sandbox:
    """One warm sandbox. It is for the thread that makes it, and ends with this thread.

    Raises:
        SandboxError: This machine cannot run a sandbox.
    """

    def __init__(self) -> None:
        path = shutil.which(BUBBLEWRAP)
        if path is None:
            raise SandboxError(f"{BUBBLEWRAP} is not installed (Debian, Ubuntu: apt install bubblewrap)")
        self._uid_inside = INSIDE_NOBODY if os.getuid() == 0 else os.getuid()
        self._control, theirs = socket.socketpair()
        with ExitStack() as stack:
            stack.enter_context(theirs)
            user = str(self._uid_inside)
            passed = [theirs.fileno()]
            how = ["--unshare-user", "--uid", user, "--gid", user]
            if os.getuid() == 0:
                namespace = _user_namespace()
                stack.callback(os.close, namespace)
                passed = [*passed, namespace]
                how = ["--userns", str(namespace)]
            try:
                self._process = subprocess.Popen(
                    [path, *how, *_arguments(), "--", *SUPERVISOR, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=passed,
                    env={},
                )
            except OSError as error:
                raise SandboxError(f"{path} cannot be started: {error.strerror}") from error
        self._await_ready()

    def start(
        self,
        request: dict[str, Any],
        limits: Limits,
        stdin: bytes = b"",
        channel: socket.socket | None = None,
        results: int | None = None,
    ) -> RunningProgram:
        """Start a program.

        Args:
            request: What the process does, as ``inside/program.py`` reads it.
            limits: Limits of the process.
            stdin: The input of the program.
            channel: A socket that the program gets at descriptor 4, or None. It is not closed here.
            results: A descriptor that the program gets as 5, or None. It is not closed here.

        Raises:
            SandboxError: The sandbox has ended.
        """
        with ExitStack() as stack:

            def opened(*descriptors: int) -> tuple[int, ...]:
                for each in descriptors:
                    stack.callback(os.close, each)
                return descriptors

            ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            (source,) = opened(_sealed(json.dumps(request).encode()))
            (text,) = opened(_sealed(stdin))
            out, out_end = os.pipe()
            err, err_end = os.pipe()
            opened(out_end, err_end)
            beside = [theirs.fileno(), text, out_end, err_end, source]
            beside += [each for each in (channel.fileno() if channel else None, results) if each is not None]
            # The kernel limits CPU time in whole seconds; ``finish`` compares it exactly.
            message = LIMITS.pack(
                max(1, math.ceil(limits.seconds)), limits.memory_mb, limits.files_mb, limits.threads, self._uid_inside
            )
            try:
                socket.send_fds(self._control, [message], beside)
            except OSError as error:
                for each in (out, err):
                    os.close(each)
                ours.close()
                raise SandboxError(f"the sandbox has ended: {error.strerror}") from error
        return RunningProgram(self, ours, out, err, limits)

    def run(self, request: dict[str, Any], limits: Limits, stdin: bytes = b"", *, wall: float) -> ProgramEnd:
        """Start a program and wait for its end.

        Args:
            request: What the process does, as ``inside/program.py`` reads it.
            limits: Limits of the process.
            stdin: The input of the program.
            wall: Seconds of wall clock after which the program is killed.

        Raises:
            SandboxError: The sandbox has ended, or no program can be started in it.
        """
        return self.start(request, limits, stdin).finish(time.monotonic() + wall)

    def left(self, deadline: float, *, seconds: float = math.inf, latest: float = math.inf) -> float:
        """Return the seconds until a deadline, which is later by the time for which programs waited for a processor.

        Two processes that send each other messages wait for each other even where the machine is idle, so the time
        of waiting alone could be extended without computing anything that a test needs.

        Args:
            deadline: A time of ``time.monotonic``.
            seconds: CPU time of all running programs. Once they have used more, waiting does not count.
            latest: A time of ``time.monotonic`` beyond which no deadline is moved.
        """
        now = time.monotonic()
        left = deadline - now
        if left > 0:
            return min(left, max(0.0, latest - now))
        if now >= latest or (seconds < math.inf and self.used() > seconds):
            return 0.0
        left += min(MAX_WAITED, self._waited())
        # Looking again soon, as the programs may use up their CPU time meanwhile.
        return min(LOOK_SECONDS, latest - now) if left > 0 else left

    def used(self) -> float:
        """Return the CPU seconds that the processes of programs have used until now."""
        ticks = 0
        for process in self._processes():
            with suppress(OSError, ValueError, IndexError):
                # The name of the process comes before the last bracket, and may hold anything.
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                # Fields 14 and 15 of the file, the time in the program and in the kernel.
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _processes(self) -> list[int]:
        """Return the ids of all processes of programs; none where the kernel does not tell them."""
        processes: list[int] = []
        with suppress(OSError, ValueError):
            (supervisor,) = _children(self._process.pid)
            processes = _children(supervisor)
        for process in processes:  # which grows
            with suppress(OSError, ValueError):
                processes += _children(process)
        return processes

    def _waited(self) -> float:
        """Return the seconds for which programs have waited for a processor; 0 if the kernel does not count them."""
        waited = 0
        for process in self._processes():
            with suppress(OSError, ValueError, IndexError):
                threads = [file.read_text().split() for file in Path(f"/proc/{process}/task").glob("*/schedstat")]
                # The second number is the waiting time in nanoseconds. Threads wait side by side, so the longest wait
                # counts.
                waited += max((int(fields[1]) for fields in threads), default=0)
        return waited / 1e9

    def close(self) -> None:
        """Kill everything inside."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        if self._process.stderr:
            self._process.stderr.close()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await_ready(self) -> None:
        self._control.settimeout(START_SECONDS)
        try:
            said = self._control.recv(len(READY))
        except TimeoutError:
            said = b""
        self._control.settimeout(None)
        if said != READY:
            self._process.kill()
            _, errors = self._process.communicate()
            self._control.close()
            lines = errors.decode(errors="replace").strip().splitlines() or ["it does not answer"]
            raise SandboxError(f"{BUBBLEWRAP} does not work here: {lines[-1][:300]}")


# The number of ``NOBODY`` in the namespace that root makes, where 0 is root itself.
INSIDE_NOBODY = 1


def _arguments() -> list[str]:
    """Return bubblewrap's arguments: namespaces, capabilities of the supervisor, the root of files."""
    arguments = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"]
    arguments += ["--as-pid-1", "--die-with-parent", "--new-session", "--hostname", "sandbox", "--cap-drop", "ALL"]
    capabilities = ["CAP_SYS_ADMIN"]
    if os.getuid() == 0:
        capabilities += ["CAP_SETUID", "CAP_SETGID", "CAP_KILL"]
    for capability in capabilities:
        arguments += ["--cap-add", capability]
    for folder in ("/dev", "/etc", "/tmp", "/usr", PYTHON, f"{PYTHON}/bin"):
        arguments += ["--perms", "0755", "--dir", folder]
    for library in map(Path, SYSTEM_LIBRARIES):
        if library.is_symlink():
            arguments += ["--symlink", os.readlink(library), str(library)]
        elif library.is_dir():
            arguments += ["--perms", "0755", "--dir", str(library)]
            for folder in _shared_libraries(library):
                arguments += ["--ro-bind", str(folder), str(folder)]
    arguments += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    standard_library = Path(sysconfig.get_path("stdlib"))
    libraries = f"{PYTHON}/{standard_library.parent.name}"
    if str(standard_library.parent) in SYSTEM_LIBRARIES:  # Python's own folder is one of hundreds there
        bound = standard_library
        inside = f"{libraries}/{standard_library.name}"
    else:
        bound = standard_library.parent
        inside = libraries
    arguments += ["--perms", "0755", "--dir", libraries, "--ro-bind", str(bound), inside]
    for folder in _foreign_packages(bound, inside):
        arguments += ["--perms", "0755", "--tmpfs", folder, "--remount-ro", folder]
    arguments += ["--ro-bind", os.path.realpath(sys.executable), f"{PYTHON}/bin/python"]
    arguments += ["--ro-bind", str(INSIDE), MOUNTED_INSIDE]
    for device in DEVICES:
        arguments += ["--dev-bind", device, device]
    arguments += ["--remount-ro", "/", "--chdir", "/"]
    # With a fixed hash seed, sets have one order in every run, so that a verdict can be repeated. An arena of malloc
    # takes 64 MiB of address space, and each thread of a library its stack; the memory limit counts both.
    environment = {
        "PYTHONHOME": PYTHON,
        "LD_LIBRARY_PATH": libraries,
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "MALLOC_ARENA_MAX": "1",
        "OMP_NUM_THREADS": "1",
        "HOME": "/tmp",
    }
    for name, value in environment.items():
        arguments += ["--setenv", name, value]
    return arguments


def _shared_libraries(library: Path) -> list[Path]:
    """Return the folders of a system library that programs need; the library exists.

    Debian keeps shared libraries in a folder named after the machine. The folders beside it hold programs and packages
    of this machine, which nothing inside needs. Other systems keep all files in one folder.
    """
    folders = sorted(library.glob("*-linux-gnu*"))
    return [*folders, *library.glob("locale")] if folders else [library]


def _foreign_packages(library: Path, inside: str) -> list[str]:
    """Return the folders with installed packages of this machine, which empty folders hide.

    A program could add such a folder to ``sys.path``. What a program finds must not depend on the machine, and
    packages may hold settings and keys.

    Args:
        library: Folder with Python's library here.
        inside: The same folder inside.
    """
    places = {library: inside} | {each: str(each) for each in map(Path, SYSTEM_LIBRARIES) if each.is_dir()}
    names = ("site-packages", "dist-packages")
    return [
        f"{place}/{folder.relative_to(root)}"
        for root, place in places.items()
        if place == inside or _shared_libraries(root) == [root]
        for name in names
        for folder in sorted([*root.glob(name), *root.glob(f"*/{name}")])
        if folder.is_dir() and not folder.is_symlink()
    ]


def readable(descriptors: list[int], seconds: float) -> list[int]:
    """Return the descriptors that can be read or whose other end is closed.

    Args:
        descriptors: The open descriptors to wait for.
        seconds: The longest wait; below 0 means no wait. The result is empty if nothing happens in this time.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)]


def _children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _sealed(content: bytes) -> int:
    """Return the descriptor of a file in memory with this content. It is at its beginning, and cannot be changed."""
    descriptor = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _user_namespace() -> int:
    """Return the descriptor of a user namespace in which 0 is root and ``INSIDE_NOBODY`` is ``NOBODY``.

    Programs run as the latter, because root has no limit of threads. Only root can make the namespace.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        failed = libc.unshare(CLONE_NEWUSER) != 0
        os.write(there, b"\1" if failed else b"\0")
        signal.pause()
        os._exit(0)
    try:
        if os.read(here, 1) != b"\0":
            raise SandboxError("this machine lets nobody make user namespaces (a container without them?)")
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(f"0 0 1\n{INSIDE_NOBODY} {NOBODY} 1\n")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError(f"no user namespace can be made here: {error.strerror}") from error
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(here)
        os.close(there)
