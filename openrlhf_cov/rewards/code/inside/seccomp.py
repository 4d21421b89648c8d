"""The system calls that a program may make: an allowlist as a BPF program (pure), and its installation.

What is not in ``ALLOWED`` is answered with ENOSYS, as by a kernel that has no such call, so that libraries take their
older way; what would make a process or another program is answered with EPERM. There are threads, no processes: thus
the memory limit of one process is that of the program, and nothing survives it.
"""

import ctypes
import errno
import platform
import struct

# name: number on x86_64, number on aarch64 (None: there is no such call)
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "lseek": (8, 62), "close": (3, 57), "close_range": (436, 436), "dup": (32, 23),
    "dup2": (33, None), "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59), "sendfile": (40, 71),
    "copy_file_range": (326, 285), "fsync": (74, 82), "fdatasync": (75, 83), "flock": (73, 32),
    "open": (2, None), "openat": (257, 56), "stat": (4, None), "lstat": (6, None), "fstat": (5, 80),
    "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44), "access": (21, None),
    "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None), "readlinkat": (267, 78),
    "getdents": (78, None), "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37),
    "symlink": (88, None), "symlinkat": (266, 36), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53),
    "truncate": (76, 45), "ftruncate": (77, 46), "utimensat": (280, 88), "umask": (95, 166), "fadvise64": (221, 223),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "brk": (12, 214),
    "madvise": (28, 233), "futex": (202, 98), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "rseq": (334, 293), "set_tid_address": (218, 96), "membarrier": (324, 283), "arch_prctl": (158, None),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getcpu": (309, 168), "getpid": (39, 172),
    "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176),
    "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150), "getgroups": (115, 158),
    "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156), "getpriority": (140, 141),
    "getrusage": (98, 165), "getrlimit": (97, 163), "setrlimit": (160, 164), "prlimit64": (302, 261),
    "times": (100, 153), "sysinfo": (99, 179), "uname": (63, 160), "getrandom": (318, 278),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "alarm": (37, None), "pause": (34, None),
    "getitimer": (36, 102), "setitimer": (38, 103), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "restart_syscall": (219, 128), "kill": (62, 129),
    "tkill": (200, 130), "tgkill": (234, 131), "wait4": (61, 260), "waitid": (247, 95), "exit": (60, 93),
    "exit_group": (231, 94), "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None),
    "epoll_pwait": (281, 22), "eventfd2": (290, 19), "sendto": (44, 206), "recvfrom": (45, 207),
    "sendmsg": (46, 211), "recvmsg": (47, 212), "shutdown": (48, 210), "getsockname": (51, 204),
    "getpeername": (52, 205), "getsockopt": (55, 209), "setsockopt": (54, 208),
}  # fmt: skip
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
}  # fmt: skip
CLONE = (56, 220)
SOCKETPAIR = (53, 199)
IOCTL = (16, 29)
FCNTL = (72, 25)

# Machine -> column of the tables above, and the kernel's name for it (AUDIT_ARCH).
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

CLONE_THREAD = 0x10000
# All flags of clone that make a namespace.
CLONE_NEW = 0x7E020080
AF_UNIX = 1
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
F_SETPIPE_SZ = 1031

# BPF: load a word of the call's description; jump if equal; jump if a bit is set; the verdict.
LOAD = 0x20
EQUAL = 0x15
ANY_BIT = 0x45
RETURN = 0x06
# Where these stand in the description (struct seccomp_data).
NUMBER = 0
ARCHITECTURE = 4
ARGUMENTS = 16
ALLOW = 0x7FFF0000
ERROR = 0x00050000
KILL = 0x80000000

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
FILTER_MODE = 2

# Code, jump if true, jump if false, operand.
Instruction = tuple[int, int, int, int]


def filter_program(machine: str) -> list[Instruction]:
    """Return the filter for a machine (as ``platform.machine()`` calls it).

    Raises:
        KeyError: The machine is not in ``MACHINES``.
    """
    column, audit = MACHINES[machine]
    refuse = (RETURN, 0, 0, ERROR | errno.EPERM)
    unknown = (RETURN, 0, 0, ERROR | errno.ENOSYS)
    allow: Instruction = (RETURN, 0, 0, ALLOW)
    program: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, audit),
        (RETURN, 0, 0, KILL),  # the numbers of another machine's calls mean other calls
        (LOAD, 0, 0, NUMBER),
    ]
    for numbers, verdict in ((ALLOWED, allow), (REFUSED, refuse)):
        for number in (each[column] for each in numbers.values()):
            if number is not None:
                program += [(EQUAL, 0, 1, number), verdict]
    # a thread, and in no namespace of its own
    program += [
        (EQUAL, 0, 5, CLONE[column]),
        (LOAD, 0, 0, ARGUMENTS),
        (ANY_BIT, 2, 0, CLONE_NEW),
        (ANY_BIT, 0, 1, CLONE_THREAD),
        allow,
        refuse,
    ]
    program += [(EQUAL, 0, 4, SOCKETPAIR[column]), (LOAD, 0, 0, ARGUMENTS), (EQUAL, 0, 1, AF_UNIX), allow, refuse]
    program += [(EQUAL, 0, 4, FCNTL[column]), (LOAD, 0, 0, ARGUMENTS + 8), (EQUAL, 1, 0, F_SETPIPE_SZ), allow, refuse]
    program += [(EQUAL, 0, 2 + 2 * len(IOCTLS), IOCTL[column]), (LOAD, 0, 0, ARGUMENTS + 8)]
    for request in IOCTLS:
        program += [(EQUAL, 0, 1, request), allow]
    return [*program, refuse, unknown]


def encode(program: list[Instruction]) -> bytes:
    """Return the program as the kernel reads it."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def install(libc: ctypes.CDLL) -> None:
    """Install the system call filter for this thread and all threads it starts. It cannot be removed.

    Args:
        libc: The C library, loaded with ``use_errno``.

    Raises:
        OSError: The kernel refuses the filter.
    """
    code = encode(filter_program(platform.machine()))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, FILTER_MODE, program, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "the kernel takes no seccomp filter")
