"""GMPO (arXiv 2507.20673): the ratio of a sequence is the geometric mean of its tokens' ratios, each clipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import LOG_RATIO_LIMIT, Method, TokenBatch
from openrlhf_cov.models.slots import Surrogate
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class GmpoSettings(Settings):
    """Flags of GMPO. Raises ValueError, naming the flag, when a value is out of range."""

    gmpo_clip: float = setting(0.4, "bound of a token's log ratio, in nats; 0.4 clips the ratio to (0.67, 1.49)")

    def check(self) -> None:
        self.require(
            "gmpo_clip",
            lambda clip: 0.0 < clip <= LOG_RATIO_LIMIT,
            f"must be a log ratio in (0, {LOG_RATIO_LIMIT:g}], not a distance of a ratio from 1",
        )


def coefficient(settings: GmpoSettings, batch: TokenBatch) -> Tensor:
    """Return exp(mean clipped log ratio) of a token's sequence, (B, A); 0 where the token's own log ratio is clipped.

    A log ratio is clipped on the side to which the advantage pushes it. A token that is clipped still scales the
    others of its sequence.

    Arguments and result are described at ``Surrogate.coefficient``.
    """
    bound = settings.gmpo_clip
    positive = batch.advantages > 0
    negative = batch.advantages < 0
    log_ratio = (batch.log_probs.detach() - batch.old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    clipped = (positive & (log_ratio > bound)) | (negative & (log_ratio < -bound))
    # (B, 1): clipped tokens count with their bound, the others with their own log ratio.
    ratio = batch.geometric_mean(log_ratio.clamp(-bound, bound).where(clipped, log_ratio))
    return ratio.expand_as(log_ratio).masked_fill(clipped, 0.0)


def refuses(settings: GmpoSettings, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with GMPO, which needs one advantage for all tokens of a response.

    Arguments and result are described at ``Method.refuses``.
    """
    of_tokens = {
        "--algo.advantage.estimator gae": flags.get("algo.advantage.estimator") == "gae",
        f"--algo.advantage.gamma {flags.get('algo.advantage.gamma')}": flags.get("algo.advantage.gamma", 1) != 1,
        f"--algo.kl.init_coef {flags.get('algo.kl.init_coef')} in the reward": (
            flags.get("algo.kl.init_coef", 0) > 0 and not flags.get("algo.kl.use_loss")
        ),
    }
    what = next((each for each, given in of_tokens.items() if given), None)
    if what is None:
        return None
    return (
        f"--method gmpo has one advantage for all tokens of a response, {what} gives each its own; it takes "
        "--algo.advantage.estimator group_norm or another, --algo.advantage.gamma 1, and --algo.kl.use_loss or "
        "--algo.kl.init_coef 0"
    )


METHOD = Method(
    name="gmpo",
    title="GMPO",
    source="arXiv 2507.20673",
    summary="a sequence's ratio is the geometric mean of its tokens' ratios, each clipped in log space",
    settings=GmpoSettings,
    slot=Surrogate(
        coefficient=coefficient,
        bounded=True,
        by_response=True,
        aggregation="seq-mean-token-mean",
    ),
    refuses=refuses,
    one_update="its clip has no effect: the policy is still the one that sampled, so every ratio is 1",
)
