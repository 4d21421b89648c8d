"""KL-Cov (arXiv 2505.22617, equations 13 and 14): the tokens of highest covariance get a KL penalty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_cov.models.control import Control
from openrlhf_cov.models.method import MORE_UPDATES, Method, Plan, TokenBatch
from openrlhf_cov.models.slots import UNCLIPPED, TokenPenalty
from openrlhf_cov.settings import Scheduled, Settings, setting

if TYPE_CHECKING:
    from torch import Tensor

    from openrlhf_cov.models.window import Window

# A mean absolute log ratio below this is rounding: two float32 passes over a token differ by some 5e-7.
ROUNDING = 1e-5


@dataclass(frozen=True, kw_only=True)
class KlCovSettings(Settings):
    """Flags of KL-Cov. Raises ValueError, naming the flag, when a value is out of range."""

    kl_cov_ratio: Scheduled = setting(
        2e-3,
        "fraction of action tokens that get the KL penalty (paper: 2e-3 for 7B, 2e-4 for 32B)",
        scheduled=True,
        fraction=True,
    )
    ppo_kl_coef: Scheduled = setting(1.0, "coefficient of the KL penalty on the selected tokens", scheduled=True)
    kl_cov_keep_ppo_clip: bool = setting(False, "keep the PPO clip; the published KL-Cov has none")

    def check(self) -> None:
        self.require("ppo_kl_coef", lambda coef: 0.0 <= coef < math.inf, "must be a finite number of at least 0")


def plan(settings: KlCovSettings, window: Window) -> list[Plan]:
    """Penalise the ``kl_cov_ratio`` of all action tokens with the highest covariance, at least one.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    return [Plan(tokens) for tokens in window.largest(window.covariance(), settings.kl_cov_ratio)]


def penalty(settings: KlCovSettings, batch: TokenBatch, plan: Plan) -> Tensor:
    """Return the penalty ``ppo_kl_coef * |log_probs - old_log_probs|`` of every token, (B, A).

    The absolute log ratio is the published code's estimate of KL(pi_old || pi). Its gradient is 0 where both log-probs
    are equal, so the penalty means nothing in the first update after a rollout; where the two were computed in other
    batch shapes and differ by rounding, it is the sign of the rounding, as in the published code.

    Args:
        settings: Settings of the step.
        batch: Tensors (B, A); its log-probs carry the gradient.
        plan: The plan of the method, which this penalty does not use.
    """
    return settings.ppo_kl_coef * (batch.log_probs - batch.old_log_probs).abs()


def idle(values: Mapping[str, float], updates: int) -> str | None:
    """Return a message if the KL penalty had no gradient in the step, None if it had one.

    The log ratio of a single update is rounding in any precision. In bfloat16 it is as large as what training moves,
    so the number of updates tells; ``ROUNDING`` finds a policy that stood still through several updates in float32.

    Arguments and result are described at ``Method.idle``.
    """
    if updates > 1 and not values["cov/selected_abs_log_ratio"] < ROUNDING:
        return None
    return (
        "the KL penalty had no gradient in this step beyond rounding: every selected token had the probability it was "
        f"sampled with. KL-Cov needs more than one update per rollout: {MORE_UPDATES}"
    )


METHOD = Method(
    name="kl_cov",
    title="KL-Cov",
    source="arXiv 2505.22617",
    summary="the tokens of highest covariance get a KL penalty",
    settings=KlCovSettings,
    slot=TokenPenalty(
        plan=plan,
        penalty=penalty,
        log_probs_policy="cov_log_probs",
        by_covariance=True,
        ppo_clip=UNCLIPPED,
        keeps_clip="kl_cov_keep_ppo_clip",
    ),
    controls=(
        Control("kl_cov_ratio", low=2e-5, high=2e-2, step=2e-5, doubles=True),
        Control("ppo_kl_coef", low=1e-2, high=1e2, step=1e-2, doubles=True),
    ),
    one_update="it has no effect: the policy is still the one that sampled, there is no drift to penalise (the paper "
    "makes 8)",
    idle=idle,
)
