"""DPPO (arXiv 2602.04879): masks tokens by a divergence from the policy that sampled, not by a ratio.

Traps: compared with the old policy, as in verl, nothing is ever dropped with one update per rollout. Beyond the cap
the gradient goes on at the cap, it is not 0; verl means 20 and its config says 3. -k * A and -k * A * log_prob have
one gradient and two values. prime-rl's quadratic penalty, on dropped tokens as well, is no part of the method. With
the engine as anchor a correction for the engine would count twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import LOG_RATIO_LIMIT, Method, TokenBatch
from openrlhf_cov.models.slots import Surrogate
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor

# Limits of the two divergences.
PUBLISHED = {"tv": 0.2, "kl": 0.05}

# Log-probs are cut to these: in float32 neither p nor 1 - p is 0 between them.
LOG_PROBS = (-100.0, -1e-7)


@dataclass(frozen=True, kw_only=True)
class DppoSettings(Settings):
    """Flags of DPPO. Raises ValueError, naming the flag, when a value is out of range."""

    dppo_divergence: str = setting(
        "tv",
        "divergence of the sampled token against all others\n"
        "tv: difference of probabilities\n"
        "kl: KL divergence, in nats",
        choices=("tv", "kl"),
    )
    dppo_delta: float = setting(
        0.0, "divergence beyond which a token is masked; 0: the published 0.2 for tv, 0.05 for kl"
    )
    dppo_cap: float = setting(20.0, "largest ratio that weights a token")
    dppo_anchor: str = setting(
        "rollout",
        "policy that the divergence is measured from\n"
        "rollout: the vLLM engine that sampled, as published\n"
        "old: the trainer's policy before the updates",
        choices=("rollout", "old"),
    )

    def check(self) -> None:
        """Check the values, as ``Settings`` describes it.

        Raises:
            ValueError: ``dppo_delta`` is negative, or not below the largest possible divergence (1 for tv, infinity
                for kl), or the cap is below 1 or infinite.
        """
        highest = 1.0 if self.dppo_divergence == "tv" else math.inf
        if not 0.0 <= self.dppo_delta < highest:
            raise ValueError(
                f"--dppo_delta {self.dppo_delta}: must lie in (0, {highest:g}) for {self.dppo_divergence}, or be 0 "
                "for the published value"
            )
        self.require("dppo_cap", lambda ratio: 1.0 <= ratio < math.inf, "must be a ratio of at least 1")


def coefficient(settings: DppoSettings, batch: TokenBatch) -> Tensor:
    """Return min(r, cap), r = p / q; 0 where p moved away from q in the direction of A by more than delta.

    Args:
        settings: Settings of the run.
        batch: Tensors (B, A); p is the current policy, q the anchor (``--dppo_anchor``).

    Returns:
        k (B, A), without gradient.

    Raises:
        RuntimeError: The anchor is the engine, and the batch has no log-probs of the engine.
    """
    anchor = batch.old_log_probs if settings.dppo_anchor == "old" else batch.rollout_log_probs
    if anchor is None:
        raise RuntimeError("--dppo_anchor rollout: the loss was given no log-probs of the engine")
    log_p = batch.log_probs.detach()
    log_q = anchor
    limit = settings.dppo_delta or PUBLISHED[settings.dppo_divergence]
    far = divergence(log_p, log_q, settings.dppo_divergence) > limit
    dropped = far & (((batch.advantages > 0) & (log_p > log_q)) | ((batch.advantages < 0) & (log_p < log_q)))
    ratio = (log_p - log_q).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return ratio.clamp(max=settings.dppo_cap).masked_fill(dropped, 0.0)


def divergence(log_p: Tensor, log_q: Tensor, kind: str) -> Tensor:
    """Return the divergence of two policies at each token, of the token against all other tokens together, (B, A).

    Args:
        log_p: Log-probs (B, A) of the current policy.
        log_q: Log-probs (B, A) of the policy that sampled.
        kind: ``tv`` for |p - q|; otherwise KL(q || p) = q log(q / p) + (1 - q) log((1 - q) / (1 - p)), in nats.
    """
    log_p = log_p.clamp(*LOG_PROBS)
    log_q = log_q.clamp(*LOG_PROBS)
    q = log_q.exp()
    if kind == "tv":
        return (log_p.exp() - q).abs()
    rest_p = -log_p.expm1()
    rest_q = -log_q.expm1()
    return q * (log_q - log_p) + rest_q * (rest_q.log() - rest_p.log())


def refuses(settings: DppoSettings, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with DPPO: a rollout correction beside the anchor ``rollout`` corrects twice.

    Arguments and result are described at ``Method.refuses``.
    """
    level = flags.get("algo.advantage.is_correction_level", "off")
    if settings.dppo_anchor == "old" or level == "off":
        return None
    return (
        f"--algo.advantage.is_correction_level {level} beside --dppo_anchor rollout would correct for the engine "
        "twice; drop it or give --dppo_anchor old"
    )


METHOD = Method(
    name="dppo",
    title="DPPO",
    source="arXiv 2602.04879",
    summary="masks tokens whose probability has moved too far, instead of those whose ratio has",
    settings=DppoSettings,
    slot=Surrogate(coefficient=coefficient, bounded=True, anchor_policy="dppo_anchor"),
    refuses=refuses,
    one_update="with --dppo_anchor old it drops nothing, with rollout only tokens on which engine and trainer differ: "
    "the policy is still the one that sampled",
)
