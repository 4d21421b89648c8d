"""Every model of a training scores the samples of a step."""

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from openrlhf.utils.seqlen_balancing import get_minimum_num_micro_batch_size
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.batches.micro_batches import balanced_partitions
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.records import Group, PendingScores, PolicyScores, Rollout, Sample, Scores
from openrlhf_cov.trainer.rollout.batch_stream import WatchableSource

# Most parts in which a rollout is scored: each of them costs a call of every model.
MOST_PARTS = 8


@dataclass(frozen=True)
class ScoringBatch:
    """Samples that a model scores in one forward pass, padded on the right."""

    # Places of the samples in the step.
    places: Sequence[int]
    tokens: Tensor  # (B, T) int64
    attention_mask: Tensor  # (B, T) int64
    action_mask: Tensor  # (B, A) bool
    image_inputs: Sequence[Any]

    @classmethod
    def of(cls, samples: Sequence[Sample], places: Sequence[int], pad_token_id: int) -> "ScoringBatch":
        """Return the samples at some places, padded to the longest of them.

        Args:
            samples: All samples of the step.
            places: Places of the samples of the batch.
            pad_token_id: Token id that fills ``tokens``; the masks are filled with 0.
        """
        chosen = [samples[place] for place in places]
        tokens = [sample.tokens for sample in chosen]
        return cls(
            places,
            pad_sequence(tokens, batch_first=True, padding_value=pad_token_id),
            pad_sequence([torch.ones_like(each) for each in tokens], batch_first=True),
            pad_sequence([sample.action_mask for sample in chosen], batch_first=True),
            [sample.image_inputs for sample in chosen if sample.image_inputs is not None],
        )


def part_length(lengths: Sequence[int], args: SimpleNamespace, ranks: int) -> int:
    """Return how many samples make the next part of a rollout; 0 if there are too few yet.

    The samples of a part are scored together, while later ones may still be generated. A rollout has at most
    ``MOST_PARTS`` of equal size. With dynamic batches a part has more tokens than one batch of every rank, so that its
    batches are at least half full.

    Args:
        lengths: Number of tokens of the samples that belong to no part yet, as far as they are known.
        args: The flags of the run.
        ranks: Data-parallel ranks of the policy.
    """
    is_dynamic = args.train.dynamic_batch_enable
    smallest = ranks * (1 if is_dynamic else args.rollout.micro_batch_size)
    whole = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    size = smallest * math.ceil(whole / (smallest * MOST_PARTS))
    for end in range(size, len(lengths) + 1, size):
        if not is_dynamic or fewest_batches(lengths[:end], args) > ranks:
            return end
    return 0


def parts(lengths: Sequence[int], args: SimpleNamespace, ranks: int) -> list[range]:
    """Return the places of the samples of each part of a whole rollout.

    Args:
        lengths: Number of tokens of every sample.
        args: The flags of the run.
        ranks: Data-parallel ranks of the policy.
    """
    ends = [0]
    while length := part_length(lengths[ends[-1] :], args, ranks):
        ends.append(ends[-1] + length)
    rest = len(lengths) - ends[-1]
    if rest:
        # Too few for a batch on every rank belong to the part before them.
        per_batch = 1 if args.train.dynamic_batch_enable else args.rollout.micro_batch_size
        if math.ceil(rest / per_batch) < ranks and len(ends) > 1:
            ends.pop()
        ends.append(len(lengths))
    return [range(first, last) for first, last in itertools.pairwise(ends)]


def fewest_batches(lengths: Sequence[int], args: SimpleNamespace) -> int:
    """Return how many dynamic batches hold samples of these lengths (``--rollout.max_tokens_per_gpu``)."""
    return get_minimum_num_micro_batch_size(
        list(lengths), args.rollout.max_tokens_per_gpu, args.ds.ring_attn_size, args.ds.tensor_parallel_size
    )


def scoring_batches(lengths: Sequence[int], args: SimpleNamespace, ranks: int) -> list[list[int]]:
    """Cut the samples of a step into batches for scoring, part by part.

    Args:
        lengths: Number of tokens of every sample.
        args: The flags of the run.
        ranks: Data-parallel ranks of the policy, each of which gets as many batches.

    Returns:
        The places of the samples of each batch: ``--rollout.micro_batch_size`` samples one after another, or with
        dynamic batches nearly equally many tokens of at most ``--rollout.max_tokens_per_gpu``.
    """
    batches: list[list[int]] = []
    for part in parts(lengths, args, ranks):
        if args.train.dynamic_batch_enable:
            batches += _dynamic_batches(part, lengths, args, ranks)
        else:
            size = args.rollout.micro_batch_size
            batches += [list(part[first : first + size]) for first in range(0, len(part), size)]
    return batches


def _dynamic_batches(part: range, lengths: Sequence[int], args: SimpleNamespace, ranks: int) -> list[list[int]]:
    """Cut a part into equally many batches for every rank, within the limit of tokens if there are samples enough."""
    of_part = [lengths[place] for place in part]
    needed = math.ceil(fewest_batches(of_part, args) / ranks) * ranks
    count = max(min(needed, len(of_part) // ranks * ranks), ranks)
    return [[part[place] for place in places] for places in balanced_partitions(of_part, count)]


def padded_batches(samples: Sequence[Sample], groups: ModelGroups, pad_token_id: int) -> list[ScoringBatch]:
    """Return the samples of a step in the batches in which the models score them.

    Args:
        samples: The samples of the step.
        groups: The models; their flags and the ranks of the policy decide the sizes of the batches.
        pad_token_id: Token id that fills shorter samples.
    """
    places_of_batches = scoring_batches(_lengths(samples), groups.args, groups.policy_ranks)
    return [ScoringBatch.of(samples, places, pad_token_id) for places in places_of_batches]


def process_log_probs(samples: Sequence[Sample], batches: Sequence[ScoringBatch], groups: ModelGroups) -> list[Tensor]:
    """Return the log-probs of the process reward model, float32 (A,) of each sample of a step.

    Args:
        samples: The samples of the step.
        batches: The same samples, as the models score them (``padded_batches``).
        groups: The models.
    """
    scored = groups.score_process_reward(
        tokens=[batch.tokens for batch in batches],
        attention_mask=[batch.attention_mask for batch in batches],
        action_mask=[batch.action_mask for batch in batches],
    )
    found = {
        place: log_probs[row, : len(samples[place].action_mask)].float()
        for batch, log_probs in zip(batches, scored, strict=True)
        for row, place in enumerate(batch.places)
    }
    return [found[place] for place in range(len(samples))]


def columns_of(batches: Sequence[ScoringBatch]) -> dict[str, list[Any]]:
    """Return the arguments of ``ModelGroups.score`` for the batches of a step: name -> value for each batch."""
    return {
        "tokens": [batch.tokens for batch in batches],
        "attention_mask": [batch.attention_mask for batch in batches],
        "action_mask": [batch.action_mask for batch in batches],
        "image_inputs": [batch.image_inputs for batch in batches],
    }


def score(
    samples: Sequence[Sample],
    batches: Sequence[ScoringBatch],
    groups: ModelGroups,
    pending: PendingScores,
) -> list[Scores]:
    """Return what the policy, the reference, the critic and the reward model say of the samples of a step.

    Args:
        samples: The samples of the step.
        batches: The same samples, as the models score them (``padded_batches``).
        groups: The models.
        pending: The answers of models that score these batches already (``ScoredAhead``).

    Raises:
        RunStopped: The reward model gives a reward that is NaN or infinite.
    """
    lengths = [len(sample.tokens) for sample in samples]
    scored = groups.score(**columns_of(batches), with_reward=samples[0].reward is None, pending=pending)
    # Batches may hold the samples in any order; scores are returned in the order of the samples.
    found: list[Scores | None] = [None] * len(samples)
    for number, batch in enumerate(batches):
        policy = PolicyScores(*scored.policy[number])
        base = scored.reference[number] if scored.reference else None
        values = scored.critic[number] if scored.critic else None
        rewards = scored.reward[number] if scored.reward else None
        for row, place in enumerate(batch.places):
            # The tensors of a batch are padded: a sample takes the columns of its own tokens.
            width = lengths[place] - 1

            def of_sample(tensor: Tensor | None, row: int = row, width: int = width) -> Any:
                return None if tensor is None else tensor[row, :width].float()

            found[place] = Scores(
                log_probs=of_sample(policy.log_probs),
                entropy=of_sample(policy.entropy),
                proxy=of_sample(policy.proxy),
                discriminator_mean=of_sample(policy.discriminator_mean),
                base_log_probs=of_sample(base),
                values=of_sample(values),
                reward=None if rewards is None else float(rewards[row]),
            )
    scores = [each for each in found if each is not None]
    for sample, each in zip(samples, scores, strict=True):
        if each.reward is not None and not math.isfinite(each.reward):
            raise RunStopped(
                f"the reward model gives a reward of {each.reward}: look for overflows (--ds.param_dtype), or try "
                f"another model (prompt {sample.prompt[:200]!r})"
            )
    return scores


class ScoredAhead:
    """A source of rollouts that models score as soon as they can (``ModelGroups.free_models``).

    A model gets a part of the rollout when its last sample is there, while the engines generate what follows. The
    batches, and with them the scores, are those of a model that waits for its turn.

    Args:
        source: Makes the rollouts.
        groups: The models.
        pad_token_id: Token id that fills shorter samples.
    """

    def __init__(self, source: WatchableSource, groups: ModelGroups, pad_token_id: int) -> None:
        self.source = source
        self.engines = source.engines
        self.groups = groups
        self.pad_token_id = pad_token_id

    def next_batch(self, version: int) -> Rollout | None:
        """Return the next rollout of the source, and do not wait for its scores; see ``RolloutSource``."""
        if not self.groups.free_models:
            return self.source.next_batch(version)
        early = _EarlyScores(self.groups, self.pad_token_id)
        rollout = self.source.next_batch(version, early.add)
        return None if rollout is None else replace(rollout, pending=early.of(rollout.samples))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the ``sampler_state`` of a rollout."""
        self.source.restore(state)


class _EarlyScores:
    """What models score of a rollout that is still being generated.

    Args:
        groups: The models.
        pad_token_id: Token id that fills shorter samples.
    """

    def __init__(self, groups: ModelGroups, pad_token_id: int) -> None:
        self.groups = groups
        self.pad_token_id = pad_token_id
        self.models = groups.free_models
        # The samples that are scored, the places of the parts in which they are, and the calls for these parts.
        self.samples: list[Sample] = []
        self.parts: list[range] = []
        self.calls: dict[str, list[Sequence[Any]]] = {name: [] for name in self.models}

    def add(self, groups: Sequence[Group]) -> None:
        """Let the models score what makes whole parts of the groups that the rollout has so far."""
        samples = [sample for group in groups for sample in group.samples]
        new = samples[len(self.samples) :]
        while length := part_length(_lengths(new), self.groups.args, self.groups.policy_ranks):
            self.parts.append(range(len(self.samples), len(self.samples) + length))
            self.samples += new[:length]
            self._score(padded_batches(new[:length], self.groups, self.pad_token_id))
            new = new[length:]

    def of(self, samples: Sequence[Sample]) -> PendingScores:
        """Let the models score what is left of the samples of the whole rollout; return all pending answers."""
        whole = parts(_lengths(samples), self.groups.args, self.groups.policy_ranks)
        # The last rollout of a run may leave out groups that make no whole update.
        while self.parts and not self._begins(samples, whole):
            del self.samples[self.parts.pop().start :]
            for calls in self.calls.values():
                calls.pop()
        places_of_batches = scoring_batches(_lengths(samples), self.groups.args, self.groups.policy_ranks)
        rest = [places for places in places_of_batches if places[0] >= len(self.samples)]
        if rest:
            self._score([ScoringBatch.of(samples, places, self.pad_token_id) for places in rest])
        return PendingScores(**self.calls)

    def _begins(self, samples: Sequence[Sample], whole: Sequence[range]) -> bool:
        """Return True if a rollout, and its parts, begin with what is scored."""
        return self.parts == whole[: len(self.parts)] and all(map(operator.is_, self.samples, samples))

    def _score(self, batches: Sequence[ScoringBatch]) -> None:
        columns = columns_of(batches)
        for name, model in self.models.items():
            self.calls[name].append(model.async_run_method_batch(method_name="score", **columns))


def _lengths(samples: Sequence[Sample]) -> list[int]:
    return [len(sample.tokens) for sample in samples]
