"""Two sequences of three tokens, the last one padding: what every method's values and gradients are worked out on."""

import math
from dataclasses import replace

import pytest
import torch
from method_loss import MethodLoss
from openrlhf.models import PolicyLoss, aggregate_loss

from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.window import Window, WindowItem, plan_step

LOG_PROBS = [[-0.1, -1.2, -2.0], [-0.3, -0.9, -5.0]]
OLD = [[-0.2, -0.7, -2.4], [-0.5, -0.5, -1.0]]
ROLLOUT = [[-0.3, -0.7, -2.4], [-0.5, -0.6, -1.0]]
ADVANTAGES = [[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]
MASK = [[1, 1, 1], [1, 1, 0]]
ENTROPIES = [[0.5, 1.5, 2.0], [0.2, 1.0, 9.0]]
PROXIES = [[-1e4, -1e4, -1e4], [-1e4, -0.6, -0.5]]
OLD_ENTROPIES = [[0.48, 1.6, 2.0], [0.25, 1.0, 9.0]]
DISCRIMINATOR_MEANS = [[0.3, 0.2, 0.1], [0.1, 0.25, 9.0]]
# ratios: exp(0.1) = 1.105171, exp(-0.5) = 0.606531, exp(0.4) = 1.491825; exp(0.2) = 1.221403, exp(-0.4) = 0.670320


def example():
    """The example as float64 tensors; its log-probs take a gradient."""
    tensors = [torch.tensor(values, dtype=torch.float64) for values in (LOG_PROBS, OLD, ADVANTAGES)]
    rollout = torch.tensor(ROLLOUT, dtype=torch.float64)
    return TokenBatch(tensors[0].requires_grad_(), *tensors[1:], torch.tensor(MASK), rollout)


def window_of_example(clip=(0.2, 0.28)):
    """The example as the window of an optimizer step. The mean entropy of the rollouts is 0.25 nats."""
    batch = example()
    item = WindowItem(
        replace(batch, log_probs=batch.log_probs.detach()),
        torch.arange(6).view(2, 3),
        entropy=torch.tensor(ENTROPIES, dtype=torch.float64),
        old_entropy=torch.tensor(OLD_ENTROPIES, dtype=torch.float64),
        proxy=torch.tensor(PROXIES, dtype=torch.float64),
        discriminator_mean=torch.tensor(DISCRIMINATOR_MEANS, dtype=torch.float64),
    )
    return Window([item], clip, rollout_entropy=torch.tensor(0.25))


def gradients(config, eps=(0.2, 0.28), token_level_loss=True, **policy):
    """(loss, d loss / d log-prob of the five tokens) of the methods of ``config``, planned over the whole example.

    ``eps`` is the PPO clip of the run; where a method was published with another one, it is that one's. ``policy`` are
    further arguments of upstream's loss.
    """
    batch = example()
    clip = config.ppo_clip or eps
    policy_loss = PolicyLoss(*clip, token_level_loss=token_level_loss, **policy)
    loss = MethodLoss(config, policy_loss=policy_loss, aggregate=aggregate_loss)
    if config.plans_globally:
        loss.expect(*plan_step(config, window_of_example(clip)))
    tensors = batch.log_probs, batch.old_log_probs, batch.advantages
    value, *_ = loss(*tensors, action_mask=batch.action_mask, rollout_log_probs=batch.rollout_log_probs)
    value.backward()
    gradient = batch.log_probs.grad.flatten()
    assert gradient[-1] == 0  # of the padding
    assert math.isfinite(value.item())
    return value.item(), gradient[:-1].tolist()


def worked_out(loss, gradient):
    """What ``gradients`` has to return, as it was worked out to six digits."""
    return pytest.approx(loss, abs=1e-6), pytest.approx(gradient, abs=1e-6)
