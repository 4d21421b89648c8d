"""The loss of a micro-batch with all its terms, and the numbers of a micro-batch for the log."""

from types import SimpleNamespace

import torch
from openrlhf.models import aggregate_loss
from openrlhf.models.utils import compute_approx_kl
from torch import Tensor

from openrlhf_cov.models.loss import PolicyLossResult
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.trainer.model.policy import Policy, TrainingPass
from openrlhf_cov.trainer.records import MicroBatch, StepSettings
from openrlhf_cov.utils.masked import masked_mean
from openrlhf_cov.utils.metrics import Mean


def kl_loss(
    args: SimpleNamespace, micro_batch: MicroBatch, log_probs: Tensor, normalizers: dict
) -> tuple[Tensor | float, Tensor | None]:
    """Compute the KL loss toward the reference policy.

    Args:
        args: The flags of the run.
        micro_batch: Log-probs (B, A) of the reference policy, and the action mask.
        log_probs: Log-probs (B, A) of the policy, with gradient.
        normalizers: Numbers that ``aggregate_loss`` divides by.

    Returns:
        The loss, 0-d, and the mean over action tokens of log-prob less reference log-prob, 0-d; 0 and None without a
        KL loss.
    """
    if not args.algo.kl.use_loss:
        return 0, None
    if args.algo.kl.init_coef > 0:
        base = micro_batch.base_log_probs
        assert base is not None  # a run with a KL loss has a reference policy
        kl = compute_approx_kl(
            log_probs,
            base,
            log_probs_old=micro_batch.log_probs,
            kl_estimator=args.algo.kl.estimator,
            unbiased_gradient=args.algo.kl.unbiased_gradient,
        )
        difference = log_probs.float() - base.float()
    else:
        # With a coefficient of 0 upstream makes no reference model, and logs a KL of 0.
        kl = difference = torch.zeros_like(log_probs)
    mask = micro_batch.action_mask
    return aggregate_loss(kl, mask, **normalizers), masked_mean(difference, mask)


def whole_loss(
    policy: Policy,
    settings: StepSettings,
    micro_batch: MicroBatch,
    forward: TrainingPass,
    result: PolicyLossResult,
    *,
    bonus: float | None,
    share: float,
    normalizers: dict,
) -> tuple[Tensor, dict[str, Tensor | None], dict[str, Tensor | None], Tensor | None]:
    """Return policy loss + KL loss + balancing loss of experts - entropy bonus, and what the log has of them.

    Args:
        bonus: Coefficient of the entropy bonus; None where entropies are not computed.
        share: Share of the samples of the window that the balancing loss of the micro-batch stands for.

    Returns:
        The loss; its parts as ``means_over_updates`` takes them; numbers of the graded tokens as
        ``means_over_tokens`` takes them; and the mean log-ratio to the reference over all action tokens. All are 0-d.
    """
    args = policy.args
    kl, logprobs_diff = kl_loss(args, micro_batch, forward.log_probs, normalizers)
    loss = result.loss + kl * settings.kl_coef
    if forward.balancing_loss is not None:
        loss = loss + forward.balancing_loss * args.actor.aux_loss_coef * share
    entropy = None
    if bonus is not None:
        entropy = aggregate_loss(forward.entropy, micro_batch.action_mask, **normalizers)
        if bonus:
            loss = loss - entropy * bonus
    losses = {
        "policy_loss": result.loss,
        "kl": kl if args.algo.kl.use_loss else None,
        "entropy_loss": entropy,
    }
    numbers = {
        "ppo_clip_ratio": result.clip_frac,
        "ppo_kl": result.ppo_kl,
        "vllm_kl": kl_of_engine(micro_batch) if result.rollout_kl is None else result.rollout_kl,
    }
    return loss, losses, numbers, logprobs_diff


def token_batch(micro_batch: MicroBatch, log_probs: Tensor) -> TokenBatch:
    """Return the tensors of a micro-batch that the policy loss takes, without the tokens of abstained samples.

    Args:
        micro_batch: The samples, with the log-probs of the policy before the updates of the step.
        log_probs: Log-probs (B, A) of the policy now, with gradient.
    """
    return TokenBatch(
        log_probs,
        micro_batch.log_probs,
        micro_batch.advantages,
        micro_batch.graded_mask,
        micro_batch.rollout_log_probs,
    )


def kl_of_engine(micro_batch: MicroBatch) -> Tensor | None:
    """Return the mean over graded tokens of log-prob in the engine less log-prob in training, 0-d.

    The tokens are samples of the engine, so the mean estimates KL(engine || trained policy), in nats. It compares the
    same weights in two programs: anything beyond rounding is a mismatch between vLLM and training. None where the
    engine gave no log-probs.
    """
    if micro_batch.rollout_log_probs is None:
        return None
    gap = micro_batch.rollout_log_probs.float() - micro_batch.log_probs.float()
    return masked_mean(gap, micro_batch.graded_mask)


def filter_share(share: Tensor | None, action_mask: Tensor, of_sequences: bool) -> list[Mean]:
    """Return the metric of what the rollout correction filters; none without such a correction.

    Args:
        share: Filtered share of one micro-batch, 0-d; None without a correction.
        action_mask: Action tokens (B, A) of the micro-batch.
        of_sequences: True if the correction filters whole sequences, False if it filters tokens.
    """
    if share is None or not of_sequences:
        return means_over_tokens({"is_filter_ratio": share}, action_mask.sum())
    # Upstream counts a sequence without tokens as filtered, because its statistic is NaN.
    sequences = action_mask.bool().any(1).sum()
    empty = len(action_mask) - sequences
    filtered = (share * len(action_mask) - empty) / sequences.clamp(min=1)
    return means_over_sequences({"is_filter_ratio": filtered}, action_mask)


def means_over_updates(
    losses: dict[str, Tensor | None], tokens: Tensor, micro_batches: int, dynamic: bool
) -> list[Mean]:
    """Return metrics that average losses over the updates, whatever the micro-batches of an update are.

    ``loss_normalizers`` makes the losses of dynamic micro-batches add up to the loss of an update, and those of static
    ones to a multiple of it, which DeepSpeed divides by their number.

    Args:
        losses: Name -> loss of one micro-batch, 0-d; None where the run has no such loss.
        tokens: Number of action tokens of the micro-batch, 0-d. Without any, a loss may be NaN and counts as 0.
        micro_batches: Number of micro-batches of the update on this rank.
        dynamic: True for dynamic micro-batches.
    """
    parts = 1 if dynamic else micro_batches
    return [
        Mean(name, loss.detach().masked_fill(tokens == 0, 0.0) / parts, 1 / micro_batches)
        for name, loss in losses.items()
        if loss is not None
    ]


def means_over_tokens(numbers: dict[str, Tensor | None], tokens: Tensor) -> list[Mean]:
    """Return metrics that average 0-d values of micro-batches with their action tokens as weights.

    Upstream's means of a micro-batch without action tokens are NaN. They have no weight and are left out.

    Args:
        numbers: Name -> mean over the action tokens of one micro-batch, 0-d; None where the run has no such number.
        tokens: Number of these action tokens, 0-d.
    """
    return _weighted_means(numbers, tokens)


def means_over_sequences(numbers: dict[str, Tensor | None], action_mask: Tensor) -> list[Mean]:
    """Return metrics that average 0-d values of micro-batches with their sequences as weights.

    Args:
        numbers: Name -> mean over the sequences of one micro-batch, 0-d; None where the run has no such number.
        action_mask: True for action tokens, (B, A). Sequences without any have no weight.
    """
    return _weighted_means(numbers, action_mask.bool().any(1).sum())


def _weighted_means(numbers: dict[str, Tensor | None], weight: Tensor) -> list[Mean]:
    return [
        Mean(name, value.detach().masked_fill(weight == 0, 0.0) * weight, weight)
        for name, value in numbers.items()
        if value is not None
    ]
