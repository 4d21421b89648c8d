"""When the processes of a pool start and end: with their pool, with a fork, with the end of the parent."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from openrlhf_cov.rewards.pool import WorkerDied, WorkerPool, WorkerTimeout

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("pool_targets"), pytest.mark.usefixtures("no_shared_pool")]
# Seconds after which a kill is taken not to work; on a busy machine it and its bookkeeping take seconds.
#
# Shorter than the naps below, which would end by themselves.
SLACK = 30.0


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def ended(pid):
    """True if the process runs no more. If the init process, its parent by then, reaps late, that is not ours."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def run_script(path, text):
    """Output lines, read as JSON, of a script that finds the package and the targets."""
    with start_script(path, text) as script:
        try:
            output, _ = script.communicate(timeout=600)
        finally:
            script.kill()
    return [json.loads(line) for line in output.splitlines()]


def start_script(path, text):
    path.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no_such_module:f", "cannot import no_such_module:f: ModuleNotFoundError: No module named 'no_such_module'"),
        ("pool_targets:no_such_function", "AttributeError"),
        ("pool:WorkerPool", "ModuleNotFoundError"),  # modules beside the worker's program have no short names
    ],
)
def test_a_target_that_cannot_be_imported(target, reason):
    with WorkerPool(target, 1) as pool:
        for _ in range(2):
            with pytest.raises(WorkerDied, match=reason):
                pool.call(timeout=SLACK)


def test_the_start_does_not_count_as_work():
    with WorkerPool("slow_target:answer", 1) as pool:
        assert pool.call(timeout=0.3) == 42


def test_a_worker_that_does_not_get_ready():
    pool = WorkerPool("slow_target:answer", 1, startup_seconds=0.2)
    with pool, pytest.raises(WorkerDied, match=r"not ready within 0\.2 seconds"):
        pool.call(timeout=SLACK)


def test_a_replacement_may_stay_unused_for_longer_than_a_start_may_take():
    with WorkerPool("pool_targets:run", 1, startup_seconds=1.0) as pool:
        with pytest.raises(WorkerDied):
            pool.call("exit_hard", timeout=SLACK)
        time.sleep(1.1)
        assert pool.call("echo", 1, timeout=SLACK) == 1


def test_the_replacement_starts_at_once(workers):
    with WorkerPool("slow_target:answer", 1) as pool:
        pool.call(timeout=SLACK)
        (worker,) = workers()
        worker.suspend()
        with pytest.raises(WorkerTimeout):
            pool.call(timeout=0.1)
        # Its process is there before anybody calls the pool again.
        wait_until(lambda: any(each.pid != worker.pid for each in workers()), SLACK)
        assert pool.call(timeout=SLACK) == 42


def test_a_worker_that_is_ready_goes_before_one_that_starts():
    with WorkerPool("slow_target:answer", 2) as pool:
        pool.call(timeout=SLACK)
        time.sleep(0.2)  # the other one is ready too
        with pytest.raises(WorkerDied):
            pool.call(3, timeout=SLACK)
        started = time.monotonic()
        assert [pool.call(timeout=SLACK) for _ in range(4)] == [42] * 4
        assert time.monotonic() - started < 0.4


def test_workers_start_with_the_first_call_and_close_leaves_none(workers):
    pool = WorkerPool("pool_targets:run", 3)
    assert workers() == []
    pool.call("pid", timeout=SLACK)
    started = workers()
    assert len(started) == 3
    pool.close()
    pool.close()
    assert not any(psutil.pid_exists(worker.pid) for worker in started)
    with pytest.raises(RuntimeError, match="closed"):
        pool.call("pid", timeout=SLACK)


def test_close_ends_the_call_in_progress_and_those_that_wait(workers):
    pool = WorkerPool("pool_targets:run", 1)
    pool.call("pid", timeout=SLACK)
    with ThreadPoolExecutor(2) as threads:
        busy = threads.submit(pool.call, "nap", 60, timeout=60)
        time.sleep(0.2)
        waiting = threads.submit(pool.call, "pid", timeout=SLACK)
        time.sleep(0.1)
        pool.close()
        with pytest.raises(WorkerDied):
            busy.result(timeout=SLACK)
        with pytest.raises(RuntimeError):
            waiting.result(timeout=SLACK)
    assert workers() == []


def test_a_forked_process_has_workers_of_its_own(tmp_path):
    parent, child, again = run_script(
        tmp_path / "script.py",
        """
import json, os, sys, threading, time
from openrlhf_cov.rewards.pool import WorkerPool

def tell(value):
    sys.stdout.write(json.dumps(value) + "\\n")
    sys.stdout.flush()

pool = WorkerPool("pool_targets:run", 1)
tell(pool.call("pid", timeout=120))
busy = threading.Thread(target=pool.call, args=("nap", 0.5), kwargs={"timeout": 120})
busy.start()
time.sleep(0.1)
if os.fork() == 0:
    tell(pool.call("pid", timeout=120))
    sys.exit()  # with atexit: must not kill the workers of the parent
os.wait()
busy.join()
tell(pool.call("pid", timeout=120))
""",
    )
    assert parent == again
    assert parent != child
    wait_until(lambda: ended(parent) and ended(child), SLACK)


def test_a_script_without_main_guard_runs_once(tmp_path):
    lines = run_script(
        tmp_path / "script.py",
        """
import sys
from openrlhf_cov.rewards.pool import WorkerPool

sys.stdout.write("1\\n")
sys.stdout.flush()
pool = WorkerPool("pool_targets:run", 2)
sys.stdout.write(str(pool.call("echo", 2, timeout=120)) + "\\n")
""",
    )
    assert lines == [1, 2]


def test_no_worker_outlives_a_killed_parent(tmp_path):
    # One worker is idle and ends at once; one computes without end, which the kernel ends 1 + 5 seconds later. A
    # process forked from the parent lives on and must not keep the connections open.
    script = start_script(
        tmp_path / "script.py",
        """
import json, os, signal, sys, threading, time
from openrlhf_cov.rewards.pool import WorkerPool

signal.signal(signal.SIGALRM, signal.SIG_IGN)  # both would be inherited
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
pools = [WorkerPool("pool_targets:run", 1) for _ in range(2)]
pids = [pool.call("pid", timeout=120) for pool in pools]
forked = os.fork()
if forked == 0:
    time.sleep(60)
    os._exit(0)
threading.Thread(target=pools[0].call, args=("spin",), kwargs={"timeout": 1.0}, daemon=True).start()
time.sleep(0.2)
sys.stdout.write(json.dumps([forked, *pids]) + "\\n")
sys.stdout.flush()
time.sleep(60)
""",
    )
    forked, stuck, idle = json.loads(script.stdout.readline())
    script.kill()
    script.wait()
    try:
        wait_until(lambda: ended(idle), SLACK)
        assert not ended(stuck)
        wait_until(lambda: ended(stuck), 1 + 5 + SLACK)
    finally:
        os.kill(forked, signal.SIGKILL)
        script.stdout.close()


def test_the_cpu_time_of_a_call_is_limited_from_where_the_last_one_ended(pool):
    # the second net under the orphan of the test above; no need to burn six seconds of a core to see it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXCPU})  # would be inherited
    try:
        worker = psutil.Process(pool.call("burn", 0.6, timeout=10))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGXCPU})
    with ThreadPoolExecutor(1) as thread:
        busy = thread.submit(pool.call, "nap", 60, timeout=2.5)
        time.sleep(0.3)
        # 0.6 s used, then 2.5 + 5, rounded up: 9; 10 if bookkeeping has taken 0.9 s
        assert worker.rlimit(psutil.RLIMIT_CPU)[0] in (9, 10)
        worker.send_signal(signal.SIGXCPU)
        with pytest.raises(WorkerDied, match="signal 24"):
            busy.result()


def test_a_worker_that_is_busy_when_its_parent_exits_is_killed(tmp_path):
    (worker,) = run_script(
        tmp_path / "script.py",
        """
import sys, threading, time
from openrlhf_cov.rewards.pool import WorkerPool

pool = WorkerPool("pool_targets:run", 1)
sys.stdout.write(str(pool.call("pid", timeout=120)) + "\\n")
threading.Thread(target=pool.call, args=("nap", 60), kwargs={"timeout": 60}, daemon=True).start()
time.sleep(0.1)
""",
    )
    wait_until(lambda: ended(worker), SLACK)


def test_the_children_of_a_killed_worker_are_killed_too(pool):
    worker = psutil.Process(pool.call("pid", timeout=SLACK))
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(pool.call, "hang_with_a_child", timeout=3.0)
        wait_until(worker.children, SLACK)
        (child,) = worker.children()
        with pytest.raises(WorkerTimeout):
            call.result()
    assert not psutil.pid_exists(worker.pid)
    wait_until(lambda: ended(child.pid), SLACK)
