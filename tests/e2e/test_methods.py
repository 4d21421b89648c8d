"""Three real steps of every registered method through the command line: Ray, vLLM, DeepSpeed."""

import math

import pytest
from active import active_flags

from openrlhf_cov.models.methods import METHODS

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SMALL = """
    --rollout.batch_size 8 --rollout.n_samples_per_prompt 4 --train.batch_size 16 --train.micro_batch_size 16
    --data.max_samples 24 --algo.kl.init_coef 0
""".split()
TARGET = 0.5
"""Nats; what a policy of the embedded task has is of this size."""


@pytest.mark.parametrize("name", METHODS)
def test_three_steps(run_trainer, task, tmp_path, ray, name):
    method, folder = METHODS[name], tmp_path / "run"
    controlled = [*method.flag.split(), "--entropy_target", str(TARGET)] if method.controls else []
    run = run_trainer([*task.flags(folder), *SMALL, *(controlled or active_flags(name))], folder, ray)
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
