"""What a method against entropy collapse is: a record of pure functions, one in each file of ``models/methods``.

Every token-level method is one detached coefficient k per token times a transformed advantage A', beside at most one
additive penalty:

    d loss / d log_prob = -k * A' / N        A' = 0 where a token is dropped, else weight * (A + add)

so a method fills one slot: it drops tokens, weighs advantages, adds to them, adds a penalty, replaces the surrogate
(PPO's k), or computes A from the rewards of a group of responses (estimator). Two more set a number of the run, which
a closed loop (``models/control.py``) moves: the PPO clip and the coefficient of the entropy bonus. A slot holds one
method, but for weights, which multiply. The command line needs
settings and names without PyTorch, so methods call tensors' methods and leave what takes more to the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.control import Control
from openrlhf_cov.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

# The range of a PPO clip that clips nothing.
UNCLIPPED = (math.inf, math.inf)

# Log ratios are cut here before exp, as upstream's: 4.9e8 is as good as infinite, float32 would overflow at 88.
LOG_RATIO_LIMIT = 20.0

# A response with a score above this is correct.
CORRECT = 0.5

# What a method does.
SLOTS = {
    "estimator": "computes the advantages",
    "drop": "takes the gradient of tokens",
    "weight": "weighs advantages",
    "add": "adds to advantages",
    "penalty": "adds a penalty",
    "surrogate": "replaces PPO's surrogate",
    "clip": "moves the PPO clip",
    "bonus": "moves the entropy bonus",
}

# Slots of any number of methods; of each other, at most one method of a run does the same.
SHARED_SLOTS = ("weight",)


def _floating(values: Tensor) -> Tensor:
    """Values of whole numbers as float32: weights and advantages made like them would be rounded."""
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
        """exp(log_probs - old_log_probs) without gradient, the log cut at ``LOG_RATIO_LIMIT``."""
        return self.log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()

    @property
    def log_ratio(self) -> Tensor:
        """log_probs - old_log_probs, without gradient."""
        return self.log_probs.detach() - self.old_log_probs

    @property
    def cut(self) -> Tensor:
        """Mask of the action tokens without a gradient in PPO's loss because the cut takes it."""
        return (self.log_ratio.abs() > LOG_RATIO_LIMIT) & self.action_mask.bool()

    @property
    def sequence_ratio(self) -> Tensor:
        """GSPO's ratio (B, 1), without gradient: exp of the mean log ratio over a sequence's action tokens."""
        return self.geometric_mean(self.log_ratio)

    def geometric_mean(self, log_ratio: Tensor) -> Tensor:
        """(B, 1): exp of the mean of ``log_ratio`` (B, A) over a sequence's action tokens, the mean cut, too."""
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
    """What one method does to the tokens of a micro-batch in an update; (B, A) and without gradient."""

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
        """Tokens were picked to lose their gradient or to be penalised, not to count more or less."""
        return self.drops or (self.weight is None and self.add is None)


def transformed(advantages: Tensor, plans: Sequence[Plan]) -> Tensor:
    """A' (B, A) from A (B, A): all that is added, then all weights, then 0 where a plan drops.

    An advantage of 0 makes a surrogate and its gradient exactly 0. Where no plan does anything A' is A, bit for bit.
    """
    for plan in plans:
        advantages = advantages if plan.add is None else advantages + plan.add
    for plan in plans:
        advantages = advantages if plan.weight is None else plan.weight * advantages
    for plan in plans:
        advantages = advantages.masked_fill(plan.tokens, 0.0) if plan.drops else advantages
    return advantages


@dataclass(frozen=True)
class Method:
    """One method. Functions get its ``settings`` first: any object that has the fields of that class."""

    name: str
    title: str
    # Where it was published.
    source: str
    # What it does, one line of ``--help``.
    summary: str
    # One of ``SLOTS``.
    slot: str
    # Its flags: none of them may be given without the method.
    settings: type[Settings]
    # It is a value of ``--cov_type``, and the settings of covariance concern it.
    by_covariance: bool = False
    # Whose log-probs the window holds, or the setting that says so: ``current``, the policy before each update, or
    # ``old``.
    log_probs_policy: str | None = None
    # Whose entropies the window holds, or the setting that says so: ``current`` or ``old``, as of the log-probs.
    entropy_policy: str | None = None
    # (settings, ``Window`` or ``LocalWindow``) -> what it does to each micro-batch.
    plan: Callable[[Any, Any], list[Plan]] | None = None
    # (settings, batch with A' as its advantages) -> k (B, A) of a surrogate, without gradient.
    coefficient: Callable[[Any, TokenBatch], Tensor] | None = None
    # Setting that says whose log-probs the ratio compares with: ``rollout``, the engine's, or ``old``. A surrogate
    # applies it in its coefficient; for other methods PPO's ratio, and so its clip, follow it.
    anchor_policy: str | None = None
    # A surrogate that bounds an update by itself.
    bounded: bool = False
    # It is defined for one advantage per response, so no other method may tell its tokens apart.
    by_response: bool = False
    # ``--actor.loss_agg_mode`` it was published with, where that is not upstream's default.
    aggregation: str | None = None
    # (settings, groups) -> advantage (G, K) of each response, NaN where it is left out.
    estimate: Callable[[Any, Groups], Tensor] | None = None
    # (settings, all prompts of a step) -> reward (K, A) of each token, which joins what ``estimate`` gives the last
    # one. It goes with ``process_reward``.
    token_rewards: Callable[[Any, Sequence[PromptTokens]], list[Tensor]] | None = None
    # (settings) -> those of a process reward model. A run with it has that model and a reference.
    process_reward: Callable[[Any], ProcessReward] | None = None
    # An estimator that leaves responses out of the mean over tokens, beside giving them no advantage.
    leaves_out: bool = False
    # An estimator whose advantages are whitened over all tokens of the step.
    whitens: bool = False
    # ``--algo.advantage.estimator`` of upstream that an estimator takes the place of.
    stands_for: str | None = None
    # An estimator that gives some groups of right and wrong responses positive advantages alone.
    one_sided: bool = False
    # An estimator that gives no positive advantages.
    negative_only: bool = False
    # An estimator that gives no negative advantages.
    positive_only: bool = False
    # An estimator for one reward of right and one of wrong responses.
    two_valued: bool = False
    # (settings, batch, its plan) -> penalty (B, A), with gradient, of the planned tokens.
    penalty: Callable[[Any, TokenBatch, Plan], Tensor] | None = None
    # Setting with a fraction p: the window holds log-probs renormalised over the tokens that the policy that sampled
    # finds at least p times as probable as its most probable one.
    proxy_min_p: str | None = None
    # A weight that scales advantages by their sign; a run has at most one.
    weighs_by_sign: bool = False
    # The window holds the expectation of the entropy discriminator, of the policy that sampled, at each token.
    needs_discriminator_mean: bool = False
    # (settings) -> it weighs tokens by statistics of all of them, so none may be left out of the mean beside it.
    of_all_tokens: Callable[[Any], bool] = lambda settings: False
    # (settings of a step) -> range (low, high) of the PPO clip in it; instead of ``ppo_clip``.
    clip: Callable[[Any], tuple[float, float]] | None = None
    # (settings of a step) -> coefficient of the entropy bonus in it.
    bonus: Callable[[Any], float] | None = None
    # Settings that are mean entropies, in nats.
    entropies: tuple[str, ...] = ()
    # Settings that ``--entropy_target`` may move, the main one first.
    controls: tuple[Control, ...] = ()
    # Published range (low, high) of the PPO clip; None: that of the run's flags.
    ppo_clip: tuple[float, float] | None = None
    # Setting that keeps the run's PPO clip where the published method has none.
    keeps_clip: str | None = None
    # (settings, upstream's flags) -> why the method does not go with them, None if it does.
    refuses: Callable[[Any, Mapping[str, Any]], str | None] = lambda settings, flags: None
    # Why it does nothing where a rollout gives one update.
    one_update: str | None = None
    # Why it is another method where a rollout has one prompt.
    one_prompt: str | None = None
    # (metrics of a global step, number of its updates) -> why it did nothing there, None if it did.
    idle: Callable[[Mapping[str, float], int], str | None] = lambda values, updates: None

    @property
    def flag(self) -> str:
        """How it is chosen."""
        return f"--method {self.name}"

    def has(self, setting: str) -> bool:
        """True if ``setting`` is one of its own."""
        return any(each.name == setting for each in fields(self.settings))

    def clip_of(self, settings: Any) -> tuple[float, float] | None:
        """The PPO clip that it sets, None if it leaves the run's."""
        if self.clip:
            return self.clip(settings)
        return None if self.keeps_clip and getattr(settings, self.keeps_clip) else self.ppo_clip
