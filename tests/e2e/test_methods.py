"""Three real steps of every registered method through the command line: Ray, vLLM, DeepSpeed.

A run costs its start, so each is of several methods, of other slots; together they are all.
"""

import math

import pytest
from active import ACTIVE

from openrlhf_cov.models.methods import METHODS

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SMALL = """
    --rollout.batch_size 8 --rollout.n_samples_per_prompt 4 --rollout.micro_batch_size 32 --train.batch_size 16
    --train.micro_batch_size 16 --data.max_samples 24 --algo.kl.init_coef 0
""".split()
TARGET = 0.5
"""Nats; what a policy of the embedded task has is of this size."""

SETTINGS = ACTIVE | {"stare": {}}  # the target takes the place of its gate
RUNS = {
    "clip_cov qae steer cw_grpo entropy_advantage": "clip_cov_ratio",
    "kl_cov top_entropy passk repo_r stare": "repo_zeta",
    "lp_reg erc entrocraft": "",
    "dppo random_drop w_reinforce positive_weight": "positive_weight",
    "psr adaptive_clip": "adaptive_clip_high",
    "nsr cispo": "",
    "cegppo adaptive_entropy": "entropy_bonus",
    "sapo kl_cov": "kl_cov_ratio",
    "gspo_token stare": "stare_strength",
    "gmpo": "",
}
"""Names of the methods -> the setting that a target entropy moves in this run."""


def test_every_method_has_a_run():
    assert {name for names in RUNS for name in names.split()} == set(METHODS)


@pytest.mark.parametrize("names", RUNS)
def test_three_steps(run_trainer, task, tmp_path, ray, names):
    methods, controlled = [METHODS[name] for name in names.split()], RUNS[names]
    flags = ["--method", ",".join(names.split())]
    for name, value in (setting for each in methods for setting in SETTINGS.get(each.name, {}).items()):
        flags += [f"--{name}", str(value)] if name != controlled else []
    flags += ["--entropy_target", str(TARGET), "--entropy_control", controlled] if controlled else []
    estimators = [method.stands_for for method in methods if method.stands_for]
    flags += ["--algo.advantage.estimator", *(estimators or ["group_norm"])]
    run = run_trainer([*task.flags(tmp_path / "run"), *SMALL, *flags], tmp_path / "run", ray)
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    for line in run.metrics:
        assert 0.0 < line["entropy/mean"] < math.log(21)  # 21 symbols
        assert math.isfinite(line["policy_loss"])
        assert line["gradient/norm"] > 0
        assert 0.0 < line["gradient/effective_frac"] <= 1.0
        assert line["ppo/skipped_updates"] == 0
        assert ("control/value" in line) is bool(controlled)
        if controlled:
            assert line["control/gap"] == pytest.approx(TARGET - line["entropy/mean"], abs=1e-6)
