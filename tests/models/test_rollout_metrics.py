import math

import pytest
import torch
from simulated_ranks import Simulated

from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.rollout import RolloutTokens
from openrlhf_cov.models.rollout_metrics import RolloutMetrics
from openrlhf_cov.models.window import ALONE

# Two prompts of two samples, shuffled; sample 2 is not on this rank. Means over the 6 tokens: log-prob -12/6 = -2,
# advantage 0/6 = 0, so cov = (log-prob + 2) * advantage.
#   sample 3 (prompt 1)  log-probs -1 -3      advantages  1  1     cov  1 -1
#   sample 0 (prompt 0)            -4                    -2             4
#   sample 1 (prompt 0)            -1 -1 -2               0  3 -3       0  3  0
ROLLOUT = RolloutTokens(
    log_probs=torch.tensor([[-1.0, -3.0, 0.0], [-4.0, 0.0, 0.0], [-1.0, -1.0, -2.0]]),
    entropy=torch.tensor([[0.5, 1.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.25, 1.5]]),
    advantages=torch.tensor([[1.0, 1.0, 0.0], [-2.0, 0.0, 0.0], [0.0, 3.0, -3.0]]),
    action_mask=torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool(),
    scores=torch.tensor([1.0, 0.0, math.nan]),
    sample_ids=torch.tensor([3, 0, 1]),
)


def rows(*places):
    """The samples in these rows of ``ROLLOUT``."""
    tensors = {name: each[list(places)] for name, each in vars(ROLLOUT).items() if each is not None}
    return RolloutTokens(**tensors)


def record(update, log_probs, mask, selected=None):
    """The record of a micro-batch in which a plan acts on the tokens ``selected``; the old log-probs are 0."""
    zeros = torch.zeros(mask.shape)
    plans = [] if selected is None else [Plan(selected)]
    return LossRecord(TokenBatch(log_probs, zeros, zeros, mask), zeros, plans, (0.2, 0.2), update=update)


def test_a_rollout_from_start_to_finish():
    metrics = RolloutMetrics(ROLLOUT, 2, ALONE)
    # Update 7 selects the first token of sample 1 and the second of sample 3, update 8 nothing, update 9 the first
    # token of sample 1 again. Micro-batches are as wide as their longest sample.
    ids = torch.tensor([1, 3])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    first = torch.tensor([[1, 0, 0], [0, 1, 1]]).bool()  # the last one lies on padding
    still = torch.zeros(2, 3)
    nothing = torch.zeros(1, 1, dtype=torch.bool)
    metrics.observe(ids, record(7, still, mask, first))
    metrics.observe(torch.tensor([0]), record(7, still[:1, :1], ~nothing, nothing))
    metrics.observe(ids, record(8, still, mask))
    metrics.observe(ids[:1], record(9, still[:1], mask[:1], first[:1]))
    assert metrics.selected.tolist() == [[False, True, False], [False, False, False], [True, False, False]]
    assert float(metrics.mean_entropy) == 5.25 / 6
    # Mean advantages of the samples: prompt 0 has -2 and 0, prompt 1 has 1.
    assert float(metrics.positive_prompts()) == 0.5
    values = metrics.finish()
    assert values["cov/empty_update_frac"] == pytest.approx(1 / 3)
    assert values["entropy/selected"] == 0.5  # (1 + 0) / 2
    assert values["entropy/unselected"] == pytest.approx(4.25 / 4)  # 0.5 + 2 + 0.25 + 1.5
    assert values["cov/mean"] == pytest.approx(7 / 6)
    assert values["entropy/mean"] == pytest.approx(5.25 / 6)


def test_a_rollout_without_an_update():
    metrics = RolloutMetrics(rows(0), 2, ALONE)
    assert not metrics.selected.any()
    values = metrics.finish()
    assert values["entropy/mean"] == pytest.approx(0.75)  # (0.5 + 1) / 2
    assert math.isnan(values["cov/empty_update_frac"])


@pytest.mark.parametrize("parts", [[rows(0), rows(1, 2)], [rows(1), rows(2), rows(0)]])
def test_ranks_log_what_one_rank_logs(parts):
    def work(rollout, ranks):
        metrics = RolloutMetrics(rollout, 2, ranks)
        ids = rollout.sample_ids
        mask = rollout.action_mask
        # Only sample 1 has selected tokens.
        metrics.observe(ids, record(0, rollout.log_probs, mask, mask & (ids == 1)[:, None]))
        return metrics.finish() | {"positive": float(metrics.positive_prompts())}

    (expected,) = Simulated(1).run(work, [ROLLOUT])
    for values in Simulated(len(parts)).run(work, parts):
        assert values == pytest.approx(expected, nan_ok=True, rel=1e-12)
    assert expected["cov/empty_update_frac"] == 0  # although ranks without sample 1 select nothing
    # A maximum, not a sum: the largest log ratio is -1, on the rank with sample 0 alone it is -4.
    assert expected["ppo/ratio_max"] == pytest.approx(math.exp(-1))
