"""Clip-Cov (arXiv 2505.22617, equations 11 and 12): masks random tokens within a band of covariance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_cov.models.control import Control
from openrlhf_cov.models.method import Method, Plan
from openrlhf_cov.models.slots import TokenDrop
from openrlhf_cov.settings import Scheduled, Settings, setting

if TYPE_CHECKING:
    from openrlhf_cov.models.window import Window


@dataclass(frozen=True, kw_only=True)
class ClipCovSettings(Settings):
    """Flags of Clip-Cov. Raises ValueError, naming the flag, when a value is out of range."""

    clip_cov_ratio: Scheduled = setting(
        2e-4, "fraction of action tokens whose gradient is masked", scheduled=True, fraction=True
    )
    clip_cov_lb: float = setting(1.0, "lower bound of the covariance band")
    clip_cov_ub: float = setting(5.0, "upper bound of the covariance band")

    def check(self) -> None:
        """Check the values, as ``Settings`` describes it.

        Raises:
            ValueError: The lower bound of the band is not below the upper one.
        """
        if not self.clip_cov_lb < self.clip_cov_ub:
            raise ValueError(
                f"--clip_cov_lb {self.clip_cov_lb}: must lie below --clip_cov_ub, which is {self.clip_cov_ub}"
            )


def plan(settings: ClipCovSettings, window: Window) -> list[Plan]:
    """Drop at most ``clip_cov_ratio`` of all action tokens, sampled uniformly from those of the band.

    Tokens that PPO clips are no candidates. Without a candidate no token is dropped. Both follow the published code.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    candidates = [
        (cov > settings.clip_cov_lb) & (cov < settings.clip_cov_ub) & ~clipped
        for cov, clipped in zip(window.covariance(), window.ppo_clipped(), strict=True)
    ]
    return [Plan(tokens, drops=True) for tokens in window.sample_uniformly(candidates, settings.clip_cov_ratio)]


def idle(values: Mapping[str, float], updates: int) -> str | None:
    """Return a message if an update had no candidate, None if every update had one.

    Arguments and result are described at ``Method.idle``.
    """
    if not values["cov/empty_update_frac"] > 0:
        return None
    return (
        "no token had its covariance between --clip_cov_lb and --clip_cov_ub, so Clip-Cov changed nothing in an "
        "update; compare the band with cov/top_2e-4 ... cov/top_0.5 in metrics.jsonl"
    )


METHOD = Method(
    name="clip_cov",
    title="Clip-Cov",
    source="arXiv 2505.22617",
    summary="masks random tokens within a band of covariance",
    settings=ClipCovSettings,
    slot=TokenDrop(
        plan=plan,
        log_probs_policy="cov_log_probs",
        by_covariance=True,
        ppo_clip=(1.0, 1.0),  # as the authors' scripts open it
    ),
    controls=(Control("clip_cov_ratio", low=2e-5, high=2e-2, step=2e-5, doubles=True),),
    idle=idle,
)
