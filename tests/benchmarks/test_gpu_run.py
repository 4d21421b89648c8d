"""The training on one GPU that ``benchmarks/gpu_run.py`` starts: its flags, and what it does with a run's log."""

import sys

import pytest

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.trainer.flags.parser import parse_args
from openrlhf_cov.trainer.preflight.preflight import flag_faults

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gpu_run(load_benchmark):
    return load_benchmark("gpu_run")


def test_the_flags_of_a_gpu_host_have_no_fault(gpu_run, tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    command = gpu_run.random_model("ours", tmp_path, gpu_run.TOY)
    flags = [*command[3:], *gpu_run.colocated(True, 0.5).split()]
    monkeypatch.setattr(sys, "argv", ["train", *flags])
    args = parse_args()
    assert flag_faults(args) == []
    assert (args.train.colocate_all, args.vllm.enable_sleep, args.ds.enable_sleep) == (True, True, True)


def test_figures_leave_the_first_step_out(gpu_run, tmp_path):
    """The first of three steps takes another time and another reward; each has 4 x 10 tokens."""
    line = (
        "Global step {}: {{'rollout/reward_mean': {}, 'rollout/response_length_mean': 10.0, 'timing/x': {}, "
        "'rollout/num_samples': 4}}"
    )
    program = "import time\n" + "\n".join(
        f"time.sleep({pause}); print({line.format(number, reward, seconds)!r}, flush=True)"
        for number, (pause, reward, seconds) in enumerate([(0.1, 0.0, 9.0), (0.3, 0.5, 2.0), (0.3, 1.0, 2.0)], 1)
    )
    row = gpu_run.measure("x", [sys.executable, "-c", program], tmp_path, 60)
    assert (row["status"], row["steps"]) == (0, 3)
    assert row["phases"] == {"timing/x": 2.0}
    assert (row["first_reward"], row["last_reward"]) == (0.0, 1.0)
    assert row["response_tokens_per_second"] == pytest.approx(40 / row["step_seconds"])


def test_a_run_that_does_not_end_is_ended(gpu_run, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run, "GRACE", 0.5)
    program = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
    assert gpu_run.measure("x", [sys.executable, "-c", program], tmp_path, 2)["status"] == -9
