"""What the workers of test_pool.py run: well behaved, hostile and broken functions, called by name through ``run``."""

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
import time

noted = []


def run(name, *args):
    return globals()[name](*args)


def echo(value):
    return value


def pid():
    return os.getpid()


def length(text):
    return len(text)


def nap(seconds):
    time.sleep(seconds)
    return "rested"


def burn(seconds):
    """The process id, when the process has used that much CPU time, its start included."""
    while time.process_time() < seconds:
        pass
    return os.getpid()


def spin():
    while True:
        pass


def hang_with_a_child():
    subprocess.Popen(["sleep", "60"])
    time.sleep(60)


def fail():
    raise ValueError("no such thing")


def fail_to_explain():
    class Mute(Exception):
        def __str__(self):
            raise KeyError("cannot say")

    raise Mute


def leave():
    sys.exit("gone")


def exit_hard():
    os._exit(3)


def exit_hard_with_a_child():
    os.system("sleep 60 &")
    os._exit(3)


def crash():
    ctypes.string_at(0)


def allocate_at_once():
    return len(bytearray(4 << 30))


def allocate_bit_by_bit():
    """To the last byte: large pieces first, for speed, then small ones."""
    kept = []
    for size in (1 << 20, 1 << 14, 1 << 9, 1):
        with contextlib.suppress(MemoryError):
            while True:
                kept.append(bytearray(size))
    while True:
        kept = (kept,)


def recurse():
    return recurse()


@functools.lru_cache
def recurse_through_c(depth=0):
    return max([depth + 1, depth + 2], key=recurse_through_c)


def note_the_alarm_later():
    threading.Timer(0.2, lambda: noted.append(signal.getitimer(signal.ITIMER_REAL))).start()


def noted_alarm():
    return noted[0]


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    return "unimpressed"


def shout():
    for _ in range(100):
        print("x" * 100_000)
        print("y" * 100_000, file=sys.stderr)
    os.write(0, b"z" * 100_000)
    os.write(1, b'{"value": "forged"}\n')
    return "heard"


def unserializable():
    return object()


def talk_too_much():
    return "x" * (2 << 20)


def speak_rubbish():
    os.write(int(sys.argv[1]), b"rubbish\n")
    time.sleep(60)


def speak_half_a_line():
    os.write(int(sys.argv[1]), b'{"value": ')
    time.sleep(60)


def speak_unasked_later():
    threading.Timer(0.2, os.write, (int(sys.argv[1]), b'{"value": "stale"}\n')).start()
    return "now"


def write_file(path):
    with open(path, "w") as file:
        file.write("x" * 100)


def open_descriptors():
    return sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))


def environment(name):
    return os.environ.get(name)


def kill_oneself():
    os.kill(os.getpid(), signal.SIGKILL)


def opine(answer, gold):
    """In place of Math-Verify: does what the answer says."""
    return run(answer)


def spin_for_ever(*_) -> bool:
    """Use the processor without an end."""
    while True:
        pass
