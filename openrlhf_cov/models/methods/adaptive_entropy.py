"""Adaptive entropy coefficient (Skywork-OR1, arXiv 2505.22312): an entropy bonus that is switched by the entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openrlhf_cov.models.control import Control
from openrlhf_cov.models.method import Method
from openrlhf_cov.models.slots import EntropyBonus
from openrlhf_cov.settings import Scheduled, Settings, setting


@dataclass(frozen=True, kw_only=True)
class AdaptiveEntropySettings(Settings):
    """Flags of the adaptive entropy bonus. Raises ValueError, naming the flag, when a value is out of range."""

    entropy_bonus: Scheduled = setting(
        0.0, "coefficient of the entropy bonus; with --entropy_target, its start", scheduled=True
    )

    def check(self) -> None:
        self.require("entropy_bonus", lambda bonus: 0.0 <= bonus < math.inf, "must be a finite number of at least 0")


def bonus(settings: AdaptiveEntropySettings) -> float:
    """Return the coefficient c * g of upstream's entropy term: the exact mean entropy over all tokens of the update.

    After a step with the entropy h, c moves by a step towards the target and g is 1 if h was below it, else 0. Both
    are as published; the published code measures -log_prob of the sampled tokens, here h is exact.
    """
    return settings.entropy_bonus


def refuses(settings: Any, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with the adaptive bonus, None if they do.

    The method sets the coefficient of ``--actor.entropy_coef``, and has no effect if that coefficient stays 0.

    Arguments and result are described at ``Method.refuses``.
    """
    if flags["actor.entropy_coef"]:
        return (
            f"--actor.entropy_coef {flags['actor.entropy_coef']:g} has no effect with --method adaptive_entropy, "
            "which sets that number; drop it, or give it as --entropy_bonus"
        )
    if settings.controlled != "entropy_bonus" and settings.entropy_bonus == 0.0:
        return (
            "--method adaptive_entropy moves nothing at --entropy_bonus 0 without a target; add --entropy_target "
            "(published: 0.2)"
        )
    return None


METHOD = Method(
    name="adaptive_entropy",
    title="Adaptive entropy bonus",
    source="arXiv 2505.22312",
    summary="an entropy bonus whose coefficient follows --entropy_target, and is 0 above it",
    settings=AdaptiveEntropySettings,
    slot=EntropyBonus(bonus=bonus),
    refuses=refuses,
    controls=(Control("entropy_bonus", low=0.0, high=5e-3, step=1e-4, gated=True, at_target=1),),
)
