"""CE-GPPO (arXiv 2509.20712), and GPPO: what PPO clips keeps a gradient of bounded size."""

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
class CegppoSettings(Settings):
    """Flags of CE-GPPO. Raises ValueError, naming the flag, when a value is out of range."""

    cegppo_beta1: float = setting(
        0.75,
        "share of the gradient that tokens of negative advantage keep below the clip, which lowers entropy (GPPO: 1)",
    )
    cegppo_beta2: float = setting(
        1.0,
        "share of the gradient that tokens of positive advantage keep above the clip, which raises entropy (GPPO: 1)",
    )
    cegppo_clip: tuple[float, float] = setting((0.2, 0.2), "lower and upper width of the clip")
    cegppo_dual_clip: float = setting(10.0, "ratio above which a token of negative advantage has no gradient")

    def check(self) -> None:
        """Check the values, as ``Settings`` describes it.

        Raises:
            ValueError: A share is negative or infinite, LOW of the clip is outside of [0, 1], HIGH is negative or
                infinite, or the dual clip is not above 1.
        """
        for name in ("cegppo_beta1", "cegppo_beta2"):
            self.require(name, lambda share: 0.0 <= share < math.inf, "must be a share of a gradient of at least 0")
        low, high = self.cegppo_clip
        if not (0.0 <= low <= 1.0 and 0.0 <= high < math.inf):
            raise ValueError(f"--cegppo_clip {low} {high}: must be distances from 1, LOW in [0, 1] and HIGH")
        self.require("cegppo_dual_clip", lambda ratio: ratio > 1.0, "must be a ratio above 1")


def coefficient(settings: CegppoSettings, batch: TokenBatch) -> Tensor:
    """Return the ratio (B, A), but beta times the border of the clip where PPO clips, and 0 beyond the dual clip.

    Arguments and result are described at ``Surrogate.coefficient``.
    """
    low, high = settings.cegppo_clip
    ratio = batch.ratio
    positive = batch.advantages > 0
    negative = batch.advantages < 0
    # PPO's k is 0 beyond the clip. Here it is beta times the ratio at the border, so it does not grow with the ratio.
    k = ratio.masked_fill(negative & (ratio < 1 - low), settings.cegppo_beta1 * (1 - low))
    k = k.masked_fill(positive & (ratio > 1 + high), settings.cegppo_beta2 * (1 + high))
    return k.masked_fill(negative & (ratio > settings.cegppo_dual_clip), 0.0)


METHOD = Method(
    name="cegppo",
    title="CE-GPPO",
    source="arXiv 2509.20712",
    summary="tokens that PPO clips keep a gradient of bounded size, with one bound for each side of the clip",
    settings=CegppoSettings,
    slot=Surrogate(coefficient=coefficient),
    one_update="nothing is clipped: the policy is still the one that sampled, so every ratio is 1",
)
