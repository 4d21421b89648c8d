"""Entrocraft (arXiv 2604.26326): responses of one sign alone train while entropy is outside a band that moves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Groups, Method
from openrlhf_cov.models.responses import group_normalised, right
from openrlhf_cov.models.slots import Estimator
from openrlhf_cov.settings import Schedule, Scheduled, Settings, setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class EntrocraftSettings(Settings):
    """Flags of Entrocraft. Raises ValueError, naming the flag, when a value is out of range."""

    entrocraft_low: Scheduled = setting(
        0.6,
        "mean entropy (nats) below which only incorrect responses train (published: 0.6:0.4:STEPS)",
        scheduled=True,
    )
    entrocraft_high: Scheduled = setting(
        0.7, "mean entropy (nats) above which only correct responses train (published: 0.7:0.5:STEPS)", scheduled=True
    )

    def check(self) -> None:
        """Check the values, as ``Settings`` describes it.

        Raises:
            ValueError: A bound is not a finite entropy above 0, or the lower bound is not below the upper one in a
                step of their schedules.
        """
        for name in ("entrocraft_low", "entrocraft_high"):
            self.require(name, lambda nats: 0.0 < nats < math.inf, "must be an entropy above 0, in nats")
        band = (self.entrocraft_low, self.entrocraft_high)
        # Each bound may have a schedule of its own, and they must not cross in any step.
        for step in range(max(getattr(each, "steps", 0) for each in band) + 1):
            low, high = (each.at(step) if isinstance(each, Schedule) else each for each in band)
            if not low < high:
                raise ValueError(
                    f"--entrocraft_low {low:g}: must lie below --entrocraft_high, which is {high:g} in step {step}"
                )


def estimate(settings: EntrocraftSettings, groups: Groups) -> Tensor:
    """Return the advantages (G, K) of GRPO, or outside of the band of entropies those of one kind of responses.

    Above the band correct responses have 1 and the others 0; below it incorrect ones have -1 and the others 0.

    The released code takes max(reward, 0) and min(reward, 0), so that with rewards 0 and 1 nothing would train below
    the band; here correct and incorrect are 1 and -1 whatever their rewards.

    Arguments and result are described at ``Estimator.estimate``.
    """
    signs = right(groups.rewards).to(groups.rewards.dtype) * 2 - 1
    if groups.entropy > settings.entrocraft_high:
        return signs.clamp(min=0)
    if groups.entropy < settings.entrocraft_low:
        return signs.clamp(max=0)
    return group_normalised(groups.rewards)


def refuses(settings: Any, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with Entrocraft: it holds the entropy itself, so no target may hold it as well.

    Arguments and result are described at ``Method.refuses``.
    """
    if settings.entropy_target is None:
        return None
    return (
        "--entropy_target and --method entrocraft each hold the entropy, entrocraft in its own band "
        "(--entrocraft_low, --entrocraft_high); drop one"
    )


METHOD = Method(
    name="entrocraft",
    title="Entrocraft",
    source="arXiv 2604.26326",
    summary="trains on correct responses only above a band of entropy and on incorrect ones only below it, so that "
    "the entropy follows any schedule",
    settings=EntrocraftSettings,
    slot=Estimator(
        estimate=estimate,
        stands_for="group_norm",
        two_valued=True,
        signs="some_positive",
    ),
    refuses=refuses,
    entropies=("entrocraft_low", "entrocraft_high"),
)
