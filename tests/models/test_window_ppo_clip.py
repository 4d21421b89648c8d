import math

import pytest
import torch

from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.window import ppo_clipped

# one row per case: ratio, advantage, clipped by eps 0.2 / 0.2, clipped by eps 1 / 1
RATIOS = [
    (1.5, 1.0, True, False),  # 1.2 < 1.5; at 1 / 1 the ratio is clamped to [0, 2]
    (0.5, -1.0, True, False),  # -0.8 < -0.5
    (0.5, 1.0, False, False),  # 0.8 > 0.5: the clip would raise the surrogate, so PPO keeps the gradient
    (1.5, -1.0, False, False),  # -1.2 > -1.5
    (1.1, 1.0, False, False),  # inside [0.8, 1.2]
    (3.0, 2.0, True, True),  # 2 * 2 < 3 * 2
    (3.0, 0.0, False, False),  # no advantage, no gradient to lose
]


def batch(log_ratios, advantages, mask=None, old=-2.0):
    log_ratios, advantages = torch.tensor([log_ratios]), torch.tensor([advantages])
    mask = torch.ones_like(advantages) if mask is None else torch.tensor([mask])
    old_log_probs = torch.full_like(advantages, old)
    return TokenBatch((old_log_probs + log_ratios).requires_grad_(), old_log_probs, advantages, mask)


@pytest.mark.parametrize(("eps", "column"), [(0.2, 2), (1.0, 3)])
def test_ppo_clipped_by_hand(eps, column):
    tokens = batch([math.log(row[0]) for row in RATIOS], [row[1] for row in RATIOS])
    assert ppo_clipped(tokens, eps, eps).tolist() == [[row[column] for row in RATIOS]]


def test_ppo_clipped_uses_each_bound_on_its_side():
    # ratios 1.25, 1.35 (A = 1) against 1 + 0.28; 0.85, 0.75 (A = -1) against 1 - 0.2
    tokens = batch([math.log(r) for r in (1.25, 1.35, 0.85, 0.75)], [1.0, 1.0, -1.0, -1.0])
    assert ppo_clipped(tokens, 0.2, 0.28).tolist() == [[False, True, False, True]]


def test_an_infinite_range_clips_nothing():
    tokens = batch([30.0, -30.0], [1.0, -1.0])
    assert not ppo_clipped(tokens, math.inf, math.inf).any()


def test_masked_tokens_are_never_clipped():
    tokens = batch([1.0, 1.0], [1.0, 1.0], mask=[1, 0])
    assert ppo_clipped(tokens, 0.2, 0.2).tolist() == [[True, False]]
