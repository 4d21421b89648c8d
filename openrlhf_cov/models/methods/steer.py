"""STEER (arXiv 2510.10150): tokens that would change the entropy most weigh least."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_cov.models.method import Method, Plan
from openrlhf_cov.models.slots import TokenWeight
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor

    from openrlhf_cov.models.window import Window

# The largest change counts as at least this much, as published: where all changes are small, weights are near 1.
FLOOR = 0.02
# Probabilities lie this far from 0 and 1.
PROBABLE = 1e-8


@dataclass(frozen=True, kw_only=True)
class SteerSettings(Settings):
    """Flags of STEER. Raises ValueError, naming the flag, when a value is out of range."""

    steer_form: str = setting(
        "exponential",
        "how the weight falls with the estimated change of entropy\n"
        "exponential: from 1 down to --steer_min\n"
        "linear: from --steer_max down to --steer_min",
        choices=("exponential", "linear"),
    )
    steer_min: float = setting(0.8, "weight of the token with the largest change")
    steer_max: float = setting(
        1.2, "linear: weight of the token with the smallest change", only=("steer_form", "linear")
    )

    def check(self) -> None:
        self.require("steer_min", lambda weight: 0.0 < weight <= 1.0, "must be a weight in (0, 1]")
        self.require("steer_max", lambda weight: 1.0 <= weight < math.inf, "must be a finite weight of at least 1")


def changes(window: Window) -> list[Tensor]:
    """Return |Omega| (B, A), the estimated change of a token's entropy; 0 where it is not finite.

    Omega = (A / q) p (1 - p) (log p + H) with p the current and q the old probability.
    """
    found = []
    for item in window.items:
        # Away from 0 and 1, where the estimate divides by q or multiplies 0 with an infinite logarithm.
        p = item.batch.log_probs.exp().clamp(PROBABLE, 1 - PROBABLE)
        q = item.batch.old_log_probs.exp().clamp(PROBABLE, 1 - PROBABLE)
        omega = item.batch.advantages / q * p * (1 - p) * (p.log() + item.entropy)
        found.append(omega.abs().masked_fill(~(item.mask & omega.isfinite()), 0.0))
    return found


def plan(settings: SteerSettings, window: Window) -> list[Plan]:
    """Weigh by w_min ^ (|Omega| / max |Omega|), or linear between the smallest and the largest |Omega|.

    Both extremes are of the whole optimizer step; the published code takes those of a micro-batch, where the same
    token weighs otherwise. Tokens with A = 0 have Omega = 0. Where all are equal, the linear weights are the middle of
    the range.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    omegas = changes(window)
    largest = window.maximum(omegas)
    if settings.steer_form == "linear":
        smallest = -window.maximum([-omega for omega in omegas])
        # Equal changes weigh the middle of the range, as in the released code.
        equal = largest == smallest
        spread = (largest - smallest).masked_fill(equal, 1.0)
        heights = [((omega - smallest) / spread).masked_fill(equal, 0.5) for omega in omegas]
        weights = [settings.steer_max - height * (settings.steer_max - settings.steer_min) for height in heights]
    else:
        weights = [(math.log(settings.steer_min) * o / largest.clamp(min=FLOOR)).exp() for o in omegas]
    weights = [weight.masked_fill(~item.mask, 1.0) for item, weight in zip(window.items, weights, strict=True)]
    return [Plan(weight != 1, weight=weight, numbers={"steer/weight": weight}) for weight in weights]


METHOD = Method(
    name="steer",
    title="STEER",
    source="arXiv 2510.10150",
    summary="tokens are weighted down by how much they would change the entropy",
    settings=SteerSettings,
    slot=TokenWeight(
        plan=plan,
        log_probs_policy="current",
        entropy_policy="current",
        of_all_tokens=lambda settings: settings.steer_form == "linear",  # the smallest change; the largest is no A = 0
    ),
)
