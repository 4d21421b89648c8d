"""Limits that tie the covariance losses to known ones, on random batches."""

import math

import pytest
import torch
from method_loss import MethodLoss
from openrlhf.models import PolicyLoss, aggregate_loss

from openrlhf_cov.models.cov_config import CovConfig


def random_batch(seed):
    """Log-probs, old log-probs, advantages, mask and rollout log-probs; ratios well beyond any clip range."""
    generator, shape = torch.Generator().manual_seed(seed), (4, 16)
    log_probs = -torch.rand(shape, generator=generator) * 4
    old = log_probs + torch.randn(shape, generator=generator) * 0.5
    advantages = torch.randn(shape, generator=generator) * 2
    mask = torch.rand(shape, generator=generator) < 0.7
    mask[:, 0] = True
    rollout = old + torch.randn(shape, generator=generator) * 0.5
    return log_probs, old, advantages, mask.float(), rollout


def outcome(loss, batch, **normalizers):
    """The 5-tuple of the loss and d loss / d log_probs."""
    log_probs, old, advantages, mask, rollout = batch
    log_probs = log_probs.clone().requires_grad_()
    result = loss(log_probs, old, advantages, action_mask=mask, rollout_log_probs=rollout, **normalizers)
    result[0].backward()
    return *result, log_probs.grad


def cov_loss(cov_type, policy_loss, **settings):
    config = CovConfig(cov_type=cov_type, cov_scope="micro_batch", allow_large_cov_ratio=True, **settings)
    return MethodLoss(config, policy_loss=policy_loss, aggregate=aggregate_loss)


def clip_cov_of_all_candidates():
    return cov_loss(
        "clip_cov", PolicyLoss(1.0, 1.0), clip_cov_ratio=1.0, clip_cov_lb=0.2, clip_cov_ub=5.0
    )  # every token of the band goes: no draw


def kl_cov(ratio=0.2, coef=1.0):
    return cov_loss("kl_cov", PolicyLoss(math.inf, math.inf), kl_cov_ratio=ratio, ppo_kl_coef=coef)


def assert_same_bits(result, expected):
    for actual, wanted in zip(result, expected, strict=True):
        assert (actual is None and wanted is None) or torch.equal(actual, wanted)


CORRECTION = {"is_correction_level": "token", "is_correction_threshold": [0.7, 1.4]}
SETTINGS = {
    "published": {"clip_eps_low": 1.0, "clip_eps_high": 1.0},
    "ppo": {"clip_eps_low": 0.2, "clip_eps_high": 0.28},
    "dual_clip": {"dual_clip": 3.0},
    "seq_mean": {"token_level_loss": False},
    "correction_mask": CORRECTION | {"is_correction_mode": "mask"},
    "correction_clip": CORRECTION | {"is_correction_mode": "clip"},
}
NORMALIZERS = {"dp_size": 2, "batch_num_tokens": torch.tensor(77.0), "global_batch_size": torch.tensor(9.0)}


@pytest.mark.parametrize("normalizers", [{}, NORMALIZERS], ids=["micro_batch", "optimizer_step"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("seed", range(3))
def test_clip_cov_with_an_empty_band_is_ppo_bit_for_bit(settings, normalizers, seed):
    batch = random_batch(seed)
    empty = cov_loss("clip_cov", PolicyLoss(**settings), clip_cov_ratio=1.0, clip_cov_lb=1e6, clip_cov_ub=2e6)
    assert_same_bits(outcome(empty, batch, **normalizers), outcome(PolicyLoss(**settings), batch, **normalizers))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_without_a_method_it_is_the_policy_loss_beneath_bit_for_bit(settings):
    loss = MethodLoss(CovConfig(), policy_loss=PolicyLoss(**settings), aggregate=aggregate_loss)
    assert_same_bits(outcome(loss, random_batch(0)), outcome(PolicyLoss(**settings), random_batch(0)))
    assert (loss.record.plans, loss.record.selected.any()) == ((), False)


@pytest.mark.parametrize("make_loss", [kl_cov, clip_cov_of_all_candidates])
@pytest.mark.parametrize("value", [50.0, -50.0, 1e-3])
def test_masked_tokens_never_change_loss_or_gradient(make_loss, value):
    batch = random_batch(1)
    mask = batch[3].bool()
    log_probs, old, advantages, rollout = (
        batch[i].masked_fill(~mask, value * scale) for i, scale in ((0, 1), (1, -1), (2, 1e4), (4, 1))
    )
    clean, dirty = make_loss(), make_loss()
    expected = outcome(clean, batch)
    result = outcome(dirty, (log_probs, old, advantages, batch[3], rollout))
    assert torch.equal(dirty.record.selected, clean.record.selected)
    assert not (dirty.record.selected & ~mask).any()
    assert_same_bits(result, expected)
    assert not result[-1][~mask].any()


def accumulated(loss, batch):
    """Loss and gradient summed over micro-batches of one sequence, each normalized by the whole step's tokens."""
    tokens = batch[3].sum()
    parts = [outcome(loss, tuple(t[i : i + 1] for t in batch), batch_num_tokens=tokens) for i in range(len(batch[0]))]
    return sum(part[0] for part in parts), torch.cat([part[-1] for part in parts])


def test_selection_per_micro_batch_does_not_accumulate_by_hand():
    # 8 sequences of one token, log_probs 0, -1, ..., -7 (mean -3.5), old = log_probs + 1/2, all A = 0 but the first,
    # A = 8 (mean 1), so that covariances are 3.5 * 7 = 24.5, 2.5 * (-1) = -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5
    log_probs = -torch.arange(8.0).unsqueeze(1)
    advantages = torch.tensor([[8.0]] + [[0.0]] * 7)
    batch = (log_probs, log_probs + 0.5, advantages, torch.ones(8, 1), log_probs)
    loss = kl_cov(ratio=0.25, coef=2.0)
    surrogate = 8 * math.exp(-0.5)  # r A of the first token

    # one micro-batch: floor(0.25 * 8) = 2 tokens, the first and the last; penalty 2 |-1/2| = 1 on each
    whole = outcome(loss, batch)
    assert loss.record.selected.flatten().tolist() == [True] + [False] * 6 + [True]
    assert whole[0].item() == pytest.approx((-surrogate + 2) / 8, rel=1e-5)
    # penalty gradient 2 sign(-1/2) = -2
    assert whole[-1].flatten().tolist() == pytest.approx([(-surrogate - 2) / 8, *[0] * 6, -0.25], rel=1e-5)

    # eight micro-batches: each takes max(1, floor(0.25)) = 1 token, its only one
    value, gradient = accumulated(loss, batch)
    assert value.item() == pytest.approx((-surrogate + 8) / 8, rel=1e-5)
    assert gradient.flatten().tolist() == pytest.approx([(-surrogate - 2) / 8] + [-0.25] * 7, rel=1e-5)


def test_a_weight_of_an_advantage_is_one_of_its_loss():
    """Upstream's loss is homogeneous in the advantage, with the dual clip, too; so methods weigh advantages."""
    draw = torch.Generator().manual_seed(0)
    log_probs, old, advantages = torch.randn(3, 1, 400, generator=draw, dtype=torch.float64)
    weight = torch.rand(1, 400, generator=draw, dtype=torch.float64)
    policy_loss = PolicyLoss(0.2, 0.28, dual_clip=3.0)

    def of_each_token(values):
        return torch.stack([policy_loss(*each, torch.ones(1, 1))[0] for each in zip(*values, strict=True)])

    def columns(*tensors):
        return [tensor.view(-1, 1, 1) for tensor in tensors]

    weighed = of_each_token(columns(log_probs, old, weight * advantages))
    torch.testing.assert_close(weighed, weight[0] * of_each_token(columns(log_probs, old, advantages)))
