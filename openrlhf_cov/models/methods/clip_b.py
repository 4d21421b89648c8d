"""Clip_B (arXiv 2602.03392): masks tokens of negative advantage that would lower the entropy most.

The rule compares a token with the whole step: the bound is so many standard deviations below the mean. It is
one-sided, since tokens of positive advantage always train.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Method, Plan
from openrlhf_cov.models.slots import TokenDrop
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor

    from openrlhf_cov.models.window import Window

# Below this standard deviation all tokens are equal, and the differences are rounding.
SMALLEST_DEVIATION = 1e-12


@dataclass(frozen=True, kw_only=True)
class ClipBSettings(Settings):
    """Flags of Clip_B. Raises ValueError, naming the flag, when a value is out of range."""

    clip_b_mu: float = setting(
        2.5,
        "bound mu: masks tokens whose entropy discriminator lies more than mu standard deviations below its "
        "mean; a smaller mu masks more",
    )
    clip_b_mean: str = setting(
        "all",
        "tokens by whose number the loss is divided\n"
        "all: all action tokens\n"
        "kept: those that are not masked, as in the released code",
        choices=("all", "kept"),
    )

    def check(self) -> None:
        self.require("clip_b_mu", lambda mu: 0.0 < mu < math.inf, "must be a finite number of deviations above 0")


def discriminators(window: Window) -> list[Tensor]:
    """Return S = p (H + ln p) of each token, float64 (B, A) of each micro-batch, under the policy that sampled.

    A step on the logit of the token lowers its entropy in proportion to S. H and ln p cancel, so S is computed in
    float64. It is 0, its limit, where p is 0.

    Raises:
        RuntimeError: The window has no entropies.
    """
    found = []
    for item in window.items:
        log_p = item.batch.old_log_probs.double()
        score = log_p.exp() * (item.old_entropy.double() + log_p)
        found.append(score.masked_fill(log_p == -math.inf, 0.0))
    return found


def punished(window: Window) -> list[Tensor]:
    """Return the masks (B, A) of the action tokens with a negative advantage."""
    return [item.mask & (item.batch.advantages < 0) for item in window.items]


def is_spread(deviation: Tensor) -> Tensor:
    """Return True, 0-d, if a standard deviation is more than rounding. Otherwise no token stands out."""
    return deviation >= SMALLEST_DEVIATION


def drop(window: Window, tokens: Sequence[Tensor], mean: str) -> list[Plan]:
    """Return plans that drop the tokens of the masks (B, A).

    Args:
        window: The optimizer step, whose counts of tokens ``kept`` needs.
        tokens: One mask of action tokens for each micro-batch.
        mean: ``all``: the loss is still divided by all N tokens. ``kept``: the tokens that are kept weigh N / N_kept,
            both counts of the optimizer step.
    """
    if mean == "all":
        return [Plan(each, drops=True) for each in tokens]
    # Counts of the optimizer step, over all micro-batches and ranks.
    kept = window.count - window.total(tokens)
    weight = window.count.double() / kept.clamp(min=1)
    return [Plan(each, drops=True, weight=weight) for each in tokens]


def plan(settings: ClipBSettings, window: Window) -> list[Plan]:
    """Drop the tokens with A < 0 and S - mean(S) < -mu sigma(S).

    Mean and population standard deviation run over all action tokens of the optimizer step, also those with A = 0.
    Where S has no spread, nothing is dropped.

    Arguments and result are described at ``TokenSlot.plan``.

    Raises:
        RuntimeError: The window has no entropies.

    Reference:
        arXiv 2602.03392, by ``clipb_advantage.py`` of its released code, which takes the statistics over the rollout
        batch; both agree for one update per rollout. It takes p from the sampling engine and H from the trainer; here
        both are the trainer's.
    """
    scores = discriminators(window)
    mean, deviation = window.mean_and_deviation(scores)
    bound = -settings.clip_b_mu * deviation
    pairs = zip(scores, punished(window), strict=True)
    tokens = [each & (score - mean < bound) & is_spread(deviation) for score, each in pairs]
    return drop(window, tokens, settings.clip_b_mean)


def refuses_for(method_flag: str, mean_flag: str, mean: str, settings: Any, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with a method that drops punished tokens, None if they do.

    Args:
        method_flag: The flag and value that choose the method, for the message.
        mean_flag: The flag that says what the loss is divided by.
        mean: The value of that flag, ``all`` or ``kept``.
        settings: The settings of the run.
        flags: See ``Method.refuses``.
    """
    mode = flags["actor.loss_agg_mode"]
    estimator = settings.estimator
    if mean == "kept" and mode != "token-mean":
        return f"{mean_flag} kept needs --actor.loss_agg_mode token-mean, got {mode}; or give {mean_flag} all"
    if estimator and estimator.slot.signs == "positive":
        return f"{method_flag} changes nothing beside {estimator.name}, which has no negative advantages; drop one"
    return None


def refuses(settings: Any, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with Clip_B, None if they do.

    Arguments and result are described at ``Method.refuses``.
    """
    return refuses_for("--method clip_b", "--clip_b_mean", settings.clip_b_mean, settings, flags)


METHOD = Method(
    name="clip_b",
    title="Clip_B",
    source="arXiv 2602.03392",
    summary="masks tokens of negative advantage that would lower the entropy most, by the statistics of the step",
    settings=ClipBSettings,
    slot=TokenDrop(plan=plan, entropy_policy="old"),
    refuses=refuses,
)
