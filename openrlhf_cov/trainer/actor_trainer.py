"""The training loop of one policy rank: upstream's, walked one optimizer step at a time."""

from collections.abc import Iterable, Iterator

import openrlhf.trainer.ray.ppo_actor as upstream
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.utils.vlm_utils import merge_mm_train_inputs
from torch import Tensor
from torch.utils.data import DataLoader

from openrlhf_cov.models.loss import CovPolicyLoss
from openrlhf_cov.models.objectives import TokenBatch
from openrlhf_cov.models.ranking import token_keys
from openrlhf_cov.trainer.bad_updates import BadUpdates
from openrlhf_cov.trainer.boundaries import StepBoundaries
from openrlhf_cov.trainer.sample_info import sample_ids
from openrlhf_cov.trainer.selection import ranks_of, select_step
from openrlhf_cov.trainer.weight_transfer import GlooWeightSender, transfer_weights


class CovActorTrainer(StepBoundaries, ActorPPOTrainer):
    """Upstream's trainer with two additions, and optimizer steps that end where DeepSpeed's do (``StepBoundaries``).

    Before an optimizer step, its micro-batches are seen together, so that ``--cov_scope global`` can select among the
    tokens of all of them and of all ranks. With ``--vllm.sync_backend gloo`` weights go to vLLM in buckets.
    """

    sender: GlooWeightSender | None = None
    bad_updates: BadUpdates | None = None
    global_step = 0

    def ppo_train(self, kl_ctl: float) -> dict[str, float]:
        """Upstream's training on the replay buffer: all updates of one global step."""
        self.policy_moved = False
        self.replay_buffer.steps_of = self.select_before_each_step
        return super().ppo_train(kl_ctl)

    def select_before_each_step(self, micro_batches: Iterable[Experience]) -> Iterator[Experience]:
        """Pass micro-batches of an epoch on; those of one optimizer step are held until their tokens are selected."""
        self.check_whole_steps()
        if not self.selects_globally:
            yield from micro_batches
            return
        window: list[Experience] = []
        for number, experience in enumerate(micro_batches):
            window.append(experience)
            if self.ends_step(number):
                self._select(window)
                yield from window
                self.policy_moved = True
                window = []

    def training_step(self, experience: Experience, kl_ctl: float, step: int, *args, **kwargs) -> dict:
        """Upstream's step on micro-batch number ``step``, with the tokens that were selected for it."""
        if self.selects_globally:
            self.actor_loss_fn.selected = experience.selected
        self.align(self.actor.model, step)
        status = super().training_step(experience, kl_ctl, step, *args, **kwargs)
        if self.bad_updates and self.ends_step(step):
            self.bad_updates.check(self.global_step, experience)
        return status

    @property
    def selects_globally(self) -> bool:
        """True with ``--cov_scope global`` and a covariance method."""
        return isinstance(self.actor_loss_fn, CovPolicyLoss) and self.actor_loss_fn.config.cov_scope == "global"

    def _select(self, window: list[Experience]) -> None:
        """Give every experience of one optimizer step the mask of its selected tokens."""
        device = next(self.actor.parameters()).device
        config = self.actor_loss_fn.config
        batches, keys = [], []
        for experience in window:
            ids = sample_ids(experience.info).to(device)  # before they go there one by one
            experience.to_device(device)
            keys.append(token_keys(self.strategy.seed, self.global_step, ids, experience.action_mask.shape[1]))
            batches.append(
                TokenBatch(
                    self._policy_log_probs(experience),
                    experience.action_log_probs,
                    experience.advantages,
                    experience.action_mask,
                )
            )
        ranks = ranks_of(self.strategy.ds_device_mesh["dp"].get_group())
        masks = select_step(batches, keys, config, self.actor_loss_fn.ppo_clip, ranks)
        for experience, mask in zip(window, masks, strict=True):
            experience.selected = mask

    @torch.no_grad()
    def _policy_log_probs(self, experience: Experience) -> Tensor:
        """Log-probs (B, A) of the policy as it is before the coming update.

        Those of the rollout are exact until the first update after it, and with ``--cov_log_probs old`` they serve for
        all updates; otherwise the policy is asked again.
        """
        if not self.policy_moved or self.actor_loss_fn.config.cov_log_probs == "old":
            return experience.action_log_probs
        images = {}
        if getattr(self.actor, "is_vlm", False) and experience.mm_train_inputs:
            images = merge_mm_train_inputs(experience.mm_train_inputs, experience.sequences.device)
        self.actor.eval()
        try:
            return self.actor(
                experience.sequences,
                experience.action_mask,
                attention_mask=experience.attention_mask,
                ring_attn_group=self.strategy.ring_attn_group,
                **images,
            )
        finally:
            self.actor.train()

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


class StepLoader(DataLoader):
    """The data loader of upstream's ``ppo_train``; its dataset, the replay buffer, may regroup what it yields."""

    def __iter__(self) -> Iterator[Experience]:
        """Micro-batches, passed through ``dataset.steps_of``."""
        return iter(self.dataset.steps_of(super().__iter__()))


# The two names that upstream's module looks up; seams, see docs/seams.md.
upstream.ActorPPOTrainer = CovActorTrainer
upstream.DataLoader = StepLoader
