"""REPO-R (arXiv 2603.11682): raises the advantages of improbable tokens in proportion to their surprisal.

Traps: the log-prob is that of the current policy, which every update moves. From a surprisal of 1 / zeta on, tokens of
negative advantage have an advantage of 0, more of them each time zeta doubles. The mean advantage rises, so the bonus
comes after the normalisation of groups. bfloat16 log-probs collapse entropy by themselves: compare in float32. The
derivation is of first order, the paper's runs train LoRA adapters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_cov.models.control import Control
from openrlhf_cov.models.method import Method, Plan
from openrlhf_cov.models.slots import TokenSummand
from openrlhf_cov.settings import Scheduled, Settings, setting

if TYPE_CHECKING:
    from openrlhf_cov.models.window import Window

ZETA = Control("repo_zeta", low=-1.0, high=1.0, step=1e-4, doubles=True)


@dataclass(frozen=True, kw_only=True)
class RepoRSettings(Settings):
    """Flags of REPO-R. Raises ValueError, naming the flag, when a value is out of range."""

    repo_zeta: Scheduled = setting(
        0.01,
        "zeta: positive advantages are multiplied by 1 + zeta x surprisal, negative ones by 1 - zeta x "
        "surprisal, or by 0 if that is negative",
        scheduled=True,
    )

    def check(self) -> None:
        self.require("repo_zeta", math.isfinite, "must be a finite number")


def plan(settings: RepoRSettings, window: Window) -> list[Plan]:
    """Replace A by max(0, A (1 - zeta * log pi)) where A > 0, and by min(0, A (1 + zeta * log pi)) where A < 0.

    log pi is that of the current policy. As a summand: -zeta * |A| * log pi, cut where A would change its sign.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    plans = []
    for item in window.items:
        advantages = item.batch.advantages
        size = advantages.abs()
        bonus = -settings.repo_zeta * size * item.batch.log_probs
        bonus = bonus.masked_fill(~item.mask | (size == 0), 0.0)  # no 0 * inf
        # An advantage may shrink to 0 and no further.
        bonus = bonus.maximum(-size).where(advantages > 0, bonus.minimum(size))
        zeroed = item.mask & (size > 0) & (advantages + bonus == 0)
        plans.append(Plan(bonus != 0, add=bonus, numbers={"repo_r/zeroed_frac": zeroed}))
    return plans


METHOD = Method(
    name="repo_r",
    title="REPO-R",
    source="arXiv 2603.11682",
    summary="advantages of improbable tokens are raised in proportion to their surprisal",
    settings=RepoRSettings,
    slot=TokenSummand(plan=plan, log_probs_policy="current"),
    controls=(ZETA,),
)
