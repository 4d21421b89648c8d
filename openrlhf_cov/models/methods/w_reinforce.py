"""W-REINFORCE (arXiv 2506.01347): REINFORCE without a baseline; correct responses weigh less than incorrect ones.

Traps: both kinds stay in the mean, unlike with PSR and NSR. Released code compares rewards with exactly 0 and 1, so
-1 or a bonus would pass as an advantage; here a reward above 0.5 is correct. lambda is no learning rate: it scales the
advantages of one sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_cov.models.method import Groups, Method
from openrlhf_cov.models.responses import right
from openrlhf_cov.models.slots import Estimator
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class WReinforceSettings(Settings):
    """Flags of W-REINFORCE. Raises ValueError, naming the flag, when a value is out of range."""

    w_reinforce_lambda: float = setting(0.1, "advantage of a correct response; an incorrect one has -1")

    def check(self) -> None:
        self.require(
            "w_reinforce_lambda",
            lambda weight: 0.0 < weight <= 1.0,
            "must be a weight in (0, 1]",
            "; --method nsr trains on incorrect responses only",
        )


def estimate(settings: WReinforceSettings, groups: Groups) -> Tensor:
    """Return lambda for a correct response, -1 for an incorrect one, (G, K); both stay in the batch.

    Arguments and result are described at ``Estimator.estimate``.
    """
    rewards = groups.rewards
    return rewards.new_tensor(settings.w_reinforce_lambda).where(right(rewards), rewards.new_tensor(-1.0))


METHOD = Method(
    name="w_reinforce",
    title="W-REINFORCE",
    source="arXiv 2506.01347",
    summary="weighs correct responses a tenth of incorrect ones, without a baseline",
    settings=WReinforceSettings,
    slot=Estimator(estimate=estimate, stands_for="reinforce", two_valued=True),
)
