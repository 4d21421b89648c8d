"""PSR (arXiv 2506.01347): right responses alone train, each with the advantage 1; the others leave the batch.

Traps: leaving the batch makes the mean one over fewer tokens, which no advantage of 0 does. Released code compares
rewards with exactly 0 and 1, and lets others pass as advantages; here right is above 0.5. Group normalisation would
bring the baseline that the method does without. A step without a right response trains on none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Groups, Method, Plan
from openrlhf_cov.models.responses import mean_of_tokens, right, without_left_out
from openrlhf_cov.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from openrlhf_cov.models.window import Window


def estimate(settings: Settings, groups: Groups) -> Tensor:
    """1 for a right response, NaN, left out, for the others (G, K)."""
    return groups.rewards.new_tensor(1.0).where(right(groups.rewards), groups.rewards.new_tensor(math.nan))


def plan(settings: Settings, window: Window) -> list[Plan]:
    """The mean is over the tokens of right responses."""
    return without_left_out(window)


def refuses(settings: Settings, flags: Mapping[str, Any]) -> str | None:
    """The mean over those kept is one of tokens."""
    return mean_of_tokens("psr", flags)


METHOD = Method(
    name="psr",
    title="PSR",
    source="arXiv 2506.01347",
    summary="right responses alone train, without a baseline",
    slot="estimator",
    settings=Settings,
    estimate=estimate,
    plan=plan,
    stands_for="reinforce",
    one_sided=True,
    two_valued=True,
    refuses=refuses,
)
