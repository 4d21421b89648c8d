"""NSR (arXiv 2506.01347): wrong responses alone train, each with the advantage -1; the others leave the batch.

Traps: those of PSR, with right and wrong exchanged. A second estimator that leaves some groups no wrong response, as
QAE, would leave nothing of them: a run has one.
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
    """-1 for a wrong response, NaN, left out, for the others (G, K)."""
    return groups.rewards.new_tensor(math.nan).where(right(groups.rewards), groups.rewards.new_tensor(-1.0))


def plan(settings: Settings, window: Window) -> list[Plan]:
    """The mean is over the tokens of wrong responses."""
    return without_left_out(window)


def refuses(settings: Settings, flags: Mapping[str, Any]) -> str | None:
    """The mean over those kept is one of tokens."""
    return mean_of_tokens("nsr", flags)


METHOD = Method(
    name="nsr",
    title="NSR",
    source="arXiv 2506.01347",
    summary="wrong responses alone train, without a baseline",
    slot="estimator",
    settings=Settings,
    estimate=estimate,
    plan=plan,
    stands_for="reinforce",
    two_valued=True,
    refuses=refuses,
)
