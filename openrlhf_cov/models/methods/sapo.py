"""SAPO (arXiv 2511.20347): a smooth gate on the ratio in place of PPO's clip."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_cov.models.method import Method, TokenBatch
from openrlhf_cov.models.slots import Surrogate
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SapoSettings(Settings):
    """Flags of SAPO. Raises ValueError, naming the flag, when a value is out of range."""

    sapo_tau_pos: float = setting(1.0, "steepness of the gate for tokens of positive advantage")
    sapo_tau_neg: float = setting(
        1.05, "steepness of the gate for tokens of negative advantage; larger, so that their gradient falls sooner"
    )

    def check(self) -> None:
        for name in ("sapo_tau_pos", "sapo_tau_neg"):
            self.require(name, lambda tau: 0.0 < tau < math.inf, "must be a finite number above 0")


def coefficient(settings: SapoSettings, batch: TokenBatch) -> Tensor:
    """Return 4 s (1 - s) r (B, A) with s = sigmoid(tau (r - 1)): the gradient of the gate (4 / tau) s.

    It is 1 at r = 1, as PPO's, and fades on both sides. The value that is logged is -k * A, not that of the gate.

    Arguments and result are described at ``Surrogate.coefficient``.
    """
    ratio = batch.ratio
    distance = (ratio - 1) * settings.sapo_tau_pos
    steep = (ratio - 1) * settings.sapo_tau_neg
    distance = distance.where(batch.advantages > 0, steep)
    return 4 * distance.sigmoid() * (-distance).sigmoid() * ratio  # 1 - sigmoid(x) is 0 too soon


METHOD = Method(
    name="sapo",
    title="SAPO",
    source="arXiv 2511.20347",
    summary="a smooth gate fades a token's gradient as its ratio leaves 1, in place of the clip",
    settings=SapoSettings,
    slot=Surrogate(coefficient=coefficient, bounded=True, aggregation="seq-mean-token-mean"),
    one_update="its gate has no effect: the policy is still the one that sampled, so every ratio is 1",
)
