"""The training on one GPU that ``benchmarks/gpu_run.py`` starts: its flags, and what it does with a run's log."""

import sys

import pytest

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.flags.parser import parse_args
from openrlhf_cov.trainer.preflight.preflight import flag_faults

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gpu_run(load_benchmark):
    return load_benchmark("gpu_run")


@pytest.mark.parametrize(("name", "methods"), [("none", []), ("kl_cov", ["kl_cov"])])
def test_the_flags_of_a_gpu_host_have_no_fault(gpu_run, tmp_path, monkeypatch, name, methods):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    command = gpu_run.random_model(name, tmp_path, gpu_run.TOY)
    flags = [*command[3:], *gpu_run.colocated(True, 0.5).split()]
    monkeypatch.setattr(sys, "argv", ["train", *flags])
    args = parse_args()
    assert flag_faults(args) == []
    assert [method.name for method in CovConfig.from_args(args).methods] == methods
    assert (args.train.colocate_all, args.vllm.enable_sleep, args.ds.enable_sleep) == (True, True, True)


LINE = (
    "Global step {}: {{'rollout/reward_mean': {}, 'rollout/response_length_mean': 10.0, 'timing/x': {}, "
    "'rollout/num_samples': 4}}"
)


def program_of(*steps):
    """A program that logs steps of 4 x 10 tokens, each given by (pause before it, reward, ``timing/x``)."""
    return "import time\n" + "\n".join(
        f"time.sleep({pause}); print({LINE.format(number, reward, seconds)!r}, flush=True)"
        for number, (pause, reward, seconds) in enumerate(steps, 1)
    )


def test_the_first_step_has_figures_of_its_own(gpu_run, tmp_path):
    program = program_of((0.1, 0.0, 9.0), (0.3, 0.5, 2.0), (0.3, 1.0, 2.0))
    row = gpu_run.measure("x", [sys.executable, "-c", program], tmp_path, 60)
    assert (row["status"], row["steps"]) == (0, 3)
    assert (row["first step: timing/x"], row["later steps: timing/x"]) == (9.0, 2.0)
    assert (row["first_reward"], row["last_reward"]) == (0.0, 1.0)
    assert row["response_tokens_per_second"] == pytest.approx(40 / row["step_seconds"])


def deaf(program):
    """The command of a program that SIGTERM does not end; the shell ignores it before Python starts."""
    return ["sh", "-c", 'trap "" TERM; exec "$0" -c "$1"', sys.executable, program]


def test_a_step_that_ends_after_the_time_limit_counts(gpu_run, tmp_path):
    """The program lives on after SIGTERM as a training does, until its second step has ended."""
    row = gpu_run.measure("x", deaf(program_of((0, 0, 9), (4, 0, 2))), tmp_path, 2)
    assert (row["status"], row["steps"], row["later steps: timing/x"]) == (0, 2, 2)


def test_steps_that_are_found_at_once_have_no_time_between_them(gpu_run, tmp_path):
    line = LINE.format(1, 0.5, 2.0)
    row = gpu_run.measure("x", ["echo", f"{line}\n{line}"], tmp_path, 60)
    assert (row["status"], row["steps"], row["later steps: timing/x"]) == (0, 2, 2)
    assert "step_seconds" not in row


def test_a_run_of_one_step_has_no_figures_of_later_ones(gpu_run, tmp_path):
    row = gpu_run.measure("x", [sys.executable, "-c", program_of((0, 0.5, 9.0))], tmp_path, 60)
    assert (row["status"], row["steps"], row["first step: timing/x"], row["last_reward"]) == (0, 1, 9.0, 0.5)
    assert not [key for key in row if key.startswith(("later", "step_"))]
    assert "| x | |" in gpu_run.table(row)


def test_a_run_without_a_step_has_failed(gpu_run, tmp_path):
    row = gpu_run.measure("x", [sys.executable, "-c", "pass"], tmp_path, 60)
    assert (row["status"], row["steps"]) == (1, 0)


def test_a_run_that_does_not_end_is_ended(gpu_run, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run, "GRACE", 0.5)
    assert gpu_run.measure("x", deaf("import time; time.sleep(600)"), tmp_path, 2)["status"] == -9
