"""The critic actor (``--algo.advantage.estimator gae``): optimizer steps and checkpoints as those of the policy."""

from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray.ppo_critic import CriticModelActor, CriticPPOTrainer

from openrlhf_cov.trainer.boundaries import StepBoundaries
from openrlhf_cov.trainer.ray.model_actors import CheckpointedActor
from openrlhf_cov.trainer.ray.seams import plain_class
from openrlhf_cov.trainer.step_seed import seed_step


class CovCriticTrainer(StepBoundaries, CriticPPOTrainer):
    """Upstream's trainer, whose optimizer steps end where DeepSpeed's do."""

    def training_step(self, experience: Experience, step: int, *args, **kwargs) -> dict[str, float]:
        """Upstream's step on micro-batch number ``step``."""
        if step == 0:
            self.check_whole_steps()
        self.align(self.critic, step)
        return super().training_step(experience, step, *args, **kwargs)


class CovCriticActor(CheckpointedActor, plain_class(CriticModelActor)):
    """Upstream's critic actor, which trains in a resumed run as it would have without the stop."""

    model_name = "critic"

    @property
    def engine(self) -> Any:
        """Of DeepSpeed."""
        return self.critic

    def start_step(self, global_step: int) -> None:
        """Called before each ``fit``: the order of its samples follows from the number of the step."""
        seed_step(self.strategy, global_step)

    def save_checkpoint(self, tag, metric_value=None, metric_key=None) -> None:
        """Upstream's; the DeepSpeed checkpoint is whole or not there."""
        if not self.disable_ds_ckpt:
            self.save_deepspeed(tag, metric_value, metric_key, {})
