"""Programs as rewards, with the real command line and the real sandbox: two engines whose programs are judged at once.

``make test-long`` also resumes the run after its first step.
"""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from openrlhf_cov.experiments.tiny_task.catalogue import TINY_TASKS
from openrlhf_cov.experiments.tiny_task.shipped_policies import shipped_policy
from openrlhf_cov.rewards.reward_func import CODE_METRICS, STATUS_METRICS
from openrlhf_cov.utils.metrics_log import METRICS_FILE, read_metrics

pytestmark = pytest.mark.e2e

FLAGS = """
    --algo.kl.init_coef 0 --rollout_seeded --cov_type kl_cov --kl_cov_ratio 0.04 --vllm.num_engines 2
    --rollout.batch_size 8 --rollout.n_samples_per_prompt 4 --rollout.micro_batch_size 16
    --train.batch_size 16 --train.micro_batch_size 16 --ckpt.save_steps 1 --ckpt.max_num 9
    --reward_workers 2
""".split()
# Metrics of the clock, and of verdicts that only the straight run has already.
NOT_REPEATED = ("time", "timing/", "reward/code_seconds", "reward/code_cached_frac")


@pytest.fixture(scope="module")
def code_task(needs_sandbox, task, tmp_path_factory):
    """``task`` with 24 exercises and the base policy of the package for them: three steps of 8."""
    folder, made = tmp_path_factory.mktemp("code"), TINY_TASKS["code"]
    exercises, _ = made.split(0, 1)
    model, tokenizer = shipped_policy("code", 0, made.policy())
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [exercise.to_row() for exercise in exercises[:24]]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return replace(task, model=folder / "model", train=folder / "train.jsonl")


def lines(folder: Path) -> list[dict]:
    found = read_metrics(folder / METRICS_FILE)
    return [{name: v for name, v in line.items() if not name.startswith(NOT_REPEATED)} for line in found]


def flags_of(task, folder: Path) -> list[str]:
    return [*task.flags(folder), *FLAGS, *TINY_TASKS["code"].flags]


def test_every_program_of_a_run_has_its_verdict(run_trainer, code_task, tmp_path, ray):
    run = run_trainer([*flags_of(code_task, tmp_path / "run"), "--rollout_limit", "1"], tmp_path / "run", ray)
    assert_good_steps(run, steps=1)


@pytest.mark.long
def test_a_resumed_run_on_programs_is_the_straight_one(run_trainer, code_task, tmp_path, ray):
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    assert_good_steps(run_trainer(flags_of(code_task, straight), straight, ray), steps=3)

    # as if it had been killed after its first step
    shutil.copytree(straight, resumed, ignore=shutil.ignore_patterns("model.safetensors", "global_step[2-9]"))
    (resumed / "checkpoints" / "_actor" / "latest").write_text("global_step1")
    run_trainer([*flags_of(code_task, resumed), "--ckpt.load_enable"], resumed, ray)
    assert lines(resumed) == lines(straight)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (resumed, straight))
    assert all(ours[name].equal(theirs[name]) for name in theirs)


def assert_good_steps(run, steps: int) -> None:
    assert [line["step"] for line in run.metrics] == list(range(1, steps + 1))
    for line in run.metrics:
        shares = [line[name] for name in (*CODE_METRICS.values(), *STATUS_METRICS.values())]
        # every program has one verdict; a right one that was cut off has no reward
        cut = line["rollout/truncated_rate"] + 1e-6
        assert sum(shares) + line["rollout/reward_mean"] == pytest.approx(1.0, abs=cut)
        assert 0.0 < line["rollout/reward_mean"] < 1.0
        assert line["rollout/reward_mean"] <= line["reward/code_test_share"] < 1.0
        assert line["reward/code_seconds"] > 0.0
        assert math.isfinite(line["policy_loss"])
        assert 0.03 < line["cov/selected_frac"] <= 0.04  # of the tokens of an update, rounded down
