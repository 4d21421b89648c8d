"""WAPO (arXiv 2606.16154): only responses above the mean of their group train.

Traps: the published ratio is to the engine that sampled, so upstream's correction for the engine would count the
difference twice. With the mean over all action tokens, a step with few such responses makes a small update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Groups, Method, Plan
from openrlhf_cov.models.responses import about_the_mean, needs_several_responses
from openrlhf_cov.models.slots import Estimator, TokenWeight
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor

    from openrlhf_cov.models.window import Window

# Range of the PPO clip: a ratio of up to 10. The lower clip never acts, because no advantage is negative.
PUBLISHED_CLIP = (1.0, 9.0)


@dataclass(frozen=True, kw_only=True)
class WapoSettings(Settings):
    """Flags of WAPO. Raises ValueError, naming the flag, when a value is out of range."""

    wapo_length: float | None = setting(
        None,
        "constant length L, in tokens: the loss is the sum over tokens divided by (responses x L), with the "
        "responses to prompts that train (published: the limit of prompt and response, 4096 or 8192); default: "
        "the mean over all action tokens",
    )
    wapo_anchor: str = setting(
        "rollout",
        "policy in the denominator of the ratio\n"
        "rollout: the vLLM engine that sampled, as published\n"
        "old: the trainer's policy before the updates",
        choices=("rollout", "old"),
    )

    def check(self) -> None:
        """Check the values, as ``Settings`` describes it.

        Raises:
            ValueError: The length is not a finite number above 0.
        """
        length = self.wapo_length
        if length is not None and not 0.0 < length < math.inf:
            raise ValueError(f"--wapo_length {length}: must be a finite number of tokens above 0")


def estimate(settings: WapoSettings, groups: Groups) -> Tensor:
    """Return max(r - mean of the group, 0).

    Args:
        settings: Not used here.
        groups: Any rewards.

    Returns:
        The advantages (G, K); 0 for responses that are not above the mean, and in groups of equal rewards.

    Reference:
        arXiv 2606.16154 and ``orchestrator.py`` of its released code.
    """
    return about_the_mean(groups.rewards).clamp(min=0.0)


def plan(settings: WapoSettings, window: Window) -> list[Plan]:
    """Weigh all advantages so that the mean over tokens becomes the published mean over the prompts that train.

    The published loss of a rollout of G prompts is a sum over tokens divided by K L G+, where G+ counts the prompts
    with a positive advantage. An optimizer step with B of the G K responses stands for G K / B steps, so the factor is
    N / (K L G+) * G K / B = N / (B L) / (G+ / G). Without ``wapo_length`` no advantage changes.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    if settings.wapo_length is None:
        return [Plan(item.mask & False) for item in window.items]
    weight = window.constant_length_factor(settings.wapo_length)
    share = window.positive_prompts
    if share is not None:
        # Without a positive advantage nothing trains, whatever the weight is.
        weight = weight / share.double().masked_fill(share == 0, 1.0)
    return [Plan(item.mask, weight=weight) for item in window.items]


def refuses(settings: Any, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with WAPO, None if they do.

    Arguments and result are described at ``Method.refuses``.
    """
    mode = flags["actor.loss_agg_mode"]
    surrogate = settings.surrogate
    level = flags.get("algo.advantage.is_correction_level", "off")
    kl_coef = flags.get("algo.kl.init_coef", 0.0)
    anchored = settings.wapo_anchor == "rollout"
    if settings.wapo_length is not None and mode != "token-mean":
        return (
            f"--wapo_length {settings.wapo_length:g}: it replaces the number of tokens in the mean over tokens, got "
            f"--actor.loss_agg_mode {mode}; give token-mean"
        )
    if anchored and level != "off":
        return (
            f"--algo.advantage.is_correction_level {level}: --wapo_anchor rollout already compares with the engine, "
            "which would be corrected for twice; drop it or give --wapo_anchor old"
        )
    if anchored and surrogate:
        return (
            f"--wapo_anchor rollout: it is the policy of PPO's ratio, in whose place {surrogate.flag} puts its own; "
            "give --wapo_anchor old"
        )
    if kl_coef > 0 and not flags.get("algo.kl.use_loss"):
        return (
            f"--algo.kl.init_coef {kl_coef:g}: a KL penalty in the reward would train the responses that --method "
            "wapo leaves out; add --algo.kl.use_loss or give 0"
        )
    low, high = flags.get("actor.eps_clip_low_high") or PUBLISHED_CLIP
    if low > 0 and high <= 0:
        return (
            f"--actor.eps_clip_low_high {low:g} {high:g}: --method wapo clips at 1 + HIGH alone; give a HIGH above 0"
        )
    return needs_several_responses("--method wapo", flags)


METHOD = Method(
    name="wapo",
    title="WAPO",
    source="arXiv 2606.16154",
    summary="trains on responses above the mean of their group only",
    settings=WapoSettings,
    slot=Estimator(
        estimate=estimate,
        stands_for="group_norm",
        signs="positive",
        ppo_clip=PUBLISHED_CLIP,
        anchor_policy="wapo_anchor",
    ),
    beside=TokenWeight(plan=plan, needs_positive_prompts=True),
    refuses=refuses,
)
