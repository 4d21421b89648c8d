"""EntroPIC's token weights (arXiv 2511.15248): alpha raises or lowers the advantages of probable tokens by their sign.

Traps: only tokens of a probability near 1 are weighed, whose gradient in the logits is small; the log has their share.
They are those of the policy before each update, so they change between the updates of a rollout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.control import Control
from openrlhf_cov.models.method import LOG_RATIO_LIMIT, Method, Plan, TokenBatch
from openrlhf_cov.models.slots import TokenPenalty, TokenWeight
from openrlhf_cov.settings import Scheduled, Settings, extremes, setting

if TYPE_CHECKING:
    from torch import Tensor

    from openrlhf_cov.models.window import Window


@dataclass(frozen=True, kw_only=True)
class EntropicSettings(Settings):
    """Flags of EntroPIC. Raises ValueError, naming the flag, when a value is out of range."""

    entropic_alpha: Scheduled = setting(
        0.0,
        "alpha in [-1, 1], which acts on probable tokens: above 0, those of positive advantage weigh more and "
        "those of negative advantage less, which lowers entropy; below 0, the reverse. With --entropy_target, "
        "its start",
        scheduled=True,
    )
    entropic_theta: float = setting(0.95, "probability above which a token counts as probable")
    entropic_form: str = setting(
        "weight",
        "form of the method\n"
        "weight: advantages are multiplied by 1 + alpha or 1 - alpha, and the PPO clip applies\n"
        "penalty: the term of the released code, without a clip",
        choices=("weight", "penalty"),
    )

    def check(self) -> None:
        self.require("entropic_alpha", lambda alpha: -1.0 <= alpha <= 1.0, "must lie in [-1, 1]")
        self.require("entropic_theta", lambda theta: 0.0 < theta < 1.0, "must be a probability in (0, 1), not percent")


def probable(settings: EntropicSettings, window: Window) -> list[Tensor]:
    """Return the masks (B, A) of the action tokens with p > theta under the current policy.

    Args:
        settings: With theta, a probability in (0, 1).
        window: The optimizer step, with the log-probs of the policy before its update.

    Returns:
        One mask for each micro-batch of the window.
    """
    bound = math.log(settings.entropic_theta)
    return [item.mask & (item.batch.log_probs > bound) for item in window.items]


def plan(settings: EntropicSettings, window: Window) -> list[Plan]:
    """Weigh the probable tokens: A' = (1 + alpha sign(A)) A, and A elsewhere. In the penalty form A' is A.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    plans = []
    for item, tokens in zip(window.items, probable(settings, window), strict=True):
        weight = None
        if settings.entropic_form == "weight":
            factor = 1.0 + settings.entropic_alpha * item.batch.advantages.sign()
            weight = factor.masked_fill(~tokens, 1.0)
        plans.append(Plan(tokens, weight=weight, numbers={"entropic/probable": tokens}))
    return plans


def penalty_plan(settings: EntropicSettings, window: Window) -> list[Plan]:
    """Pick the probable tokens for the penalty form, and none for the weight form.

    The factor N / N_probable, both of the optimizer step, turns the mean over all tokens into one over the probable
    ones.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    if settings.entropic_form == "weight":
        return [Plan(item.mask & False) for item in window.items]
    tokens = probable(settings, window)
    scale = window.count.double() / window.total(tokens).clamp(min=1)
    return [Plan(each, penalty_scale=scale) for each in tokens]


def penalty(settings: EntropicSettings, batch: TokenBatch, plan: Plan) -> Tensor:
    """Return alpha (-r |A|) N / N_probable (B, A), with the ratio r to the old policy; 0 in the weight form.

    Args:
        settings: Settings of the step; alpha has its value of the step.
        batch: Tensors (B, A); its log-probs carry the gradient.
        plan: The plan of ``penalty_plan``, with the factor N / N_probable.

    Reference:
        The released loss adds alpha times the mean of -r |A| over the probable tokens of a micro-batch, without a clip
        and without a rollout correction. Here the mean is over the optimizer step.
    """
    if plan.penalty_scale is None:
        return batch.advantages.new_zeros(batch.advantages.shape)
    log_ratio = (batch.log_probs - batch.old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return -settings.entropic_alpha * plan.penalty_scale * log_ratio.exp() * batch.advantages.abs()


def refuses(settings: Any, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with EntroPIC, None if they do.

    An alpha that stays 0 changes nothing. The penalty is a mean over the probable tokens. A factor makes it one, which
    is right only where the loss is a mean over all tokens.

    Arguments and result are described at ``Method.refuses``.
    """
    mode = flags["actor.loss_agg_mode"]
    estimator = settings.estimator
    if settings.entropic_form == "penalty" and mode != "token-mean":
        return (
            f"--entropic_form penalty needs --actor.loss_agg_mode token-mean, got {mode}; or give --entropic_form "
            "weight"
        )
    if settings.entropic_form == "penalty" and estimator and estimator.leaves_out:
        return (
            f"--entropic_form penalty is a mean over all probable tokens, and {estimator.flag} leaves responses out; "
            "drop one, or give --entropic_form weight"
        )
    if settings.controlled == "entropic_alpha" or set(extremes(settings.entropic_alpha)) != {0.0}:
        return None
    return (
        "--entropic_alpha 0: --method entropic changes nothing; give a value in [-1, 1], a schedule, or "
        "--entropy_target (published: 0.1, with --entropy_control_form pi)"
    )


METHOD = Method(
    name="entropic",
    title="EntroPIC",
    source="arXiv 2511.15248",
    summary="advantages of probable tokens are scaled by their sign, which may follow --entropy_target",
    settings=EntropicSettings,
    slot=TokenWeight(plan=plan, log_probs_policy="current", by_sign=True),
    beside=TokenPenalty(plan=penalty_plan, penalty=penalty, log_probs_policy="current"),
    refuses=refuses,
    controls=(Control("entropic_alpha", low=-1.0, high=1.0, step=0.05, raises=-1),),
)
