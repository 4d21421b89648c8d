"""Samples of one prompt side by side in a row, so that a model reads the prompt once and no padding (pure).

What a token of causal attention computes depends on the tokens before it alone: a mask that shows each response its
prompt and itself gives what a row for every sample gives, to rounding. The responses of a group share a prompt.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

# Of the cost of a row for every sample, what a layout may cost at most.
WORTH = 0.9


@dataclass(frozen=True)
class SharedLayout:
    """Input of a model: ``tokens``, ``positions`` and ``visible`` (M, R, R), which tokens each one attends to."""

    # (M, R)
    tokens: Tensor
    # (M, R)
    positions: Tensor
    visible: Tensor
    # (N,) of the asked tokens in the flattened rows, sample by sample.
    places: Tensor

    def additive(self, dtype: torch.dtype) -> Tensor:
        """Return the mask (M, 1, R, R) that is added to the scores of attention."""
        hidden = torch.zeros(self.visible.shape, dtype=dtype, device=self.visible.device)
        return hidden.masked_fill_(~self.visible, torch.finfo(dtype).min)[:, None]


@dataclass(frozen=True)
class _Sample:
    number: int
    response: list[int]
    # Places of the asked tokens, counted from the last of the prompt, which is 0.
    asked: list[int]


@dataclass(frozen=True)
class _Tree:
    """A prompt and some of its responses, ``length`` tokens."""

    prompt: tuple[int, ...]
    samples: Sequence[_Sample]
    length: int

    @classmethod
    def of(cls, prompt: tuple[int, ...], samples: Sequence[_Sample]) -> "_Tree":
        return cls(prompt, samples, len(prompt) + sum(len(each.response) for each in samples))


def shared_layout(
    sequences: Tensor, attention_mask: Tensor, asked: Tensor, token_cost: float, longest: float = math.inf
) -> SharedLayout | None:
    """Return the cheapest of some layouts in which samples of one prompt share its tokens.

    Args:
        sequences: Token ids (B, T).
        attention_mask: Mask (B, T) of the tokens that count.
        asked: Booleans (B, T), True where the output of the model is needed. Tokens after the last of these are left
            out; tokens before the first are the prompt.
        token_cost: Cost of one token in products with weights, see ``cost``.
        longest: Most tokens of a row.

    Returns:
        The layout, or None where a row for every sample is about as cheap.
    """
    # The cost without sharing, which a layout has to be below by a margin.
    plain = WORTH * cost(len(sequences), sequences.shape[1], token_cost)
    if sequences.shape[1] > longest:
        return None
    seen = torch.stack([sequences, attention_mask.long(), asked.long()]).cpu()  # all that the host reads, at once
    if int(seen[2].sum()) * token_cost > plain:  # more than that it cannot save
        return None
    samples = _samples(*seen.tolist())
    most = max(map(len, samples.values()), default=0)
    if not most:
        return None
    found = []
    # Fewer responses beside one prompt make shorter rows, whose attention costs less; more of them save prompts.
    for together in _halvings(most):
        trees = [
            _Tree.of(prompt, each[start : start + together])
            for prompt, each in samples.items()
            for start in range(0, len(each), together)
        ]
        found += [_filled(trees, rows) for rows in _halvings(len(trees))]
    costs = [cost(len(rows), width, token_cost) if (width := _width(rows)) <= longest else math.inf for rows in found]
    cheapest = min(costs)
    return _laid_out(found[costs.index(cheapest)], sequences) if cheapest <= plain else None


def cost(rows: int, width: int, token_cost: float) -> float:
    """Return the cost of one layer on some rows, in units of the attention of one token to one other token.

    Args:
        rows: Number of rows.
        width: Tokens of a row.
        token_cost: Cost of the products of one token with the weights of the layer, in the same unit.
    """
    return rows * width * (token_cost + width)


def _samples(
    sequences: list[list[int]], attention_mask: list[list[int]], asked: list[list[int]]
) -> dict[tuple[int, ...], list[_Sample]]:
    """Return the samples with positions whose outputs are needed, by prompt."""
    found: dict[tuple[int, ...], list[_Sample]] = {}
    for number, (tokens, counts, wanted) in enumerate(zip(sequences, attention_mask, asked, strict=True)):
        kept = [(token, want) for token, count, want in zip(tokens, counts, wanted, strict=True) if count or want]
        places = [place for place, (_, want) in enumerate(kept) if want]
        if places:
            first = places[0]
            last = places[-1]
            ids = [token for token, _ in kept[: last + 1]]
            sample = _Sample(number, ids[first + 1 :], [place - first for place in places])
            found.setdefault(tuple(ids[: first + 1]), []).append(sample)
    return found


def _halvings(count: int) -> Iterator[int]:
    """Yield ``count``, half of it and so on, down to 1."""
    while count > 1:
        yield count
        count = (count + 1) // 2
    yield 1


def _filled(trees: Sequence[_Tree], count: int) -> list[list[_Tree]]:
    """Return ``count`` rows; the longest tree goes first, each into the emptiest row."""
    rows: list[list[_Tree]] = [[] for _ in range(count)]
    fill = [(0, number) for number in range(count)]
    for tree in sorted(trees, key=lambda tree: tree.length, reverse=True):
        length, number = fill[0]
        rows[number].append(tree)
        heapq.heapreplace(fill, (length + tree.length, number))
    return rows


def _width(rows: Sequence[Sequence[_Tree]]) -> int:
    return max(sum(tree.length for tree in row) for row in rows)


def _laid_out(rows: Sequence[Sequence[_Tree]], sequences: Tensor) -> SharedLayout:
    width = _width(rows)
    numbers = range(len(sequences))
    places: list[list[int]] = [[] for _ in numbers]
    # of each token: its id, its position, its tree (0 for padding), and its sample (0 in a prompt)
    columns: tuple[list[list[int]], ...] = ([], [], [], [])
    for number, row in enumerate(rows):
        of_row: list[list[int]] = [[], [], [], []]
        ids, positions, of_tree, of_sample = of_row
        for tree_number, tree in enumerate(row, 1):
            length = len(tree.prompt)
            ids += tree.prompt
            positions += range(length)
            of_tree += [tree_number] * tree.length
            of_sample += [0] * length
            last = number * width + len(ids) - 1  # of the prompt
            for sample in tree.samples:
                start = number * width + len(ids) - 1
                places[sample.number] = [start + place if place else last for place in sample.asked]
                ids += sample.response
                positions += range(length, length + len(sample.response))
                of_sample += [sample.number + 1] * len(sample.response)
        for column, values in zip(columns, of_row, strict=True):
            column.append(values + [0] * (width - len(values)))
    tokens, positions, trees, branches = torch.tensor(columns, device=sequences.device)
    # visible[m, q, k]: token q of row m may attend to token k. Both belong to one tree, k to the prompt or to the
    # sample of q, and, by tril, k does not come after q.
    visible = (branches[:, None] == branches[:, :, None]).logical_or_(branches[:, None] == 0)
    visible.logical_and_(trees[:, None] == trees[:, :, None])
    asked = torch.tensor(list(chain.from_iterable(places)), device=sequences.device)
    return SharedLayout(tokens, positions, visible.tril_(), asked)
