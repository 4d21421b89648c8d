"""Random drop: masks random tokens, a control. A method that does not beat it gains nothing by its selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_cov.models.method import Method, Plan
from openrlhf_cov.models.slots import TokenDrop
from openrlhf_cov.settings import Scheduled, Settings, setting

if TYPE_CHECKING:
    from openrlhf_cov.models.window import Window


@dataclass(frozen=True, kw_only=True)
class RandomDropSettings(Settings):
    """Flags of random drop. Raises ValueError, naming the flag, when a value is out of range."""

    random_drop_ratio: Scheduled = setting(
        2e-4, "fraction of action tokens whose gradient is masked", scheduled=True, fraction=True
    )
    random_drop_on: str = setting(
        "all",
        "tokens that are sampled from\nall: all action tokens\npositive: those of positive advantage",
        ("all", "positive"),
    )


def plan(settings: RandomDropSettings, window: Window) -> list[Plan]:
    """Drop the ``random_drop_ratio`` of all action tokens, at least one, sampled and counted as Clip-Cov's tokens are.

    With ``positive`` they are sampled from the tokens of advantages above 0; all of these if there are fewer.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    # The control of Clip-Cov: as many tokens, chosen without their covariance.
    candidates = [item.mask for item in window.items]
    if settings.random_drop_on == "positive":
        candidates = [item.mask & (item.batch.advantages > 0) for item in window.items]
    return [Plan(tokens, drops=True) for tokens in window.sample_uniformly(candidates, settings.random_drop_ratio)]


METHOD = Method(
    name="random_drop",
    title="Random drop",
    source="arXiv 2511.05993",
    summary="masks random tokens: a control for methods that select tokens",
    settings=RandomDropSettings,
    slot=TokenDrop(plan=plan),
)
