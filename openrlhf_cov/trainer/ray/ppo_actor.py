"""The policy actor: installs the covariance loss, observes every update, sends weights to vLLM."""

import openrlhf.trainer.ray.ppo_actor as upstream
import torch
from openrlhf.models import aggregate_loss
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer, PolicyModelActor

from openrlhf_cov.config import CovConfig
from openrlhf_cov.models.diagnostics import entropy_metrics
from openrlhf_cov.models.loss import CovPolicyLoss
from openrlhf_cov.trainer.observation import observe_loss, record_entropy
from openrlhf_cov.trainer.ray.seams import plain_class
from openrlhf_cov.trainer.weight_transfer import GlooWeightSender, transfer_weights
from openrlhf_cov.utils.metrics import MetricBuffer


class CovActorTrainer(ActorPPOTrainer):
    """Upstream's trainer; with ``--vllm.sync_backend gloo`` weights go to vLLM in buckets."""

    sender: GlooWeightSender | None = None

    def _init_vllm_sync_group(self, backend: str) -> None:
        if backend == "gloo":
            self.sender = GlooWeightSender(self.vllm_engines, self.args.vllm.tensor_parallel_size)
        else:
            super()._init_vllm_sync_group(backend)

    def broadcast_to_vllm(self) -> None:
        """Send the current weights to every engine; called on every rank."""
        if self.args.vllm.sync_backend == "gloo":
            transfer_weights(self.actor.model.module, self.sender, self.args.ds.zero_stage)
            torch.distributed.barrier()
        else:
            super().broadcast_to_vllm()


upstream.ActorPPOTrainer = CovActorTrainer  # the name that PolicyModelActor looks up; a seam, see docs/seams.md


class CovPolicyActor(plain_class(PolicyModelActor)):
    """Upstream's policy actor with the covariance loss swapped in and its updates measured."""

    def init_model_from_pretrained(self, strategy, *args, **kwargs) -> None:
        """Upstream's, then the loss of ``--cov_type`` (``none`` leaves upstream's object in place)."""
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        config = CovConfig.from_args(strategy.args)
        if config.cov_type != "none":
            self.trainer.actor_loss_fn = CovPolicyLoss(
                config, policy_loss=self.trainer.actor_loss_fn, aggregate=aggregate_loss
            )
        self.metrics = MetricBuffer()
        observe_loss(self.trainer.actor_loss_fn, self.metrics)

    def start_step(self, global_step: int) -> None:
        """Called before each ``fit``: random choices of this step depend on (seed, global step, rank) alone."""
        if isinstance(self.trainer.actor_loss_fn, CovPolicyLoss):
            rank = self.strategy.get_rank()
            self.trainer.actor_loss_fn.seed_selection(self.strategy.seed, global_step, rank)

    def forward(self, sequences, action_mask=None, *args, **kwargs) -> torch.Tensor:
        """Upstream's log-probs (B, A) of the rollouts; on the way the entropy of the policy that scores them."""
        with record_entropy(self.actor, action_mask.shape[1]) as entropies:
            log_probs = super().forward(sequences, action_mask, *args, **kwargs)
        self.metrics.add(*entropy_metrics(entropies[0].cpu(), action_mask.cpu()))
        return log_probs

    def fit(self, kl_ctl: float = 0) -> dict[str, float]:
        """Upstream's training status of one global step and our metrics, reduced over all ranks."""
        return super().fit(kl_ctl) | self.metrics.reduce(self.strategy.all_reduce)
