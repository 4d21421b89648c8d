"""The slots of a method: one small record for each way in which a method changes an update.

Every token-level method is one detached coefficient k per token times a transformed advantage A', beside at most one
additive penalty:

    d loss / d log_prob = -k * A' / N        A' = 0 where a token is dropped, else weight * (A + add)

So a method drops tokens, weighs advantages, adds to advantages, adds a penalty, replaces the surrogate (PPO's k), or
computes A from the rewards of a group of responses (estimator). Two more slots set a number of the run, which a closed
loop (``models/control.py``) moves: the PPO clip and the coefficient of the entropy bonus.

All functions get the settings of the run first: any object that has the fields of the method's settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from openrlhf_cov.models.method import Groups, Plan, ProcessReward, PromptTokens, TokenBatch

# The range of a PPO clip that clips nothing.
UNCLIPPED = (math.inf, math.inf)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The base of all slots: the effect that a method has. Each subclass has the fields of one slot."""

    # How the command line calls the slot.
    name: ClassVar[str]
    # What a method of the slot does.
    effect: ClassVar[str]
    # A run has any number of methods of a shared slot, and at most one method of any other slot.
    is_shared: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class TokenSlot(Slot):
    """The base of the slots that act on tokens. Before each update they make a plan."""

    # (settings, ``Window`` or ``LocalWindow``) -> what the method does to the tokens of each micro-batch.
    plan: Callable[[Any, Any], list[Plan]]
    # The policy whose log-probs the window has, or the setting that names it: ``current``, the policy before each
    # update, or ``old``, the one that sampled. None: the plan uses no log-probs.
    log_probs_policy: str | None = None
    # The same for the entropies of the window.
    entropy_policy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Restraint(TokenSlot):
    """The base of the slots that pick tokens to restrain them: ``TokenDrop`` and ``TokenPenalty``."""

    # The method is a value of ``--cov_type``, and the settings of covariance concern it.
    by_covariance: bool = False
    # Published range (low, high) of the PPO clip; None: the range of the run's flags.
    ppo_clip: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class TokenDrop(Restraint):
    """The plan says which tokens get A' = 0, and may give the other tokens a weight."""

    name = "drop"
    effect = "masks tokens"
    # The window has the expectation of the entropy discriminator of the policy that sampled at each token.
    needs_discriminator_mean: bool = False


@dataclass(frozen=True, kw_only=True)
class TokenPenalty(Restraint):
    """The plan says which tokens are penalised."""

    name = "penalty"
    effect = "adds a penalty"
    # (settings, batch, its plan) -> penalty (B, A) of the planned tokens, with gradient.
    penalty: Callable[[Any, TokenBatch, Plan], Tensor]
    # The setting with a fraction p: the window has log-probs renormalised over the tokens that the policy that sampled
    # finds at least p times as probable as its most probable token.
    proxy_min_p: str | None = None
    # The setting that keeps the run's PPO clip in place of ``ppo_clip``.
    keeps_clip: str | None = None


def _of_single_tokens(settings: Any) -> bool:
    """The default of ``TokenWeight.of_all_tokens``."""
    return False


@dataclass(frozen=True, kw_only=True)
class TokenWeight(TokenSlot):
    """The plan gives a factor of at least 0 of each advantage."""

    name = "weight"
    effect = "weighs advantages"
    is_shared = True
    # The factor depends on the sign of the advantage. A run has at most one such weight.
    by_sign: bool = False
    # (settings) -> True if the factors depend on statistics of all tokens, so that no other method may leave tokens
    # out of the mean.
    of_all_tokens: Callable[[Any], bool] = _of_single_tokens
    # The window has the share of the prompts with a positive advantage.
    needs_positive_prompts: bool = False


@dataclass(frozen=True, kw_only=True)
class TokenSummand(TokenSlot):
    """The plan gives a summand of each advantage."""

    name = "add"
    effect = "adds to advantages"


@dataclass(frozen=True, kw_only=True)
class Surrogate(Slot):
    """It replaces PPO's coefficient, the clipped ratio. The PPO clip of the run is then open."""

    name = "surrogate"
    effect = "replaces PPO's surrogate"
    # (settings, batch with A' as its advantages) -> k (B, A), without gradient.
    coefficient: Callable[[Any, TokenBatch], Tensor]
    # It bounds an update by itself.
    bounded: bool = False
    # It is defined for one advantage per response, so no other method may treat the tokens of a response differently.
    by_response: bool = False
    # Published ``--actor.loss_agg_mode``, where that is not upstream's default.
    aggregation: str | None = None
    # The setting that names the policy the coefficient compares with: ``rollout``, the engine's, or ``old``.
    anchor_policy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Estimator(Slot):
    """It computes the advantages of responses from their rewards."""

    name = "estimator"
    effect = "computes the advantages"
    # (settings, groups) -> advantage (G, K) of each response, NaN for a response that is left out.
    estimate: Callable[[Any, Groups], Tensor]
    # The ``--algo.advantage.estimator`` of upstream that it takes the place of.
    stands_for: str
    # It is defined for one reward of correct and one of incorrect responses.
    two_valued: bool = False
    # The signs of its advantages. ``some_positive``: some groups of correct and incorrect responses have positive
    # advantages alone. ``positive`` and ``negative``: all groups have advantages of one sign alone.
    signs: Literal["both", "some_positive", "positive", "negative"] = "both"
    # Published range (low, high) of the PPO clip; None: the range of the run's flags.
    ppo_clip: tuple[float, float] | None = None
    # The setting that names the policy of PPO's ratio: ``rollout``, the engine's, or ``old``.
    anchor_policy: str | None = None
    # Why it is another method where a rollout has one prompt.
    one_prompt: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessEstimator(Estimator):
    """An estimator with a process reward model, which rewards tokens. Its advantages are whitened over the step."""

    # (settings) -> the settings of the process reward model. A run then has that model and a reference.
    process_reward: Callable[[Any], ProcessReward]
    # (settings, all prompts of a step) -> reward (K, A) of each token. It is added to the advantage of the response at
    # its last token.
    token_rewards: Callable[[Any, Sequence[PromptTokens]], list[Tensor]]


@dataclass(frozen=True, kw_only=True)
class ClipRange(Slot):
    """It moves the PPO clip."""

    name = "clip"
    effect = "moves the PPO clip"
    # (settings of a step) -> range (low, high) of the PPO clip in the step.
    clip: Callable[[Any], tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class EntropyBonus(Slot):
    """It moves the coefficient of the entropy bonus."""

    name = "bonus"
    effect = "moves the entropy bonus"
    # (settings of a step) -> the coefficient in the step.
    bonus: Callable[[Any], float]


# All slots, in the order in which they are listed.
SLOTS: tuple[type[Slot], ...] = (
    Estimator,
    TokenDrop,
    TokenWeight,
    TokenSummand,
    TokenPenalty,
    Surrogate,
    ClipRange,
    EntropyBonus,
)
