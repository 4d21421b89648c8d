"""Hidden commands, the laboratory's task, with the real command line: Ray, DeepSpeed and vLLM."""

import json
import math
from dataclasses import replace

import pytest

from openrlhf_cov.experiments.tiny_task.catalogue import TINY_TASKS

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_three_steps_of_hidden_commands(run_trainer, task, tmp_path):
    made = TINY_TASKS["commands"]
    problems, _ = made.split(0, 1)
    model, tokenizer = made.make_policy(problems, replace(made.policy(), steps=200, rows_per_step=64), 0)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(each.to_row()) + "\n" for each in problems[:48]))
    commands = replace(task, model=tmp_path / "model", train=tmp_path / "train.jsonl")
    flags = ["--cov_type", "kl_cov", "--kl_cov_ratio", "0.02", *made.flags]
    run = run_trainer([*commands.flags(tmp_path / "run"), *flags], tmp_path / "run")
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    for line in run.metrics:
        assert 0.0 < line["rollout/reward_mean"] < 0.9  # naming one skill is right for 14 of 32 letters
        assert 1.0 < line["rollout/response_length_mean"] <= 5.0  # a name, three digits, the end
        assert 0.0 < line["entropy/mean"] < math.log(50)  # 50 tokens
        assert line["ppo/ratio_max"] > 1.0
        # 2 % of the tokens of an update, rounded down: of some 32 * 4; by the last update they have drifted
        assert 0.01 < line["cov/selected_frac"] <= 0.02
        assert line["cov/selected_abs_log_ratio"] > 1e-3
