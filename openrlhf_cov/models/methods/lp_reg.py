"""Lp-Reg (arXiv 2510.03222): regularises improbable tokens of negative advantage toward the min-p-filtered policy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.control import Control
from openrlhf_cov.models.method import Method, Plan, TokenBatch
from openrlhf_cov.models.slots import TokenPenalty
from openrlhf_cov.settings import Scheduled, Settings, setting
from openrlhf_cov.utils.shares import floor_share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from openrlhf_cov.models.window import Window

# The released code cuts k3 at this value. Beyond a log ratio of about 2.6 the penalty is constant: no gradient.
K3_LIMIT = 10.0


@dataclass(frozen=True, kw_only=True)
class LpRegSettings(Settings):
    """Flags of Lp-Reg. Raises ValueError, naming the flag, when a value is out of range."""

    lp_reg_frac: float = setting(
        0.01,
        "fraction of the tokens of negative advantage that may get the penalty, the least probable ones "
        "(published: 0.005 for 32B)",
        fraction=True,
    )
    lp_reg_coef: Scheduled = setting(1.0, "coefficient of the penalty", scheduled=True)
    lp_reg_min_p: float = setting(
        0.02, "tokens less probable than this times the largest probability are noise and get no penalty"
    )

    def check(self) -> None:
        self.require("lp_reg_min_p", lambda part: 0.0 < part < 1.0, "must be a fraction in (0, 1), not percent")
        self.require("lp_reg_coef", lambda coef: 0.0 <= coef < math.inf, "must be a finite number of at least 0")


def plan(settings: LpRegSettings, window: Window) -> list[Plan]:
    """Penalise those of the floor(frac * count) least probable tokens with A < 0, at least one, below their proxy.

    The proxy is the policy that sampled, without its improbable tokens and renormalised. Counts are of the optimizer
    step; the published code counts in each micro-batch, and a quota of one token does nothing there.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    # Only tokens of negative advantage: those of positive advantage are not pushed down.
    wrong = [item.batch.advantages < 0 for item in window.items]
    surprisals = [-item.batch.log_probs for item in window.items]
    lowest = window.largest_among(surprisals, wrong, settings.lp_reg_frac, floor_share)
    return [
        Plan(tokens & (item.proxy > item.batch.log_probs), reference=item.proxy)
        for tokens, item in zip(lowest, window.items, strict=True)
    ]


def penalty(settings: LpRegSettings, batch: TokenBatch, plan: Plan) -> Tensor:
    """Return coef * min(e^d - d - 1, 10) with d = log proxy - log pi, shape (B, A).

    This is the k3 estimator of the released code with its cut; the paper speaks of a forward KL.

    Args:
        settings: Settings of the step.
        batch: Tensors (B, A); its log-probs log pi carry the gradient.
        plan: The plan of the method, whose reference is log proxy.

    Raises:
        RuntimeError: The plan has no reference.
    """
    if plan.reference is None:
        raise RuntimeError("a plan of --method lp_reg has the proxies as its reference")
    distance = plan.reference - batch.log_probs
    # Cut d before exp(): an infinite exp() would turn the zero gradient of the cut below into NaN.
    # k3 at |d| = 20 is above the limit on both sides, so this first cut changes no value.
    distance = distance.clamp(-2 * K3_LIMIT, 2 * K3_LIMIT)
    k3 = distance.exp() - distance - 1
    return settings.lp_reg_coef * k3.clamp(max=K3_LIMIT)


def refuses(settings: Any, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with Lp-Reg, None if they do.

    It acts on tokens of negative advantage. A rank needs whole rows of logits, and the penalised tokens need PPO's
    surrogate without a clip.

    Arguments and result are described at ``Method.refuses``.
    """
    estimator = settings.estimator
    if estimator and estimator.slot.signs == "positive":
        return f"--method lp_reg changes nothing beside {estimator.flag}, which has no negative advantages; drop one"
    if settings.surrogate is not None:
        return (
            f"--method lp_reg holds tokens beside PPO's unclipped surrogate, in whose place {settings.surrogate.flag} "
            "puts its own; drop one"
        )
    for name in ("ds.ring_attn_size", "ds.tensor_parallel_size"):
        if flags.get(name, 1) != 1:
            return f"--method lp_reg compares all tokens of a row, which --{name} {flags[name]} splits; drop it"
    if flags.get("actor.dual_clip") is not None:
        return (
            f"--actor.dual_clip {flags['actor.dual_clip']:g} would take the gradient of tokens that --method lp_reg "
            "holds, which has no clip for them; drop it"
        )
    clip = flags.get("actor.eps_clip_low_high")
    if clip is not None and clip[0] < 1:
        return (
            f"--actor.eps_clip_low_high {clip[0]:g} {clip[1]:g} would clip tokens that --method lp_reg holds, which "
            "has no clip for them; give a lower range of at least 1, or drop it for the published 1 9"
        )
    return None


METHOD = Method(
    name="lp_reg",
    title="Lp-Reg",
    source="arXiv 2510.03222",
    summary="adds a KL penalty to the least probable tokens of negative advantage, toward the policy without "
    "improbable tokens",
    settings=LpRegSettings,
    slot=TokenPenalty(
        plan=plan,
        penalty=penalty,
        log_probs_policy="current",
        ppo_clip=(1.0, 9.0),  # as the authors' scripts open it: no wrong token is clipped
        proxy_min_p="lp_reg_min_p",
    ),
    refuses=refuses,
    controls=(Control("lp_reg_coef", low=1e-2, high=1e2, step=1e-2, doubles=True),),
)
