"""The samples that every rank trains on with ``--train.dynamic_batch_enable``, as they are sent to the ranks."""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from openrlhf.trainer.ppo_utils.experience import (
    Experience,
    make_experience_batch,
    remove_padding_in_sequences,
    split_experience_batch,
)

from openrlhf_cov.trainer.sample_info import sample_ids
from openrlhf_cov.utils.seeds import seed_of

SAMPLES = 8
"""Samples that are padded to one width, about."""


def balanced_in_parts(experiences: list[Experience], args: SimpleNamespace) -> list[Experience]:
    """Shuffle the samples of a rollout over its updates and deal each update out to the ranks by length.

    Upstream's ``balance_experiences``, which this function replaces, sorts the samples by length, and upstream does
    not shuffle dynamic batches. The first update of a rollout would get the longest responses and the last one the
    shortest.

    Args:
        experiences: the samples of one rollout, which carry their numbers (``SAMPLE_ID``).
        args: the flags of the run. ``args.global_step``, which the controller sets, is the number of the global step.

    Returns:
        The batches of rank 0, then those of rank 1, and so on; the same number for every rank. A batch has about
        ``SAMPLES`` samples. One batch per rank, as upstream sends it, would be as wide as the longest response: three
        times the bytes where lengths differ as they do.
    """
    samples = [
        sample for batch in experiences for sample in remove_padding_in_sequences(split_experience_batch(batch))
    ]
    # The order of arrival depends on the micro-batches of the scoring pass; the numbers of the samples do not.
    samples.sort(key=lambda sample: int(sample_ids(sample.info)))
    lengths = [int(sample.total_length) for sample in samples]
    ranks = args.actor.num_nodes * args.actor.num_gpus_per_node
    ranks = ranks // args.ds.ring_attn_size // args.ds.tensor_parallel_size
    order = shuffled(len(samples), args.train.seed, args.global_step)
    places_of_ranks = deal_updates(order, lengths, ranks, args.train.batch_size)
    places_of_ranks = [places for places in places_of_ranks if places]  # fewer samples than ranks
    count = max(1, min(map(len, places_of_ranks)) // SAMPLES)  # the same for all: parts are dealt out by their number
    return [
        _batch([samples[place] for place in places[len(places) * n // count : len(places) * (n + 1) // count]])
        for places in places_of_ranks
        for n in range(count)
    ]


def shuffled(count: int, seed: int, global_step: int, epoch: int = 0) -> list[int]:
    """Return a permutation of ``range(count)`` that depends on the seed of the run, the global step and the epoch."""
    numbers = (seed, global_step, epoch) if epoch else (seed, global_step)
    generator = torch.Generator().manual_seed(seed_of("dynamic batches", *numbers))
    return torch.randperm(count, generator=generator).tolist()


def deal_updates(order: Sequence[int], lengths: Sequence[int], ranks: int, batch_size: int) -> list[list[int]]:
    """Cut ``order`` into updates and deal the samples of each one out to the ranks.

    Every rank gets equally many samples of an update, and nearly equally many tokens. The samples of an update do not
    depend on the number of ranks, as long as this number divides ``batch_size``.

    Args:
        order: places in ``lengths``; each run of ``batch_size`` places is one update.
        lengths: the number of tokens of every sample.
        ranks: the number of data-parallel ranks.
        batch_size: ``--train.batch_size``, the samples of one update on all ranks.

    Returns:
        The places of every rank, update by update. Samples at the end that make no whole update come last; the ranks
        get them in turn.
    """
    of_an_update = batch_size // ranks * ranks  # upstream's setup_dynamic_batch takes as many
    whole_updates = len(order) // of_an_update if of_an_update else 0
    places_of_ranks: list[list[int]] = [[] for _ in range(ranks)]
    for update in range(whole_updates):
        places = order[update * of_an_update : (update + 1) * of_an_update]
        for rank, part in enumerate(_equal_parts(places, lengths, ranks)):
            places_of_ranks[rank].extend(part)
    for number, place in enumerate(order[whole_updates * of_an_update :]):
        places_of_ranks[number % ranks].append(place)
    return places_of_ranks


def _equal_parts(places: Sequence[int], lengths: Sequence[int], count: int) -> list[list[int]]:
    """Split ``places`` into ``count`` parts of equally many samples and nearly equal sums of lengths.

    The longest sample that is left goes to the part with the fewest tokens among those that have room. Upstream's
    ``get_seqlen_balanced_partitions(equal_size=True)`` leaves larger differences where few samples are very long.
    """
    room = len(places) // count
    parts: list[list[int]] = [[] for _ in range(count)]
    tokens = [0] * count
    for place in sorted(places, key=lambda place: lengths[place], reverse=True):
        with_room = (number for number in range(count) if len(parts[number]) < room)
        part = min(with_room, key=lambda number: tokens[number])
        parts[part].append(place)
        tokens[part] += lengths[place]
    return parts


def _batch(samples: list[Experience]) -> Experience:
    """Upstream's, but one tensor for each metric instead of a list of one for each sample, which Ray would pickle one
    by one."""
    batch = make_experience_batch(samples)
    for name, values in batch.info.items():
        if isinstance(values, list) and isinstance(values[0], torch.Tensor) and not values[0].dim():
            batch.info[name] = torch.stack(values)
    return batch
