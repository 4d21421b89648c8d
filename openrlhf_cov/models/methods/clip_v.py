"""Clip_V (arXiv 2602.03392): masks tokens of negative advantage that lower the entropy of their own state most.

Unlike Clip_B, the rule compares a token with the expectation over the vocabulary at its own position, not with the
mean of the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Method, Plan
from openrlhf_cov.models.methods.clip_b import discriminators, drop, is_spread, punished, refuses_for
from openrlhf_cov.models.slots import TokenDrop
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from openrlhf_cov.models.window import Window


@dataclass(frozen=True, kw_only=True)
class ClipVSettings(Settings):
    """Flags of Clip_V. Raises ValueError, naming the flag, when a value is out of range."""

    clip_v_mu: float = setting(
        8.5,
        "bound mu, in standard deviations over the step of a token's effect on the entropy at its position; a "
        "smaller mu masks more",
    )
    clip_v_frac: float = setting(
        1e-4, "largest fraction of action tokens that is masked, at least one token; 1: no limit"
    )
    clip_v_mean: str = setting(
        "all",
        "tokens by whose number the loss is divided\n"
        "all: all action tokens\n"
        "kept: those that are not masked, as in the released code",
        choices=("all", "kept"),
    )

    def check(self) -> None:
        self.require("clip_v_mu", lambda mu: 0.0 < mu < math.inf, "must be a finite number of deviations above 0")
        self.require(
            "clip_v_frac", lambda part: 0.0 < part <= 1.0, "must be a fraction of tokens in (0, 1], not percent"
        )


def plan(settings: ClipVSettings, window: Window) -> list[Plan]:
    """Drop the tokens with A < 0 and x > mu sigma(x), at most the max(1, floor(frac N)) of largest x.

    x = E - S compares the discriminator S of the token with its expectation E over the vocabulary: it is the
    first-order effect of punishing the token on the entropy of its own state. The population standard deviation of x
    is about its mean over all action tokens of the step, but the bound is not centred. Where x has no spread, nothing
    is dropped. Equal x at the limit are chosen by the tokens' keys.

    Arguments and result are described at ``TokenSlot.plan``.

    Raises:
        RuntimeError: The window has no entropies, or no expectations of the discriminator.

    Reference:
        arXiv 2602.03392, by ``clipv_advantage.py`` of its released code. There, tokens with A = 0 beyond the bound
        leave the mean, too; here they stay, which changes no gradient but the denominator of ``kept``.
    """
    scores = discriminators(window)
    effects = [item.discriminator_mean.double() - score for item, score in zip(window.items, scores, strict=True)]
    _, deviation = window.mean_and_deviation(effects)
    bound = settings.clip_v_mu * deviation
    pairs = zip(effects, punished(window), strict=True)
    candidates = [each & (x > bound) & is_spread(deviation) for x, each in pairs]
    # NaN is never among the largest values, so the limit counts all tokens and picks candidates alone.
    ranked = [x.masked_fill(~each, math.nan) for x, each in zip(effects, candidates, strict=True)]
    return drop(window, window.largest(ranked, settings.clip_v_frac), settings.clip_v_mean)


def refuses(settings: Any, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with Clip_V, None if they do. A rank needs whole rows of logits.

    Arguments and result are described at ``Method.refuses``.
    """
    for name in ("ds.ring_attn_size", "ds.tensor_parallel_size"):
        if flags.get(name, 1) != 1:
            return f"--{name} {flags[name]}: --method clip_v compares all tokens of a row, which it splits; drop it"
    return refuses_for("--method clip_v", "--clip_v_mean", settings.clip_v_mean, settings, flags)


METHOD = Method(
    name="clip_v",
    title="Clip_V",
    source="arXiv 2602.03392",
    summary="masks tokens of negative advantage that lower the entropy of their own state most",
    settings=ClipVSettings,
    slot=TokenDrop(plan=plan, entropy_policy="old", needs_discriminator_mean=True),
    refuses=refuses,
)
