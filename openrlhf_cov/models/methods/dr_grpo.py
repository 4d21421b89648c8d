"""Dr. GRPO (arXiv 2503.20783): advantages without the standard deviation, and a constant in place of the length.

Traps: without a length it is the mean over tokens, in which all tokens of a step weigh the same, so the length bias is
absent already; the step size then depends on the number of tokens. Its advantages are at most about half of GRPO's.
Adam hides a constant factor, gradient clipping and weight decay do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Groups, Method, Plan
from openrlhf_cov.models.responses import about_the_mean, needs_several_responses
from openrlhf_cov.models.slots import Estimator, TokenWeight
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor

    from openrlhf_cov.models.window import Window


@dataclass(frozen=True, kw_only=True)
class DrGrpoSettings(Settings):
    """Flags of Dr. GRPO. Raises ValueError, naming the flag, when a value is out of range."""

    dr_grpo_length: float | None = setting(
        None,
        "constant length L: the loss is the sum over tokens divided by (responses x L) (published: the response "
        "limit, 3000); default: the mean over tokens",
    )

    def check(self) -> None:
        """Check the values, as ``Settings`` describes it.

        Raises:
            ValueError: The length is not a finite number above 0.
        """
        length = self.dr_grpo_length
        if length is not None and not 0.0 < length < math.inf:
            raise ValueError(f"--dr_grpo_length {length}: must be a finite number of tokens above 0")


def estimate(settings: DrGrpoSettings, groups: Groups) -> Tensor:
    """Return the rewards less the mean of their group, without division by the standard deviation.

    Args:
        settings: Not used here.
        groups: Any rewards.

    Returns:
        The advantages (G, K); 0 in groups of equal rewards.

    Reference:
        arXiv 2503.20783 and ``train_zero_math.py`` of its released code.
    """
    return about_the_mean(groups.rewards)


def plan(settings: DrGrpoSettings, window: Window) -> list[Plan]:
    """Weigh all advantages by N / (B L), so that the mean over the N tokens becomes a sum over B L.

    B is the number of responses with a token in the optimizer step, over all micro-batches and ranks. Without
    ``dr_grpo_length`` no advantage changes.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    if settings.dr_grpo_length is None:
        return [Plan(item.mask & False) for item in window.items]
    weight = window.constant_length_factor(settings.dr_grpo_length)
    return [Plan(item.mask, weight=weight) for item in window.items]


def refuses(settings: DrGrpoSettings, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with Dr. GRPO: the constant replaces the number of tokens of a token mean.

    Arguments and result are described at ``Method.refuses``.
    """
    mode = flags["actor.loss_agg_mode"]
    if settings.dr_grpo_length is not None and mode != "token-mean":
        return (
            f"--dr_grpo_length {settings.dr_grpo_length:g}: it replaces the number of tokens in the mean over tokens, "
            f"got --actor.loss_agg_mode {mode}; give token-mean"
        )
    return needs_several_responses("--method dr_grpo", flags)


METHOD = Method(
    name="dr_grpo",
    title="Dr. GRPO",
    source="arXiv 2503.20783",
    summary="advantages are not divided by the standard deviation, and a constant can replace the length: a baseline",
    settings=DrGrpoSettings,
    slot=Estimator(estimate=estimate, stands_for="dr_grpo"),
    beside=TokenWeight(plan=plan),
    refuses=refuses,
)
