"""The critic actor (``--algo.advantage.estimator gae``): optimizer steps and checkpoints as those of the policy."""

from pathlib import Path
from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray.ppo_critic import CriticModelActor, CriticPPOTrainer

from openrlhf_cov.trainer.bad_updates import BadUpdates
from openrlhf_cov.trainer.boundaries import StepBoundaries
from openrlhf_cov.trainer.ray.model_actors import CheckpointedActor
from openrlhf_cov.trainer.ray.seams import plain_class
from openrlhf_cov.trainer.step_seed import seed_step

SKIPPED_UPDATES = "critic_skipped_updates"
"""Metric of a step; the policy has its own."""


class CovCriticTrainer(StepBoundaries, CriticPPOTrainer):
    """Upstream's trainer, whose optimizer steps end where DeepSpeed's do, and are skipped where a gradient is NaN."""

    bad_updates: BadUpdates | None = None
    global_step = 0

    def __init__(self, strategy, critic, *args, **kwargs) -> None:
        super().__init__(strategy, critic, *args, **kwargs)
        kept = Path(strategy.args.ckpt.output_dir) / "bad_updates" / "critic"
        self.bad_updates = BadUpdates(critic, strategy.args.on_nan, kept, strategy.get_rank(), model="critic")

    def ppo_train(self) -> dict[str, float]:
        """All updates of one global step; upstream's status and the number of skipped updates."""
        self.epoch = 0
        before = self.bad_updates.total if self.bad_updates else 0
        status = super().ppo_train()
        if self.bad_updates:
            status[SKIPPED_UPDATES] = float(self.bad_updates.total - before)
        return status

    def training_step(self, experience: Experience, step: int, *args, **kwargs) -> dict[str, float]:
        """Upstream's step on micro-batch number ``step``."""
        if step == 0:
            self.check_whole_steps()
        self.align(self.critic, step)
        status = super().training_step(experience, step, *args, **kwargs)
        if self.bad_updates and self.ends_step(step):
            self.bad_updates.check(self.global_step, experience)
        self.shuffle_next_epoch(step)
        return status


class CovCriticActor(CheckpointedActor, plain_class(CriticModelActor)):
    """Upstream's critic actor, which trains in a resumed run as it would have without the stop."""

    model_name = "critic"
    global_step = 0

    @property
    def engine(self) -> Any:
        """Of DeepSpeed."""
        return self.critic

    def start_step(self, global_step: int) -> None:
        """Called before each ``fit``: the order of its samples follows from the number of the step."""
        self.global_step = global_step
        seed_step(self.strategy, global_step)

    def fit(self) -> dict[str, float]:
        """Upstream's; the trainer names the step where it skips an update."""
        self.trainer.global_step = self.global_step
        return super().fit()

    def save_checkpoint(self, tag, metric_value=None, metric_key=None) -> None:
        """Upstream's; the DeepSpeed checkpoint is whole or not there."""
        if not self.disable_ds_ckpt:
            self.save_deepspeed(tag, metric_value, metric_key, {})
