"""The records that pass through the training loop: responses become samples, samples get scores, then advantages.

All of them are frozen. T is the number of tokens of a sample, A = T - 1 the number of its predicted positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One response with its prompt, as tensors on the CPU; made from a rollout, before any model has scored it."""

    number: int
    """Place in the order of the step's data. Responses to prompt p of K each are p * K ... p * K + K - 1."""
    tokens: Tensor
    """(T,) int64, the prompt and the response."""
    action_mask: Tensor
    """(A,) bool, True where the predicted token was generated."""
    reward: float
    """The reward that advantages are made of."""
    score: float = float("nan")
    """1 for a right response, 0 for a wrong one, NaN without a score."""
    abstained: bool = False
    """True if the reward function gave no reward: the sample is no part of its group."""
    truncated: bool = False
    """True if the response was cut off."""
    rollout_log_probs: Tensor | None = None
    """(A,) log-probs of the engine that sampled; None where it gave none."""
    source: str = ""
    """The data source of the prompt."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the reward function wants logged."""
    images: Any = None
    """Inputs of the image processor for models that see."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What the models say of the predicted positions of one sample, each (A,) on the CPU."""

    log_probs: Tensor
    """Of the policy before the first update of the step."""
    entropy: Tensor
    """Of the same policy, over the full vocabulary at the temperature of the rollout, in nats."""
    proxy: Tensor | None = None
    """Log-probs among the probable tokens, where a method asks for them."""
    base_log_probs: Tensor | None = None
    """Of the reference model, where the run has one."""
    values: Tensor | None = None
    """Of the critic, where the run has one."""
    reward: float | None = None
    """Of the reward model, where the run has one."""


@dataclass(frozen=True, kw_only=True)
class TrainSample:
    """A sample with all that an update needs."""

    sample: Sample
    scores: Scores
    advantages: Tensor
    """(A,)."""
    returns: Tensor
    """(A,), the targets of the critic."""
    logged: Mapping[str, float] = field(default_factory=dict)
    """Numbers of this sample whose mean over the samples is logged: reward, return, kl, response_length and others."""
