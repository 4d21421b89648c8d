import pytest
import torch
from example import gradients, window_of_example, worked_out

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods.random_drop import plan

MEANT = {"allow_large_cov_ratio": True}


@pytest.mark.parametrize(("on", "ratio", "count"), [("all", 0.4, 2), ("positive", 0.4, 2), ("positive", 0.9, 3)])
def test_the_quota_is_dropped(on, ratio, count):
    # floor(0.4 * 5) = 2 of the five tokens; floor(0.9 * 5) = 4 of the three right ones
    window = window_of_example()
    (found,) = plan(CovConfig(random_drop_ratio=ratio, random_drop_on=on, **MEANT), window)
    assert int(found.tokens.sum()) == count
    assert not (found.tokens & ~window.items[0].mask).any()
    if on == "positive":
        assert not found.tokens[1].any()


def test_gradients_of_the_example():
    # keys rise in reading order, so of the right tokens the third is drawn first; PPO clips it, its value -1.28 / 5
    # goes: -0.194060 + 0.256
    config = CovConfig(method="random_drop", random_drop_ratio=0.2, random_drop_on="positive", **MEANT)
    assert gradients(config) == worked_out(0.061940, [-0.221034, -0.121306, 0, 0.244281, 0])


def test_neither_log_probs_nor_entropies_matter():
    config, window = CovConfig(random_drop_ratio=0.4, **MEANT), window_of_example()
    (expected,) = plan(config, window)
    window.items[0].batch.log_probs.mul_(3.0)
    window.items[0].entropy.mul_(3.0)
    assert torch.equal(plan(config, window)[0].tokens, expected.tokens)
