"""Entropy advantage (arXiv 2506.14758): a bonus on the advantage where the policy was unsure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_cov.models.method import Method, Plan
from openrlhf_cov.models.slots import TokenSummand
from openrlhf_cov.settings import Scheduled, Settings, setting

if TYPE_CHECKING:
    from openrlhf_cov.models.window import Window


@dataclass(frozen=True, kw_only=True)
class EntropyAdvantageSettings(Settings):
    """Flags of the entropy advantage. Raises ValueError, naming the flag, when a value is out of range."""

    entropy_advantage_coef: Scheduled = setting(
        0.4,
        "coefficient alpha: the bonus is alpha x the entropy at the token (published: 0.4 for GRPO, 0.1 for PPO)",
        scheduled=True,
    )
    entropy_advantage_kappa: float = setting(
        2.0, "kappa: the bonus is at most |advantage| / kappa; above 1, so that no sign changes"
    )
    entropy_advantage_policy: str = setting(
        "current",
        "policy whose entropies are used\n"
        "current: the policy before each update, as published; costs one more forward pass\n"
        "old: the policy before the first update of the rollout",
        choices=("current", "old"),
    )

    def check(self) -> None:
        self.require("entropy_advantage_coef", lambda a: 0.0 <= a < math.inf, "must be a finite number of at least 0")
        self.require(
            "entropy_advantage_kappa",
            lambda kappa: 1.0 < kappa < math.inf,
            "must be a finite number above 1, or the bonus may raise a negative advantage to 0 or above",
        )


def plan(settings: EntropyAdvantageSettings, window: Window) -> list[Plan]:
    """Add min(alpha * H, |A| / kappa) to the advantage A of every token, the entropy without gradient.

    Each update starts from the advantages of the estimator; the published snippet adds in place, so that with several
    epochs the bonus piles up. A = 0 stays 0. A negative advantage gets the bonus, too, so its token is penalised less.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    plans = []
    for item in window.items:
        # A fraction of |A| below 1: the bonus cannot change the sign of an advantage.
        most = item.batch.advantages.abs() / settings.entropy_advantage_kappa
        bonus = (settings.entropy_advantage_coef * item.entropy).minimum(most).masked_fill(~item.mask, 0.0)
        plans.append(Plan(bonus > 0, add=bonus, numbers={"entropy_advantage/added": bonus}))
    return plans


METHOD = Method(
    name="entropy_advantage",
    title="Entropy advantage",
    source="arXiv 2506.14758",
    summary="adds a bonus to the advantages of tokens at which the entropy is high",
    settings=EntropyAdvantageSettings,
    slot=TokenSummand(plan=plan, entropy_policy="entropy_advantage_policy"),
)
