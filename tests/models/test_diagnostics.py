import math

import pytest
import torch
from active import SURROGATES, active
from method_loss import MethodLoss
from openrlhf.models import PolicyLoss, aggregate_loss

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.diagnostics import empty_update_frac, update_metrics
from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.utils.metrics import MetricBuffer

# Four action tokens and a masked one full of garbage; means -3 and 1:
#   log_probs    -1     -2     -3    -6
#   advantages    2     -1      0     3
#   covariance    2     -2      0    -6
#   ratio         1.5    0.5    1     3      at eps 0.2 PPO clips the 1st, 2nd and 4th
LOG_PROBS = torch.tensor([[-1.0, -2.0, -3.0], [-6.0, math.nan, math.nan]])
RATIOS = torch.tensor([[1.5, 0.5, 1.0], [3.0, 1e9, 1e9]])
ADVANTAGES = torch.tensor([[2.0, -1.0, 0.0], [3.0, 1e9, -1e9]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])
BATCH = TokenBatch(LOG_PROBS, LOG_PROBS - RATIOS.log(), ADVANTAGES, MASK)
NAMES = {
    "cov/selected_count",
    "cov/selected_frac",
    "cov/selected_mean",
    "cov/selected_ppo_kl",
    "cov/selected_abs_log_ratio",
    "gradient/coefficient_mean",
    "gradient/effective_frac",
    "gradient/zero_frac",
    "gradient/untrained_frac",
    "gradient/positive_mass",
    "gradient/negative_mass",
    "ppo/clip_frac",
    "ppo/ratio_p99",
    "ppo/ratio_max",
}


def metrics_of(batch=BATCH, selected=None, clip=(0.2, 0.2), seen=None, sequence_old=None):
    """``update_metrics`` of the record of a call that acted on the tokens ``selected``."""
    plans = [] if selected is None else [Plan(selected)]
    return update_metrics(LossRecord(batch, batch.advantages if seen is None else seen, plans, clip, sequence_old))


def reduced(metrics):
    """The values of the metrics on one rank."""
    buffer = MetricBuffer()
    buffer.add(*metrics)
    return buffer.reduce(lambda tensor, op: tensor)


def logged(*args, **kwargs):
    return reduced(metrics_of(*args, **kwargs))


def test_update_metrics_by_hand():
    selected = torch.tensor([[True, False, True], [False, True, True]])  # two action tokens, two masked ones
    values = logged(selected=selected)
    assert values.pop("ppo/ratio_p99") == pytest.approx(3.0, rel=2e-3)  # resolution of the histogram
    assert values == pytest.approx(
        {
            "cov/selected_count": 2.0,
            "cov/selected_ppo_kl": -math.log(1.5) / 2,  # (-log 1.5 - log 1) / 2
            "cov/selected_abs_log_ratio": math.log(1.5) / 2,
            "cov/selected_frac": 0.5,  # 2 of 4
            "cov/selected_mean": 1.0,  # (2 + 0) / 2
            "gradient/coefficient_mean": 0.25,  # the ratio 1 of the token that is not clipped
            "gradient/effective_frac": 1.0,
            "gradient/zero_frac": 0.75,  # three are clipped
            "gradient/untrained_frac": 1.0,  # and one has no advantage
            "gradient/positive_mass": 0.0,
            "gradient/negative_mass": 0.0,
            "ppo/clip_frac": 0.5,  # 2nd and 4th of 4: the 1st is selected already
            "ppo/ratio_max": 3.0,
        },
        rel=1e-5,
    )


@pytest.mark.parametrize(("dual_clip", "zero", "mass"), [(None, 0.0, 1.75), (2.5, 0.5, 0.25)])
def test_the_dual_clip_takes_the_gradient_of_wrong_tokens_alone(dual_clip, zero, mass):
    # ratios 3 and 0.5 of wrong tokens, (3 + 0.5) / 2 without a dual clip; 3 is above 2.5
    log_probs = torch.tensor([[3.0, 0.5]]).log()
    batch = TokenBatch(log_probs, torch.zeros(1, 2), torch.tensor([[-1.0, -1.0]]), torch.ones(1, 2))
    policy_loss = PolicyLoss(math.inf, math.inf, dual_clip=dual_clip)
    loss = MethodLoss(CovConfig(), policy_loss=policy_loss, aggregate=aggregate_loss)
    given = log_probs.requires_grad_()
    loss(given, batch.old_log_probs, batch.advantages, action_mask=batch.action_mask)[0].backward()
    values = reduced(update_metrics(loss.record))
    assert values["gradient/zero_frac"] == (given.grad == 0).float().mean() == zero
    assert values["gradient/negative_mass"] == pytest.approx(given.grad.sum().item()) == pytest.approx(mass)
    assert values["gradient/coefficient_mean"] == pytest.approx(mass)


def test_gradient_masses_by_hand():
    # a clip of 1 / 1 clips the ratio of 3 alone; ratio times what the loss saw: 1.5 * 2, 0.5 * -1, 1 * 0
    values = logged(clip=(1.0, 1.0))
    assert (values["gradient/zero_frac"], values["gradient/untrained_frac"]) == (0.25, 0.5)  # A = 0 has k = 1
    assert values["ppo/clip_frac"] == 0.25  # ratio 3 alone leaves [0, 2]
    assert values["gradient/positive_mass"] == pytest.approx(3 / 4)
    assert values["gradient/negative_mass"] == pytest.approx(0.5 / 4)
    # the first token dropped, the second weighted by 3
    seen = torch.tensor([[0.0, -3.0, 0.0], [3.0, 9.0, 9.0]])
    values = logged(clip=(1.0, 1.0), seen=seen)
    assert values["gradient/untrained_frac"] == 0.75
    assert values["gradient/negative_mass"] == pytest.approx(1.5 / 4)


def recorded(name, log_ratios, advantages):
    """(gradient of the loss, metrics) of tokens with these log ratios, under a method without a plan or none."""
    config = active(name) if name else CovConfig()
    log_probs = torch.tensor([log_ratios], requires_grad=True)
    policy_loss = PolicyLoss(*(config.ppo_clip or (0.2, 0.28)))
    loss = MethodLoss(config, policy_loss=policy_loss, aggregate=aggregate_loss)
    old, mask = torch.zeros(1, len(log_ratios)), torch.ones(1, len(log_ratios))
    value, *_ = loss(log_probs, old, torch.tensor([advantages]), action_mask=mask, rollout_log_probs=old)
    value.backward()
    return log_probs.grad[0], reduced(update_metrics(loss.record))


@pytest.mark.parametrize("name", [None, *SURROGATES])
@pytest.mark.parametrize("signs", [(1.0, 1.0, 1.0, 1.0, 0.0), (-1.0, -1.0, -1.0, -1.0, 0.0)])
def test_the_metrics_are_those_of_the_gradient_beyond_the_cut_too(name, signs):
    # upstream cuts log ratios at 20 and so takes the gradient from the first two tokens, whatever the coefficient
    gradient, values = recorded(name, [25.0, -25.0, 19.0, -19.0, 0.0], list(signs))
    assert gradient[:2].tolist() == [0, 0]
    assert values["gradient/untrained_frac"] == pytest.approx((gradient == 0).float().mean().item())
    assert values["gradient/zero_frac"] == pytest.approx((gradient[:4] == 0).float().sum().item() / 5)
    assert values["gradient/positive_mass"] == pytest.approx(-gradient.clamp(max=0).sum().item(), rel=1e-5)
    assert values["gradient/negative_mass"] == pytest.approx(gradient.clamp(min=0).sum().item(), rel=1e-5)


def test_the_clip_of_a_sequence_ratio():
    # GSPO: exp of the mean log ratio. First sequence (log 2 + log 1/2 + 0) / 3 = 0: 1, although its first two tokens
    # leave [0.8, 1.2]; second: 2, of one token
    old = torch.full((2, 3), -2.0)
    log_probs = old + torch.tensor([[2.0, 0.5, 1.0], [2.0, 1.0, 1.0]]).log()
    batch = TokenBatch(log_probs, old, torch.ones(2, 3), torch.tensor([[1, 1, 1], [1, 0, 0]]))
    by_token, by_sequence = (logged(batch, sequence_old=each) for each in (None, old))
    assert (by_token["ppo/clip_frac"], by_sequence["ppo/clip_frac"]) == (0.5, 0.25)
    assert by_sequence["gradient/positive_mass"] == pytest.approx(3 / 4)


@pytest.mark.parametrize("kind", ["ppo", "gspo"])
@pytest.mark.parametrize("level", ["off", "token", "seq"])
def test_the_clip_fraction_is_upstreams(kind, level):
    # sequences of two and one token with their own ratios to the policy that scored and to the one that sampled
    log_probs = torch.tensor([[-0.1, -1.2], [-0.9, -5.0]])
    old = log_probs - torch.tensor([[0.1, -0.5], [-0.4, 0.0]])
    sampled = log_probs - torch.tensor([[0.0, 0.02], [0.3, 0.0]])
    upstream = PolicyLoss(0.05, 0.05, policy_loss_type=kind, is_correction_level=level)
    loss = MethodLoss(CovConfig(), policy_loss=upstream, aggregate=aggregate_loss)
    mask = torch.tensor([[1, 1], [1, 0]])
    _, expected, *_ = loss(log_probs, old, torch.ones(2, 2), action_mask=mask, rollout_log_probs=sampled)
    values = reduced(update_metrics(loss.record))
    assert values["ppo/clip_frac"] == pytest.approx(float(expected))
    assert values["ppo/ratio_max"] == pytest.approx(math.exp(0.1))  # to the policy that scored, always


def test_without_a_method_nothing_is_selected():
    values = logged()
    assert values["cov/selected_frac"] == 0.0
    assert values["cov/selected_count"] == 0.0
    assert all(math.isnan(values[f"cov/selected_{name}"]) for name in ("mean", "ppo_kl", "abs_log_ratio"))
    assert values["ppo/clip_frac"] == 0.75
    assert logged(clip=(math.inf, math.inf))["ppo/clip_frac"] == 0.0


def test_p99_ignores_the_rarest_hundredth():
    # 200 tokens: ratio 1 for 198, then 5 and 7; the 99 % quantile is the 198th value in order
    log_probs = torch.zeros(1, 200)
    log_probs[0, 10], log_probs[0, 20] = math.log(5), math.log(7)
    batch = TokenBatch(log_probs, torch.zeros(1, 200), torch.ones(1, 200), torch.ones(1, 200))
    values = logged(batch)
    assert values["ppo/ratio_p99"] == pytest.approx(1.0, rel=2e-3)
    assert values["ppo/ratio_max"] == pytest.approx(7.0, rel=1e-5)


@pytest.mark.parametrize(("log_ratio", "largest"), [(19.0, math.exp(19)), (100.0, math.exp(20)), (-100.0, 0.0)])
def test_a_ratio_that_float32_cannot_hold_is_still_logged(log_ratio, largest):
    batch = TokenBatch(torch.full((1, 1), log_ratio), *(torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1)))
    assert logged(batch)["ppo/ratio_max"] == pytest.approx(largest, rel=1e-5)


@pytest.mark.parametrize("mask", [MASK, torch.zeros_like(MASK), torch.tensor([[1, 0, 0], [0, 0, 0]])])
@pytest.mark.parametrize("selected", [None, torch.zeros(2, 3, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool)])
def test_the_names_never_depend_on_the_data(mask, selected):
    batch = TokenBatch(BATCH.log_probs, BATCH.old_log_probs, BATCH.advantages, mask)
    assert logged(batch, selected).keys() == NAMES


def test_metrics_of_no_token_weigh_nothing():
    batch = TokenBatch(BATCH.log_probs, BATCH.old_log_probs, BATCH.advantages, torch.zeros_like(MASK))
    assert reduced([*metrics_of(), *metrics_of(batch)]) == pytest.approx(logged(), nan_ok=True)


def test_metrics_add_up_over_micro_batches_by_their_tokens():
    # 3 of 4 tokens clipped and 0 of 1: 3 / 5, not (0.75 + 0) / 2; log ratios of the selected: log 1.5 and 0
    single = TokenBatch(*(torch.ones(1, 1) for _ in range(4)))
    first, second = torch.tensor([[True, False, False], [False] * 3]), torch.ones(1, 1, dtype=torch.bool)
    assert reduced([*metrics_of(), *metrics_of(single)])["ppo/clip_frac"] == pytest.approx(0.6)
    values = reduced([*metrics_of(selected=first), *metrics_of(single, second)])
    assert values["cov/selected_count"] == 2.0
    assert values["cov/selected_abs_log_ratio"] == pytest.approx(math.log(1.5) / 2)


def test_opposite_drifts_cancel_in_the_kl_only():
    log_probs = torch.tensor([[-1.0, -2.0]])
    batch = TokenBatch(log_probs, torch.tensor([[-1.5, -1.5]]), torch.ones(1, 2), torch.ones(1, 2))
    values = logged(batch, torch.ones(1, 2, dtype=torch.bool))
    assert (values["cov/selected_ppo_kl"], values["cov/selected_abs_log_ratio"]) == (0.0, 0.5)


def test_metrics_hold_no_graph():
    log_probs = torch.zeros(1, 3, requires_grad=True)
    batch = TokenBatch(log_probs + 1, torch.zeros(1, 3), torch.ones(1, 3), torch.ones(1, 3))
    assert not any(metric.parts().requires_grad for metric in metrics_of(batch))


def test_updates_without_a_selected_token():
    assert empty_update_frac(torch.tensor([3, 0, 1, 0])) == 0.5
    assert empty_update_frac(torch.tensor([1])) == 0.0
    assert math.isnan(empty_update_frac(torch.zeros(0)))
