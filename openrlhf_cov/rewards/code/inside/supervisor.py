"""The first process of a sandbox, warm: it starts each program in namespaces of its own and tells how it ended.

Run by bubblewrap as ``supervisor.py FD``. Over the socket FD come messages of a fixed size, ``LIMITS``, with
descriptors beside them: a socket to answer on, then what the program gets as 0, 1, 2, the request at 3 and, where
there are any, a channel at 4 and a pipe for results at 5. Nothing that belongs to a program is ever read here, so that
no program finds another one's in the memory that it inherits.

For each message a stage process makes a mount namespace with an empty ``/tmp`` and a PID namespace, starts the program
there as its first process, and stays outside. It kills the program when the other end of the socket is closed, else
it answers ``ENDED``. Uses nothing but the standard library, which is all there is inside.
"""

import ctypes
import gc
import os
import resource
import select
import signal
import socket
import struct
import sys
from contextlib import suppress

# Seconds of CPU, MiB of memory, MiB of files, threads, user id of programs.
LIMITS = struct.Struct("=IIIII")
# Wait status or, below 0, the number of the error that kept it from starting; seconds of CPU; MiB at most.
ENDED = struct.Struct("=idI")
MAX_DESCRIPTORS = 7
READY = b"ready"

MIB = 1 << 20
OPEN_FILES = 128
# Number of files in /tmp.
FILES = 4096
# Stack of the first thread; other threads get the stack that the C library gives them.
STACK_MIB = 96

CLONE_NEWNS = 0x20000
CLONE_NEWPID = 0x20000000
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
PR_SET_PDEATHSIG = 1
CAPABILITY_VERSION = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Start programs until the other end of the socket is closed."""
    import program

    control = socket.socket(fileno=int(sys.argv[1]))
    program.warm_up()
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))  # whoever started this may have had little time
    # Programs are forks, which share the memory of objects that nobody touches: frozen ones are never looked at again.
    gc.collect()
    gc.freeze()
    control.sendall(READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, LIMITS.size, MAX_DESCRIPTORS)
        if len(message) != LIMITS.size:
            return
        if os.fork() == 0:
            try:
                control.close()
                stage(LIMITS.unpack(message), descriptors)
            finally:
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


def stage(limits: tuple[int, ...], descriptors: list[int]) -> None:
    """Run one program to its end, or kill it when nobody waits for it any more.

    The result is sent as ``ENDED`` over the first descriptor.

    Args:
        limits: The fields of ``LIMITS``.
        descriptors: The socket to answer on, then the descriptors of the program in the order of their numbers.
    """
    answer = socket.socket(fileno=descriptors[0])
    try:
        separate(limits)
        child = os.fork()
        if child == 0:
            become(limits, descriptors[1:])  # does not return
    except OSError as error:
        answer.sendall(ENDED.pack(-(error.errno or 1), 0.0, 0))
        return
    for descriptor in descriptors[1:]:
        os.close(descriptor)
    poll = select.poll()
    poll.register(answer, select.POLLIN)
    poll.register(os.pidfd_open(child), select.POLLIN)
    if any(descriptor == answer.fileno() for descriptor, _ in poll.poll()):
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    with suppress(OSError):
        answer.sendall(ENDED.pack(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024))


def separate(limits: tuple[int, ...]) -> None:
    """Make new mounts, with an empty /tmp of limited size, and for the child a new PID namespace."""
    _, _, files, _, user = limits
    check(libc.unshare(CLONE_NEWNS | CLONE_NEWPID))
    options = f"size={files}m,nr_inodes={FILES},mode=700,uid={user},gid={user}"
    check(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options.encode()))


def become(limits: tuple[int, ...], descriptors: list[int]) -> None:
    """Drop all privileges in the child, run the program, and end this process with its exit status.

    Args:
        limits: The fields of ``LIMITS``.
        descriptors: The descriptors that the program gets as 0, 1, 2 and so on. All others are closed.
    """
    status = 1
    try:
        arrange(descriptors)
        restrict(*limits)
        import program

        status = program.run()
    except BaseException as error:  # nothing of this process may return into the stage's code
        with suppress(BaseException):
            sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(status)


def arrange(descriptors: list[int]) -> None:
    """Put the descriptors at 0, 1, 2 … and close all others."""
    # All of them move up first, so that none is overwritten before it gets to its place.
    first_free = max(descriptors) + 1
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, first_free + place)
    for place in range(len(descriptors)):
        os.dup2(first_free + place, place)
    os.closerange(len(descriptors), max(OPEN_FILES, first_free + len(descriptors)) + 1)


def restrict(seconds: int, memory: int, files: int, threads: int, user: int) -> None:
    """Limit this process for good: resources, another user, no capability, no system call that a program does without.

    Args:
        seconds: CPU time.
        memory: Address space in MiB.
        files: Size of each file in MiB.
        threads: Threads of the user, those of this process included.
        user: User and group id that the process gets.

    Raises:
        OSError: The kernel refuses one of these.
    """
    os.umask(0o077)
    for kind, value in (
        (resource.RLIMIT_CPU, seconds + 1),  # whoever waits counts exactly; this is for when nobody does
        (resource.RLIMIT_AS, memory * MIB),
        (resource.RLIMIT_FSIZE, files * MIB),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, threads),
        (resource.RLIMIT_STACK, STACK_MIB * MIB),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 256),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # programs with deep recursion ask for more stack, which the memory limits as well
        resource.setrlimit(kind, (value, hard if kind == resource.RLIMIT_STACK else value))
    if os.getuid() != user:
        # The user comes last: without the rights of root no group can be given up.
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    os.chdir("/tmp")
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    nothing = bytes(24)
    check(libc.capset(header, nothing))
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    # The filter comes last, because it refuses some of the calls above, such as prctl.
    import seccomp

    seccomp.install(libc)


def check(result: int) -> None:
    """Raise OSError for a C function that failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
