"""PSR (arXiv 2506.01347): correct responses alone train, each with the advantage 1; the others leave the batch.

Traps: leaving the batch makes the mean one over fewer tokens, which no advantage of 0 does. Released code compares
rewards with exactly 0 and 1, and lets others pass as advantages; here a reward above 0.5 is correct. Group
normalisation would bring the baseline that the method does without. A step without a correct response trains on none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Groups, Method, Plan
from openrlhf_cov.models.responses import right
from openrlhf_cov.models.slots import Estimator, TokenDrop
from openrlhf_cov.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from openrlhf_cov.models.window import Window


def estimate(settings: Settings, groups: Groups) -> Tensor:
    """Return 1 for a correct response, and NaN for the others, which are left out; (G, K).

    Arguments and result are described at ``Estimator.estimate``.
    """
    return groups.rewards.new_tensor(1.0).where(right(groups.rewards), groups.rewards.new_tensor(math.nan))


def plan(settings: Settings, window: Window) -> list[Plan]:
    """Drop the tokens of responses that the estimator left out, those of advantage 0, also from the mean.

    The other tokens weigh N / N_kept, both counts of the whole optimizer step, so that the mean is over those kept.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    # A response that is left out has advantages of 0; correct ones have 1.
    kept = [item.mask & (item.batch.advantages != 0) for item in window.items]
    weight = window.count.double() / window.total(kept).clamp(min=1)
    return [
        Plan(item.mask & ~tokens, drops=True, weight=weight) for item, tokens in zip(window.items, kept, strict=True)
    ]


def mean_of_tokens(method: str, settings: Settings, flags: Mapping[str, Any]) -> str | None:
    """Return why a mean over the kept responses does not go with the aggregation of the loss; None if it does.

    Args:
        method: Name of the method, for the message.
        settings: Settings of the run, which this check does not use.
        flags: See ``Method.refuses``.
    """
    mode = flags["actor.loss_agg_mode"]
    if mode == "token-mean":
        return None
    return f"--method {method} takes the mean over the tokens kept: --actor.loss_agg_mode token-mean, got {mode}"


METHOD = Method(
    name="psr",
    title="PSR",
    source="arXiv 2506.01347",
    summary="trains on correct responses only, without a baseline",
    settings=Settings,
    slot=Estimator(
        estimate=estimate,
        stands_for="reinforce",
        two_valued=True,
        signs="positive",
    ),
    beside=TokenDrop(plan=plan),
    refuses=partial(mean_of_tokens, "psr"),
)
