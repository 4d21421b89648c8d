"""RS-GRPO (arXiv 2509.24261): the baseline is an exponential mean of the rewards, which favours rare successes.

Traps: the size of the advantages depends on beta, so comparing several values of beta also compares step sizes. Beta
multiplies the rewards: -1 and 1 with beta 2 is 0 and 1 with beta 4, up to a factor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Groups, Method
from openrlhf_cov.models.responses import are_equal, needs_several_responses
from openrlhf_cov.models.slots import Estimator
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RsGrpoSettings(Settings):
    """Flags of RS-GRPO. Raises ValueError, naming the flag, when a value is out of range."""

    rs_grpo_beta: float = setting(
        2.0, "risk sensitivity beta; a larger value favours rare correct responses, a value near 0 gives Dr. GRPO"
    )

    def check(self) -> None:
        self.require(
            "rs_grpo_beta",
            lambda beta: 0.0 < beta <= 50.0,
            "must be a number in (0, 50]",
            "; for 0 give --algo.advantage.estimator dr_grpo instead",
        )


def estimate(settings: RsGrpoSettings, groups: Groups) -> Tensor:
    """Return (exp(beta (r - Z)) - 1) / beta, where Z = ln(mean(exp(beta r))) / beta over the group.

    The mean over a group is 0. As beta tends to 0 the advantage tends to r - mean(r). For rewards 0 and 1, beta times
    the advantage tends to that of MaxRL as beta grows.

    Args:
        settings: With ``rs_grpo_beta``.
        groups: Any finite rewards.

    Returns:
        The advantages (G, K); 0 in groups of equal rewards and in groups of one response.

    Reference:
        The formula in the readme of the released code of arXiv 2509.24261. Z is computed by log-sum-exp in float64:
        exp(beta r) overflows float32 for beta 8 and a reward of 12. The released code gives Z = 0 to a group of one
        response; here its advantage is 0.
    """
    beta = settings.rs_grpo_beta
    scaled = groups.rewards.double() * beta
    log_mean = scaled.logsumexp(1, keepdim=True) - math.log(max(1, scaled.shape[1]))
    advantages = (scaled - log_mean).expm1() / beta
    return advantages.masked_fill(are_equal(groups.rewards), 0.0).to(groups.rewards.dtype)


def refuses(settings: RsGrpoSettings, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with RS-GRPO: a group needs two responses.

    Arguments and result are described at ``Method.refuses``.
    """
    return needs_several_responses("--method rs_grpo", flags)


METHOD = Method(
    name="rs_grpo",
    title="RS-GRPO",
    source="arXiv 2509.24261",
    summary="an exponential mean is the baseline, so rare correct responses count more",
    settings=RsGrpoSettings,
    slot=Estimator(estimate=estimate, stands_for="group_norm"),
    refuses=refuses,
)
