"""Samples with common prefixes side by side in a row, so that a model reads a prefix once and no padding (pure).

What a token of causal attention computes depends on the tokens before it alone. Samples that begin with the same
tokens form a tree: the responses of a group share at least their prompt. A row of the model's input holds such trees
token by token. A mask that shows each token the ones before it in its own sample gives what a row for every sample
gives, to rounding.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, pairwise

import torch
from torch import Tensor

# Of the cost of a row for every sample, what a layout may cost at most.
WORTH = 0.9


@dataclass(frozen=True)
class SharedLayout:
    """Input of a model: M rows of R tokens each."""

    # Token ids (M, R).
    tokens: Tensor
    # Positions of the tokens in their samples (M, R).
    positions: Tensor
    # Booleans (M, R, R): visible[m, q, k] is True if token q of row m attends to token k.
    visible: Tensor
    # Places (N,) of the asked tokens in the flattened rows, sample by sample. Samples may ask at the same token.
    places: Tensor

    def additive(self, dtype: torch.dtype) -> Tensor:
        """Return the mask (M, 1, R, R) that is added to the scores of attention."""
        hidden = torch.zeros(self.visible.shape, dtype=dtype, device=self.visible.device)
        return hidden.masked_fill_(~self.visible, torch.finfo(dtype).min)[:, None]


@dataclass(frozen=True)
class _Sample:
    number: int
    # The tokens up to the last asked one.
    tokens: list[int]
    # Places of the asked tokens among them.
    asked: list[int]

    @property
    def prompt(self) -> list[int]:
        """The tokens up to the first asked one."""
        return self.tokens[: self.asked[0] + 1]


@dataclass(frozen=True)
class _Tree:
    """Samples that a row holds one after another, each without the tokens that it shares with the one before."""

    samples: Sequence[_Sample]
    # Number of tokens that each sample shares with the one before; 0 for the first one.
    shared: Sequence[int]
    # Number of tokens in the row.
    length: int

    @classmethod
    def of(cls, samples: Sequence[_Sample], shared: Sequence[int]) -> "_Tree":
        """Return the tree of some samples; what the first one shares with a sample before it does not count."""
        shared = [0, *shared[1:]]
        return cls(samples, shared, sum(len(each.tokens) for each in samples) - sum(shared))


def shared_layout(
    sequences: Tensor, attention_mask: Tensor, asked: Tensor, token_cost: float, longest: float = math.inf
) -> SharedLayout | None:
    """Return the cheapest of some layouts in which samples share the tokens with which they begin.

    Args:
        sequences: Token ids (B, T).
        attention_mask: Mask (B, T) of the tokens that count.
        asked: Booleans (B, T), True where the output of the model is needed. Tokens after the last of these are left
            out; the prompt ends with the first.
        token_cost: Cost of one token in products with weights, see ``cost``.
        longest: Most tokens of a row.

    Returns:
        The layout, or None where a row for every sample is about as cheap.
    """
    # The cost without sharing, which a layout has to be below by a margin.
    plain = WORTH * cost(len(sequences), sequences.shape[1], token_cost)
    if sequences.shape[1] > longest:
        return None
    seen = torch.stack([sequences, attention_mask.long(), asked.long()]).cpu()  # the host reads all at once
    samples = _samples(*seen.tolist())
    if not samples:
        return None
    shared = [0, *(_common(one.tokens, other.tokens) for one, other in pairwise(samples))]
    # No layout has fewer tokens, or rows that are shorter than the longest sample.
    fewest = _Tree.of(samples, shared).length
    if fewest * (token_cost + max(len(sample.tokens) for sample in samples)) > plain:
        return None
    found = []
    # Fewer samples in a tree make shorter rows, whose attention costs less; more of them share more tokens.
    for starts in _cuts([sample.prompt for sample in samples]):
        trees = [_Tree.of(samples[start:end], shared[start:end]) for start, end in pairwise([*starts, len(samples)])]
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
    sequences: Sequence[list[int]], attention_mask: Sequence[list[int]], asked: Sequence[list[int]]
) -> list[_Sample]:
    """Return the samples with positions whose outputs are needed, those with common prefixes next to each other."""
    found = []
    for number, (tokens, counts, wanted) in enumerate(zip(sequences, attention_mask, asked, strict=True)):
        kept = [count or want for count, want in zip(counts, wanted, strict=True)]
        places = [place for place, want in enumerate(compress(wanted, kept)) if want]
        if places:
            found.append(_Sample(number, list(compress(tokens, kept))[: places[-1] + 1], places))
    return sorted(found, key=lambda sample: sample.tokens)


def _cuts(prompts: Sequence[list[int]]) -> Iterator[list[int]]:
    """Yield ways to cut samples into trees, as the places where the trees begin.

    First a tree has the samples of several prompts, then those of one, then some of them.

    Args:
        prompts: The prompt of each sample.
    """
    groups = [place for place, prompt in enumerate(prompts) if place == 0 or prompt != prompts[place - 1]]
    for together in _halvings(len(groups)):
        if together > 1:
            yield groups[::together]
    bounds = list(pairwise([*groups, len(prompts)]))
    for together in _halvings(max(end - start for start, end in bounds)):
        yield [place for start, end in bounds for place in range(start, end, together)]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of tokens with which both begin."""
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)


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
    tokens: list[list[int]] = []
    positions: list[list[int]] = []
    # The place in the row after the last token that attends to a token.
    ends: list[list[int]] = []
    asked: list[list[int]] = [[] for _ in sequences]
    for number, row in enumerate(rows):
        row_tokens: list[int] = []
        row_positions: list[int] = []
        row_ends: list[int] = []
        for tree in row:
            path: list[int] = []  # the places of a sample's tokens in the row
            for sample, shared in zip(tree.samples, tree.shared, strict=True):
                # Neither this sample nor those after it have the other tokens of the sample before.
                for place in path[shared:]:
                    row_ends[place] = len(row_tokens)
                added = range(len(row_tokens), len(row_tokens) + len(sample.tokens) - shared)
                path = [*path[:shared], *added]
                asked[sample.number] = [number * width + path[place] for place in sample.asked]
                row_tokens += sample.tokens[shared:]
                row_positions += range(shared, len(sample.tokens))
                row_ends += added
            for place in path:
                row_ends[place] = len(row_tokens)
        padding = range(len(row_tokens), width)
        tokens.append(row_tokens + [0] * len(padding))
        positions.append(row_positions + [0] * len(padding))
        ends.append(row_ends + [place + 1 for place in padding])  # a token that attends to nothing has no softmax
    all_tokens, all_positions, all_ends = torch.tensor([tokens, positions, ends], device=sequences.device)
    # Token q attends to token k if it comes before the end of k, and not before k itself.
    visible = torch.arange(width, device=sequences.device)[:, None] < all_ends[:, None]
    places = torch.tensor(list(chain.from_iterable(asked)), device=sequences.device)
    return SharedLayout(all_tokens, all_positions, visible.tril_(), places)
