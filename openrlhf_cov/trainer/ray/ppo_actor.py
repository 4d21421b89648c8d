"""The policy actor: installs the loss of the run's methods, observes rollouts and updates."""

from pathlib import Path
from typing import Any

import torch
from openrlhf.models import aggregate_loss
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.loss import MethodLoss
from openrlhf_cov.trainer.bad_updates import BadUpdates
from openrlhf_cov.trainer.checkpoints import ROLLOUTS, ClientStates, checkpoint_folder
from openrlhf_cov.trainer.observation import StepDiagnostics, observe_loss, observe_training, record_entropy
from openrlhf_cov.trainer.ranks import ranks_of
from openrlhf_cov.trainer.ray.model_actors import CheckpointedActor, read_rollouts
from openrlhf_cov.trainer.ray.seams import plain_class
from openrlhf_cov.trainer.sample_info import ENTROPY
from openrlhf_cov.trainer.step_seed import seed_step
from openrlhf_cov.trainer.token_dump import dump_tokens, is_due
from openrlhf_cov.utils.metrics import MetricBuffer

logger = init_logger(__name__)

SKIPPED_UPDATES = "ppo/skipped_updates"
DYNAMICS = "entropy_dynamics"
"""Entry of a checkpoint's client states."""


class CovPolicyActor(CheckpointedActor, plain_class(PolicyModelActor)):
    """Upstream's policy actor with the loss of its methods swapped in and its updates measured."""

    model_name = "actor"

    @property
    def engine(self) -> Any:
        """Of DeepSpeed."""
        return self.actor.model

    def init_model_from_pretrained(self, strategy, *args, **kwargs) -> None:
        """Upstream's, then the loss of the run's methods (without one upstream's object stays in place)."""
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        self.config = CovConfig.from_args(strategy.args)
        if self.config.methods:
            self.trainer.actor_loss_fn = MethodLoss(
                self.config.at(0), policy_loss=self.trainer.actor_loss_fn, aggregate=aggregate_loss
            )
        kept = Path(strategy.args.ckpt.output_dir) / "bad_updates"
        self.trainer.bad_updates = BadUpdates(self.actor.model, strategy.args.on_nan, kept, strategy.get_rank())
        self.metrics = MetricBuffer()
        ranks = ranks_of(strategy.ds_device_mesh["dp"].get_group())
        self.diagnostics = StepDiagnostics(self.metrics, strategy.args.rollout.n_samples_per_prompt, ranks)
        self.diagnostics.dynamics.load_state_dict(self.checkpoint_states.get(DYNAMICS))
        self.entropies: list[torch.Tensor] = []
        self.warned: set[str] = set()
        observe_loss(self.trainer.actor_loss_fn, self.metrics)
        observe_training(self.trainer, self.diagnostics)
        self.trainer.old_entropies = self.diagnostics.entropies

    def start_step(self, global_step: int) -> None:
        """Called before each ``fit``: settings and random choices of this step follow from its number."""
        self.trainer.global_step = global_step
        rank = seed_step(self.strategy, global_step)
        if isinstance(self.trainer.actor_loss_fn, MethodLoss):
            self.trainer.actor_loss_fn.start_step(self.config.at(global_step), self.strategy.seed, global_step, rank)

    def forward(self, sequences, action_mask=None, *args, **kwargs) -> torch.Tensor:
        """Upstream's log-probs (B, A) of the rollouts; on the way the entropies of the policy that scores them."""
        with record_entropy(self.actor, action_mask.shape[1]) as entropies:
            log_probs = super().forward(sequences, action_mask, *args, **kwargs)
        self.entropies.append(entropies[0].float().cpu())
        return log_probs

    def take_entropies(self) -> list[torch.Tensor]:
        """Entropies (B, A) of every ``forward`` since the last call, in order; the controller hands them on."""
        taken, self.entropies = self.entropies, []
        return taken

    def append(self, experience) -> None:
        """Upstream's; each sample keeps its entropies, which are no metric of upstream's to log."""
        entropies = experience.info.pop(ENTROPY)
        super().append(experience)
        samples = self.trainer.replay_buffer.items[-len(entropies) :]
        for sample, entropy in zip(samples, entropies, strict=True):
            sample.entropy = entropy[: len(sample.action_mask)]  # the buffer has cut the padding

    def fit(self, kl_ctl: float = 0) -> dict[str, float]:
        """Upstream's training status of one global step and our metrics, reduced over all ranks."""
        samples = list(self.trainer.replay_buffer.items)
        skipped_before = self.trainer.bad_updates.total
        updates_before = self.actor.model.global_steps
        self.diagnostics.start(samples, next(self.actor.parameters()).device)
        status = super().fit(kl_ctl)
        updates = self.actor.model.global_steps - updates_before
        skipped = self.trainer.bad_updates.total - skipped_before
        values = {SKIPPED_UPDATES: float(skipped)} | self.diagnostics.finish(eta=status.get("actor_lr", 0.0) * updates)
        for method in self.config.methods:
            self._warn(method.idle(values, updates))
        step = self.trainer.global_step
        if is_due(self.config.cov_dump_every, step):
            dump_tokens(self.diagnostics, samples, self.tokenizer, self.config, self.strategy, step)
        return status | values

    def get_checkpoint_states(self) -> ClientStates:
        """Upstream's, short in its log; the first rank adds the state of the rollouts, which its controller takes.

        Raises RunStopped if that cannot be read.
        """
        states = ClientStates(super().get_checkpoint_states())
        states.pop("optimizer", None)  # DeepSpeed's, without ZeRO
        if not self.strategy.is_rank_0():
            states.pop(ROLLOUTS, None)
        elif self.restored and ROLLOUTS not in states:  # checkpoints of earlier versions have it there
            states[ROLLOUTS] = read_rollouts(checkpoint_folder(self.strategy.args, "actor") / self.restored)
        return states

    def save_checkpoint(self, tag, client_states=None, metric_value=None, metric_key=None) -> None:
        """Upstream's; the DeepSpeed checkpoint is whole or not there, the state of the rollouts in one file of it."""
        states = (client_states or {}) | {DYNAMICS: self.diagnostics.dynamics.state_dict()}
        rollouts = states.pop(ROLLOUTS, None)
        if not self.disable_ds_ckpt:
            self.save_deepspeed(tag, metric_value, metric_key, states, rollouts)
        disabled, self.disable_ds_ckpt = self.disable_ds_ckpt, True  # what is left for upstream is the HF export
        try:
            super().save_checkpoint(tag, states, metric_value, metric_key)
        finally:
            self.disable_ds_ckpt = disabled

    def _warn(self, message: str | None) -> None:
        """Log a warning on rank 0, once per run."""
        if message and message not in self.warned and self.strategy.is_rank_0():
            logger.warning(message)
            self.warned.add(message)
