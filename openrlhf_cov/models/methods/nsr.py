"""NSR (arXiv 2506.01347): incorrect responses alone train, each with the advantage -1; the others leave the batch.

Traps: those of PSR, with correct and incorrect exchanged. A second estimator that leaves some groups no incorrect
response, such as QAE, would leave nothing of these groups: a run has one estimator.
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
    """Return -1 for an incorrect response, and NaN for a correct one, which is left out; (G, K).

    Arguments and result are described at ``Estimator.estimate``.
    """
    return groups.rewards.new_tensor(math.nan).where(right(groups.rewards), groups.rewards.new_tensor(-1.0))


METHOD = replace(
    psr.METHOD,
    name="nsr",
    title="NSR",
    summary="trains on incorrect responses only, without a baseline",
    slot=replace(psr.METHOD.slot, estimate=estimate, signs="negative"),
    refuses=partial(psr.mean_of_tokens, "nsr"),
)
