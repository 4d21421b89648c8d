"""What every rank trains on, as it is sent to the ranks."""

from types import SimpleNamespace

import torch
from openrlhf.trainer.ppo_utils.experience import (
    Experience,
    balance_experiences,
    make_experience_batch,
    remove_padding_in_sequences,
    split_experience_batch,
)

SAMPLES = 8
"""Samples that are padded to one width, about."""


def balanced_in_parts(experiences: list[Experience], args: SimpleNamespace) -> list[Experience]:
    """Upstream's ``balance_experiences``, in as many parts for each rank as make about ``SAMPLES`` samples each.

    Every rank gets upstream's samples in upstream's order. One batch for all of them, as upstream sends it, is as wide
    as the longest: three times the bytes where responses differ as they do.
    """
    samples = [
        sample for batch in experiences for sample in remove_padding_in_sequences(split_experience_batch(batch))
    ]
    lengths = torch.stack([sample.total_length for sample in samples])
    places = Experience(sequences=torch.arange(len(samples))[:, None], total_length=lengths)
    of_ranks = [rank.sequences.flatten().tolist() for rank in balance_experiences([places], args)]
    count = max(1, min(map(len, of_ranks)) // SAMPLES)  # the same for all: parts are dealt out by their number
    return [
        _batch([samples[place] for place in rank[len(rank) * n // count : len(rank) * (n + 1) // count]])
        for rank in of_ranks
        for n in range(count)
    ]


def _batch(samples: list[Experience]) -> Experience:
    """Upstream's, but one tensor for each metric instead of a list of one for each sample, which Ray would pickle one
    by one."""
    batch = make_experience_batch(samples)
    for name, values in batch.info.items():
        if isinstance(values, list) and isinstance(values[0], torch.Tensor) and not values[0].dim():
            batch.info[name] = torch.stack(values)
    return batch
