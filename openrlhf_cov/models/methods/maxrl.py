"""MaxRL (arXiv 2602.02710): the advantage of a response is relative to the pass rate of its prompt.

Traps: an advantage is as large as K - 1, so gradient clipping acts on hard prompts. Rewards of -1 and 1 would make the
mean 0 or negative and turn the sign around, so they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.method import Groups, Method
from openrlhf_cov.models.responses import are_equal, needs_several_responses
from openrlhf_cov.models.slots import Estimator
from openrlhf_cov.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor


def estimate(settings: Settings, groups: Groups) -> Tensor:
    """Return (r - mean) / mean, with the mean reward of a group.

    The expected gradient is that of the pass rate p times (1 - (1 - p)^(K - 1)) / p: a truncated likelihood of order
    K - 1, because groups without a correct response have no gradient.

    Args:
        settings: Not used; MaxRL has no settings.
        groups: Their rewards must be exactly 0 and 1.

    Returns:
        The advantages (G, K); 0 in groups of equal rewards and in groups of one response.

    Raises:
        RunStopped: A reward is neither 0 nor 1.

    Reference:
        Algorithm 1, arXiv 2602.02710. The factor 1 / K is left to the mean of the loss, as in the released code. The
        released code divides by the mean plus 1e-6; here nothing is added. It also gives a group of one response an
        advantage of a million times its reward; here that is 0.
    """
    rewards = groups.rewards
    is_binary = (rewards == 0) | (rewards == 1)
    if not is_binary.all():
        found = ", ".join(f"{value:g}" for value in rewards.unique()[:5])
        raise RunStopped(
            f"--method maxrl: all rewards must be 0 or 1; got {found}; use rewards without shaping and "
            "--reward_incorrect 0"
        )
    mean = rewards.mean(1, keepdim=True)
    # In a group of unequal rewards 0 and 1 the mean is above 0.
    return ((rewards - mean) / mean).masked_fill(are_equal(rewards), 0.0)


def refuses(settings: Settings, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with MaxRL: incorrect responses need the reward 0, and a group two responses.

    Arguments and result are described at ``Method.refuses``.
    """
    incorrect = flags.get("reward_incorrect", 0.0)
    if incorrect != 0:
        return (
            f"--reward_incorrect {incorrect:g}: --method maxrl divides by the mean reward, which has to be the pass "
            "rate; give 0"
        )
    return needs_several_responses("--method maxrl", flags)


METHOD = Method(
    name="maxrl",
    title="MaxRL",
    source="arXiv 2602.02710",
    summary="the advantage is divided by the pass rate, so rare correct responses count most",
    settings=Settings,
    slot=Estimator(estimate=estimate, stands_for="group_norm", two_valued=True),
    refuses=refuses,
)
