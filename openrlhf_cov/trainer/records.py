"""The records that travel through a training step.

A step turns prompts into a ``Rollout`` of ``Sample`` records, scores them (``Scores``), estimates advantages
(``TrainSample``) and trains on them (``StepSettings`` and ``UpdateWindow`` in, ``StepResult`` out). All records are
frozen: a later stage makes a new record instead of changing an old one.

In all shapes T is the number of tokens of a sample, prompt and response together, and A = T - 1 is the number of
predicted positions: entry t of a tensor (A,) is about token t + 1. B is the number of samples of a micro-batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from openrlhf_cov.models.cov_config import CovConfig


@dataclass(frozen=True)
class Sample:
    """One response with its prompt and its reward, before a model of the training has scored it."""

    # Token ids of prompt and response, int64 (T,).
    tokens: Tensor
    # True where a token was sampled by the policy, bool (A,).
    action_mask: Tensor
    prompt: str
    label: Any = None
    # Number of prompts that the run drew before this one; -1 if it is not known.
    prompt_number: int = -1
    # The data source of the prompt; "default" where the data names none.
    source: str = "default"
    # The reward that advantages are estimated from; None where a reward model will give it.
    reward: float | None = None
    # Whether the response solves the problem, by which dynamic sampling and evaluations count; None without a score.
    score: float | None = None
    # True if the reward function abstained: the sample then takes no part in any statistics.
    abstained: bool = False
    # True if the response hit the limit of its length.
    truncated: bool = False
    # Log-probs of the engine that sampled, float32 (A,), 0 outside of the response; None if it gave none.
    rollout_log_probs: Tensor | None = None
    # Numbers to be logged, such as reward/error_frac.
    metrics: Mapping[str, float] = field(default_factory=dict)
    # Inputs of a vision-language model: the images of the prompt, and what its processor made of them.
    images: Any = None
    image_inputs: Any = None
    # Number of the sample in its step: the K responses to prompt p have the numbers p K ... p K + K - 1.
    sample_id: int = -1

    @property
    def response_length(self) -> int:
        """Tokens from the first to the last one that the policy sampled."""
        (places,) = self.action_mask.numpy().nonzero()
        return int(places[-1] - places[0]) + 1 if len(places) else 0

    @property
    def longest_turn(self) -> int:
        """Largest number of tokens in a row that the policy sampled: those of a turn, or of the whole response."""
        # A turn begins where the mask rises from 0 to 1, and ends where it falls.
        steps = np.diff(self.action_mask.numpy().astype(np.int8), prepend=0, append=0)
        lengths = np.flatnonzero(steps < 0) - np.flatnonzero(steps > 0)
        return int(lengths.max(initial=0))

    @property
    def graded_mask(self) -> Tensor:
        """The action tokens (A,), none of them if the reward function abstained."""
        return torch.zeros_like(self.action_mask) if self.abstained else self.action_mask


@dataclass(frozen=True)
class Group:
    """The K samples of one prompt, which wait to be trained on."""

    samples: Sequence[Sample]
    # Scores of the samples whose reward function did not abstain.
    scores: Sequence[float]
    # Tokens of the responses.
    tokens: int
    # Version of the weights when the first request of the batch was sent: the number of steps that made these weights.
    # With asynchronous training some tokens may come from newer weights, but none from older ones.
    version: int


# What Ray returns for calls of a model that cover the batches of a step one after another: for each call, the pending
# answer of every rank.
Calls = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class PendingScores:
    """What models already compute for the batches of a step; () for a model that was not asked yet."""

    policy: Calls = ()
    reference: Calls = ()


@dataclass(frozen=True)
class Rollout:
    """The samples of one step, and the state of the sampler after it."""

    samples: Sequence[Sample]
    # The ``sampling/*`` metrics; empty without dynamic sampling.
    metrics: Mapping[str, float]
    # Seconds of generation.
    seconds: float
    # Share of the groups that dynamic sampling kept, in percent; None without dynamic sampling.
    pass_rate: float | None
    # What a resumed run needs to go on with the next rollout.
    sampler_state: Mapping[str, Any]
    # Version of the weights that the engines had when the batch was begun.
    version: int = 0
    # The answers of models that score the samples already (``ScoredAhead``).
    pending: PendingScores = PendingScores()

    @property
    def is_last(self) -> bool:
        """True if no rollout can follow."""
        return bool(self.sampler_state["is_over"])


class PolicyScores(NamedTuple):
    """The outputs of the policy for action tokens, (B, A); None for outputs that were not requested."""

    log_probs: Tensor
    # Over the full vocabulary, of the temperature-scaled policy, in nats.
    entropy: Tensor | None = None
    # Log-probs among the probable tokens, for a method with ``proxy_min_p``.
    proxy: Tensor | None = None
    # Expectation of the entropy discriminator, for a method with ``needs_discriminator_mean``.
    discriminator_mean: Tensor | None = None


@dataclass(frozen=True)
class Scores:
    """The outputs of the models for one sample; tensors float32 (A,)."""

    # Log-probs and entropies of the policy before the first update of the step.
    log_probs: Tensor
    entropy: Tensor
    # Log-probs among the probable tokens, for a method with ``proxy_min_p``.
    proxy: Tensor | None = None
    # Log-probs of the reference policy, with a KL term.
    base_log_probs: Tensor | None = None
    # Values of the critic, with GAE.
    values: Tensor | None = None
    # The reward of a reward model, where the sample has none.
    reward: float | None = None
    # The reward of each token that a process reward model gives, beside that of the response.
    token_rewards: Tensor | None = None
    # Expectation of the entropy discriminator, for a method with ``needs_discriminator_mean``.
    discriminator_mean: Tensor | None = None


@dataclass(frozen=True)
class TrainSample:
    """One sample as a rank trains on it; tensors (A,) but ``tokens``."""

    sample_id: int
    # NaN where the response has no score.
    score: float
    abstained: bool
    tokens: Tensor
    action_mask: Tensor
    log_probs: Tensor
    entropy: Tensor
    advantages: Tensor
    returns: Tensor
    proxy: Tensor | None = None
    base_log_probs: Tensor | None = None
    values: Tensor | None = None
    rollout_log_probs: Tensor | None = None
    image_inputs: Any = None
    discriminator_mean: Tensor | None = None

    @property
    def action_tokens(self) -> int:
        """Tokens of the sample that the policy is trained on."""
        return int(self.action_mask.sum())


@dataclass(frozen=True)
class RankSamples:
    """The samples of one rank with their tensors joined end to end.

    A step has thousands of samples of ten tensors each. Ray pickles every tensor on its own, so a share joins them
    into one tensor per field before it is sent, and ``samples`` cuts them apart again without a copy.
    """

    # Number of tokens T of every sample.
    lengths: Sequence[int]
    # Name of a field of ``TrainSample`` -> its joined tensor, or its value for every sample.
    tensors: Mapping[str, Tensor]
    values: Mapping[str, Sequence[Any]]

    @classmethod
    def of(cls, samples: Sequence[TrainSample]) -> Self:
        """Join the samples of a rank. Fields are None in all of them or in none."""
        tensors: dict[str, Tensor] = {}
        values: dict[str, list[Any]] = {}
        for name in (entry.name for entry in fields(TrainSample)):
            column = [getattr(sample, name) for sample in samples]
            if column and isinstance(column[0], Tensor):
                tensors[name] = torch.cat(column)
            else:
                values[name] = column
        return cls([len(sample.tokens) for sample in samples], tensors, values)

    def samples(self) -> list[TrainSample]:
        """Return the samples in their order."""
        predicted = [length - 1 for length in self.lengths]
        columns: dict[str, Sequence[Any]] = dict(self.values)
        for name, joined in self.tensors.items():
            columns[name] = joined.split(list(self.lengths) if name == "tokens" else predicted)
        names = list(columns)
        return [TrainSample(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one forward pass, padded on the right with zeros; (B, A) unless stated otherwise."""

    sample_ids: Tensor  # (B,) int64
    abstained: Tensor  # (B,) bool
    tokens: Tensor  # (B, T) int64
    attention_mask: Tensor  # (B, T) int64
    action_mask: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor
    base_log_probs: Tensor | None = None
    values: Tensor | None = None
    rollout_log_probs: Tensor | None = None
    image_inputs: Sequence[Any] = ()
    # Number of the tokens of ``graded_mask``, which the host knows without the device; None if nobody has counted.
    graded_tokens: int | None = None

    @classmethod
    def of(cls, samples: Sequence[TrainSample]) -> Self:
        """Pad samples to the longest of them."""

        def padded(name: str) -> Any:
            rows = [getattr(sample, name) for sample in samples]
            return None if rows[0] is None else pad_sequence(rows, batch_first=True)

        names = (entry.name for entry in fields(cls))
        tensors = {
            name: padded(name)
            for name in names
            if name not in ("sample_ids", "abstained", "attention_mask", "image_inputs", "graded_tokens")
        }
        masks = [torch.ones_like(sample.tokens) for sample in samples]
        abstained = torch.tensor([sample.abstained for sample in samples])
        return cls(
            sample_ids=torch.tensor([sample.sample_id for sample in samples]),
            abstained=abstained,
            attention_mask=pad_sequence(masks, batch_first=True),
            image_inputs=[sample.image_inputs for sample in samples if sample.image_inputs is not None],
            graded_tokens=int(tensors["action_mask"][~abstained].sum()),
            **tensors,
        )

    @property
    def graded_mask(self) -> Tensor:
        """The action tokens (B, A) of the samples whose reward function did not abstain.

        Advantages are estimated for these alone. The KL loss and the entropy bonus act on all action tokens.
        """
        return self.action_mask.masked_fill(self.abstained[:, None], 0)

    def to(self, device: torch.device | str) -> Self:
        """Return the micro-batch with its tensors on a device."""
        moved = {name: each.to(device) for name, each in vars(self).items() if isinstance(each, Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True)
class UpdateWindow:
    """All that one optimizer step trains on: the micro-batches of this rank, and totals over all ranks."""

    micro_batches: Sequence[Sequence[TrainSample]]
    # Action tokens, and samples with at least one of them, of all data-parallel ranks; 0-d float32.
    tokens: Tensor
    samples: Tensor
    # The same without samples whose reward function abstained.
    graded_tokens: Tensor
    graded_samples: Tensor


@dataclass(frozen=True)
class StepSettings:
    """The settings of one step, which are sent to the ranks together with its samples."""

    # Number of the global step, from 0.
    step: int
    # The settings of the policy loss. Schedules and a closed loop have their values of this step.
    config: CovConfig
    # Coefficient of the KL loss, or of the KL penalty in the reward.
    kl_coef: float


@dataclass(frozen=True)
class StepResult:
    """The result of a rank after the updates of a step; equal on all ranks."""

    metrics: Mapping[str, float]
    # Mean entropy over all action tokens of the policy that was sampled, exact in float64; None from a critic.
    mean_entropy: float | None = None
    # Number of optimizer steps, and the learning rate after the last one.
    updates: int = 0
    learning_rate: float = 0.0
