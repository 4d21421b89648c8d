"""Lite PPO (arXiv 2508.08221): the mean of the group, the standard deviation of the whole step.

Traps: with ``raw`` the deviation contains the differences between prompts, so it depends on which prompts dynamic
sampling leaves. Whitening the advantages once more would undo the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Groups, Method
from openrlhf_cov.models.responses import about_the_mean, needs_several_responses
from openrlhf_cov.models.slots import Estimator
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor

# Beside the standard deviation, as in ROLL.
EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class LitePpoSettings(Settings):
    """Flags of Lite PPO."""

    lite_ppo_std: str = setting(
        "raw",
        "standard deviation that divides the advantages, of all rewards of the step\n"
        "raw: about their common mean\n"
        "centred: about the mean of each group",
        choices=("raw", "centred"),
    )


def estimate(settings: LitePpoSettings, groups: Groups) -> Tensor:
    """Return (r - mean of the group) / (s + 1e-6), with the sample standard deviation s of all rewards of the step.

    Args:
        settings: ``raw`` takes s about the mean of all rewards, ``centred`` about the means of the groups. Both divide
            by the number of rewards less 1.
        groups: Any rewards. The global step counts as a whole: s is the same for all updates and ranks.

    Returns:
        The advantages (G, K); 0 in groups of equal rewards.

    Reference:
        arXiv 2508.08221, by ROLL's ``reward_norm`` with the mean of the group and the deviation of the batch; the
        paper's own formula was not read. AReaL has ``centred``. The epsilon is ROLL's; TRL has 1e-4, AReaL 1e-5.
    """
    step = groups.step_rewards
    centre = step.rewards.double().mean() if settings.lite_ppo_std == "raw" else step.group_means.double()
    # About the one mean of the step, or about the mean of each reward's own group.
    squares = (step.rewards.double() - centre).square().sum()
    deviation = (squares / max(1, len(step.rewards) - 1)).sqrt().to(groups.rewards.dtype)
    return about_the_mean(groups.rewards) / (deviation + EPSILON)


def refuses(settings: LitePpoSettings, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with Lite PPO: a group needs two responses.

    Arguments and result are described at ``Method.refuses``.
    """
    return needs_several_responses("--method lite_ppo", flags)


METHOD = Method(
    name="lite_ppo",
    title="Lite PPO",
    source="arXiv 2508.08221",
    summary="advantages are divided by the standard deviation of the whole step, not of the group: a baseline",
    settings=LitePpoSettings,
    slot=Estimator(
        estimate=estimate,
        stands_for="group_norm",
        one_prompt="the standard deviation of the step is that of the group, so it is GRPO",
    ),
    refuses=refuses,
)
