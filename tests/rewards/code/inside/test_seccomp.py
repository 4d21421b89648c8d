"""The filter of system calls, run instruction by instruction as the kernel would."""

import errno
import struct

import pytest

from openrlhf_cov.rewards.code.inside import seccomp

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = "allow", "kill"


def decide(machine, number, *arguments, architecture=None):
    """What the filter says to a call."""
    words = [number, architecture or AUDIT[machine], 0, 0]
    for argument in (*arguments, *[0] * (6 - len(arguments))):
        words += [argument & 0xFFFFFFFF, argument >> 32]
    data = struct.pack(f"={len(words)}I", *words)
    program = list(struct.iter_unpack("=HBBI", seccomp.encode(seccomp.filter_program(machine))))
    accumulator, place = 0, 0
    while True:
        code, if_true, if_false, operand = program[place]
        place += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif code == 0x15:
            place += if_true if accumulator == operand else if_false
        elif code == 0x45:
            place += if_true if accumulator & operand else if_false
        elif code == 0x06:
            kinds = {0x7FFF0000: ALLOW, 0x80000000: KILL}
            return kinds.get(operand, operand & 0xFFFF)
        else:
            raise AssertionError(code)


@pytest.mark.parametrize("machine", AUDIT)
def test_reading_writing_and_memory_are_allowed(machine):
    column = seccomp.MACHINES[machine][0]
    for name in ("read", "write", "mmap", "futex", "openat", "exit_group", "getrandom"):
        assert decide(machine, seccomp.ALLOWED[name][column]) == ALLOW


@pytest.mark.slow
@pytest.mark.parametrize("machine", AUDIT)
def test_what_is_on_no_list_does_not_exist(machine):
    column = seccomp.MACHINES[machine][0]
    known = {each[column] for each in (*seccomp.ALLOWED.values(), *seccomp.REFUSED.values())}
    known |= {seccomp.CLONE[column], seccomp.SOCKETPAIR[column], seccomp.IOCTL[column], seccomp.FCNTL[column]}
    for number in set(range(1000)) - known:
        assert decide(machine, number) == errno.ENOSYS


@pytest.mark.parametrize("machine", AUDIT)
def test_clone_makes_threads_alone_and_no_namespace(machine):
    number = seccomp.CLONE[seccomp.MACHINES[machine][0]]
    thread = 0x3D0F00  # as the C library calls it for a thread
    assert decide(machine, number, thread) == ALLOW
    assert decide(machine, number, 17) == errno.EPERM  # fork: SIGCHLD
    assert decide(machine, number, 0x4111) == errno.EPERM  # vfork
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(machine, number, thread | flag) == errno.EPERM


@pytest.mark.parametrize("machine", AUDIT)
def test_no_other_program_is_executed(machine):
    column = seccomp.MACHINES[machine][0]
    for name in ("execve", "execveat"):
        assert decide(machine, seccomp.REFUSED[name][column]) == errno.EPERM


@pytest.mark.parametrize("machine", AUDIT)
def test_arguments_decide_where_a_call_has_many_uses(machine):
    column = seccomp.MACHINES[machine][0]
    assert decide(machine, seccomp.SOCKETPAIR[column], 1) == ALLOW
    assert decide(machine, seccomp.SOCKETPAIR[column], 16) == errno.EPERM  # netlink
    assert decide(machine, seccomp.IOCTL[column], 0, 0x5401) == ALLOW
    assert decide(machine, seccomp.IOCTL[column], 0, 0x5412) == errno.EPERM  # TIOCSTI, which types for another
    assert decide(machine, seccomp.FCNTL[column], 0, 1) == ALLOW
    assert decide(machine, seccomp.FCNTL[column], 0, 1031) == errno.EPERM  # larger pipes: memory nobody counts


@pytest.mark.parametrize("machine", AUDIT)
def test_numbers_of_another_architecture_end_the_program(machine):
    assert decide(machine, 0, architecture=0x40000003) == KILL  # i386, whose call 11 is execve


def test_the_x32_numbers_do_not_exist():
    for number in (0, 1, 9, 57, 59):
        assert decide("x86_64", 0x40000000 + number) == errno.ENOSYS


def test_an_unknown_machine_has_no_filter():
    with pytest.raises(KeyError):
        seccomp.filter_program("riscv64")
