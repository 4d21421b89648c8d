"""Define a method against entropy collapse, and the records that its functions get and return.

A method is a record of pure functions, one in each file of ``openrlhf_cov/models/methods``. The record says what the
method is called; what it does is the record of its slot (``openrlhf_cov/models/slots.py``).

The command line needs settings and names without PyTorch, so methods call tensors' methods and leave what takes more
to the window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar

from openrlhf_cov.models.control import Control
from openrlhf_cov.models.slots import (
    UNCLIPPED,
    ClipRange,
    Estimator,
    Restraint,
    Slot,
    Surrogate,
    TokenDrop,
    TokenPenalty,
    TokenSlot,
)
from openrlhf_cov.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

# Log ratios are cut here before exp, as upstream's: 4.9e8 is as good as infinite, float32 would overflow at 88.
LOG_RATIO_LIMIT = 20.0

# A response with a score above this is correct.
CORRECT = 0.5

# Advice of a method that needs several updates of a rollout. The lab and the integrations replace it with their flags.
MORE_UPDATES = "lower --train.batch_size or raise --train.max_epochs"


def _floating(values: Tensor) -> Tensor:
    """Return whole numbers as float32: weights and advantages of their type would be rounded."""
    return values if values.is_floating_point() else values.float()


@dataclass(frozen=True)
class TokenBatch:
    """Tensors (B, A) of one micro-batch; ``log_probs`` carries gradient where a loss is computed, the others none."""

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    action_mask: Tensor
    # Of the engine that sampled, where it gives them.
    rollout_log_probs: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "advantages", _floating(self.advantages))

    @property
    def ratio(self) -> Tensor:
        """exp(log_probs - old_log_probs), (B, A) without gradient, the log cut at ``LOG_RATIO_LIMIT``."""
        return self.log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()

    @property
    def log_ratio(self) -> Tensor:
        """log_probs - old_log_probs, (B, A) without gradient."""
        return self.log_probs.detach() - self.old_log_probs

    @property
    def cut(self) -> Tensor:
        """Mask (B, A) of the action tokens without a gradient in PPO's loss because the cut takes it."""
        return (self.log_ratio.abs() > LOG_RATIO_LIMIT) & self.action_mask.bool()

    @property
    def sequence_ratio(self) -> Tensor:
        """GSPO's ratio (B, 1), without gradient: exp of the mean log ratio over a sequence's action tokens."""
        return self.geometric_mean(self.log_ratio)

    def geometric_mean(self, log_ratio: Tensor) -> Tensor:
        """Return exp of the mean of a log ratio over the action tokens of each sequence, (B, 1).

        The mean is cut at ``LOG_RATIO_LIMIT``.

        Args:
            log_ratio: Log ratio (B, A) of each token.
        """
        total = log_ratio.masked_fill(~self.action_mask.bool(), 0.0).sum(1, keepdim=True)
        mean = total / self.action_mask.sum(1, keepdim=True).clamp(min=1)
        return mean.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


@dataclass(frozen=True)
class StepRewards:
    """The rewards of a global step that are compared with others, of all prompts; tensors (N,)."""

    rewards: Tensor
    # The mean reward of the responses to the same prompt.
    group_means: Tensor


@dataclass(frozen=True)
class Groups:
    """The responses of one global step, which an estimator judges.

    Where reward functions abstain, prompts have different numbers of graded responses. An estimator is then called
    once for each number K, with the prompts that have as many; ``step`` holds all of them.
    """

    # (G, K): of the K responses to each of G prompts.
    rewards: Tensor
    # Mean entropy of their tokens under the policy that sampled, in nats.
    entropy: float
    # Mean log-prob of the tokens of each response under the policy before the updates of the step, (G, K).
    log_probs: Tensor | None = None
    # The rewards of the whole step; None if ``rewards`` has all of them.
    step: StepRewards | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rewards", _floating(self.rewards))

    @property
    def step_rewards(self) -> StepRewards:
        """The rewards of the whole step."""
        if self.step is not None:
            return self.step
        means = self.rewards.mean(1, keepdim=True).expand_as(self.rewards)
        return StepRewards(self.rewards.flatten(), means.flatten())


@dataclass(frozen=True)
class PromptTokens:
    """The responses to one prompt, for an estimator that rewards each of their tokens."""

    # log pi_prm - log pi_ref of the process reward model and its reference, (K, A).
    log_ratios: Tensor
    # (K, A)
    action_mask: Tensor
    # True where the reward function did not abstain, (K,).
    graded: Tensor


@dataclass(frozen=True)
class ProcessReward:
    """Settings of the implicit process reward model of a run."""

    # Scale of its log ratios to the reference.
    beta: float
    learning_rate: float
    # The norm to which its gradient is clipped.
    max_norm: float
    # The model that it and the reference start from, and the flag that names it; empty for that of the policy.
    model: str
    model_flag: str


@dataclass(frozen=True)
class Plan:
    """The effect of one method on the tokens of a micro-batch in an update; tensors (B, A) without gradient."""

    # Mask of those it acts on.
    tokens: Tensor
    # They give no loss and no gradient, but count in the mean.
    drops: bool = False
    # Factor, at least 0, of the advantages.
    weight: Tensor | float | None = None
    # Summand of the advantages.
    add: Tensor | None = None
    # Log-probs that a penalty draws the tokens to.
    reference: Tensor | None = None
    # Factor of a penalty, 0-d, for one that is a mean over other tokens than all.
    penalty_scale: Tensor | None = None
    # Name -> values whose mean over the action tokens is worth a line in the log: metric ``method/name``.
    numbers: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def restrains(self) -> bool:
        """True if the plan picks tokens to mask their gradient or to penalise them, not to weigh them."""
        return self.drops or (self.weight is None and self.add is None)


def transformed(advantages: Tensor, plans: Sequence[Plan]) -> Tensor:
    """Return A' (B, A) from A (B, A): first the summands, then the weights, then 0 where a plan drops tokens.

    An advantage of 0 makes a surrogate and its gradient exactly 0. Where no plan does anything A' is A, bit for bit.

    Args:
        advantages: A (B, A), without gradient.
        plans: The plans of all methods for this micro-batch. Summands are added, and weights multiplied, in the order
            of the plans.
    """
    for plan in plans:
        advantages = advantages if plan.add is None else advantages + plan.add
    for plan in plans:
        advantages = advantages if plan.weight is None else plan.weight * advantages
    for plan in plans:
        advantages = advantages.masked_fill(plan.tokens, 0.0) if plan.drops else advantages
    return advantages


FilledSlot = TypeVar("FilledSlot", bound=Slot, covariant=True)
OtherSlot = TypeVar("OtherSlot", bound=Slot)


def _refuses_nothing(settings: Any, flags: Mapping[str, Any]) -> str | None:
    """Return None: the default of ``Method.refuses``."""
    return None


def _is_never_idle(values: Mapping[str, float], updates: int) -> str | None:
    """Return None: the default of ``Method.idle``."""
    return None


@dataclass(frozen=True, kw_only=True)
class Method(Generic[FilledSlot]):
    """One method: the fields that all methods have, and the record of the slot that it fills."""

    name: str
    title: str
    # Where it was published.
    source: str
    # The effect of the method, one line of ``--help``.
    summary: str
    # The flags of the method: none of them may be given without the method.
    settings: type[Settings]
    # The record of the slot that the method fills, with its functions.
    slot: FilledSlot
    # A second effect on tokens, of an estimator that also weighs all advantages or leaves responses out of the mean.
    beside: TokenSlot | None = None
    # refuses(settings, flags) returns one line for the user that says why the method does not go with the flags; None
    # if it does.
    #   settings: the settings of the run. A scheduled one may be a ``Schedule``.
    #   flags: the flags of the run by dotted name, such as ``actor.loss_agg_mode``. A training gives all of them. The
    #     lab and the integrations give those that they have; a missing flag counts as its default.
    refuses: Callable[[Any, Mapping[str, Any]], str | None] = _refuses_nothing
    # Settings that ``--entropy_target`` may move, the main one first.
    controls: tuple[Control, ...] = ()
    # Settings that are mean entropies, in nats.
    entropies: tuple[str, ...] = ()
    # Why the method has no effect where a rollout gives one update, for a warning.
    one_update: str | None = None
    # idle(values, updates) returns why the method had no effect in a global step, for a warning; None if it had one.
    #   values: the metrics of the step over all ranks, by name.
    #   updates: the number of updates of the step.
    idle: Callable[[Mapping[str, float], int], str | None] = _is_never_idle

    @property
    def flag(self) -> str:
        """The flag and value that choose the method."""
        return f"--method {self.name}"

    @property
    def token_slots(self) -> list[TokenSlot]:
        """The records that act on tokens. Each makes one plan per micro-batch."""
        return [slot for slot in (self.slot, self.beside) if isinstance(slot, TokenSlot)]

    @property
    def by_covariance(self) -> bool:
        """True if it is a value of ``--cov_type``."""
        return isinstance(self.slot, Restraint) and self.slot.by_covariance

    @property
    def needs_vocabulary(self) -> bool:
        """True if the window has values for it that depend on the log-probs of the whole vocabulary."""
        if isinstance(self.slot, TokenPenalty):
            return self.slot.proxy_min_p is not None
        return isinstance(self.slot, TokenDrop) and self.slot.needs_discriminator_mean

    @property
    def leaves_out(self) -> bool:
        """True if it is an estimator that leaves responses out of the mean over tokens."""
        return isinstance(self.slot, Estimator) and isinstance(self.beside, TokenDrop)

    @property
    def ppo_clip(self) -> tuple[float, float] | None:
        """The PPO clip that it was published with; None: the clip of the run's flags."""
        if isinstance(self.slot, Surrogate):
            return UNCLIPPED
        return self.slot.ppo_clip if isinstance(self.slot, (Restraint, Estimator)) else None

    def keeps_run_clip(self, settings: Any) -> bool:
        """Return True if the settings keep the run's PPO clip in place of the published one."""
        keeps = self.slot.keeps_clip if isinstance(self.slot, TokenPenalty) else None
        return keeps is not None and getattr(settings, keeps)

    def clip_of(self, settings: Any) -> tuple[float, float] | None:
        """Return the PPO clip that it sets, None if it leaves the run's."""
        if isinstance(self.slot, ClipRange):
            return self.slot.clip(settings)
        return None if self.keeps_run_clip(settings) else self.ppo_clip


def fills(method: Method[Slot], slot: type[OtherSlot]) -> TypeGuard[Method[OtherSlot]]:
    """Return True if the method fills a slot; type checkers then know the fields of its slot.

    Args:
        method: The method.
        slot: The class of the slot. A base class, such as ``Restraint``, counts for the slots that inherit from it.
    """
    return isinstance(method.slot, slot)
