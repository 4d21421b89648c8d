"""What a program finds in the sandbox, what it may use, and what it leaves behind: nothing."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from openrlhf_cov.rewards.code.sandbox import Limits, Sandbox, SandboxError

LEFT_FREE = "import os, threading; print(sorted(os.listdir('/tmp')), threading.active_count(), os.getpid())"
FRESH = b"[] 1 1\n"


@pytest.fixture
def cost(run):
    """Run a hostile program; afterwards the next one finds the sandbox as the first one did."""

    def of(source, **given):
        ending = run(textwrap.dedent(source), **given)
        assert run(LEFT_FREE).stdout == FRESH
        return ending

    return of


def test_a_program_reads_its_input_and_prints(run):
    ending = run("print(input()[::-1])", b"hello\n")
    assert (ending.reason, ending.status, ending.stdout) == ("exited", 0, b"olleh\n")


def test_there_is_nothing_of_the_host(run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    source = """
import os
print(sorted(os.environ))
for path in ('/root', '/home', '/proc', '/sys', '/etc/passwd', '/usr/bin', '/var', '/run', HERE):
    print(os.path.exists(path), end=' ')
print(os.getuid() != 0, os.listdir('/dev'), os.uname().nodename)
""".replace("HERE", repr(str(Path.cwd())))
    names, rest = run(source).stdout.decode().splitlines()
    assert "HF_TOKEN" not in names
    assert rest.startswith("False " * 9 + "True ")
    assert rest.endswith("sandbox")


def test_nothing_can_be_written_but_in_tmp(run):
    source = """
import os
for path in ('/', '/dev', '/inside', '/python/lib', '/etc', '/usr/lib'):
    try:
        open(path + '/x', 'w')
    except OSError as error:
        print(error.errno in (13, 30), end=' ')
    try:
        os.remove('/inside/program.py')
    except OSError as error:
        print(error.errno in (13, 30), end=' ')
open('/tmp/x', 'w').write('kept')
print(open('/tmp/x').read())
"""
    assert run(source).stdout == b"True " * 12 + b"kept\n"
    assert run("import os; print(os.listdir('/tmp'))").stdout == b"[]\n"


@pytest.mark.slow
def test_a_deleted_root_is_nobody_elses(cost):
    source = """
    import shutil
    for place in ('/inside', '/python', '/usr', '/tmp', '/'):
        shutil.rmtree(place, ignore_errors=True)
    """
    assert cost(source).reason in ("exited", "time")  # as fast as it can walk through all that it may not delete


@pytest.mark.parametrize(
    "source",
    [
        "import os\nwhile True: os.fork()",
        "import os\nos.system('sh')",
        "import subprocess\nsubprocess.run(['/python/bin/python', '-c', '1'])",
        "import os\nos.execv('/python/bin/python', ['python', '-c', 'print(1)'])",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
    ],
)
def test_no_process_and_no_other_program_is_started(cost, source):
    ending = cost(source)
    assert ending.stdout == b""
    assert ending.seconds < 1.5
    assert ending.reason == "exited"


SYSTEM_CALLS = {
    "ptrace": (101, 117),
    "mount": (165, 40),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "setns": (308, 268),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "process_vm_writev": (311, 271),
    "memfd_create": (319, 279),
    "io_uring_setup": (425, 425),
    "pidfd_getfd": (438, 438),
    "socket": (41, 198),
    "clone3": (435, 435),
    "shmget": (29, 194),
    "chroot": (161, 51),
    "init_module": (175, 105),
    "add_key": (248, 217),
}


def test_dangerous_system_calls_do_not_exist(run):
    column = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
    numbers = [each[column] for each in SYSTEM_CALLS.values()]
    source = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print([(libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno()) for number in {numbers}])
"""
    assert run(source).stdout.decode().strip() == str([(-1, 38)] * len(SYSTEM_CALLS))


def test_no_right_can_be_won_back(run):
    source = """
import os
for call in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.chroot('/tmp'), lambda: os.nice(-5)):
    try:
        print('did', call())
    except OSError as error:
        print(error.errno)
"""
    lines = run(source).stdout.decode().split()
    assert "did" not in lines
    assert len(lines) == 4


def test_ten_thousand_threads_are_the_limit_of_one_program(cost):
    source = """
    import threading, time
    started = 0
    threading.stack_size(65536)
    try:
        for _ in range(10_000):
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
            started += 1
    except RuntimeError:
        pass
    print(started)
    """
    assert int(cost(source).stdout) < 100


def test_a_memory_bomb_ends_itself(cost):
    ending = cost("x = []\nwhile True: x.append(bytearray(1 << 20))")
    assert ending.reason == "exited"
    assert "MemoryError" in ending.stderr


def test_files_have_a_limit_together(cost):
    source = """
    import os
    written = 0
    try:
        for number in range(100):
            with open(f'/tmp/{number}', 'wb') as file:
                for _ in range(64):
                    written += file.write(bytes(1 << 20))
    except OSError:
        print(written >> 20)
    """
    assert 1 <= int(cost(source).stdout) <= 32  # 16 MiB, and what the buffers held


def test_a_million_files_are_not_made(cost):
    source = """
    made = 0
    try:
        for made in range(1_000_000):
            open(f'/tmp/{made}', 'w').close()
    except OSError:
        print(made)
    """
    assert int(cost(source).stdout) < 5_000


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_ten_gigabytes_of_output_end_at_the_limit(cost, stream):
    ending = cost(f"import sys\nfor _ in range(10_000): sys.{stream}.write('x' * 1_000_000)")
    assert ending.reason == "output"
    assert len(ending.stdout) <= 1 << 20
    assert len(ending.stderr) <= 2_000


@pytest.mark.slow
def test_a_program_that_sleeps_costs_its_wall_clock(cost):
    started = time.monotonic()
    assert cost("import time; time.sleep(1000)", wall=0.5).reason == "time"
    assert time.monotonic() - started < 5.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import signal\nfor each in range(1, 65):\n    try: signal.signal(each, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        "import threading\ndef spin():\n    while True: pass\n"
        "for _ in range(8): threading.Thread(target=spin).start()",
        "import resource\ntry: resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\nexcept ValueError: pass\n"
        "while True: pass",
        "9 ** 9 ** 9",
        "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')",
    ],
)
def test_a_program_that_computes_for_ever_costs_its_cpu_time(cost, source):
    limits = Limits(seconds=0.5, memory_mb=256)
    assert cost(source, wall=6.0, limits=limits).reason == "time"


def test_a_program_cannot_kill_what_runs_it(cost):
    source = """
    import os, signal
    for process in (1, 2, 3, -1, 0, os.getppid()):
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
            try:
                os.kill(process, number)
            except OSError:
                pass
    print('alive')
    """
    assert cost(source).reason == "exited"


def test_links_lead_nowhere(cost):
    source = """
    import os
    os.symlink('/', '/tmp/root')
    os.symlink('/etc/shadow', '/tmp/shadow')
    os.symlink('/tmp/loop', '/tmp/loop')
    for path in ('/tmp/root/root', '/tmp/shadow', '/tmp/loop', '/tmp/../../../../etc/passwd', '/proc/self/environ'):
        try:
            open(path)
        except OSError as error:
            print(error.errno in (2, 13, 20, 21, 40), end=' ')
    """
    assert cost(source).stdout == b"True " * 5


def test_no_descriptor_leads_out(run):
    source = """
import os
found = []
for descriptor in range(256):
    try:
        os.fstat(descriptor)
        found.append(descriptor)
    except OSError:
        pass
try:
    os.write(0, b'x')
except OSError as error:
    print(found, error.errno)
"""
    assert run(source).stdout == b"[0, 1, 2] 1\n"  # the input is sealed


def test_earlier_programs_left_nothing_in_memory(run):
    marker = "marker" + "of-an-earlier-program"
    run(f"x = {marker!r} * 3\nprint(x)", marker.encode())
    source = """
import gc, sys
marker = 'marker' + 'of-an-earlier-' + 'program'
print(any(isinstance(each, (str, bytes)) and marker in str(each) and each is not marker for each in gc.get_objects()))
frame = sys._getframe()
while frame:
    for value in frame.f_locals.values():
        if isinstance(value, str) and marker in value and value is not marker and 'gc.get' not in value:
            print('found')
    frame = frame.f_back
"""
    assert run(source).stdout == b"False\n"


def test_what_a_program_changes_in_python_is_its_own(run):
    run("import builtins, math\nbuiltins.print = None\nmath.pi = 3\nimport sys\nsys.modules['json'] = None")
    assert run("import json, math; print(math.pi > 3, json.dumps([]))").stdout == b"True []\n"


def test_threads_asyncio_and_deep_recursion_work(run):
    source = """
import asyncio, sys, threading
from concurrent.futures import ThreadPoolExecutor
async def later():
    await asyncio.sleep(0.001)
    return 1
sys.setrecursionlimit(100_000)
def deep(n):
    return 0 if n == 0 else 1 + deep(n - 1)
with ThreadPoolExecutor(8) as threads:
    print(asyncio.run(later()), sum(threads.map(abs, range(-10, 0))), deep(50_000))
"""
    assert run(source).stdout == b"1 55 50000\n"


def test_exit_status_is_the_programs(run):
    assert run("import sys; sys.exit(7)").status == 7
    assert run("import os; os._exit(9)").status == 9
    assert run("import ctypes; ctypes.string_at(0)").status == -signal.SIGSEGV


def test_two_programs_run_at_once_and_do_not_see_each_other(sandbox):
    limits = Limits(seconds=5, memory_mb=256)
    source = "import os, time; open('/tmp/mine', 'w'); time.sleep(0.3); print(os.listdir('/tmp'), os.getpid())"
    running = [sandbox.start({"mode": "script", "source": source}, limits) for _ in range(3)]
    assert {each.finish(time.monotonic() + 10).stdout for each in running} == {b"['mine'] 1\n"}


@pytest.mark.slow
def test_nothing_is_left_when_the_sandbox_is_closed(run):  # run: this machine has one
    with Sandbox() as own:
        process = own.start({"mode": "script", "source": "while True: pass"}, Limits(seconds=60, memory_mb=256))
        time.sleep(0.3)
        started = psutil.Process(own._process.pid).children(recursive=True)
        assert len(started) == 3  # the supervisor, a stage, the program
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive
    with pytest.raises(SandboxError, match="ended while a program ran"):
        process.finish(time.monotonic() + 5)


@pytest.mark.slow
def test_everything_dies_with_the_process_that_started_it(run):  # run: this machine has one
    code = """
import sys, time
from openrlhf_cov.rewards.code.sandbox import Limits, Sandbox
sandbox = Sandbox()
sandbox.start({"mode": "script", "source": "while True: pass"}, Limits(seconds=60, memory_mb=256))
time.sleep(0.3)
print("started", flush=True)
time.sleep(600)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout.readline() == b"started\n"
        inside = psutil.Process(process.pid).children(recursive=True)
        assert len(inside) >= 3  # bubblewrap, the supervisor, a stage, the program
        process.kill()
    _, alive = psutil.wait_procs(inside, timeout=10)
    assert not alive


@pytest.mark.slow
def test_many_programs_leave_no_process_and_no_descriptor(run, sandbox):
    before = psutil.Process().num_fds()
    for number in range(50):
        assert run("print(int(input()) + 1)", b"%d" % number).stdout == b"%d\n" % (number + 1)
    assert psutil.Process().num_fds() == before
    supervisor = psutil.Process(sandbox._process.pid).children()[0]
    assert len(supervisor.children(recursive=True)) <= 3  # the last ones, not yet waited for


def test_a_machine_without_bubblewrap_says_how_to_get_it(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxError, match=r"bwrap is not installed .*apt install bubblewrap"):
        Sandbox()


@pytest.mark.slow
def test_a_bubblewrap_that_does_not_work_says_why(monkeypatch, tmp_path):
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho bwrap: No permissions to create new namespace >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match=r"No permissions to create new namespace|user namespace"):
        Sandbox()


@pytest.mark.slow
def test_a_sandbox_that_was_killed_says_so(run):  # run: this machine has one
    with Sandbox() as own:
        own._process.kill()
        own._process.wait()
        with pytest.raises(SandboxError, match="ended"):
            own.run({"mode": "script", "source": ""}, Limits(seconds=1, memory_mb=256), wall=5)


@pytest.mark.slow
def test_a_sandbox_ends_with_the_thread_that_made_it(run):  # run: this machine has one
    with ThreadPoolExecutor(1) as pool:
        own = pool.submit(Sandbox).result()
    own._process.wait(timeout=30)  # the system tells it some time after the thread is joined
    with own, pytest.raises(SandboxError, match="ended"):
        own.run({"mode": "script", "source": "print(1)"}, Limits(seconds=5, memory_mb=256), wall=10)


FOUND_PACKAGES = """
import os, sys
found = []
for root in ('/python', '/usr', '/lib', '/lib64'):
    for folder, names, files in os.walk(root):
        if os.path.basename(folder) in ('site-packages', 'dist-packages') and (names or files):
            found.append(folder)
print(found)
"""


def test_installed_packages_of_the_host_are_not_there(run):
    assert run(FOUND_PACKAGES, wall=30.0).stdout == b"[]\n"


@pytest.mark.parametrize("name", ["pip", "pytest", "numpy", "setuptools"])
def test_no_path_leads_to_a_package_of_the_host(run, name):
    source = f"""
import sys
for library in ('/python/lib', '/usr/lib', '/usr/lib64', '/lib', '/usr/local/lib'):
    for version in ('python3', 'python%d.%d' % sys.version_info[:2]):
        for folder in ('site-packages', 'dist-packages'):
            sys.path.append(f'{{library}}/{{version}}/{{folder}}')
try:
    import {name}
    print('imported')
except ImportError:
    print('not there')
try:
    open('/python/lib/python%d.%d/site-packages/x.py' % sys.version_info[:2], 'w')
    print('written')
except OSError:
    print('read-only')
"""
    assert run(source).stdout == b"not there\nread-only\n"
