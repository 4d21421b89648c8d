"""The policy of one rank as the updates and the scoring see it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from openrlhf.models import PolicyLoss
from openrlhf.utils.logging_utils import init_logger
from openrlhf.utils.vlm_utils import merge_mm_train_inputs
from torch import Tensor

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.window import Ranks
from openrlhf_cov.trainer.bad_updates import BadUpdates
from openrlhf_cov.trainer.batches.ranks import ranks_of
from openrlhf_cov.trainer.batches.windows import BatchLayout
from openrlhf_cov.trainer.model.actor_model import draws_in_training
from openrlhf_cov.trainer.model.moving_average import MovingAverage
from openrlhf_cov.trainer.records import MicroBatch, PolicyScores

logger = init_logger(__name__)


class TrainingPass(NamedTuple):
    """The forward pass of a micro-batch with gradient; (B, A)."""

    log_probs: Tensor
    # None unless the run has an entropy bonus.
    entropy: Tensor | None
    # The balancing loss of a mixture of experts, 0-d; None for other models.
    balancing_loss: Tensor | None


@dataclass
class Policy:
    """The policy of one rank: its model, what trains it, and how its samples are cut into updates."""

    strategy: Any
    # ``CovActor`` around a DeepSpeed engine.
    actor: Any
    scheduler: Any
    # What ``average`` writes into, and what the run exports; None without ``--train.enable_ema``.
    ema_model: Any
    tokenizer: Any
    config: CovConfig
    ranks: Ranks
    bad_updates: BadUpdates
    layout: BatchLayout
    # True if a training pass draws random numbers (dropout), so that its log-probs are not those of the policy.
    draws_in_training: bool
    # The moving average of the weights; None on ranks that export nothing of it.
    average: MovingAverage | None = None
    # Warnings that were given, each once in a run.
    warned: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, strategy: Any, actor: Any, scheduler: Any, ema_model: Any, tokenizer: Any) -> "Policy":
        """Make the policy of this rank from a loaded model and its DeepSpeed engine.

        Args:
            strategy: The strategy of the rank, with the flags of the run.
            actor: ``CovActor`` around the DeepSpeed engine.
            scheduler: The scheduler of the learning rate.
            ema_model: The moving average of the model; None without ``--train.enable_ema``.
            tokenizer: The tokenizer of the policy.
        """
        args = strategy.args
        config = CovConfig.from_args(args)
        ranks = ranks_of(strategy.ds_device_mesh["dp"].get_group())
        kept = Path(args.ckpt.output_dir) / "bad_updates"
        # With --cov_scope micro_batch the selected tokens depend on which samples form a micro-batch. Samples of an
        # update are then not rearranged to put the responses to a prompt together.
        by_micro_batch = config.cov_scope != "global" and bool(config.token_slots)
        # Without ZeRO-3 every data-parallel rank has the same weights, and those of the first one are exported.
        first = strategy.ds_device_mesh["dp"].get_local_rank() == 0
        average = None
        if ema_model is not None and (args.ds.zero_stage == 3 or first):
            average = MovingAverage(ema_model, args.train.ema_beta)
        return cls(
            strategy=strategy,
            actor=actor,
            scheduler=scheduler,
            ema_model=ema_model,
            tokenizer=tokenizer,
            config=config,
            ranks=ranks,
            bad_updates=BadUpdates(actor.model, args.on_nan, kept, strategy.get_rank()),
            layout=BatchLayout.of(strategy, ranks, groups_prompts=actor.shares_prefixes and not by_micro_batch),
            draws_in_training=draws_in_training(actor),
            average=average,
        )

    @property
    def args(self) -> SimpleNamespace:
        """The flags of the run."""
        return self.strategy.args

    @property
    def engine(self) -> Any:
        """The DeepSpeed engine."""
        return self.actor.model

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.actor.parameters()).device

    def ppo_loss(self, config: CovConfig) -> PolicyLoss:
        """Return upstream's PPO loss with the clip that is in force under the settings of a step."""
        actor = self.args.actor
        correction = self.args.algo.advantage
        low, high = config.clip_of_step(tuple(actor.eps_clip_low_high))
        return PolicyLoss(
            clip_eps_low=low,
            clip_eps_high=high,
            dual_clip=actor.dual_clip,
            token_level_loss=actor.loss_agg_mode == "token-mean",
            policy_loss_type=actor.policy_loss_type,
            is_correction_level=correction.is_correction_level,
            is_correction_mode=correction.is_correction_mode,
            is_correction_gating=correction.is_correction_gating,
            is_correction_threshold=correction.is_correction_threshold,
        )

    def forward(self, micro_batch: MicroBatch, with_entropy: bool) -> TrainingPass:
        """Run the model on a micro-batch with gradient.

        Args:
            micro_batch: The samples, on the device of the policy.
            with_entropy: True to compute entropies, which then carry gradient as well.
        """
        log_probs, output = self.actor(
            micro_batch.tokens,
            micro_batch.action_mask,
            attention_mask=micro_batch.attention_mask,
            return_output=True,
            ring_attn_group=self.strategy.ring_attn_group,
            return_entropy=with_entropy,
            **self._image_arguments(micro_batch.image_inputs, micro_batch.tokens.device),
        )
        # Upstream's forward pass gives (B, T - 1), ours (B, A): the last A columns of either.
        entropy = output.entropy[:, -micro_batch.action_mask.shape[1] :] if with_entropy else None
        has_experts = self.args.actor.aux_loss_coef > 1e-8
        return TrainingPass(log_probs, entropy, output.aux_loss if has_experts else None)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a micro-batch."""
        self.strategy.backward(loss, self.actor, None)

    def end_micro_batch(self, *, ends_update: bool) -> None:
        """Let DeepSpeed count the micro-batch, and step at the end of an update; the moving average follows."""
        if self.layout.dynamic and not ends_update:
            return
        self.strategy.optimizer_step(None, self.actor, self.scheduler, name="actor")
        if self.average is not None and ends_update:
            self.average.update(self.actor)

    @torch.no_grad()
    def score(
        self,
        tokens: Tensor,
        action_mask: Tensor,
        attention_mask: Tensor,
        image_inputs: Sequence[Any] | None,
        with_entropy: bool,
        with_vocabulary_scores: bool = False,
    ) -> PolicyScores:
        """Score action tokens with the policy as it is now.

        Args:
            tokens: Token ids (B, T), on the device of the policy like the masks.
            action_mask: (B, A).
            attention_mask: (B, T).
            image_inputs: Processed images of the samples of a vision-language model.
            with_entropy: Whether entropies are computed.
            with_vocabulary_scores: True to compute what the methods of the run need of the whole vocabulary: the
                log-probs of ``proxy_min_p``, the ``discriminator_mean``, or nothing. Both come only with entropies.

        Raises:
            RunStopped: This model cannot give what a method asks for.
        """
        min_p = self.config.proxy_min_p if with_vocabulary_scores else None
        with_mean = self.config.needs_discriminator_mean and with_vocabulary_scores
        # Without dropout: the scores are those of the policy that sampled.
        self.actor.eval()
        try:
            result = self.actor(
                tokens,
                action_mask,
                attention_mask=attention_mask,
                return_output=with_entropy,
                ring_attn_group=self.strategy.ring_attn_group,
                return_entropy=with_entropy,
                **({} if min_p is None else {"proxy_min_p": min_p}),
                **({"with_discriminator_mean": True} if with_mean else {}),
                **self._image_arguments(image_inputs, tokens.device),
            )
        finally:
            self.actor.train()
        if not with_entropy:
            return PolicyScores(result)
        log_probs, output = result
        proxy = getattr(output, "proxy", None)
        mean = getattr(output, "discriminator_mean", None)
        if (min_p is not None and proxy is None) or (with_mean and mean is None):
            flags = " and ".join(method.flag for method in self.config.methods if method.needs_vocabulary)
            raise RunStopped(
                f"{flags} needs a policy whose log-probs are those of a plain output head, which this model's are not "
                "(docs/performance.md); choose another method"
            )
        return PolicyScores(log_probs, output.entropy[:, -action_mask.shape[1] :], proxy, mean)

    def warn_once(self, message: str | None) -> None:
        """Log a warning on the first rank, once per run."""
        if message and message not in self.warned and self.strategy.is_rank_0():
            logger.warning(message)
            self.warned.add(message)

    def _image_arguments(self, image_inputs: Sequence[Any] | None, device: torch.device) -> dict[str, Any]:
        if not image_inputs or not getattr(self.actor, "is_vlm", False):
            return {}
        return merge_mm_train_inputs(list(image_inputs), device)
