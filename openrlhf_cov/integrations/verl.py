"""The methods in verl, as policy losses that its configuration chooses by name.

    # my_losses.py, which every process of verl imports: export VERL_USE_EXTERNAL_MODULES=my_losses
    from openrlhf_cov.integrations.verl import register

    register("exact_kl_cov", method="kl_cov", method_settings={"kl_cov_ratio": 2e-3})

    # python -m verl.trainer.main_ppo actor_rollout_ref.actor.policy_loss.loss_mode=exact_kl_cov ...

verl calls a policy loss once per micro-batch. Methods need statistics of the whole optimizer step, so ``register``
also wraps ``BaseEngine.train_batch``, which makes one optimizer step: a first pass without gradient shows the methods
all micro-batches of all ranks, then verl trains with their plans. In a verl without that class, the statistics are
those of each micro-batch, and a warning says so.

Tested with the registry and the base class of verl 0.9.1.
"""

import functools
import logging
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from openrlhf_cov.integrations.choice import choose, in_python
from openrlhf_cov.integrations.trainer_loss import TrainerLoss
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.diagnostics import update_metrics
from openrlhf_cov.models.loss import policy_loss
from openrlhf_cov.models.method import Plan, TokenBatch, fills
from openrlhf_cov.models.planning import PlanningStep, PolicySeen, WindowPart, plan_window
from openrlhf_cov.models.slots import EntropyBonus, Estimator
from openrlhf_cov.models.window import ALONE, Ranks
from openrlhf_cov.settings import Schedule
from openrlhf_cov.utils.metrics import MetricBuffer

logger = logging.getLogger(__name__)

# Names of docs/metrics.md that go to verl's logs, with "actor/" before them.
LOGGED = ("cov/selected_frac", "gradient/coefficient_mean", "gradient/zero_frac", "ppo/clip_frac")
# verl's default of clip_ratio, clip_ratio_low and clip_ratio_high.
DEFAULT_CLIP = 0.2
# verl's default of clip_ratio_c, the ratio of its dual clip.
DEFAULT_DUAL_CLIP = 3.0
# verl has no way to switch its dual clip off; no ratio is above this.
NO_DUAL_CLIP = 1e12
# Sample ids of one rank in a step start at a multiple of this.
SAMPLES_OF_RANK = 2**32


def register(name: str, *, method: str, method_settings: Mapping[str, Any] | None = None) -> "VerlLoss":
    """Register a policy loss of verl with methods.

    Args:
        name: The value of ``actor_rollout_ref.actor.policy_loss.loss_mode``.
        method: Name of a method, or of several methods with commas between them.
        method_settings: Settings of the methods by name, such as ``{"kl_cov_ratio": 2e-3}``.

    Raises:
        ValueError: A setting is out of range, or a method needs what verl does not show a policy loss.
    """
    loss = VerlLoss(choose(method, method_settings or {}))
    _core_algos().register_policy_loss(name)(loss)
    try:
        engines: Any = import_module("verl.workers.engine.base")
    except ImportError:
        logger.warning("this verl has no BaseEngine: the methods use the statistics of each micro-batch")
    else:
        plan_whole_steps(engines.BaseEngine)
    return loss


def plan_whole_steps(engine_class: Any) -> None:
    """Wrap ``train_batch`` of a class of verl's engines, so that methods plan over whole optimizer steps."""
    train_batch = engine_class.train_batch
    # Each further loss that is registered finds the class wrapped already; a second wrapper would plan twice.
    if getattr(train_batch, "plans_whole_steps", False):
        return

    @functools.wraps(train_batch)
    def planned_train_batch(engine: Any, data: Any, loss_function: Any) -> Any:
        loss = _loss_in_use(loss_function)
        if loss is not None and loss.plans_steps:
            loss.start_recording()
            engine.infer_batch(data, loss_function)
            loss.plan(_ranks_of(engine), engine.get_data_parallel_rank())
        return train_batch(engine, data, loss_function)

    wrapper: Any = planned_train_batch
    wrapper.plans_whole_steps = True
    engine_class.train_batch = wrapper


def _core_algos() -> Any:
    """Return verl's registry of policy losses. It is imported late: verl may be importing this module."""
    return import_module("verl.trainer.ppo.core_algos")


class VerlLoss:
    """A policy loss with the signature of verl's registry.

    Args:
        methods: The settings of the methods.
    """

    def __init__(self, methods: CovConfig) -> None:
        for fault in _faults(methods):
            raise ValueError(fault)
        self.methods = methods
        self.plans_steps = methods.plans_globally
        self._step = 0
        self._clip: tuple[float, float] = (DEFAULT_CLIP, DEFAULT_CLIP)
        # The micro-batches of a step while a first pass shows them, and their plans until verl trains on them.
        self._recorded: list[TokenBatch] | None = None
        self._planned: list[tuple[TokenBatch, list[Plan]]] = []
        self._warned = False

    def __call__(
        self,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute the loss of one micro-batch; tensors (B, A).

        Args:
            old_log_prob: Log-probs of the policy before the first update after the rollout.
            log_prob: Log-probs of the policy, with gradient.
            advantages: As verl's estimator gives them.
            response_mask: True for response tokens.
            loss_agg_mode: How verl averages the losses of tokens.
            config: verl's ``ActorConfig``.
            rollout_is_weights: verl's weights of the rollout correction; they do not multiply a penalty.

        Returns:
            The loss, and metrics by name.
        """
        verl = _core_algos()
        # verl does not give a policy loss the log-probs of its engine. ``_faults`` refuses methods that compare with
        # them.
        batch = TokenBatch(log_prob, old_log_prob, advantages, response_mask.bool(), rollout_log_probs=old_log_prob)
        clip, dual_clip = self._clips(config)
        self._clip = clip
        if self._recorded is not None:
            self._recorded.append(TokenBatch(log_prob.detach(), old_log_prob, advantages, batch.action_mask))
            # A first pass needs no loss. This one has the type, the device and the graph of a loss, and is 0.
            return log_prob.sum() * 0.0, {}
        plans = self._plans_of(batch) if self.plans_steps else []

        metrics: dict[str, Any] = {}

        def loss_of(of_tokens: Tensor, old_log_probs: Tensor) -> Tensor:
            loss, found = verl.get_policy_loss_fn("vanilla")(
                old_log_prob=old_log_probs,
                log_prob=log_prob,
                advantages=of_tokens,
                response_mask=response_mask,
                loss_agg_mode=loss_agg_mode,
                config=_Clipped(config, clip, dual_clip),
                rollout_is_weights=rollout_is_weights,
            )
            metrics.update(found)
            return loss

        def aggregate(values: Tensor, mask: Tensor, **_: Any) -> Tensor:
            return verl.agg_loss(values, mask, loss_agg_mode, **config.global_batch_info)

        ppo_loss = TrainerLoss(loss_of, clip, None if dual_clip == NO_DUAL_CLIP else dual_clip)
        result = policy_loss(self.methods, ppo_loss, aggregate, batch, plans)
        buffer = MetricBuffer()
        buffer.add(*update_metrics(result.record))
        # The values are those of this micro-batch and rank: verl averages what a policy loss returns.
        values = buffer.reduce(lambda tensor, op: tensor)
        return result.loss, metrics | {f"actor/{name}": values[name] for name in LOGGED}

    def start_recording(self) -> None:
        """Take the following calls for those of a first pass over the micro-batches of an optimizer step."""
        self._recorded = []
        self._planned = []

    def plan(self, ranks: Ranks = ALONE, rank: int = 0) -> None:
        """Let the methods plan over the recorded micro-batches; all ranks call it together.

        Args:
            ranks: The collectives of the data-parallel ranks.
            rank: Number of this rank among them, from 0.
        """
        recorded = self._recorded or []
        self._recorded = None
        self._planned = list(zip(recorded, self._plan(recorded, ranks, rank), strict=True))

    def _plan(self, batches: list[TokenBatch], ranks: Ranks, rank: int) -> list[list[Plan]]:
        self._step += 1
        if not batches:  # a stage of a pipeline that computes no loss
            return []
        # verl does not say which sample a row is. The ids only have to differ between all rows of the step.
        first = rank * SAMPLES_OF_RANK
        parts = []
        for batch in batches:
            ids = torch.arange(first, first + len(batch.log_probs), device=batch.log_probs.device)
            parts.append(WindowPart(ids, batch.old_log_probs, batch.advantages, batch.action_mask))
            first += len(ids)
        # No method that asks for the entropy of the rollout is registered.
        unknown = parts[0].log_probs.new_zeros(())
        # verl does not give a policy loss its seed, so random choices depend on the step and the sample ids alone.
        step = PlanningStep(self.methods, 0, self._step, self._clip, unknown, ranks)
        return plan_window(step, parts, [PolicySeen(batch.log_probs.detach()) for batch in batches])

    def _plans_of(self, batch: TokenBatch) -> list[Plan]:
        """Return the plans of the micro-batch that verl trains on now."""
        if self._planned:
            seen, plans = self._planned.pop(0)
            # Both passes read mask and advantages from the data, so these are equal to the bit.
            same = torch.equal(seen.action_mask, batch.action_mask) and torch.equal(seen.advantages, batch.advantages)
            if not same:
                raise RuntimeError("verl trains on other micro-batches than it showed in the first pass")
            return plans
        if not self._warned:
            self._warned = True
            logger.warning("verl does not show the optimizer step: the statistics are those of each micro-batch")
        return self._plan([batch], ALONE, 0)[0]

    def _clips(self, config: Any) -> tuple[tuple[float, float], float]:
        """Return the PPO clip in force and the ratio of the dual clip: the published ones, or verl's if given."""
        low, high = (getattr(config, f"clip_ratio_{side}") for side in ("low", "high"))
        given = (
            config.clip_ratio if low is None else low,
            config.clip_ratio if high is None else high,
        )
        dual_clip = config.get("clip_ratio_c", DEFAULT_DUAL_CLIP)
        moved = self.methods.moved_clip
        published = moved or self.methods.ppo_clip
        if published and given == (DEFAULT_CLIP, DEFAULT_CLIP):
            if dual_clip != DEFAULT_DUAL_CLIP:
                raise ValueError(
                    f"clip_ratio_c={dual_clip}: the method has a clip of its own or none, without a dual clip; leave "
                    f"verl's default of {DEFAULT_DUAL_CLIP}"
                )
            return published, NO_DUAL_CLIP
        if self.methods.surrogate or moved:
            raise ValueError(
                f"clip_ratio_low={given[0]}, clip_ratio_high={given[1]}: the method has a clip of its own or none; "
                f"leave verl's default of {DEFAULT_CLIP}"
            )
        return given, dual_clip


def _faults(methods: CovConfig) -> list[str]:
    """Return why methods cannot be a policy loss of verl, one line each."""
    faults = []
    for method in methods.methods:
        name = method.name
        if fills(method, Estimator):
            faults.append(f"method={name!r} computes advantages; verl does so in algorithm.adv_estimator")
        elif fills(method, EntropyBonus):
            faults.append(f"method={name!r} sets the entropy bonus; use verl's entropy_coeff")
        elif method.entropies or any(slot.entropy_policy for slot in method.token_slots):
            faults.append(f"method={name!r} needs entropies, which verl does not give to a policy loss")
        elif method.needs_vocabulary:
            faults.append(f"method={name!r} needs all logits of a token, which verl does not give to a policy loss")
        else:
            flags = {"actor.loss_agg_mode": "token-mean"}
            faults += [in_python(fault) for fault in [method.refuses(methods, flags)] if fault]
    if methods.rollout_anchor:
        faults.append(f"{methods.rollout_anchor}='rollout': verl does not give a policy loss those; use 'old'")
    if methods.entropy_target is not None:
        faults.append("entropy_target: verl does not give a policy loss the entropy of the rollout; drop it")
    if methods.cov_scope != "global":
        faults.append("cov_scope='micro_batch': verl's own losses select so; use them, or 'global'")
    if methods.cov_log_probs == "old":
        faults.append("cov_log_probs='old': use 'current', the log-probs that verl gives to the loss")
    for name, value in vars(methods).items():
        if isinstance(value, Schedule):
            faults.append(f"{name} has a schedule, and verl does not give a policy loss the step; give a number")
    return faults


def _loss_in_use(loss_function: Any) -> VerlLoss | None:
    """Return the registered loss that verl's ``partial(ppo_loss, config=...)`` will call, None if it is not ours."""
    config = getattr(loss_function, "keywords", {}).get("config")
    chosen = getattr(config, "policy_loss", None)
    found = None if chosen is None else _core_algos().POLICY_LOSS_REGISTRY.get(chosen.get("loss_mode", "vanilla"))
    return found if isinstance(found, VerlLoss) else None


def _ranks_of(engine: Any) -> Ranks:
    """Return the collectives of the data-parallel ranks of an engine."""
    size = engine.get_data_parallel_size()
    if size == 1:
        return ALONE
    group = engine.get_data_parallel_group()

    def all_reduce_sum(tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    def all_gather(tensor: Tensor) -> Tensor:
        parts = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(parts, tensor.contiguous(), group=group)
        return torch.cat(parts)

    return Ranks(all_reduce_sum, all_gather, size)


class _Clipped:
    """verl's ``ActorConfig`` as its ``vanilla`` loss reads it, with another PPO clip."""

    def __init__(self, config: Any, clip: tuple[float, float], dual_clip: float) -> None:
        self.clip_ratio = clip[0]
        self.clip_ratio_low, self.clip_ratio_high = clip
        self.clip_ratio_c = dual_clip
        self.global_batch_info = config.global_batch_info

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)
