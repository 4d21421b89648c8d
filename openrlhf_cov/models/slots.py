"""The slots of a method: one small record for each way in which a method changes an update.

Every token-level method is one detached coefficient k per token times a transformed advantage A', beside at most one
additive penalty:

    d loss / d log_prob = -k * A' / N        A' = 0 where a token is dropped, else weight * (A + add)

So a method drops tokens, weighs advantages, adds to advantages, adds a penalty, replaces the surrogate (PPO's k), or
computes A from the rewards of a group of responses (estimator). Two more slots set a number of the run, which a closed
loop (``openrlhf_cov/models/control.py``) moves: the PPO clip and the coefficient of the entropy bonus.

All functions get the settings first: any object that has the fields of the method's settings, such as ``CovConfig``.
Unless a comment says otherwise, they are the settings of one step, in which a schedule has its value of the step.
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

    # plan(settings, window) returns one ``Plan`` for each micro-batch of the window, in the order of the window.
    #   settings: the settings of the step.
    #   window: ``Window``, the tokens of one optimizer step on all ranks; with --cov_scope micro_batch it is a
    #     ``LocalWindow``, the tokens of one micro-batch on one rank.
    plan: Callable[[Any, Any], list[Plan]]
    # The policy whose log-probs the window has, or the setting that names it: ``current``, the policy before each
    # update, or ``old``, the policy that sampled. None: the plan does not use log-probs.
    log_probs_policy: str | None = None
    # The same for the entropies of the window.
    entropy_policy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Restraint(TokenSlot):
    """The base of the slots that pick tokens to restrain them: ``TokenDrop`` and ``TokenPenalty``."""

    # True if the method is a value of ``--cov_type`` and the settings of the covariance apply to it.
    by_covariance: bool = False
    # Published range (low, high) of the PPO clip; None: the range of the run's flags.
    ppo_clip: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class TokenDrop(Restraint):
    """A slot whose plan says which tokens get A' = 0, and may give the other tokens a weight."""

    name = "drop"
    effect = "masks tokens"
    # True if the window has, at each token, the expectation of the entropy discriminator of the policy that sampled.
    needs_discriminator_mean: bool = False


@dataclass(frozen=True, kw_only=True)
class TokenPenalty(Restraint):
    """A slot whose plan says which tokens are penalised."""

    name = "penalty"
    effect = "adds a penalty"
    # penalty(settings, batch, plan) returns the penalty (B, A) of each token, with gradient. The loss takes it on the
    # tokens of the plan alone.
    #   settings: the settings of the step.
    #   batch: the micro-batch; its log-probs carry the gradient.
    #   plan: the plan of the method for this micro-batch.
    penalty: Callable[[Any, TokenBatch, Plan], Tensor]
    # The setting with a fraction p: the window has log-probs renormalised over the tokens that the policy that sampled
    # finds at least p times as probable as its most probable token.
    proxy_min_p: str | None = None
    # The setting that keeps the run's PPO clip in place of ``ppo_clip``.
    keeps_clip: str | None = None


def _of_single_tokens(settings: Any) -> bool:
    """Return False: the default of ``TokenWeight.of_all_tokens``."""
    return False


@dataclass(frozen=True, kw_only=True)
class TokenWeight(TokenSlot):
    """A slot whose plan gives each advantage a factor of at least 0."""

    name = "weight"
    effect = "weighs advantages"
    is_shared = True
    # True if the factor depends on the sign of the advantage. A run has at most one such weight.
    by_sign: bool = False
    # of_all_tokens(settings) returns True if the factors depend on statistics of all tokens, so that no other method
    # may leave tokens out of the mean. The settings are those of the run.
    of_all_tokens: Callable[[Any], bool] = _of_single_tokens
    # True if the window has the share of the prompts with a positive advantage.
    needs_positive_prompts: bool = False


@dataclass(frozen=True, kw_only=True)
class TokenSummand(TokenSlot):
    """A slot whose plan gives each advantage a summand."""

    name = "add"
    effect = "adds to advantages"


@dataclass(frozen=True, kw_only=True)
class Surrogate(Slot):
    """A slot that replaces PPO's coefficient, the clipped ratio. The run then has no PPO clip."""

    name = "surrogate"
    effect = "replaces PPO's surrogate"
    # coefficient(settings, batch) returns k (B, A), without gradient; 0 masks the gradient of a token.
    #   settings: the settings of the step.
    #   batch: the micro-batch, with A' as its advantages.
    coefficient: Callable[[Any, TokenBatch], Tensor]
    # True if the coefficient bounds an update by itself.
    bounded: bool = False
    # True if the method is defined for one advantage per response, so that no other method may treat the tokens of a
    # response differently.
    by_response: bool = False
    # Published ``--actor.loss_agg_mode``, where that is not upstream's default.
    aggregation: str | None = None
    # The setting that names the policy the coefficient compares with: ``rollout``, the engine's, or ``old``.
    anchor_policy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Estimator(Slot):
    """A slot that computes the advantages of responses from their rewards."""

    name = "estimator"
    effect = "computes the advantages"
    # estimate(settings, groups) returns the advantage (G, K) of each response, NaN for a response that is left out.
    #   settings: the settings of the step.
    #   groups: the rewards (G, K) of K graded responses to each of G prompts, and the numbers of the step.
    estimate: Callable[[Any, Groups], Tensor]
    # The value of upstream's ``--algo.advantage.estimator`` that the method replaces.
    stands_for: str
    # True if the method is defined for one reward of correct and one of incorrect responses.
    two_valued: bool = False
    # The signs of its advantages. ``some_positive``: some groups of correct and incorrect responses have positive
    # advantages alone. ``positive`` and ``negative``: all groups have advantages of one sign alone.
    signs: Literal["both", "some_positive", "positive", "negative"] = "both"
    # Published range (low, high) of the PPO clip; None: the range of the run's flags.
    ppo_clip: tuple[float, float] | None = None
    # The setting that names the policy of PPO's ratio: ``rollout``, the engine's, or ``old``.
    anchor_policy: str | None = None
    # Why the method becomes another one where a rollout has one prompt, for a warning.
    one_prompt: str | None = None
    # Why the method has no effect where a prompt has a single correct response, so that all correct samples are equal.
    one_answer: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessEstimator(Estimator):
    """An estimator with a process reward model, which rewards tokens. Its advantages are whitened over the step."""

    # process_reward(settings) returns the settings of the process reward model. A run then has that model and a
    # reference. The argument is the settings of the run, or its parsed flags.
    process_reward: Callable[[Any], ProcessReward]
    # token_rewards(settings, prompts) returns the reward of each token, one tensor (K, A) for each prompt. The
    # advantage of the response is added at its last token.
    #   settings: the settings of the step.
    #   prompts: all prompts of the step, each with its K responses.
    token_rewards: Callable[[Any, Sequence[PromptTokens]], list[Tensor]]


@dataclass(frozen=True, kw_only=True)
class ClipRange(Slot):
    """A slot that moves the PPO clip."""

    name = "clip"
    effect = "moves the PPO clip"
    # clip(settings) returns the range (low, high) of the PPO clip in the step.
    clip: Callable[[Any], tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class EntropyBonus(Slot):
    """A slot that moves the coefficient of the entropy bonus."""

    name = "bonus"
    effect = "moves the entropy bonus"
    # bonus(settings) returns the coefficient of the entropy bonus in the step.
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
