"""Positive-advantage reweighting (arXiv 2511.05993): correct responses count less than incorrect ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.control import Control
from openrlhf_cov.models.method import Method, Plan
from openrlhf_cov.models.slots import TokenWeight
from openrlhf_cov.settings import Scheduled, Settings, extremes, setting

if TYPE_CHECKING:
    from openrlhf_cov.models.window import Window


@dataclass(frozen=True, kw_only=True)
class PositiveWeightSettings(Settings):
    """Flags of the weight of positive advantages. Raises ValueError, naming the flag, when a value is out of range."""

    positive_weight: Scheduled = setting(
        1.0,
        "factor lambda of positive advantages; with --entropy_target, its start",
        scheduled=True,
    )

    def check(self) -> None:
        self.require("positive_weight", lambda factor: 0.0 <= factor <= 1.0, "must be a factor in [0, 1]")


def plan(settings: PositiveWeightSettings, window: Window) -> list[Plan]:
    """Weigh the advantage by lambda where A > 0.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    plans = []
    for item in window.items:
        advantages = item.batch.advantages
        positive = item.mask & (advantages > 0)
        weight = advantages.new_ones(advantages.shape).masked_fill(positive, settings.positive_weight)
        plans.append(Plan(positive, weight=weight))
    return plans


def refuses(settings: Any, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with the weight of positive advantages, None if they do.

    A factor that stays 1 changes nothing, and neither does any factor without positive advantages. A factor of 0 may
    leave a group without a gradient.

    Arguments and result are described at ``Method.refuses``.
    """
    estimator = settings.estimator
    if estimator and estimator.slot.signs == "negative":
        return (
            f"--method positive_weight changes nothing beside {estimator.name}, which has no positive advantages; "
            "drop one"
        )
    if estimator and estimator.slot.signs == "positive":
        return (
            f"--method positive_weight beside {estimator.name} scales all advantages alike, because none is negative; "
            "drop one, or lower --actor.adam.lr"
        )
    if settings.controlled == "positive_weight":
        return None
    is_zero = max(extremes(settings.positive_weight)) == 0.0
    if is_zero and estimator and estimator.slot.signs == "some_positive":
        return (
            f"--positive_weight 0 beside --method {estimator.name} leaves groups without any gradient: that "
            "estimator gives them positive advantages alone; give a value above 0, or a schedule"
        )
    if set(extremes(settings.positive_weight)) != {1.0}:
        return None
    return (
        "--method positive_weight changes nothing at --positive_weight 1; give a value below it, a schedule "
        "(0:1:500), or --entropy_target"
    )


METHOD = Method(
    name="positive_weight",
    title="Positive-advantage weight",
    source="arXiv 2511.05993",
    summary="advantages above 0 are scaled by a factor, which may follow --entropy_target",
    settings=PositiveWeightSettings,
    slot=TokenWeight(plan=plan, by_sign=True),
    refuses=refuses,
    controls=(Control("positive_weight", low=0.0, high=1.0, step=0.05, raises=-1, at_target=1),),
)
