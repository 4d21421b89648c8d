import math

import pytest
import torch
from example import gradients, worked_out

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.token_head import discriminator_means, discriminator_means_of_logits
from openrlhf_cov.models.window import Window, WindowItem, plan_step


def config(mu=1.0, frac=1e-4, **settings):
    return CovConfig(method="clip_v", clip_v_mu=mu, clip_v_frac=frac, **settings)


# x = E - S = 0.070755, -0.246927, 0.136287, 0.251633, -0.053265; mean 0.031697, sigma 0.170696, so x / sigma =
# 0.414510, -1.446585, 0.798419, 1.474154, -0.312047. The fourth token has A < 0 and lies
# above 1; max(1, floor(5e-4)) = 1 token
# is dropped at most.
@pytest.mark.parametrize(
    ("mu", "mean", "loss", "gradient"),
    [
        (1.0, "all", -0.422340, [-0.221034, -0.121306, 0, 0, 0]),
        (1.0, "kept", -0.527925, [-0.276293, -0.151633, 0, 0, 0]),
        (1.5, "all", -0.178060, [-0.221034, -0.121306, 0, 0.244281, 0]),
    ],
)
def test_gradients_of_the_example(mu, mean, loss, gradient):
    assert gradients(config(mu, clip_v_mean=mean), eps=(0.2, 0.2)) == worked_out(loss, gradient)


def dropped(effects, advantages, mu=1.0, frac=1.0, mask=None):
    """Which tokens are dropped that have these x: with p = 0, S is 0, so E is x."""
    effects, advantages = torch.tensor([effects]), torch.tensor([advantages])
    mask = torch.ones_like(effects) if mask is None else torch.tensor([mask])
    impossible = torch.full_like(effects, -math.inf)
    batch = TokenBatch(impossible, impossible, advantages, mask)
    keys = torch.arange(effects.numel())[None] << 31
    item = WindowItem(batch, keys, old_entropy=torch.ones_like(effects), discriminator_mean=effects)
    ((plan,),) = plan_step(config(mu, frac), Window([item], (0.2, 0.2)))
    return plan.tokens[0].tolist()


def test_the_bound_is_not_about_the_mean():
    # mean 2, sigma 1: 1 * sigma = 1 lies below all but the first, 1.0, which is not above it; centred it would be 3
    assert dropped([1.0, 1.0, 3.0, 3.0], [-1.0] * 4) == [False, False, True, True]
    assert dropped([1.0, 1.0, 3.0, 3.0], [-1.0] * 4, mu=2.9) == [False, False, True, True]
    assert dropped([1.0, 1.0, 3.0, 3.0], [-1.0] * 4, mu=3.1) == [False] * 4


def test_positive_tokens_are_kept_and_padding_does_not_count():
    assert dropped([1.0, 1.0, 3.0, 3.0], [-1.0, -1.0, 1.0, -1.0]) == [False, False, False, True]
    assert dropped([1.0, 1.0, 3.0, 3.0], [-1.0, -1.0, 0.0, -1.0]) == [False, False, False, True]
    assert dropped([1.0, 1.0, 3.0, 3.0, 1e6], [-1.0] * 5, mask=[1, 1, 1, 1, 0]) == [False, False, True, True, False]


def test_the_largest_are_dropped_up_to_a_fraction_of_all_tokens():
    # sigma of 1 to 8 is 2.291; floor(0.25 * 8) = 2 of the four candidates, and one where the fraction gives none
    effects, minus = [float(n) for n in range(1, 9)], [-1.0] * 8
    assert dropped(effects, minus, mu=2.0) == [False] * 4 + [True] * 4
    assert dropped(effects, minus, mu=2.0, frac=0.25) == [False] * 6 + [True] * 2
    assert dropped(effects, minus, mu=2.0, frac=1e-4) == [False] * 7 + [True]
    assert dropped(effects, [-1.0] * 7 + [1.0], mu=2.0, frac=1e-4) == [False] * 6 + [True, False]


def test_equal_effects_are_dropped_by_their_keys():
    assert dropped([1.0, 3.0, 3.0, 1.0], [-1.0] * 4, frac=0.25) == [False, False, True, False]


@pytest.mark.parametrize("size", [0.3, -0.3, 0.0])
def test_tokens_that_are_all_equal_are_kept(size):
    assert dropped([size] * 5, [-1.0] * 5) == [False] * 5
    assert dropped([size], [-1.0]) == [False]


def expected_means(logits):
    log_p = logits.double().log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * log_p.nan_to_num(neginf=0.0)).sum(-1, keepdim=True)
    return (p.square() * (entropy + log_p.nan_to_num(neginf=0.0))).sum(-1)


@pytest.mark.parametrize("block", [1, 600, 10**6])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_head_gives_expectations_in_blocks(block, temperature, scale):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = scale * torch.randn(7, 5, generator=generator), torch.randn(700, 5, generator=generator)
    bias = torch.randn(700, generator=generator)
    bias[3] = -math.inf  # a row that only fills the vocabulary up
    found = discriminator_means(hidden, weight, bias, temperature, block)
    expected = expected_means((hidden @ weight.T + bias) / temperature)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)
    assert discriminator_means(hidden[:0], weight, bias, temperature, block).shape == (0,)
    logits = torch.nn.functional.linear(hidden, weight, bias)
    torch.testing.assert_close(discriminator_means_of_logits(logits, temperature), found, rtol=1e-4, atol=1e-6)
