"""Split samples into micro-batches of nearly equal length by largest differencing (Karmarkar and Karp)."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

# Sum of lengths, number of samples, and each sample's (place, length).
Part = tuple[int, int, list[tuple[int, int]]]


@dataclass
class _State:
    """Parts that hold a sample, largest first, and how much the largest of all parts exceeds the smallest."""

    parts: list[Part]
    spread: int

    def __lt__(self, other: "_State") -> bool:
        """Return True if this state is to be merged before the other."""
        return (self.spread, self.parts[0]) > (other.spread, other.parts[0])


def balanced_partitions(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Return the places of ``lengths`` in ``count`` parts of nearly equal sums, each part in order.

    The result is that of upstream's ``get_seqlen_balanced_partitions`` with ``equal_size=False``. Upstream carries
    all ``count`` parts through every merge, although few of them hold a sample before the end.

    Args:
        lengths: Length of each sample, in tokens.
        count: Number of parts, each of which gets at least one sample.

    Raises:
        ValueError: There are fewer lengths than parts.
    """
    if len(lengths) < count:
        raise ValueError(f"{len(lengths)} samples do not make {count} parts")
    states = [_state([(length, 1, [(place, length)])], count) for place, length in enumerate(lengths)]
    heapq.heapify(states)
    while len(states) > 1:
        first = heapq.heappop(states)
        second = heapq.heappop(states)
        heapq.heappush(states, _merged(first.parts, second.parts, count))
    return [sorted(place for place, _ in samples) for _, _, samples in states[0].parts]


def _state(parts: list[Part], count: int) -> _State:
    smallest = parts[-1][0] if len(parts) == count else 0
    return _State(parts, parts[0][0] - smallest)


def _merged(first: list[Part], second: list[Part], count: int) -> _State:
    """Join the largest parts of one with the smallest parts of the other.

    Of all ``count`` parts those without samples count as the smallest.
    """
    pairs = zip(first[count - len(second) :], reversed(second), strict=False)
    together = [(one[0] + other[0], one[1] + other[1], one[2] + other[2]) for one, other in pairs]
    alone = first[: count - len(second)] + second[: count - len(first)]
    return _state(sorted(together + alone, reverse=True), count)
