"""The optimizer steps of one rank: which samples make up a micro-batch, and where an update ends."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from openrlhf.utils.logging_utils import init_logger
from openrlhf.utils.seqlen_balancing import get_minimum_num_micro_batch_size

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.window import Ranks
from openrlhf_cov.trainer.batches.micro_batches import balanced_partitions
from openrlhf_cov.trainer.batches.rank_batches import groups_to_shuffle, shuffled, shuffled_places
from openrlhf_cov.trainer.records import TrainSample, UpdateWindow

logger = init_logger(__name__)


@dataclass(frozen=True)
class BatchLayout:
    """The division of a rank's samples of a step into updates and micro-batches."""

    # True with --train.dynamic_batch_enable: micro-batches are filled up to a number of tokens.
    dynamic: bool
    seed: int
    # Static: samples of a micro-batch, and micro-batches of an update (DeepSpeed's gradient accumulation steps).
    micro_batch_size: int
    micro_batches: int
    # Dynamic: samples of an update on this rank, the most updates of a step, and the tokens of a micro-batch.
    update_size: int
    most_updates: int
    max_tokens: int
    # Ranks that share the tokens of a micro-batch.
    ring_attn_size: int
    tensor_parallel_size: int
    samples_per_prompt: int
    # Static: True if the samples of a prompt are to lie in one micro-batch, where the model reads a prompt once.
    groups_prompts: bool
    # True if updates hold whole prompts (--train.shuffle groups).
    shuffles_groups: bool
    # --train.batch_size, for messages.
    batch_size: int
    # True on the first rank, which gives warnings for all.
    warns: bool

    @classmethod
    def of(cls, strategy: Any, ranks: Ranks, groups_prompts: bool = False) -> "BatchLayout":
        """Read the layout off the flags of a run and the number of data-parallel ranks.

        Args:
            strategy: The strategy of the rank, with the flags and the number of micro-batches of an update.
            ranks: The data-parallel ranks, which share the samples of an update.
            groups_prompts: True if the samples of a prompt are to lie in one micro-batch.
        """
        args = strategy.args
        rollout_samples = args.rollout.batch_size * args.rollout.n_samples_per_prompt
        return cls(
            dynamic=args.train.dynamic_batch_enable,
            seed=args.train.seed,
            micro_batch_size=args.train.micro_batch_size,
            micro_batches=max(1, strategy.accumulated_gradient),
            update_size=args.train.batch_size // ranks.size,
            most_updates=rollout_samples // args.train.batch_size,
            max_tokens=args.train.max_tokens_per_gpu,
            ring_attn_size=args.ds.ring_attn_size,
            tensor_parallel_size=args.ds.tensor_parallel_size,
            samples_per_prompt=args.rollout.n_samples_per_prompt,
            groups_prompts=groups_prompts,
            shuffles_groups=args.train_shuffle == "groups",
            batch_size=args.train.batch_size,
            warns=strategy.is_rank_0(),
        )

    @property
    def shuffles(self) -> bool:
        """True if every rank shuffles its samples. Ranks that share tokens must hold the same samples instead."""
        return self.ring_attn_size == 1 and self.tensor_parallel_size == 1


def windows_of_epoch(
    samples: Sequence[TrainSample], layout: BatchLayout, ranks: Ranks, *, step: int, epoch: int, device: Any
) -> Iterator[UpdateWindow]:
    """Yield the optimizer steps of one epoch over the samples of this rank. All ranks call it together.

    Static batches take their order from torch's random state, dynamic ones from (seed, step, epoch).

    Args:
        samples: The samples of this rank.
        layout: The sizes of updates and micro-batches.
        ranks: The data-parallel ranks, over which the totals of an update are summed.
        step: Number of the global step.
        epoch: Number of the epoch within the step, from 0.
        device: The device of the totals.

    Raises:
        RunStopped: Static batches do not divide the samples into whole updates.
    """
    cut = _dynamic_updates(samples, layout, ranks, step, epoch, device) if layout.dynamic else _static(samples, layout)
    for micro_batches in cut:
        window = [[samples[place] for place in places] for places in micro_batches]
        in_window = [sample for micro_batch in window for sample in micro_batch]
        counts = [sample.action_tokens for sample in in_window]
        graded = [count for count, sample in zip(counts, in_window, strict=True) if not sample.abstained]
        # Action tokens, and samples that have one, of this rank; below of all ranks. The loss of the update is a mean
        # over either.
        sums = [number for each in (counts, graded) for number in (sum(each), sum(count > 0 for count in each))]
        totals = torch.tensor(sums, dtype=torch.float64, device=device)
        yield UpdateWindow(window, *ranks.all_reduce_sum(totals).float())


def _static(samples: Sequence[TrainSample], layout: BatchLayout) -> list[list[list[int]]]:
    """Return the places of the samples: updates of micro-batches of equally many samples."""
    of_an_update = layout.micro_batch_size * layout.micro_batches
    if len(samples) % of_an_update:
        raise RunStopped(
            f"this rank has {len(samples)} samples, which is not a multiple of {of_an_update}, its number of samples "
            f"per update with --train.batch_size {layout.batch_size}"
        )
    order = list(range(len(samples)))
    if layout.shuffles:
        groups = groups_to_shuffle(samples, layout.samples_per_prompt if layout.shuffles_groups else None)
        # As upstream's data loader shuffles: by torch's random state, which ``seed_step`` has set for step and rank.
        order = shuffled_places(groups, lambda count: torch.randperm(count).tolist())
    updates = []
    for first in range(0, len(order), of_an_update):
        places = order[first : first + of_an_update]
        if layout.groups_prompts:
            places.sort(key=lambda place: samples[place].sample_id // layout.samples_per_prompt)
        updates.append(_chunks(places, layout.micro_batch_size))
    return updates


def _chunks(places: Sequence[int], size: int) -> list[list[int]]:
    return [list(places[first : first + size]) for first in range(0, len(places), size)]


def _dynamic_updates(
    samples: Sequence[TrainSample], layout: BatchLayout, ranks: Ranks, step: int, epoch: int, device: Any
) -> list[list[list[int]]]:
    """Return the places of the samples: updates of micro-batches of nearly equally many tokens.

    Every rank makes the same number of updates, and the same number of micro-batches in each of them, because ranks
    wait for each other. Samples that make no whole update are left out.
    """
    lengths = [len(sample.tokens) for sample in samples]
    whole = min(layout.most_updates, len(samples) // layout.update_size)
    updates = int(ranks.all_gather(torch.tensor([whole], device=device)).min())
    count = updates * layout.update_size
    if count < len(samples) and layout.warns:
        logger.warning(
            f"{len(samples) - count} of {len(samples)} samples of rank 0 make no whole update and are left out"
        )
    if updates == 0:
        return []
    # The samples came shuffled. In later epochs all ranks move their samples in the same way: a rank holds the samples
    # of an update from the longest to the shortest, so the ranks stay balanced. Whole prompts stay in their update.
    order = list(range(count))
    if epoch:
        groups = [place // layout.update_size for place in order] if layout.shuffles_groups else order
        order = shuffled_places(groups, lambda number: shuffled(number, layout.seed, step, epoch))
    places_of_updates = _chunks(order, layout.update_size)
    needed = [
        get_minimum_num_micro_batch_size(
            [lengths[place] for place in places],
            layout.max_tokens,
            layout.ring_attn_size,
            layout.tensor_parallel_size,
        )
        for places in places_of_updates
    ]
    # The rank with the longest samples sets the number of micro-batches of an update for all ranks.
    counts = ranks.all_gather(torch.tensor(needed, device=device)).view(-1, updates).amax(0).tolist()
    return [
        [[places[part] for part in parts] for parts in balanced_partitions([lengths[p] for p in places], number)]
        for places, number in zip(places_of_updates, counts, strict=True)
    ]


def start_micro_batch(engine: Any, layout: BatchLayout, *, ends_update: bool) -> None:
    """Tell DeepSpeed whether its optimizer steps after the micro-batch whose forward pass comes next.

    With static batches DeepSpeed counts micro-batches itself, over all rollouts, so one rollout that is no whole
    number of updates would shift all updates that follow. With dynamic batches DeepSpeed takes every micro-batch for
    a whole update unless it is told otherwise, and would keep the gradient of the last one alone.

    Args:
        engine: The DeepSpeed engine.
        layout: The sizes of updates and micro-batches.
        ends_update: True if the optimizer is to step after the micro-batch.

    Raises:
        RunStopped: DeepSpeed would end the update elsewhere.
    """
    if layout.dynamic:
        engine.set_gradient_accumulation_boundary(ends_update)
    elif engine.is_gradient_accumulation_boundary() != ends_update:
        raise RunStopped(
            f"DeepSpeed {'does not end' if ends_update else 'ends'} an update after this micro-batch, contrary to "
            f"--train.batch_size {layout.batch_size}: an earlier rollout did not make a whole number of updates"
        )


def loss_normalizers(
    window: UpdateWindow, layout: BatchLayout, ranks: Ranks, *, graded: bool = False
) -> dict[str, Any]:
    """Return what upstream's ``aggregate_loss`` divides by, the same for all micro-batches of an update.

    The loss of an update is one mean over its tokens, or its samples, on all ranks. DeepSpeed averages gradients over
    the ranks, which ``dp_size`` undoes, and divides the loss of each static micro-batch by their number.

    Args:
        window: The update, with its totals over all ranks.
        layout: The sizes of updates and micro-batches.
        ranks: The data-parallel ranks.
        graded: True for a mean over ``MicroBatch.graded_mask``, which is 0 in an update without a graded sample.

    Returns:
        Keyword arguments of ``aggregate_loss``: ``dp_size``, the number of ranks; ``batch_num_tokens`` and
        ``global_batch_size``, 0-d: action tokens and samples of the update on all ranks, with static batches divided
        by the number of micro-batches.
    """
    scale = 1 if layout.dynamic else layout.micro_batches
    tokens = window.graded_tokens.clamp(min=1) if graded else window.tokens
    samples = window.graded_samples.clamp(min=1) if graded else window.samples
    return {"dp_size": ranks.size, "batch_num_tokens": tokens / scale, "global_batch_size": samples / scale}
