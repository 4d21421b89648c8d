"""CISPO (arXiv 2506.13585): REINFORCE with a capped importance weight, so that every token contributes a gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_cov.models.method import Method, TokenBatch
from openrlhf_cov.models.slots import Surrogate
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CispoSettings(Settings):
    """Flags of CISPO. Raises ValueError, naming the flag, when a value is out of range."""

    cispo_cap: float = setting(
        5.0, "largest importance weight (ScaleRL: 5); verl, SkyRL and slime take this number minus 1"
    )
    cispo_floor: float = setting(0.0, "smallest importance weight; 0, as published: no bound")

    def check(self) -> None:
        self.require(
            "cispo_cap",
            lambda ratio: 1.0 <= ratio < math.inf,
            "must be a ratio of at least 1",
            "; where others take 0.28, this is 1.28",
        )
        self.require("cispo_floor", lambda ratio: 0.0 <= ratio <= 1.0, "must be a ratio in [0, 1]")


def coefficient(settings: CispoSettings, batch: TokenBatch) -> Tensor:
    """Return the ratio (B, A) between floor and cap: loss = -clip(ratio) * A * log_prob, its weight without gradient.

    The gradient is the published one. The loss that is logged is -clip(ratio) * A, which does not contain the
    log-prob.

    Arguments and result are described at ``Surrogate.coefficient``.
    """
    return batch.ratio.clamp(settings.cispo_floor, settings.cispo_cap)


METHOD = Method(
    name="cispo",
    title="CISPO",
    source="arXiv 2506.13585",
    summary="importance weights are capped instead of clipped: every token contributes a gradient",
    settings=CispoSettings,
    slot=Surrogate(coefficient=coefficient),
    one_update="its cap has no effect: the policy is still the one that sampled, so every ratio is 1",
)
