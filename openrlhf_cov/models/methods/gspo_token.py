"""GSPO with a gradient for each token (arXiv 2507.18071, GSPO-token): the ratio and the clip are of the sequence."""

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
class GspoTokenSettings(Settings):
    """Flags of GSPO-token. Raises ValueError, naming the flag, when a value is out of range."""

    gspo_token_clip: tuple[float, float] = setting(
        (3e-4, 4e-4), "lower and upper width of the clip of a sequence's ratio, about a thousandth of PPO's"
    )

    def check(self) -> None:
        """Check the values, as ``Settings`` describes it.

        Raises:
            ValueError: LOW of the clip is outside of [0, 1], or HIGH is negative or infinite.
        """
        low, high = self.gspo_token_clip
        if not (0.0 <= low <= 1.0 and 0.0 <= high < math.inf):
            raise ValueError(f"--gspo_token_clip {low} {high}: must be distances from 1, LOW in [0, 1] and HIGH")


def coefficient(settings: GspoTokenSettings, batch: TokenBatch) -> Tensor:
    """Return the ratio s of a token's sequence, (B, A); 0 where the clip of s masks the gradient of the token.

    s = exp(mean log ratio of the sequence). Upstream's GSPO lets the gradient flow through s, which averages over the
    sequence whatever a method does to single tokens; here a token has its own.

    Arguments and result are described at ``Surrogate.coefficient``.
    """
    low, high = settings.gspo_token_clip
    ratio = batch.sequence_ratio
    advantages = batch.advantages
    clipped = ((ratio > 1 + high) & (advantages > 0)) | ((ratio < 1 - low) & (advantages < 0))
    return ratio.expand_as(advantages).masked_fill(clipped, 0.0)


METHOD = Method(
    name="gspo_token",
    title="GSPO-token",
    source="arXiv 2507.18071",
    summary="ratio and clip are those of the sequence, each token keeps its own advantage and gradient",
    settings=GspoTokenSettings,
    slot=Surrogate(coefficient=coefficient, bounded=True, aggregation="seq-mean-token-mean"),
    one_update="its clip has no effect: the policy is still the one that sampled, so every ratio is 1",
)
