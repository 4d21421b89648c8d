"""ERC (arXiv 2512.05591): masks tokens whose entropy has moved too far since the rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_cov.models.method import Method, Plan
from openrlhf_cov.models.slots import TokenDrop
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from openrlhf_cov.models.window import Window

# Added to both entropies, as published.
TINY = 1e-8


@dataclass(frozen=True, kw_only=True)
class ErcSettings(Settings):
    """Flags of ERC. Raises ValueError, naming the flag, when a value is out of range."""

    erc_low: float = setting(0.95, "mask a token if its entropy fell below this factor times its old entropy")
    erc_high: float = setting(1.05, "mask a token if its entropy rose above this factor times its old entropy")

    def check(self) -> None:
        self.require("erc_low", lambda ratio: 0.0 <= ratio < 1.0, "must be a ratio of entropies in [0, 1)")
        self.require(
            "erc_high", lambda ratio: ratio > 1.0, "must be a ratio of entropies above 1", "; 0.05 is 1.05 here"
        )


def plan(settings: ErcSettings, window: Window) -> list[Plan]:
    """Drop the tokens with (H + 1e-8) / (H_old + 1e-8) outside (low, high); they stay in the mean.

    The published loss keeps their value; here it is 0, and the gradient is the same.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    plans = []
    for item in window.items:
        ratio = (item.entropy.clamp(min=0.0) + TINY) / (item.old_entropy.clamp(min=0.0) + TINY)
        is_inside = (ratio > settings.erc_low) & (ratio < settings.erc_high)
        plans.append(Plan(item.mask & ~is_inside, drops=True))
    return plans


METHOD = Method(
    name="erc",
    title="ERC",
    source="arXiv 2512.05591",
    summary="masks tokens whose entropy has changed too much since the rollout",
    settings=ErcSettings,
    slot=TokenDrop(plan=plan, entropy_policy="current"),
    one_update="it has no effect: the policy is still the one that sampled, so every ratio of entropies is 1",
)
