"""The flags that say how rewards become advantages."""

from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.slots import ProcessEstimator
from openrlhf_cov.trainer.flags.unread_upstream_flags import DISCOUNTED, WHITENED

logger = init_logger(__name__)


@dataclass(frozen=True)
class AdvantageSettings:
    """The settings of a run's advantage estimation, from its flags."""

    # --algo.advantage.estimator
    estimator: str
    gamma: float
    lambd: float
    # Divide by the standard deviation where advantages are whitened.
    by_deviation: bool
    # (low, high) that rewards are clipped to; None without.
    reward_clip: tuple[float, float] | None
    # The KL estimator of the penalty in the reward; None where the reward has no KL penalty.
    kl_penalty: str | None
    # True if the log-probs of the reference policy are needed for a KL loss.
    has_kl_loss: bool
    samples_per_prompt: int

    @classmethod
    def of(cls, args: SimpleNamespace) -> "AdvantageSettings":
        """Read the settings off the flags of a run."""
        advantage = args.algo.advantage
        gamma = advantage.gamma
        if gamma != 1.0 and advantage.estimator not in DISCOUNTED:
            logger.warning(f"--algo.advantage.gamma {gamma:g} has no effect with {advantage.estimator}: 1 is taken")
            gamma = 1.0
        clip = args.reward.clip_range
        has_kl_term = args.algo.kl.init_coef > 0
        return cls(
            estimator=advantage.estimator,
            gamma=gamma,
            lambd=advantage.lambd,
            by_deviation=not advantage.no_std_norm,
            reward_clip=(clip[0], clip[1]) if clip else None,
            kl_penalty=args.algo.kl.estimator if has_kl_term and not args.algo.kl.use_loss else None,
            has_kl_loss=args.algo.kl.use_loss,
            samples_per_prompt=args.rollout.n_samples_per_prompt,
        )

    def whitens(self, config: CovConfig) -> bool:
        """Return True if advantages are whitened over all tokens of a step.

        Args:
            config: The settings of the step. A method's estimator replaces that of the run; it is whitened only if it
                has process rewards.
        """
        if config.estimator is None:
            return self.estimator in WHITENED
        return isinstance(config.estimator.slot, ProcessEstimator)
