"""The training loop of one policy rank: upstream's, walked one optimizer step at a time."""

from collections.abc import Callable, Iterable, Iterator

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.utils.vlm_utils import merge_mm_train_inputs
from torch import Tensor
from torch.utils.data import DataLoader

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.loss import MethodLoss
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.ranking import token_keys
from openrlhf_cov.models.window import Window, plan_step
from openrlhf_cov.trainer.bad_updates import BadUpdates
from openrlhf_cov.trainer.boundaries import StepBoundaries
from openrlhf_cov.trainer.observation import record_entropy
from openrlhf_cov.trainer.ranks import ranks_of
from openrlhf_cov.trainer.sample_info import sample_ids
from openrlhf_cov.trainer.weight_transfer import GlooWeightSender, transfer_weights


class CovActorTrainer(StepBoundaries, ActorPPOTrainer):
    """Upstream's trainer with two additions, and optimizer steps that end where DeepSpeed's do (``StepBoundaries``).

    Before an optimizer step, its micro-batches are seen together, so that methods can plan over the tokens of all of
    them and of all ranks. With ``--vllm.sync_backend gloo`` weights go to vLLM in buckets.
    """

    sender: GlooWeightSender | None = None
    bad_updates: BadUpdates | None = None
    global_step = 0
    old_entropies: Callable[[Tensor, int], Tensor] | None = None
    """(sample ids (B,), width) -> entropies (B, width) of the policy that sampled; see ``StepDiagnostics``."""

    def ppo_train(self, kl_ctl: float) -> dict[str, float]:
        """Upstream's training on the replay buffer: all updates of one global step."""
        self.policy_moved = False
        self.replay_buffer.steps_of = self.plan_each_step
        return super().ppo_train(kl_ctl)

    def plan_each_step(self, micro_batches: Iterable[Experience]) -> Iterator[Experience]:
        """Pass micro-batches of an epoch on; those of one optimizer step are held until they are planned."""
        self.check_whole_steps()
        if not self.plans_globally:
            yield from micro_batches
            return
        window: list[Experience] = []
        for number, experience in enumerate(micro_batches):
            window.append(experience)
            if self.ends_step(number):
                self._plan(window)
                yield from window
                self.policy_moved = True
                window = []

    def training_step(self, experience: Experience, kl_ctl: float, step: int, *args, **kwargs) -> dict:
        """Upstream's step on micro-batch number ``step``, with the plans that were made for it."""
        if self.plans_globally:
            self.actor_loss_fn.plans = experience.plans
        self.align(self.actor.model, step)
        status = super().training_step(experience, kl_ctl, step, *args, **kwargs)
        if self.bad_updates and self.ends_step(step):
            self.bad_updates.check(self.global_step, experience)
        return status

    @property
    def plans_globally(self) -> bool:
        """True with a method that plans over the whole optimizer step."""
        return isinstance(self.actor_loss_fn, MethodLoss) and self.actor_loss_fn.config.plans_globally

    def _plan(self, window: list[Experience]) -> None:
        """Give every experience of one optimizer step its plans, one of each method that makes one."""
        device = next(self.actor.parameters()).device
        config = self.actor_loss_fn.config
        batches, keys, entropies = [], [], []
        for experience in window:
            ids = sample_ids(experience.info).to(device)  # before they go there one by one
            experience.to_device(device)
            width = experience.action_mask.shape[1]
            keys.append(token_keys(self.strategy.seed, self.global_step, ids, width))
            old = self.old_entropies(ids, width) if config.entropy_policy else None
            log_probs, entropy = self._policy_now(experience, old, config)
            entropies.append(entropy)
            batches.append(
                TokenBatch(log_probs, experience.action_log_probs, experience.advantages, experience.action_mask)
            )
        ranks = ranks_of(self.strategy.ds_device_mesh["dp"].get_group())
        step = Window(batches, keys, self.actor_loss_fn.ppo_clip, ranks, entropies)
        for experience, plans in zip(window, plan_step(config, step), strict=True):
            experience.plans = plans

    def _policy_now(
        self, experience: Experience, old: Tensor | None, config: CovConfig
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs and, where a method asks for them, entropies (B, A) that the methods see; ``old`` entropies.

        Those of the rollout are exact until the first update after it, and serve for all updates where the flags say
        so; otherwise the policy is asked again.
        """
        log_probs = experience.action_log_probs
        if not self.policy_moved or not (config.asks_log_probs or config.entropy_policy == "current"):
            return log_probs, old
        if config.entropy_policy != "current":
            return self._policy_log_probs(experience), old
        with record_entropy(self.actor, log_probs.shape[1]) as recorded:
            current = self._policy_log_probs(experience)
        return current if config.asks_log_probs else log_probs, recorded[0]

    @torch.no_grad()
    def _policy_log_probs(self, experience: Experience) -> Tensor:
        """Log-probs (B, A) of the policy as it is before the coming update."""
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
