import signal
import subprocess
import sys
from importlib import metadata

import psutil
import pytest

from openrlhf_cov.utils.orphans import end_engine_with_actor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does it")

STARTS_A_CORE = """
import multiprocessing, signal, sys, time

def core(pipe):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from openrlhf_cov.utils.orphans import end_engine_with_actor
    end_engine_with_actor()
    pipe.send(None)
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    ours, theirs = context.Pipe()
    process = context.Process(target=core, args=(theirs,))
    process.start()
    ours.recv()
    print(process.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_core_ends_with_its_actor(tmp_path, method):
    (tmp_path / "actor.py").write_text(STARTS_A_CORE)
    actor = subprocess.Popen([sys.executable, tmp_path / "actor.py", method], stdout=subprocess.PIPE, text=True)
    core = psutil.Process(int(actor.stdout.readline()))
    try:
        actor.send_signal(signal.SIGKILL)
        actor.wait()
        core.wait(timeout=60)
    finally:
        if core.is_running():
            core.kill()
        actor.stdout.close()


def test_a_process_that_nobody_started_as_a_child_lives_on():
    code = "from openrlhf_cov.utils import orphans as o; o.die_with_parent = None; o.end_engine_with_actor()"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_vllm_finds_it():
    (entry,) = metadata.entry_points(group="vllm.general_plugins", name="openrlhf_cov")
    assert entry.load() is end_engine_with_actor
