"""80/20 (arXiv 2506.01939, equation 6): only the tokens of highest entropy train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Method, Plan
from openrlhf_cov.models.slots import TokenDrop
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from openrlhf_cov.models.window import Window


@dataclass(frozen=True, kw_only=True)
class TopEntropySettings(Settings):
    """Flags of 80/20. Raises ValueError, naming the flag, when a value is out of range."""

    top_entropy_frac: float = setting(
        0.2, "fraction of action tokens that keep their gradient, those of highest entropy"
    )
    top_entropy_policy: str = setting(
        "current",
        "policy whose entropies are used\n"
        "current: the policy before each update, as published; costs one more forward pass\n"
        "old: the policy before the first update of the rollout",
        choices=("current", "old"),
    )
    top_entropy_mean: str = setting(
        "kept",
        "tokens by whose number the loss is divided\n"
        "kept: those that are not masked, as published\n"
        "all: all action tokens, as in TRL",
        choices=("kept", "all"),
    )

    def check(self) -> None:
        self.require(
            "top_entropy_frac",
            lambda part: 0.0 < part < 1.0,
            "must be a fraction of tokens in (0, 1), not percent",
            "; at 1 all tokens train, as without the method",
        )


def plan(settings: TopEntropySettings, window: Window) -> list[Plan]:
    """Drop every token but the ``top_entropy_frac`` of all action tokens with the highest entropy, at least one.

    The published threshold is one of a (micro-)batch; this one is of the whole optimizer step. The quota is rounded
    down, ties are broken by the tokens' keys, so exactly the quota is kept wherever the tokens lie.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    kept = window.largest([item.entropy for item in window.items], settings.top_entropy_frac)
    # The mean over N tokens times N / N_kept is the mean over the kept ones.
    weight = window.count.double() / window.total(kept).clamp(min=1) if settings.top_entropy_mean == "kept" else None
    return [
        Plan(item.mask & ~tokens, drops=True, weight=weight) for item, tokens in zip(window.items, kept, strict=True)
    ]


def refuses(settings: TopEntropySettings, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with 80/20: a mean over the kept tokens needs a loss that is a mean over tokens.

    Arguments and result are described at ``Method.refuses``.
    """
    mode = flags["actor.loss_agg_mode"]
    if settings.top_entropy_mean == "all" or mode == "token-mean":
        return None
    return (
        f"--top_entropy_mean kept needs --actor.loss_agg_mode token-mean, got {mode}; or give --top_entropy_mean all"
    )


METHOD = Method(
    name="top_entropy",
    title="80/20",
    source="arXiv 2506.01939",
    summary="masks all but the fifth of the tokens with the highest entropy",
    settings=TopEntropySettings,
    slot=TokenDrop(plan=plan, entropy_policy="top_entropy_policy"),
    refuses=refuses,
)
