"""UCPO (arXiv 2605.00365): improbable correct responses get more of a group's positive advantage.

Traps: log-probs are normalised by length, as in the released code, so the weights of the responses of a group differ
little. The positive advantage of a group is kept as a sum over responses; in a mean over tokens, long responses weigh
more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Groups, Method
from openrlhf_cov.models.responses import group_normalised, needs_several_responses, right
from openrlhf_cov.models.slots import Estimator
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor

# Probabilities among the correct responses of a group are at least this before they are inverted, as published.
SMALLEST_SHARE = 1e-6


@dataclass(frozen=True, kw_only=True)
class UcpoSettings(Settings):
    """Flags of UCPO. Raises ValueError, naming the flag, when a value is out of range."""

    ucpo_tau: float = setting(
        0.2, "strength tau of the redistribution among the correct responses to a prompt; 0 is GRPO"
    )

    def check(self) -> None:
        self.require("ucpo_tau", lambda tau: 0.0 <= tau <= 1.0, "must be a share in [0, 1]")


def estimate(settings: UcpoSettings, groups: Groups) -> Tensor:
    """Return GRPO's advantages, those of correct responses times ``correct_weights``.

    Args:
        settings: With ``ucpo_tau``.
        groups: One reward for correct and one for incorrect responses, and mean log-probs.

    Returns:
        The advantages (G, K). The sum of the positive advantages of a group is GRPO's.

    Raises:
        RuntimeError: The caller gave no log-probs.

    Reference:
        arXiv 2605.00365, by its released code (``adv_estimator=iq``, with ``alpha`` 0). Correct is a reward above 0.5
        here, above 0 there.
    """
    if groups.log_probs is None:
        raise RuntimeError("UCPO was given no log-probs of the responses")
    weights = correct_weights(groups.log_probs, right(groups.rewards), settings.ucpo_tau)
    return group_normalised(groups.rewards) * weights.to(groups.rewards.dtype)


def correct_weights(log_probs: Tensor, correct: Tensor, tau: float) -> Tensor:
    """Return the factors (G, K) of the advantages: n ((1 - tau) / n + tau v_i / sum(v)) for n correct responses.

    Here v = 1 / max(q, 1e-6), and q is the softmax of the log-probs over the correct responses of a group. The mean
    of the factors over these is 1. The factor is exactly 1 for other responses, with tau 0, and in groups with fewer
    than two correct responses.

    Args:
        log_probs: Length-normalised log-probs of the responses (G, K).
        correct: bool (G, K).
        tau: In [0, 1].
    """
    count = correct.sum(1, keepdim=True)
    # A finite number stands for the others, so that a group without a correct response makes no NaN.
    among = log_probs.double().masked_fill(~correct, -1e30)
    # Improbable correct responses weigh more.
    inverse = (1 / among.softmax(1).clamp(min=SMALLEST_SHARE)).masked_fill(~correct, 0.0)
    share = inverse / inverse.sum(1, keepdim=True).clamp(min=1.0)
    weights = (1 - tau) + tau * count * share
    changes = correct & (count >= 2) & (tau > 0)
    return weights.masked_fill(~changes, 1.0)


def refuses(settings: UcpoSettings, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with UCPO: a group needs two responses.

    Arguments and result are described at ``Method.refuses``.
    """
    return needs_several_responses("--method ucpo", flags)


METHOD = Method(
    name="ucpo",
    title="UCPO",
    source="arXiv 2605.00365",
    summary="shifts advantage from probable to improbable correct responses",
    settings=UcpoSettings,
    slot=Estimator(
        estimate=estimate,
        stands_for="group_norm",
        two_valued=True,
        one_answer="all correct responses to a prompt are equally probable, and the advantages are GRPO's",
    ),
    refuses=refuses,
)
