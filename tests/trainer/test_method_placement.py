"""Surrogates and estimators make the same update of an optimizer step, however its samples are spread."""

import pytest
import torch
from openrlhf.models import PolicyLoss, aggregate_loss

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.loss import MethodLoss
from openrlhf_cov.models.method import Groups, TokenBatch
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.ranking import token_keys
from openrlhf_cov.models.window import ALONE, Window, plan_step

SAMPLES, WIDTH, GROUP = 8, 7, 4
NAMES = [name for name, method in METHODS.items() if method.slot in ("surrogate", "estimator")]


@pytest.fixture(scope="module")
def samples():
    """(log-probs, old ones, mask), of a policy that moved, and rewards of two groups of four."""
    generator = torch.Generator().manual_seed(3)
    old = -2 * torch.rand(SAMPLES, WIDTH, generator=generator)
    log_probs = old + 0.4 * torch.randn(SAMPLES, WIDTH, generator=generator)
    mask = torch.arange(WIDTH) < torch.tensor([7, 3, 1, 5, 2, 6, 4, 7])[:, None]
    return log_probs, old, mask, torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 1]])


def update(name, samples, rows, size, extra, ranks=ALONE):
    """Gradients (samples of this rank, WIDTH) in micro-batches of ``size``, with ``extra`` columns of padding."""
    log_probs, old, mask, rewards = samples
    config = CovConfig(method=name, passk_k=2)
    advantages = config.estimator.estimate(config, Groups(rewards, 0.5)).nan_to_num(0.0) if config.estimator else None
    of_responses = (rewards - rewards.mean(1, keepdim=True) if advantages is None else advantages).view(-1, 1)
    clip = config.ppo_clip or (0.2, 0.28)
    loss = MethodLoss(
        config, policy_loss=PolicyLoss(*clip, token_level_loss=config.aggregation is None), aggregate=aggregate_loss
    )

    def padded(tensor, value):
        return torch.nn.functional.pad(tensor, (0, extra), value=value)

    batches, keys = [], []
    for first in range(0, len(rows), size):
        part = torch.tensor(rows[first : first + size])
        tensors = padded(log_probs[part], 9.0), padded(old[part], -9.0)
        padded_mask = padded(mask[part], False)
        batches.append(TokenBatch(*tensors, of_responses[part] * padded_mask, padded_mask, tensors[1]))
        keys.append(token_keys(0, 1, part, WIDTH + extra))
    plans = plan_step(config, Window(batches, keys, clip, ranks)) if config.plans_globally else [()] * len(batches)
    sizes = {"batch_num_tokens": mask.sum(), "global_batch_size": torch.tensor(float(SAMPLES))}
    found = []
    for batch, of_batch in zip(batches, plans, strict=True):
        loss.expect(of_batch)
        changing = batch.log_probs.clone().requires_grad_()
        tensors = changing, batch.old_log_probs, batch.advantages, batch.action_mask.float(), batch.rollout_log_probs
        loss(*tensors, **sizes)[0].backward()
        assert not changing.grad[:, WIDTH:].any()
        found.append(changing.grad[:, :WIDTH])
    return torch.cat(found)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "deal", [[[0, 1, 2, 3, 4, 5, 6, 7]], [[5, 0, 3, 6], [7, 2, 1, 4]], [[4, 1, 6], [3, 0], [2, 7, 5]]], ids=len
)
@pytest.mark.parametrize(("size", "extra"), [(1, 0), (2, 3), (8, 5)])
def test_any_placement_makes_the_same_update(simulated, samples, name, deal, size, extra):
    whole = update(name, samples, list(range(SAMPLES)), SAMPLES, 0)
    assert whole.any()
    on_ranks = simulated(len(deal)).run(lambda rows, ranks: update(name, samples, rows, size, extra, ranks), deal)
    for rows, gradient in zip(deal, on_ranks, strict=True):
        torch.testing.assert_close(gradient, whole[rows], rtol=1e-6, atol=1e-8)
