"""NSR (arXiv 2506.01347): wrong responses alone train, each with the advantage -1; the others leave the batch.

Traps: those of PSR, with right and wrong exchanged. A second estimator that leaves some groups no wrong response, as
QAE, would leave nothing of them: a run has one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from openrlhf_cov.models.method import Groups
from openrlhf_cov.models.methods import psr
from openrlhf_cov.models.responses import right
from openrlhf_cov.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor


def estimate(settings: Settings, groups: Groups) -> Tensor:
    """Return -1 for a wrong response, NaN, left out, for the others (G, K)."""
    return groups.rewards.new_tensor(math.nan).where(right(groups.rewards), groups.rewards.new_tensor(-1.0))


METHOD = replace(
    psr.METHOD,
    name="nsr",
    title="NSR",
    summary="trains on incorrect responses only, without a baseline",
    slot=replace(psr.METHOD.slot, estimate=estimate, signs="negative"),
    refuses=partial(psr.mean_of_tokens, "nsr"),
)
