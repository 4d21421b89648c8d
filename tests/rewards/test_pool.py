"""What a pool answers, and what hostile or broken work cannot do to it."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from openrlhf_cov.rewards.pool import WorkerDied, WorkerError, WorkerPool, WorkerTimeout, shared_pool

pytestmark = [pytest.mark.usefixtures("pool_targets"), pytest.mark.usefixtures("no_shared_pool")]
# Seconds that a kill and its bookkeeping may take on a busy machine.
SLACK = 1.0


def test_the_value_comes_back(pool):
    for value in [None, 1.5, "π\n\\frac{1}{2}", "\ud800", [1, [2, {"a": None}]], "x" * 1_000_000]:
        assert pool.call("echo", value, timeout=5) == value


@pytest.mark.slow
def test_eight_threads_share_two_workers(workers):
    with WorkerPool("pool_targets:run", 2) as pool, ThreadPoolExecutor(8) as threads:
        values = list(threads.map(lambda i: pool.call("echo", i, timeout=5), range(200)))
        assert len(workers()) == 2
    assert values == list(range(200))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spin", "speak_half_a_line"])
def test_a_call_that_hangs_is_killed_in_time_and_the_next_one_is_answered(pool, name):
    worker = pool.call("pid", timeout=5)
    started = time.monotonic()
    with pytest.raises(WorkerTimeout, match=r"0\.5 seconds"):
        pool.call(name, timeout=0.5)
    assert 0.5 <= time.monotonic() - started < 0.5 + SLACK
    assert not psutil.pid_exists(worker)
    assert pool.call("echo", 1, timeout=5) == 1


@pytest.mark.slow
def test_while_one_worker_is_stuck_the_other_one_answers(workers):
    with WorkerPool("pool_targets:run", 2) as pool, ThreadPoolExecutor(1) as thread:
        pool.call("pid", timeout=5)
        started = {worker.pid for worker in workers()}
        stuck = thread.submit(pool.call, "nap", 60, timeout=1.0)
        time.sleep(0.2)
        pids = {pool.call("pid", timeout=5) for _ in range(20)}
        assert not stuck.done()
        assert len(pids) == 1
        assert pids < started
        with pytest.raises(WorkerTimeout):
            stuck.result()


@pytest.mark.parametrize(
    ("name", "type_name", "message"),
    [
        ("fail", "ValueError", "no such thing"),
        ("fail_to_explain", "Mute", "(its message could not be formed)"),
        ("leave", "SystemExit", "gone"),
        ("recurse", "RecursionError", "maximum recursion depth exceeded"),
        ("recurse_through_c", "RecursionError", "maximum recursion depth exceeded"),
        ("unserializable", "TypeError", "Object of type object is not JSON serializable"),
    ],
)
def test_an_error_is_passed_on_and_the_worker_goes_on(pool, name, type_name, message):
    worker = pool.call("pid", timeout=5)
    with pytest.raises(WorkerError) as caught:
        pool.call(name, timeout=5)
    assert caught.value.type_name == type_name
    assert caught.value.message.startswith(message)
    assert pool.call("pid", timeout=5) == worker


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allocate_at_once", "allocate_bit_by_bit"])
def test_out_of_memory_is_an_error_after_which_the_worker_is_replaced(pool, name):
    worker = pool.call("pid", timeout=5)
    with pytest.raises(WorkerError, match="MemoryError"):
        pool.call(name, timeout=10)
    assert not psutil.pid_exists(worker)
    assert pool.call("pid", timeout=5) != worker


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("exit_hard", "ended with exit status 3"),
        ("exit_hard_with_a_child", "ended with exit status 3"),
        ("crash", "killed by signal 11"),
        ("talk_too_much", "one line of JSON"),
        ("speak_rubbish", "one line of JSON"),
    ],
)
def test_a_worker_that_dies_or_breaks_the_protocol_is_replaced(pool, name, reason):
    worker = pool.call("pid", timeout=5)
    with pytest.raises(WorkerDied, match=reason):
        pool.call(name, timeout=5)
    assert not psutil.pid_exists(worker)
    assert pool.call("echo", 1, timeout=5) == 1


def test_output_goes_nowhere(pool):
    assert pool.call("shout", timeout=5) == "heard"
    assert pool.call("echo", 1, timeout=5) == 1


@pytest.mark.slow
def test_a_worker_that_speaks_unasked_is_replaced_before_the_next_call(pool):
    assert pool.call("speak_unasked_later", timeout=5) == "now"
    time.sleep(0.4)
    assert pool.call("echo", 1, timeout=5) == 1


def test_a_worker_that_dies_idle_is_replaced_before_the_next_call(pool):
    worker = pool.call("pid", timeout=5)
    os.kill(worker, signal.SIGKILL)
    time.sleep(0.1)
    assert pool.call("pid", timeout=5) != worker


@pytest.mark.slow
def test_no_alarm_runs_while_a_worker_is_idle(pool):
    pool.call("note_the_alarm_later", timeout=5)
    time.sleep(0.4)
    assert pool.call("noted_alarm", timeout=5) == [0.0, 0.0]


def test_ctrl_c_is_ignored(pool):
    assert pool.call("interrupt", timeout=5) == "unimpressed"


@pytest.mark.parametrize("existed", [False, True])
def test_no_file_gets_content(pool, tmp_path, existed):
    path = tmp_path / "file"
    if existed:
        path.touch()
    worker = pool.call("pid", timeout=5)
    with pytest.raises(WorkerError, match=r"OSError: .*File too large"):
        pool.call("write_file", str(path), timeout=5)
    assert not path.exists() or path.stat().st_size == 0
    assert pool.call("pid", timeout=5) == worker


def test_a_request_larger_than_every_buffer(pool):
    assert pool.call("length", "x" * 5_000_000, timeout=5) == 5_000_000


@pytest.mark.slow
def test_a_worker_that_does_not_read_blocks_nobody(pool):
    os.kill(pool.call("pid", timeout=5), signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(WorkerTimeout):
        pool.call("length", "x" * 5_000_000, timeout=0.3)
    assert time.monotonic() - started < 0.3 + SLACK
    assert pool.call("echo", 1, timeout=5) == 1


def test_a_worker_has_no_descriptor_of_its_parent(pool):
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        pool.call("pid", timeout=5)
        standard_streams_and_socket = 4
        assert len(pool.call("open_descriptors", timeout=5)) == standard_streams_and_socket
    finally:
        os.close(reader)
        os.close(writer)


def test_a_worker_computes_in_one_thread(pool, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert pool.call("environment", "OMP_NUM_THREADS", timeout=5) == "1"


def test_callers_are_served_in_the_order_of_asking(pool):
    order = []

    def ask(i):
        pool.call("nap", 0.02, timeout=5)
        order.append(i)

    pool.call("pid", timeout=5)
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
        time.sleep(0.005)
    for thread in threads:
        thread.join()
    assert order == list(range(8))


@pytest.mark.parametrize(("target", "size"), [("module", 1), (":f", 1), ("module:", 1), ("module:f", 0)])
def test_a_pool_that_cannot_be(target, size):
    with pytest.raises(ValueError, match=r"target|size"):
        WorkerPool(target, size)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_timeout_that_cannot_be(pool, timeout):
    with pytest.raises(ValueError, match="positive and finite"):
        pool.call("pid", timeout=timeout)


def test_the_shared_pool_is_one():
    pool = shared_pool(1)
    try:
        assert shared_pool() is shared_pool(1) is pool
        with pytest.raises(ValueError, match="1 workers already, asked for 2"):
            shared_pool(2)
    finally:
        pool.close()
    assert shared_pool() is not pool
    assert shared_pool().size == 2


@pytest.mark.slow
def test_the_shared_pool_of_another_target_is_as_large(pool_targets):
    with shared_pool(3) as pool, shared_pool(target="pool_targets:run") as other:
        assert other is shared_pool(target="pool_targets:run") is not pool
        assert other.size == 3
        assert other.call("echo", "x", timeout=5) == "x"


@pytest.mark.slow
def test_waiting_for_a_worker_is_bounded_if_asked(pool):
    pool.call("pid", timeout=5)
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(pool.call, "nap", 2, timeout=5)
        time.sleep(0.2)
        with pytest.raises(WorkerTimeout, match=r"no worker was free within 0.1 s"):
            pool.call("pid", timeout=5, wait=0.1)
        busy.result()
    pool.call("pid", timeout=5, wait=0.1)
