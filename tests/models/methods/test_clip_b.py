import math

import pytest
import torch
from example import gradients, window_of_example, worked_out

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.methods.clip_b import discriminators
from openrlhf_cov.models.window import Window, WindowItem, plan_step


def config(mu=1.0, **settings):
    return CovConfig(method="clip_b", clip_b_mu=mu, **settings)


def test_the_discriminator_of_the_example():
    # old log-probs -0.2, -0.7, -2.4, -0.5, -0.5 and entropies 0.48, 1.6, 2.0, 0.25, 1.0: exp(-0.2) * (0.48 - 0.2), ...
    window = window_of_example()
    (found,) = discriminators(window)
    expected = [0.229245, 0.446927, -0.036287, -0.151633, 0.303265]
    assert found.flatten()[:5].tolist() == pytest.approx(expected, abs=1e-6)
    mean, deviation = window.mean_and_deviation([found])
    assert (float(mean), float(deviation)) == pytest.approx((0.158303, 0.220579), abs=1e-6)


# (S - mean) / sigma = 0.321613, 1.308480, -0.882180, -1.405101, 0.657188. Only the fourth token has A < 0 and lies
# below -1; without it 4 tokens are kept, so that the others weigh 5/4. PPO's gradients are -0.221034, -0.121306,
# 0 (clipped), 0.244281, 0 (clipped).
@pytest.mark.parametrize(
    ("mu", "mean", "loss", "gradient"),
    [
        (1.0, "all", -0.422340, [-0.221034, -0.121306, 0, 0, 0]),
        (1.0, "kept", -0.527925, [-0.276293, -0.151633, 0, 0, 0]),
        (1.5, "all", -0.178060, [-0.221034, -0.121306, 0, 0.244281, 0]),
        (1.5, "kept", -0.178060, [-0.221034, -0.121306, 0, 0.244281, 0]),
    ],
)
def test_gradients_of_the_example(mu, mean, loss, gradient):
    assert gradients(config(mu, clip_b_mean=mean), eps=(0.2, 0.2)) == worked_out(loss, gradient)


def dropped(old, entropy, advantages, mask=None, mu=1.0):
    old, entropy, advantages = (torch.tensor([each], dtype=torch.float32) for each in (old, entropy, advantages))
    mask = torch.ones_like(old) if mask is None else torch.tensor([mask])
    batch = TokenBatch(old, old, advantages, mask)
    item = WindowItem(batch, torch.arange(old.numel())[None], old_entropy=entropy)
    ((plan,),) = plan_step(config(mu), Window([item], (0.2, 0.2)))
    return plan.tokens[0].tolist()


def test_one_side_alone_is_dropped_and_tokens_without_an_advantage_count():
    # p = 1/2, H + ln p = 1, 1, 1, -3: S = 0.5, 0.5, 0.5, -1.5; mean 0, sigma sqrt((3 * 0.25 + 2.25) / 4) = 0.866025
    old, entropy = [math.log(0.5)] * 4, [1 - math.log(0.5)] * 3 + [-3 - math.log(0.5)]
    assert dropped(old, entropy, [0.0, 0.0, 1.0, -1.0]) == [False, False, False, True]
    assert dropped(old, entropy, [0.0, 0.0, 1.0, -1.0], mu=1.74) == [False] * 4  # -1.5 / 0.866025 = -1.732
    assert dropped(old, entropy, [-1.0, -1.0, -1.0, 1.0]) == [False] * 4
    assert dropped(old, entropy, [-1.0, -1.0, -1.0, 0.0]) == [False] * 4


def test_padding_has_no_part_in_the_bound():
    # without the padding S = 0.5, -1.5: mean -0.5, sigma 1; the second token lies at exactly -1 sigma
    old, entropy = [math.log(0.5)] * 3, [1 - math.log(0.5), -3 - math.log(0.5), 1e6]
    assert dropped(old, entropy, [-1.0] * 3, [1, 1, 0], mu=0.99) == [False, True, False]
    assert dropped(old, entropy, [-1.0] * 3, [1, 1, 0], mu=1.01) == [False] * 3


@pytest.mark.parametrize("mu", [1e-3, 1.0])
@pytest.mark.parametrize("size", [0.3, 1e-7, 7.0])
def test_tokens_that_are_all_equal_are_kept(mu, size):
    assert dropped([-size] * 7, [0.7] * 7, [-1.0] * 7, mu=mu) == [False] * 7
    assert dropped([-0.5], [0.3], [-1.0], mu=mu) == [False]


def test_an_impossible_token_has_a_discriminator_of_0():
    window = window_of_example()
    window.items[0].batch.old_log_probs[0, 0] = -math.inf
    (found,) = discriminators(window)
    assert found[0, 0] == 0
    assert found.isfinite().all()


def test_after_updates_the_policy_that_sampled_still_decides():
    window = window_of_example()
    (first,) = plan_step(config(), window)
    window.items[0].batch.log_probs.fill_(-3.0)
    window.items[0].entropy.fill_(9.0)
    (later,) = plan_step(config(), window)
    assert torch.equal(first[0].tokens, later[0].tokens)
