"""TRL's batches, dicts of tensors, as what the methods and their metrics take (pure).

Beside TRL's own entries a batch of ``CovGRPOTrainer`` has ``policy_log_probs`` and ``policy_entropy`` (B, A) of the
policy that sampled, ``sample_ids`` (B,), ``graded`` (B,), which is True for a completion with a reward, and, where a
method needs it, ``proxy`` or ``discriminator_mean`` (B, A).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.planning import WindowPart
from openrlhf_cov.models.rollout import RolloutTokens
from openrlhf_cov.models.token_head import discriminator_means_of_logits, min_p_scores_of_logits
from openrlhf_cov.utils.metrics import Mean, Metric

Batch = Mapping[str, Any]


def model_inputs(batch: Batch) -> tuple[Tensor, Tensor, int]:
    """Return token ids and attention mask (B, P + A), and A, of prompts and completions."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    return ids, mask, batch["completion_ids"].shape[1]


def with_truncated(batch: Batch, completion_ids: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the batch with the tokens of all completions in its mask.

    With ``mask_truncated_completions`` TRL's mask leaves truncated completions out, so that a forward pass says
    nothing about their tokens.

    Args:
        batch: The batch of all completions of the rank, B of at most A tokens.
        completion_ids: Token ids of each completion of the rank, B of them, without padding.
    """
    mask = batch["completion_mask"]
    lengths = torch.tensor([len(ids) for ids in completion_ids], device=mask.device)
    places = torch.arange(mask.shape[1], device=mask.device)
    return {**batch, "completion_mask": (places < lengths[:, None]).to(mask.dtype)}


def rollout_tokens(batch: Batch, scores: Tensor) -> RolloutTokens:
    """Return the completions of a rank.

    Args:
        batch: The batch of all completions of the rank, B of at most A tokens.
        scores: Rewards (B,) of the completions; NaN where no reward function gave a reward.
    """
    # TRL computes log-probs and entropies of the padding as well; they count as 0.
    mask = batch["completion_mask"].bool()
    return RolloutTokens(
        log_probs=batch["policy_log_probs"] * mask,
        entropy=batch["policy_entropy"] * mask,
        advantages=batch["advantages"][:, None] * mask,
        action_mask=mask & ~scores.isnan()[:, None],
        scores=scores,
        sample_ids=batch["sample_ids"],
    )


def response_metrics(
    completion_ids: Sequence[Sequence[int]], scores: Tensor, eos_token_ids: Sequence[int]
) -> list[Metric]:
    """Return the means of reward, length in tokens and truncation over the completions of a rank.

    Args:
        completion_ids: Token ids of each completion of the rank, B of them, without padding. The mask of TRL's batch
            gives no lengths: with ``mask_truncated_completions`` it hides truncated completions.
        scores: Rewards (B,) of the completions; NaN where no reward function gave a reward.
        eos_token_ids: A completion without one of these was truncated.
    """
    count = len(completion_ids)
    truncated = sum(set(ids).isdisjoint(eos_token_ids) for ids in completion_ids)
    return [
        Mean("reward", scores.nan_to_num(0.0).sum(), (~scores.isnan()).sum()),
        Mean("response_length", sum(map(len, completion_ids)), count),
        Mean("truncated", truncated, count),
    ]


def vocabulary_scores(config: CovConfig, logits: Tensor, targets: Tensor, temperature: float) -> dict[str, Tensor]:
    """Return what the methods need of the whole vocabulary.

    Args:
        config: Settings of the loss.
        logits: Logits (B, A, V).
        targets: Token ids (B, A).
        temperature: Temperature of the softmax.

    Returns:
        Values (B, A) by name, those that a method of the run reads.
    """
    rows = logits.flatten(0, 1)
    found = {}
    if config.proxy_min_p is not None:
        found["proxy"] = min_p_scores_of_logits(rows, targets.flatten(), temperature, config.proxy_min_p)
    if config.needs_discriminator_mean:
        found["discriminator_mean"] = discriminator_means_of_logits(rows, temperature)
    return {name: values.view(targets.shape) for name, values in found.items()}


def graded_mask(batch: Batch) -> Tensor:
    """Return the mask (B, A) of the tokens of completions that a reward function gave a reward."""
    return batch["completion_mask"].bool() & batch["graded"][:, None]


def window_part(batch: Batch) -> WindowPart:
    """Return a micro-batch as the methods see it when they plan."""
    return WindowPart(
        sample_ids=batch["sample_ids"],
        log_probs=batch["policy_log_probs"],
        advantages=batch["advantages"][:, None].expand_as(batch["policy_log_probs"]),
        action_mask=graded_mask(batch),
        entropy=batch["policy_entropy"],
        proxy=batch.get("proxy"),
        discriminator_mean=batch.get("discriminator_mean"),
    )


def token_batch(batch: Batch, log_probs: Tensor) -> TokenBatch:
    """Return a micro-batch as the loss sees it.

    Args:
        batch: A micro-batch of B completions.
        log_probs: Log-probs (B, A) of the current policy, which carry the gradient.
    """
    # TRL leaves the old log-probs out where a rollout has one update, so that the policy has not moved.
    old = batch.get("old_per_token_logps", log_probs.detach())
    # Log-probs of the engine, if there is one; NaN where it gave none.
    sampled = batch.get("sampling_per_token_logps", old)
    return TokenBatch(
        log_probs=log_probs,
        old_log_probs=old,
        advantages=batch["advantages"][:, None].expand_as(old),
        action_mask=graded_mask(batch),
        rollout_log_probs=sampled.where(~sampled.isnan(), old),
    )
