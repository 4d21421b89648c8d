"""QAE (arXiv 2509.22611): the baseline of a group is a quantile of its rewards, not their mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Groups, Method
from openrlhf_cov.models.slots import Estimator
from openrlhf_cov.settings import Settings, setting
from openrlhf_cov.utils.shares import ceil_share

if TYPE_CHECKING:
    from torch import Tensor

# Beside the standard deviation, as published.
EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class QaeSettings(Settings):
    """Flags of QAE. Raises ValueError, naming the flag, when a value is out of range."""

    qae_quantile: float = setting(
        0.4, "level K of the quantile; a larger one keeps more entropy (0.6 if entropy still falls)"
    )
    qae_baseline: str = setting(
        "exact",
        "quantile of a group's rewards\n"
        "exact: the smallest reward r such that a share K of the rewards is at most r, as in the paper\n"
        "linear: interpolated between two rewards, as in the released code",
        choices=("exact", "linear"),
    )

    def check(self) -> None:
        self.require("qae_quantile", lambda level: 0.0 < level < 1.0, "must be a level in (0, 1), not percent")


def estimate(settings: QaeSettings, groups: Groups) -> Tensor:
    """Return (reward - quantile) / (sample standard deviation + 1e-6), (G, K).

    With rewards 0 and 1, only the correct responses of a group get an advantage where at most 1 - K of it are correct,
    and only the incorrect ones elsewhere. One response alone has the advantage 0.

    Arguments and result are described at ``Estimator.estimate``.
    """
    rewards = groups.rewards
    if settings.qae_baseline == "linear":
        # PyTorch has no quantile of half precision.
        single = rewards.float() if rewards.element_size() < 4 else rewards
        baseline = single.quantile(settings.qae_quantile, dim=1, keepdim=True).to(rewards.dtype)
    else:
        # The reward at the quantile itself, not interpolated: with rewards 0 and 1 it is one of the two.
        place = max(1, ceil_share(rewards.shape[1], settings.qae_quantile))
        baseline = rewards.sort(1).values[:, place - 1 : place]
    # The sample deviation of one response is NaN.
    deviation = rewards.std(1, keepdim=True) if rewards.shape[1] > 1 else rewards.new_zeros(())
    return (rewards - baseline) / (deviation + EPSILON)


def refuses(settings: QaeSettings, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with QAE: a group needs two responses.

    Arguments and result are described at ``Method.refuses``.
    """
    n = flags["rollout.n_samples_per_prompt"]
    return None if n > 1 else f"--method qae compares a group's responses: --rollout.n_samples_per_prompt is {n}"


METHOD = Method(
    name="qae",
    title="QAE",
    source="arXiv 2509.22611",
    summary="a quantile is the baseline of a group, so only correct responses to hard prompts and incorrect ones to "
    "easy prompts train",
    settings=QaeSettings,
    slot=Estimator(
        estimate=estimate,
        stands_for="group_norm",
        two_valued=True,
        signs="some_positive",
    ),
    refuses=refuses,
)
