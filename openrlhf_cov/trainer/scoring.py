"""Every model of a training scores the samples of a step."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from openrlhf.utils.seqlen_balancing import get_minimum_num_micro_batch_size
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from openrlhf_cov.trainer.batches.micro_batches import balanced_partitions
from openrlhf_cov.trainer.model_groups import ModelGroups, ranks_of
from openrlhf_cov.trainer.records import Group, PendingScores, PolicyScores, Rollout, Sample, Scores
from openrlhf_cov.trainer.rollout.batch_stream import WatchableSource

# Most calls of a model while a rollout is generated: each has a cost of its own.
MOST_CALLS = 8


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


def scoring_batches(lengths: Sequence[int], args: SimpleNamespace, ranks: int) -> list[list[int]]:
    """Cut the samples of a step into batches for scoring.

    Args:
        lengths: Number of tokens of every sample.
        args: The flags of the run.
        ranks: Data-parallel ranks of the policy, each of which gets as many batches.

    Returns:
        The places of the samples of each batch: ``--rollout.micro_batch_size`` samples one after another, or with
        dynamic batches nearly equally many tokens of at most ``--rollout.max_tokens_per_gpu``.
    """
    if not args.train.dynamic_batch_enable:
        size = args.rollout.micro_batch_size
        return [list(range(first, min(first + size, len(lengths)))) for first in range(0, len(lengths), size)]
    # Every rank gets equally many batches. Upstream rounds down to a multiple of the ranks, so a batch may exceed the
    # limit of tokens by a factor of almost 2.
    fewest = get_minimum_num_micro_batch_size(
        list(lengths), args.rollout.max_tokens_per_gpu, args.ds.ring_attn_size, args.ds.tensor_parallel_size
    )
    return balanced_partitions(lengths, max(fewest // ranks * ranks, ranks))


def padded_batches(samples: Sequence[Sample], groups: ModelGroups, pad_token_id: int) -> list[ScoringBatch]:
    """Return the samples of a step in the batches in which the models score them.

    Args:
        samples: The samples of the step.
        groups: The models; their flags and the ranks of the policy decide the sizes of the batches.
        pad_token_id: Token id that fills shorter samples.
    """
    lengths = [len(sample.tokens) for sample in samples]
    places_of_batches = scoring_batches(lengths, groups.args, groups.policy_ranks)
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
    return [each for each in found if each is not None]


class ScoredAhead:
    """A source of rollouts that models score as soon as they can (``ModelGroups.free_models``).

    With static batches a model gets a batch when its last sample is there, while the engines generate what follows;
    dynamic batches depend on all samples of the rollout. The batches, and with them the scores, are those of a model
    that waits for its turn.

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
        # All ranks of a model get as many batches in a call, because with ZeRO-3 they compute together.
        self.ranks = math.lcm(*(ranks_of(model) for model in self.models.values()))
        rollout = groups.args.rollout
        smallest = rollout.micro_batch_size * self.ranks
        whole = rollout.batch_size * rollout.n_samples_per_prompt
        self.samples_of_a_call = smallest * max(1, whole // (smallest * MOST_CALLS))
        # The samples that are scored, and the calls for them.
        self.samples: list[Sample] = []
        self.calls: dict[str, list[Sequence[Any]]] = {name: [] for name in self.models}

    def add(self, groups: Sequence[Group]) -> None:
        """Let the models score what makes whole calls of the groups that the rollout has so far."""
        if self.groups.args.train.dynamic_batch_enable:
            return
        samples = [sample for group in groups for sample in group.samples]
        while len(self.samples) + self.samples_of_a_call <= len(samples):
            first = len(self.samples)
            self.samples += samples[first : first + self.samples_of_a_call]
            self._score(padded_batches(self.samples[first:], self.groups, self.pad_token_id))

    def of(self, samples: Sequence[Sample]) -> PendingScores:
        """Let the models score what is left of the samples of the whole rollout; return all pending answers."""
        while self.samples and not self._can_be_continued(samples):
            del self.samples[-self.samples_of_a_call :]
            for calls in self.calls.values():
                calls.pop()
        batches = padded_batches(samples, self.groups, self.pad_token_id)
        if rest := batches[len(self.samples) // self.groups.args.rollout.micro_batch_size :]:
            self._score(rest)
        return PendingScores(**self.calls)

    def _can_be_continued(self, samples: Sequence[Sample]) -> bool:
        """Return True if the rollout begins with the samples that are scored, and every rank gets a batch of the rest.

        The last rollout of a run may leave out groups that make no whole update.
        """
        scored = len(self.samples)
        if any(mine is not theirs for mine, theirs in itertools.zip_longest(self.samples, samples[:scored])):
            return False
        rest = math.ceil((len(samples) - scored) / self.groups.args.rollout.micro_batch_size)
        return rest == 0 or rest >= self.ranks

    def _score(self, batches: Sequence[ScoringBatch]) -> None:
        columns = columns_of(batches)
        for name, model in self.models.items():
            self.calls[name].append(model.async_run_method_batch(method_name="score", **columns))
