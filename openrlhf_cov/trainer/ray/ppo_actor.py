"""The policy actor: installs the covariance loss, observes rollouts and updates."""

import torch
from openrlhf.models import aggregate_loss
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor

import openrlhf_cov.trainer.actor_trainer  # noqa: F401  rebinds the trainer that PolicyModelActor builds
from openrlhf_cov.config import CovConfig
from openrlhf_cov.models.diagnostics import entropy_metrics
from openrlhf_cov.models.loss import CovPolicyLoss
from openrlhf_cov.trainer.observation import observe_loss, record_entropy
from openrlhf_cov.trainer.ray.seams import plain_class
from openrlhf_cov.utils.metrics import MetricBuffer


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
        observe_loss(self.trainer.actor_loss_fn, self.metrics)

    def start_step(self, global_step: int) -> None:
        """Called before each ``fit``: settings and random choices of this step follow from its number."""
        self.trainer.global_step = global_step
        if isinstance(self.trainer.actor_loss_fn, CovPolicyLoss):
            self.trainer.actor_loss_fn.start_step(
                self.config.at(global_step), self.strategy.seed, global_step, self.strategy.get_rank()
            )

    def forward(self, sequences, action_mask=None, *args, **kwargs) -> torch.Tensor:
        """Upstream's log-probs (B, A) of the rollouts; on the way the entropy of the policy that scores them."""
        with record_entropy(self.actor, action_mask.shape[1]) as entropies:
            log_probs = super().forward(sequences, action_mask, *args, **kwargs)
        self.metrics.add(*entropy_metrics(entropies[0], action_mask.to(entropies[0].device)))
        return log_probs

    def fit(self, kl_ctl: float = 0) -> dict[str, float]:
        """Upstream's training status of one global step and our metrics, reduced over all ranks."""
        return super().fit(kl_ctl) | self.metrics.reduce(self.strategy.all_reduce)
