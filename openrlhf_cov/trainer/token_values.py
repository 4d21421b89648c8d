"""Compute the advantages and returns of tokens from the advantages of their responses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from openrlhf.models.utils import compute_approx_kl, compute_reward
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from openrlhf_cov.models.returns import discounted_returns, generalised_advantages
from openrlhf_cov.trainer.advantage_settings import AdvantageSettings
from openrlhf_cov.trainer.records import Sample, Scores, StepSettings


@dataclass(frozen=True)
class TokenValues:
    """The advantages and returns of one sample, (A,), and its numbers for the log, 0-d."""

    advantages: Tensor
    returns: Tensor
    # True where the advantage is part of the statistics of the step: action tokens of samples that did not abstain.
    counted: Tensor
    total_reward: Tensor
    kl: Tensor
    log_ratio: Tensor


def token_values(
    samples: Sequence[Sample],
    scores: Sequence[Scores],
    responses: Tensor,
    settings: AdvantageSettings,
    step: StepSettings,
) -> list[TokenValues]:
    """Return the advantages and returns of the tokens of some samples.

    Args:
        samples: The samples, B of them.
        scores: What the models say of each of them.
        responses: The advantage of each response, (B,); NaN for a response that is left out.
        settings: How the run estimates advantages.
        step: The settings of the step, with the coefficient of the KL penalty in the reward.
    """

    def padded(rows: Sequence[Any]) -> Tensor:
        return pad_sequence(list(rows), batch_first=True)

    # (B, A) from here on, A that of the longest sample.
    mask = padded([sample.action_mask for sample in samples])
    counted = mask & ~responses.isnan()[:, None]
    tokens = mask.sum(1).clamp(min=1)
    log_probs = padded([each.log_probs for each in scores])
    kl = log_ratio = torch.zeros_like(log_probs)
    if settings.kl_penalty is not None:
        base = padded([each.base_log_probs for each in scores])
        kl = compute_approx_kl(log_probs, base, kl_estimator=settings.kl_penalty)
        log_ratio = log_probs - base

    # --reward.clip_range is for rewards. The estimator of a method gives advantages, which are not clipped.
    by_method = step.config.estimator is not None
    clip = None if by_method else settings.reward_clip
    # Upstream's function puts the advantage of the response at its last token, and the KL penalty at each token.
    reward = compute_reward(responses.nan_to_num(0.0), step.kl_coef, kl, action_mask=mask, reward_clip_range=clip)
    if scores[0].token_rewards is not None:
        reward = reward + padded([each.token_rewards for each in scores])
    reward = reward.masked_fill(~counted, 0.0)
    if settings.estimator == "gae" and not by_method:
        critic = padded([each.values for each in scores]).masked_fill(~mask, 0.0)
        advantages = over_actions(generalised_advantages, mask, critic, reward, settings.gamma, settings.lambd)
        returns = advantages + critic
        # A sample that is left out has no return, and the critic leaves it out.
        returns = torch.where(counted, returns, critic)
    else:
        returns = over_actions(discounted_returns, mask, reward, 1.0 if by_method else settings.gamma)
        advantages = returns
    # Back to one tensor (A,) of its own length for each sample.
    rows = zip(
        [len(sample.action_mask) for sample in samples],
        advantages.masked_fill(~counted, 0.0),
        returns.masked_fill(~mask, 0.0),
        counted,
        reward.sum(1),
        (kl * mask).sum(1) / tokens,
        (log_ratio * mask).sum(1) / tokens,
        strict=True,
    )
    return [
        TokenValues(advantage[:width], target[:width], seen[:width], *numbers)
        for width, advantage, target, seen, *numbers in rows
    ]


def over_actions(estimate: Callable[..., Tensor], mask: Tensor, *arguments: Any) -> Tensor:
    """Apply a recursion over tokens to the action tokens alone, as if nothing stood between them.

    The tokens of an environment between two turns are no steps of the policy: the last token of a turn is followed by
    the first token of the next one.

    Args:
        estimate: Tensors (B, A) and other arguments -> (B, A).
        mask: True for action tokens (B, A).
        arguments: The arguments of ``estimate``. Tensors among them are (B, A).

    Returns:
        What ``estimate`` gives for the action tokens, at their places; 0 elsewhere.
    """
    begins_turn = mask.clone()
    begins_turn[:, 1:] &= ~mask[:, :-1]
    if (begins_turn.sum(1) <= 1).all():
        # The usual case, one turn, without a copy in another order.
        return estimate(*arguments).masked_fill(~mask, 0.0)
    # Places (B, A) of the action tokens in their order, and then those of all others.
    places = (~mask).byte().argsort(dim=1, stable=True)
    closed_up = [each.gather(1, places) if isinstance(each, Tensor) else each for each in arguments]
    found = estimate(*closed_up)
    return torch.zeros_like(found).scatter(1, places, found).masked_fill(~mask, 0.0)


def whitened(values: Sequence[TokenValues], by_deviation: bool) -> list[TokenValues]:
    """Return the samples with advantages less their mean over all counted tokens of the step.

    Args:
        values: The samples of the step.
        by_deviation: True to divide by the population standard deviation of the advantages as well.
    """
    counted = torch.cat([each.counted for each in values])
    advantages = torch.cat([each.advantages for each in values])[counted].double()
    mean = advantages.mean()
    scale = (advantages - mean).square().mean().clamp(min=1e-8).rsqrt() if by_deviation else 1.0
    return [
        replace(each, advantages=((each.advantages - mean) * scale).masked_fill(~each.counted, 0.0)) for each in values
    ]


def mean_entropy(entropies: Sequence[Tensor], masks: Sequence[Tensor]) -> float:
    """Return the mean entropy over the action tokens of all samples, in nats; 0 without a token.

    Args:
        entropies: Entropies in nats, one tensor (A,) of its own length for each sample.
        masks: True for action tokens, one tensor (A,) for each sample.
    """
    found = torch.cat([entropy[mask] for entropy, mask in zip(entropies, masks, strict=True)])
    return float(found.double().sum() / max(1, len(found)))
