"""The policy actor: installs the covariance loss, observes rollouts and updates."""

import torch
from openrlhf.models import aggregate_loss
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from openrlhf.utils.logging_utils import init_logger

import openrlhf_cov.trainer.actor_trainer  # noqa: F401  rebinds the trainer that PolicyModelActor builds
from openrlhf_cov.config import CovConfig
from openrlhf_cov.models.diagnostics import idle_selection
from openrlhf_cov.models.loss import CovPolicyLoss
from openrlhf_cov.trainer.observation import (
    ENTROPY,
    StepDiagnostics,
    observe_loss,
    observe_training,
    record_entropy,
)
from openrlhf_cov.trainer.ray.seams import plain_class
from openrlhf_cov.trainer.selection import ranks_of
from openrlhf_cov.trainer.token_dump import dump_tokens, is_due
from openrlhf_cov.utils.metrics import MetricBuffer

logger = init_logger(__name__)


class CovPolicyActor(plain_class(PolicyModelActor)):
    """Upstream's policy actor with the covariance loss swapped in and its updates measured."""

    def init_model_from_pretrained(self, strategy, *args, **kwargs) -> None:
        """Upstream's, then the loss of ``--cov_type`` (``none`` leaves upstream's object in place)."""
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        self.config = CovConfig.from_args(strategy.args)
        if self.config.cov_type != "none":
            self.trainer.actor_loss_fn = CovPolicyLoss(
                self.config.at(0), policy_loss=self.trainer.actor_loss_fn, aggregate=aggregate_loss
            )
        self.metrics = MetricBuffer()
        ranks = ranks_of(strategy.ds_device_mesh["dp"].get_group())
        self.diagnostics = StepDiagnostics(self.metrics, strategy.args.rollout.n_samples_per_prompt, ranks)
        self.entropies: list[torch.Tensor] = []
        self.warned: set[str] = set()
        observe_loss(self.trainer.actor_loss_fn, self.metrics)
        observe_training(self.trainer, self.diagnostics)

    def start_step(self, global_step: int) -> None:
        """Called before each ``fit``: settings and random choices of this step follow from its number."""
        self.trainer.global_step = global_step
        if isinstance(self.trainer.actor_loss_fn, CovPolicyLoss):
            self.trainer.actor_loss_fn.start_step(
                self.config.at(global_step), self.strategy.seed, global_step, self.strategy.get_rank()
            )

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
        updates_before = self.actor.model.global_steps
        self.diagnostics.start(samples, next(self.actor.parameters()).device)
        status = super().fit(kl_ctl)
        updates = self.actor.model.global_steps - updates_before
        values = self.diagnostics.finish(eta=status.get("actor_lr", 0.0) * updates)
        self._warn(idle_selection(self.config.cov_type, values))
        step = self.trainer.global_step
        if is_due(self.config.cov_dump_every, step):
            dump_tokens(self.diagnostics, samples, self.tokenizer, self.config, self.strategy, step)
        return status | values

    def _warn(self, message: str | None) -> None:
        """Log a warning on rank 0, once per run."""
        if message and message not in self.warned and self.strategy.is_rank_0():
            logger.warning(message)
            self.warned.add(message)
