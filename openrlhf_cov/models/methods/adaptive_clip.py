"""Adaptive clip-high (MAI-Thinking-1, 2026; ADAPO, arXiv 2603.11682): the upper clip follows the entropy.

Traps: the upper bound starts from 1 / (1 - eps), 2.5 for 0.6, not from 1 + eps. MAI's entropy is estimated from
sampled tokens, so its target means something else for an exact one. A loop that moves by the sign swings around its
target (``--entropy_band`` stills it). With one update per rollout every ratio is 1 and no clip acts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from openrlhf_cov.models.control import Control
from openrlhf_cov.models.method import Method
from openrlhf_cov.models.slots import ClipRange
from openrlhf_cov.settings import Scheduled, Settings, setting


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipSettings(Settings):
    """Flags of adaptive clip-high. Raises ValueError, naming the flag, when a value is out of range."""

    adaptive_clip_eps: float = setting(
        0.6,
        "eps of the clip range [1 - eps, 1 / (1 - eps) + --adaptive_clip_high], which is symmetric in logarithms "
        "without the addition",
    )
    adaptive_clip_high: Scheduled = setting(
        0.0,
        "addition to the upper bound of the ratio; with --entropy_target, the start of the addition",
        scheduled=True,
    )

    def check(self) -> None:
        self.require("adaptive_clip_eps", lambda eps: 0.0 < eps < 1.0, "must be a number in (0, 1)")
        self.require(
            "adaptive_clip_high", lambda high: 0.0 <= high < math.inf, "must be a finite number of at least 0"
        )


def clip(settings: AdaptiveClipSettings) -> tuple[float, float]:
    """Return (eps_low, eps_high) of the clip [1 - eps, 1 / (1 - eps) + k], k moved towards the target entropy."""
    return settings.adaptive_clip_eps, 1 / (1 - settings.adaptive_clip_eps) - 1 + settings.adaptive_clip_high


METHOD = Method(
    name="adaptive_clip",
    title="Adaptive clip-high",
    source="MAI-Thinking-1; arXiv 2603.11682",
    summary="the upper bound of the PPO clip follows --entropy_target",
    settings=AdaptiveClipSettings,
    slot=ClipRange(clip=clip),
    controls=(Control("adaptive_clip_high", low=0.0, high=2.5, step=0.25),),
    one_update="its clip has no effect: the policy is still the one that sampled, so every ratio is 1",
)
