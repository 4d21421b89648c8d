"""The controller: upstream's, which also announces each step to the actors and writes ``metrics.jsonl``."""

from pathlib import Path

import openrlhf.trainer.ppo_trainer as upstream
import ray
import torch
from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.trainer.ppo_trainer_async import TrainingActor
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.trainer.actor_trainer import SAMPLE_ID
from openrlhf_cov.trainer.observation import ENTROPY
from openrlhf_cov.trainer.ray.seams import plain_class
from openrlhf_cov.utils.metrics_log import EVAL_FILE, METRICS_FILE, MetricsLog

logger = init_logger(__name__)

RATIO_P99_LIMIT = 2.0
"""Above this, one token in a hundred has more than doubled its probability since the rollout."""


class CovExperienceMaker(RemoteExperienceMaker):
    """Upstream's, with the entropies of the scoring policy beside its log-probs.

    They travel in ``Experience.info``, one tensor per sample, so that they follow their sample to whichever rank
    trains on it.
    """

    @torch.no_grad()
    def make_experience(self, samples_list: list) -> list:
        """Upstream's, which has every policy rank score its share of the samples, in order."""
        experiences = super().make_experience(samples_list)
        refs = self.actor_model_group.async_run_method(method_name="take_entropies")
        copies = self.args.ds.ring_attn_size * self.args.ds.tensor_parallel_size
        for experience, entropy in zip(experiences, self._flatten_results(refs, copies), strict=True):
            experience.info[ENTROPY] = list(entropy)
        return experiences


class StepLogging:
    """Mixin over upstream's ``BasePPOTrainer``: one line of ``metrics.jsonl`` per global step."""

    def init_checkpoint_states(self) -> dict:
        """Upstream's; the metrics file continues after the step that was restored."""
        states = super().init_checkpoint_states()
        folder = Path(self.args.ckpt.output_dir)
        self.metrics_log = MetricsLog(folder / METRICS_FILE, resumed_step=states["global_step"])
        self.eval_log = MetricsLog(folder / EVAL_FILE, resumed_step=states["global_step"])
        return states

    def train_step(self, rollout_samples, global_step: int) -> tuple[dict, int]:
        """Upstream's, after every sample got its number: selection breaks ties by it, wherever the sample goes."""
        for number, sample in enumerate(rollout_samples):
            sample.info[SAMPLE_ID] = torch.tensor([number])
        return super().train_step(rollout_samples, global_step)

    def ppo_train(self, global_steps: int) -> dict:
        """Upstream's, after every actor has been told which step this is."""
        ray.get(self.actor_model_group.async_run_method(method_name="start_step", global_step=global_steps))
        status = super().ppo_train(global_steps)
        status.pop(SAMPLE_ID, None)
        if status.get("ppo/ratio_p99", 0.0) > RATIO_P99_LIMIT:
            logger.warning(
                f"the policy runs away from its rollouts: ppo/ratio_p99 {status['ppo/ratio_p99']:.3g}, ppo/ratio_max "
                f"{status['ppo/ratio_max']:.3g}. Lower --actor.adam.lr, use fewer updates per rollout, or keep the "
                "PPO clip (--kl_cov_keep_ppo_clip; --actor.eps_clip_low_high 0.2 0.2 for clip_cov)"
            )
        return status

    def save_logs_and_checkpoints(self, global_step: int, logs_dict=None, client_states=None) -> None:
        """Write the metrics line first, then upstream's logs and checkpoints."""
        self.metrics_log.write(global_step, logs_dict or {})
        super().save_logs_and_checkpoints(global_step, logs_dict, client_states)

    def save_best_checkpoint(self, eval_metrics, global_step, client_states=None) -> None:
        """Write the line of this evaluation to ``eval.jsonl``, then upstream's."""
        if eval_metrics:
            self.eval_log.write(global_step, eval_metrics)
        super().save_best_checkpoint(eval_metrics, global_step, client_states)


class CovPPOTrainer(StepLogging, plain_class(PPOTrainer)):
    """Synchronous training."""


class CovTrainingActor(StepLogging, plain_class(TrainingActor)):
    """The training side of ``--train.async_enable``."""


# The name that upstream's ``BasePPOTrainer`` looks up; a seam, see docs/seams.md.
upstream.RemoteExperienceMaker = CovExperienceMaker
