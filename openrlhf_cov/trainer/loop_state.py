"""The state that one global step passes to the next beside the weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from openrlhf.trainer.ppo_utils.kl_controller import AdaptiveKLController, FixedKLController
from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.models.control import Controller
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.dynamics import EntropyDynamics, RunningLaw
from openrlhf_cov.trainer.checkpoint.best_model import BestModel, evaluation_settings
from openrlhf_cov.trainer.checkpoint.checkpoints import ROLLOUTS
from openrlhf_cov.trainer.records import StepResult

logger = init_logger(__name__)

# Entries of a checkpoint's client states.
STEP = "global_step"
KL_COEF = "kl_coef"
LAW = "law"
DYNAMICS = "entropy_dynamics"
CONTROL = "entropy_control"


@dataclass
class LoopState:
    """The state of a run between two global steps."""

    # Upstream's controller of the KL coefficient.
    kl: Any
    # Moves a setting of a method toward --entropy_target; None without a target.
    control: Controller | None
    best: BestModel
    # Number of completed global steps, which is also the version of the weights.
    step: int = 0
    # Predictions of the entropy, and the law R = -a exp(H) + b, as of the last step.
    dynamics: EntropyDynamics = field(default_factory=EntropyDynamics)
    law: RunningLaw = field(default_factory=RunningLaw)
    # Places of the vLLM engines that were found dead at the last delivery of weights: then no engine got them.
    dead_engines: Sequence[int] = ()
    # The step at which a run was resumed with other settings of the evaluation: its logged evaluation had the former.
    other_evaluation: int | None = None

    @classmethod
    def fresh(cls, args: SimpleNamespace, config: CovConfig) -> "LoopState":
        """Return the state before the first step.

        Args:
            args: The flags of the run.
            config: The settings of the policy loss, with their schedules; they make the controller.
        """
        controller = FixedKLController(args.algo.kl.init_coef)
        if args.algo.kl.target:
            controller = AdaptiveKLController(args.algo.kl.init_coef, args.algo.kl.target, args.algo.kl.horizon)
        key = args.ckpt.best_metric_key or ""
        best = BestModel(key, automatic=not key, settings=evaluation_settings(args))
        return cls(controller, config.controller(), best)

    def finish_step(
        self, metrics: Mapping[str, float], result: StepResult, config: CovConfig, samples: int
    ) -> dict[str, float]:
        """Move everything that follows from a step to the next one, and return its metrics.

        Args:
            metrics: The metrics of the step so far.
            result: What the ranks answered.
            config: The settings of the step.
            samples: The number of samples of a step, by which the KL coefficient adapts.
        """
        found: dict[str, float] = {}
        # Without updates of the policy (``--critic.freezing_steps``) nothing here has changed.
        if result.mean_entropy is not None:
            # By the KL of this step, from which the next step takes its coefficient.
            self.kl.update(metrics["kl"], samples)
            # Stands for the step size eta of the theorems, which is known up to a constant.
            learned = result.learning_rate * result.updates
            found |= self.dynamics.step(
                metrics["entropy/mean"], metrics["cov/prob_weighted_mean"], metrics["cov/mean"], learned
            )
            found |= self.law.add(metrics["entropy/mean"], metrics["reward"])
            if self.control:
                found |= self.control.step(result.mean_entropy, config.entropy_target)
                if self.control.warning:
                    logger.warning(self.control.warning)
        self.step += 1
        return found

    def state_dict(self, sampler_state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client states of a checkpoint, with the state of the sampler after the rollout of the step."""
        states: dict[str, Any] = {
            STEP: self.step,
            ROLLOUTS: dict(sampler_state),
            KL_COEF: self.kl.value,
            LAW: self.law.state_dict(),
            DYNAMICS: self.dynamics.state_dict(),
        }
        if self.control:
            states[CONTROL] = self.control.state_dict()
        return states | self.best.state_dict()

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Continue from the client states of a checkpoint."""
        self.step = states[STEP]
        if isinstance(self.kl, AdaptiveKLController):  # a fixed coefficient is that of the flags
            self.kl.value = states.get(KL_COEF, self.kl.value)
        self.law.load_state_dict(states.get(LAW))
        self.dynamics.load_state_dict(states.get(DYNAMICS))
        if self.control:
            self.control.load_state_dict(states.get(CONTROL))
        self.other_evaluation = self.step if self.best.changed(states) else None
        self.best = self.best.restored(states)
