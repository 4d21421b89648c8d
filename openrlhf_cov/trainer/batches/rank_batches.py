"""The samples of a step that every rank trains on."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch

from openrlhf_cov.trainer.records import TrainSample
from openrlhf_cov.utils.seeds import seed_of


def shares_of_ranks(
    samples: Sequence[TrainSample], args: SimpleNamespace, *, ranks: int, step: int
) -> list[list[TrainSample]]:
    """Deal the samples of a step out to the ranks of a model.

    Args:
        samples: The samples of the step, in the order of the rollout.
        args: The flags of the run.
        ranks: The number of data-parallel ranks.
        step: The number of the global step, from 0.

    Returns:
        The samples of every rank. With static micro-batches these are equal consecutive parts, which the ranks shuffle
        themselves. With dynamic micro-batches the samples (with ``--train.shuffle groups`` the prompts) are shuffled
        over the updates of the step here, by (seed, step) alone, and each update is dealt out by length.
    """
    if not args.train.dynamic_batch_enable:
        size = -(-len(samples) // ranks)
        return [list(samples[first : first + size]) for first in range(0, size * ranks, size)]
    # Sorted first, so that the permutation depends on the samples, not on the order in which engines answered.
    by_number = sorted(samples, key=lambda sample: sample.sample_id)
    lengths = [len(sample.tokens) for sample in by_number]
    groups = groups_to_shuffle(
        by_number, args.rollout.n_samples_per_prompt if args.train_shuffle == "groups" else None
    )
    order = shuffled_places(groups, lambda count: shuffled(count, args.train.seed, step))
    places_of_ranks = deal_updates(order, lengths, ranks, args.train.batch_size)
    return [[by_number[place] for place in places] for places in places_of_ranks]


def groups_to_shuffle(samples: Sequence[TrainSample], samples_per_prompt: int | None) -> list[int]:
    """Return for each sample the number of its group; ``shuffled_places`` keeps groups together.

    Args:
        samples: The samples.
        samples_per_prompt: ``--rollout.n_samples_per_prompt``, the samples of a group; None for groups of one.
    """
    if samples_per_prompt is None:
        return list(range(len(samples)))
    return [sample.sample_id // samples_per_prompt for sample in samples]


def shuffled_places(groups: Sequence[int], permutation: Callable[[int], list[int]]) -> list[int]:
    """Return the places of samples in an order in which their groups are shuffled.

    Args:
        groups: The group of each sample.
        permutation: Number of groups n -> the numbers 0 to n - 1 in random order.
    """
    places: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group, []).append(place)
    of_groups = list(places.values())
    return [place for number in permutation(len(of_groups)) for place in of_groups[number]]


def shuffled(count: int, seed: int, global_step: int, epoch: int = 0) -> list[int]:
    """Return a permutation that all ranks compute alike.

    Args:
        count: Length of the permutation.
        seed: Seed of the run.
        global_step: Global step.
        epoch: Epoch over the samples of the step.

    Returns:
        The numbers 0 to ``count - 1`` in an order that depends on the other arguments alone.
    """
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
