"""The training loop of one policy rank: upstream's, walked one optimizer step at a time."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from openrlhf.models import aggregate_loss
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.utils.logging_utils import init_logger
from openrlhf.utils.vlm_utils import merge_mm_train_inputs
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.control import Controller
from openrlhf_cov.models.loss import MakePlans, MethodLoss
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.ranking import token_keys
from openrlhf_cov.models.window import Window, plan_step
from openrlhf_cov.trainer.actor_model import draws_in_training
from openrlhf_cov.trainer.bad_updates import BadUpdates
from openrlhf_cov.trainer.boundaries import StepBoundaries
from openrlhf_cov.trainer.observation import StepDiagnostics
from openrlhf_cov.trainer.ranks import ranks_of
from openrlhf_cov.trainer.sample_info import sample_ids
from openrlhf_cov.trainer.step_seed import seed_step
from openrlhf_cov.trainer.token_dump import dump_tokens, is_due
from openrlhf_cov.trainer.weight_transfer import GlooWeightSender, transfer_weights

logger = init_logger(__name__)

SKIPPED_UPDATES, GRADIENT_NORM = "ppo/skipped_updates", "gradient/norm"

OVERLAP_EVERY = 50
"""Global steps from one comparison of the selections by ``old`` and by ``current`` log-probs to the next."""


class Scores(NamedTuple):
    """What the policy says of action tokens, (B, A); None is what was not asked for."""

    log_probs: Tensor
    entropy: Tensor | None = None
    """Upstream's: over the full vocabulary, of the temperature-scaled policy, in nats."""
    proxy: Tensor | None = None
    """Log-probs among the probable tokens, for a method with ``proxy_min_p``."""


class CovActorTrainer(StepBoundaries, ActorPPOTrainer):
    """Upstream's trainer with the loss of the run's methods, whose updates are measured.

    Before an optimizer step its micro-batches are seen together, so that methods can plan over the tokens of all of
    them and of all ranks; it ends where DeepSpeed's does (``StepBoundaries``). With ``--vllm.sync_backend gloo``
    weights go to vLLM in buckets.
    """

    sender: GlooWeightSender | None = None
    global_step = 0
    policy_moved = False
    """There was an update since the rollout."""
    controller: Controller | None = None
    norms: Sequence[float] = ()
    """Of the gradients of this step's updates, before they were clipped."""

    def __init__(self, strategy, actor, *args, **kwargs) -> None:
        super().__init__(strategy, actor, *args, **kwargs)
        flags = strategy.args
        self.config = CovConfig.from_args(flags)
        self.controller = self.config.controller()
        self.actor_loss_fn = MethodLoss(self.config.at(0), policy_loss=self.actor_loss_fn, aggregate=aggregate_loss)
        kept = Path(flags.ckpt.output_dir) / "bad_updates"
        self.bad_updates = BadUpdates(actor.model, flags.on_nan, kept, strategy.get_rank())
        self.ranks = ranks_of(strategy.ds_device_mesh["dp"].get_group())
        self.diagnostics = StepDiagnostics(flags.rollout.n_samples_per_prompt, self.ranks)
        self.warned: set[str] = set()
        self._plans: dict[int, Sequence[Plan] | MakePlans] = {}
        self._draws_in_training = draws_in_training(actor)

    @property
    def device(self) -> torch.device:
        """Of the policy."""
        return next(self.actor.parameters()).device

    def start_step(self, global_step: int) -> None:
        """Called before each ``ppo_train``: settings and random choices of this step follow from its number."""
        self.global_step = global_step
        rank = seed_step(self.strategy, global_step)
        config = self.config.at(global_step, self.controller)
        self.actor_loss_fn.start_step(config, self.strategy.seed, global_step, rank)
        if config.entropy_bonus_in_force is not None:
            self.args.actor.entropy_coef = config.entropy_bonus_in_force

    def ppo_train(self, kl_ctl: float) -> dict[str, float]:
        """All updates of one global step; upstream's status and our metrics, reduced over all ranks."""
        samples = list(self.replay_buffer.items)
        skipped_before, updates_before = self.bad_updates.total, self.actor.model.global_steps
        self.diagnostics.start(samples, self.device)
        self.policy_moved, self.norms = False, ()
        self.epoch = 0
        self.replay_buffer.steps_of, self.replay_buffer.dealt = self.plan_each_step, self.deal_by_prompt
        status = super().ppo_train(kl_ctl)
        updates = self.actor.model.global_steps - updates_before
        values = {SKIPPED_UPDATES: float(self.bad_updates.total - skipped_before)}
        values[GRADIENT_NORM] = sum(self.norms) / len(self.norms) if self.norms else math.nan
        values |= self.diagnostics.finish(eta=status.get("actor_lr", 0.0) * updates)
        if self.controller:
            target = self.actor_loss_fn.config.entropy_target
            values |= self.controller.step(float(self.diagnostics.mean_entropy), target)
        for method in self.config.methods:
            self._warn(method.idle(values, updates))
        if is_due(self.config.cov_dump_every, self.global_step):
            dump_tokens(self.diagnostics, samples, self.tokenizer, self.config, self.strategy, self.global_step)
        return status | values

    def plan_each_step(self, micro_batches: Iterable[Experience]) -> Iterator[Experience]:
        """Pass micro-batches of an epoch on; those of one optimizer step are held until they are planned."""
        self.check_whole_steps()
        if not self.actor_loss_fn.config.plans_globally:
            yield from micro_batches
            return
        window: list[Experience] = []
        for number, experience in enumerate(micro_batches):
            window.append(experience)
            if self.ends_step(number):
                if self._plans_while_training(window):
                    self._plans[number] = partial(self._planned_alone, window[0])
                else:
                    plans = self._planned(window)
                    self._plans |= zip(range(number + 1 - len(window), number + 1), plans, strict=True)
                yield from window
                self.policy_moved = True
                window = []

    def deal_by_prompt(self, batches: BatchSampler) -> Iterable[list[int]]:
        """``batches`` of places in the replay buffer, those of an optimizer step dealt out anew where a model that
        reads a prompt once for several samples gains by it and no method looks at a micro-batch alone."""
        window = self._micro_batches_of_a_step
        by_micro_batch = self.config.cov_scope != "global" and any(method.plan for method in self.config.methods)
        shares = getattr(self.actor, "shares_prompts", False) and not by_micro_batch
        if self.args.train.dynamic_batch_enable or window == 1 or not shares:
            return batches
        ids = torch.cat([sample_ids(each.info) for each in self.replay_buffer.items])
        return DealtByPrompt(batches, window, (ids // self.args.rollout.n_samples_per_prompt).tolist())

    def training_step(self, experience: Experience, kl_ctl: float, step: int, *args, **kwargs) -> dict:
        """Upstream's step on micro-batch number ``step`` of an epoch, with the plans that were made for it."""
        self.align(self.actor.model, step)
        update = self.actor.model.global_steps  # DeepSpeed counts updates on the host
        self.actor_loss_fn.expect(self._plans.pop(step, ()), update)
        if experience.rollout_log_probs is not None:  # upstream has this metric with a rollout correction alone
            experience.info["vllm_kl"] = kl_of_engine(experience)
        status = super().training_step(experience, kl_ctl, step, *args, **kwargs)
        if self.ends_step(step):
            self.norms = [*self.norms, status["metrics"]["actor_grad_norm"]]
            self.bad_updates.check(self.global_step, experience)
        self.diagnostics.observe(sample_ids(experience.info), self.actor_loss_fn.record)
        self.shuffle_next_epoch(step)
        return status

    def _plans_while_training(self, window: list[Experience]) -> bool:
        """True if the forward pass of the update itself shows the policy before it to the methods.

        So it does where each rank has one micro-batch: all log-probs of the step are there before any gradient is.
        """
        config = self.actor_loss_fn.config
        asks = self.policy_moved and config.asks_log_probs and config.entropy_policy != "current"
        return asks and len(window) == 1 and not self._draws_in_training

    def _planned_alone(self, experience: Experience, log_probs: Tensor) -> list[Plan]:
        with torch.no_grad():
            (plans,) = self._planned([experience], log_probs)
        return plans

    def _planned(self, window: list[Experience], now: Tensor | None = None) -> list[list[Plan]]:
        """For every experience of one optimizer step its plans, one of each method that makes one.

        ``now`` (B, A) are the policy's log-probs of the only one, where they are known.
        """
        device, config = self.device, self.actor_loss_fn.config
        batches, keys, entropies, old_entropies, proxies = [], [], [], [], []
        for experience in window:
            ids = sample_ids(experience.info).to(device)  # before they go there one by one
            experience.to_device(device)
            width = experience.action_mask.shape[1]
            keys.append(token_keys(self.strategy.seed, self.global_step, ids, width))
            old = self.diagnostics.entropies(ids, width) if config.entropy_policy else None
            log_probs, entropy = self._policy_now(experience, old, config) if now is None else (now, old)
            entropies.append(entropy)
            old_entropies.append(old)
            proxies.append(self.diagnostics.proxies(ids, width) if config.proxy_min_p else None)
            batches.append(
                TokenBatch(log_probs, experience.action_log_probs, experience.advantages, experience.action_mask)
            )
        others = entropies, old_entropies, self.diagnostics.mean_entropy, proxies

        def plans_of(batches: list[TokenBatch]) -> list[list[Plan]]:
            return plan_step(config, Window(batches, keys, self.actor_loss_fn.ppo_clip, self.ranks, *others))

        plans = plans_of(batches)
        if self.policy_moved and self._compares_selections(config):
            log_probs = self._other_log_probs(window, config)
            by_others = plans_of(
                [replace(batch, log_probs=other) for batch, other in zip(batches, log_probs, strict=True)]
            )
            current, old = (plans, by_others) if config.asks_log_probs else (by_others, plans)
            self.diagnostics.compare(_by_log_probs(config, current), _by_log_probs(config, old))
        return plans

    def _compares_selections(self, config: CovConfig) -> bool:
        """True in the first global step and every ``OVERLAP_EVERY`` after it, where covariance selects."""
        return self.global_step % OVERLAP_EVERY == 0 and any(each.by_covariance for each in config.methods)

    def _other_log_probs(self, window: list[Experience], config: CovConfig) -> list[Tensor]:
        """Of every experience the log-probs (B, A) that the methods do not see: of the rollout, or of the policy."""
        if config.asks_log_probs:
            return [each.action_log_probs for each in window]
        return [self._score_of(each, with_entropy=False).log_probs for each in window]

    def _policy_now(
        self, experience: Experience, old: Tensor | None, config: CovConfig
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs and, where a method asks for them, entropies (B, A) that the methods see; ``old`` entropies.

        Those of the rollout are exact until the first update after it, and serve for all updates where the flags say
        so; otherwise the policy is asked again.
        """
        log_probs, with_entropy = experience.action_log_probs, config.entropy_policy == "current"
        if not self.policy_moved or not (config.asks_log_probs or with_entropy):
            return log_probs, old
        now = self._score_of(experience, with_entropy)
        return now.log_probs if config.asks_log_probs else log_probs, now.entropy if with_entropy else old

    def _score_of(self, each: Experience, with_entropy: bool) -> Scores:
        return self.score(each.sequences, each.action_mask, each.attention_mask, each.mm_train_inputs, with_entropy)

    @torch.no_grad()
    def score(
        self,
        sequences: Tensor,
        action_mask: Tensor,
        attention_mask: Tensor,
        images: list | None,
        with_entropy: bool,
        with_proxy: bool = False,
    ) -> Scores:
        """Of the policy as it is now. ``with_proxy``: what a method of the run asks for.

        Raises RunStopped if this model cannot say that.
        """
        min_p = self.actor.proxy_min_p = self.config.proxy_min_p if with_proxy else None
        merged = {}
        if images and getattr(self.actor, "is_vlm", False):
            merged = merge_mm_train_inputs(images, sequences.device)
        self.actor.eval()
        try:
            result = self.actor(
                sequences,
                action_mask,
                attention_mask=attention_mask,
                return_output=with_entropy,
                ring_attn_group=self.strategy.ring_attn_group,
                return_entropy=with_entropy,
                **merged,
            )
        finally:
            self.actor.train()
            self.actor.proxy_min_p = None  # training has no use for it
        if not with_entropy:
            return Scores(result)
        log_probs, output = result
        proxy = getattr(output, "proxy", None)
        if min_p is not None and proxy is None:
            flags = " and ".join(method.flag for method in self.config.methods if method.proxy_min_p)
            raise RunStopped(
                f"{flags} needs a policy whose log-probs are those of a plain output head, which this model's are not "
                "(docs/performance.md); choose another method"
            )
        return Scores(log_probs, output.entropy[:, -action_mask.shape[1] :], proxy)

    def _warn(self, message: str | None) -> None:
        """Log a warning on rank 0, once per run."""
        if message and message not in self.warned and self.strategy.is_rank_0():
            logger.warning(message)
            self.warned.add(message)

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


def kl_of_engine(experience: Experience) -> Tensor:
    """Return the mean over action tokens of log-prob in the engine less log-prob in training, a scalar.

    The tokens are samples of the engine, so the mean estimates KL(engine || trained policy), in nats. It compares the
    same weights in two programs: anything beyond rounding is a mismatch between vLLM and training.
    """
    gap = experience.rollout_log_probs.float() - experience.action_log_probs.float()
    mask = experience.action_mask.bool()
    return gap.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


def _by_log_probs(config: CovConfig, plans: list[list[Plan]]) -> list[Tensor]:
    """Masks (B, A) of what the methods that select by covariance act on, micro-batch by micro-batch."""
    planning = [method for method in config.methods if method.plan]
    return [plan.tokens for each in plans for method, plan in zip(planning, each, strict=True) if method.by_covariance]


class StepLoader(DataLoader):
    """The data loader of upstream's ``ppo_train``; its dataset, the replay buffer, may regroup what it yields."""

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, drop_last: bool, **options: Any) -> None:
        order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
        batches = dataset.dealt(BatchSampler(order, batch_size, drop_last))
        super().__init__(dataset, batch_sampler=batches, **options)

    def __iter__(self) -> Iterator[Experience]:
        """Micro-batches, passed through ``dataset.steps_of``."""
        return iter(self.dataset.steps_of(super().__iter__()))


class DealtByPrompt(Sampler[list[int]]):
    """``batches`` of as many samples, each ``window`` of them dealt out so that those of a prompt come together.

    ``prompts``: of each sample, what its prompt is known by.
    """

    def __init__(self, batches: BatchSampler, window: int, prompts: Sequence[int]) -> None:
        self.batches, self.window, self.prompts = batches, window, prompts

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        left = iter(self.batches)
        while window := list(islice(left, self.window)):
            samples = iter(sorted(chain.from_iterable(window), key=self.prompts.__getitem__))
            yield from (list(islice(samples, len(batch))) for batch in window)
