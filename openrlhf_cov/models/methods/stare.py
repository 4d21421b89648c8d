"""STARE (arXiv 2606.19236): below a target entropy, the most surprising tokens weigh more, or are penalised less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.control import Control
from openrlhf_cov.models.method import Method, Plan
from openrlhf_cov.models.slots import TokenWeight
from openrlhf_cov.settings import Scheduled, Settings, setting

if TYPE_CHECKING:
    from openrlhf_cov.models.window import Window


@dataclass(frozen=True, kw_only=True)
class StareSettings(Settings):
    """Flags of STARE. Raises ValueError, naming the flag, when a value is out of range."""

    stare_frac: float = setting(0.1, "fraction of the tokens of one sign that are weighted, the most surprising ones")
    stare_strength: Scheduled = setting(
        0.1,
        "strength s: tokens of positive advantage weigh 1 + s, those of negative advantage 1 - s (published: "
        "0.05 for 14B and 32B)",
        scheduled=True,
    )
    stare_on: str = setting(
        "positive",
        "tokens that are weighted\n"
        "positive: those of positive advantage (O1 in the paper)\n"
        "both: those of both signs (C2)",
        ("positive", "both"),
    )
    stare_gate: float = setting(
        0.3,
        "mean entropy (nats) below which the weights act; --entropy_target takes its place",
        only=("entropy_target", None),
    )

    def check(self) -> None:
        self.require(
            "stare_frac", lambda part: 0.0 < part <= 1.0, "must be a fraction of tokens in (0, 1], not percent"
        )
        self.require(
            "stare_strength",
            lambda weight: 0.0 <= weight <= 0.5,
            "must lie in [0, 0.5]",
            "; W is 1 plus this, M is 1 minus this (0.1 for 1.1 and 0.9)",
        )
        self.require("stare_gate", lambda nats: nats > 0.0, "must be an entropy in nats above 0")


def plan(settings: Any, window: Window) -> list[Plan]:
    """Weigh the ceil(frac * count) least probable tokens with A > 0 by W, and with ``both`` those with A < 0 by M.

    Counts are of the optimizer step; the published code counts in each micro-batch, so small ones select more. The
    gate is the entropy of the rollouts of this step, before its updates.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    surprisals = [-item.batch.log_probs for item in window.items]
    target = settings.stare_gate if settings.entropy_target is None else settings.entropy_target
    opened = window.rollout_entropy < target
    signs = (1, -1) if settings.stare_on == "both" else (1,)
    weights = [item.batch.advantages.new_ones(item.mask.shape) for item in window.items]
    for sign in signs:
        # The least probable tokens of each sign: raised where A > 0, lowered where A < 0.
        among = [item.batch.advantages * sign > 0 for item in window.items]
        picked = window.largest_among(surprisals, among, settings.stare_frac)
        factor = 1 + sign * settings.stare_strength
        weights = [weight.masked_fill(tokens & opened, factor) for weight, tokens in zip(weights, picked, strict=True)]
    return [
        Plan(item.mask & (weight != 1), weight=weight, numbers={"stare/open": item.mask & opened})
        for item, weight in zip(window.items, weights, strict=True)
    ]


def refuses(settings: Any, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with STARE: without positive advantages it has no token to weigh.

    Arguments and result are described at ``Method.refuses``.
    """
    estimator = settings.estimator
    if estimator and estimator.slot.signs == "negative" and settings.stare_on == "positive":
        return (
            f"--method stare changes nothing beside {estimator.flag}, which has no positive advantages; drop one, or "
            "give --stare_on both"
        )
    return None


METHOD = Method(
    name="stare",
    title="STARE",
    source="arXiv 2606.19236",
    summary="below a target entropy, the most surprising tokens of positive advantage weigh more",
    settings=StareSettings,
    slot=TokenWeight(plan=plan, log_probs_policy="current"),
    refuses=refuses,
    controls=(Control("stare_strength", low=0.0, high=0.5, step=0.01),),
    entropies=("stare_gate",),
)
