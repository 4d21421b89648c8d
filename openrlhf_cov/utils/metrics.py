"""Metrics that know how to add up: over micro-batches, and over data-parallel ranks, without averaging averages."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from openrlhf_cov.utils.ordering import ordered_bits, quota

# (1-d tensor, "sum" | "max") -> the tensor reduced over all ranks.
AllReduce = Callable[[Tensor, str], Tensor]

# The reduced parts of a metric (n,), on the CPU -> the values it logs.
Read = Callable[[Tensor], dict[str, float]]


@dataclass(frozen=True)
class Mean:
    """A weighted sum on its way to the log; the logged value is total / weight, NaN when nothing was weighed.

    Both are 0-d tensors (or numbers), so that recording does not wait for the device.
    """

    name: str
    total: Tensor | float
    weight: Tensor | float
    op: ClassVar[str] = "sum"

    def parts(self) -> Tensor:
        """Return (total, weight), float64 (2,), on the device of the tensors among them."""
        device = next((each.device for each in (self.total, self.weight) if isinstance(each, Tensor)), None)
        return torch.stack([_scalar(self.total, device), _scalar(self.weight, device)])

    def reader(self) -> Read:
        """Return the function that reads total / weight."""
        return partial(_read_mean, self.name)


@dataclass(frozen=True)
class _Single:
    name: str
    value: Tensor | float
    op: ClassVar[str]

    def parts(self) -> Tensor:
        """Return the value, float64 (1,)."""
        return _scalar(self.value).view(1)

    def reader(self) -> Read:
        """Return the function that reads the reduced value itself."""
        name = self.name
        return lambda parts: {name: parts.item()}


class Sum(_Single):
    """A total over micro-batches and ranks; 0-d tensor or number."""

    op = "sum"


class Max(_Single):
    """The largest value seen; 0-d tensor or number."""

    op = "max"


@dataclass(frozen=True)
class LogHistogram:
    """Counts of positive values by their natural logarithm, so that quantiles add up exactly over ranks.

    Bins of width ``WIDTH`` cover logarithms in [low, high]; a quantile is right to a factor of exp(WIDTH / 2), i.e.
    0.2 %, and values outside are counted in the outermost bin.
    """

    low: float
    high: float
    WIDTH: ClassVar[float] = 1 / 256

    @property
    def bins(self) -> int:
        """Number of bins."""
        return int((self.high - self.low) / self.WIDTH)

    def of(self, log_values: Tensor, mask: Tensor) -> Tensor:
        """Return the counts of a tensor, float64 (bins,), which add up over micro-batches and ranks.

        Args:
            log_values: Natural logarithms of the values, any shape. NaN counts as the largest.
            mask: Tensor of the same shape; 0 masks an entry.
        """
        position = ((log_values.float() - self.low) / self.WIDTH).floor().nan_to_num(self.bins - 1)
        counts = torch.zeros(self.bins, dtype=torch.float64, device=log_values.device)
        return counts.scatter_add_(0, position.clamp(0, self.bins - 1).flatten().long(), mask.flatten().double())

    def read(self, counts: Tensor, level: float) -> float:
        """Return a quantile: exp of the centre of the bin it lies in; NaN when nothing was counted.

        Args:
            counts: Counts (bins,), a sum of those that ``of`` returns.
            level: Fraction of the values below the quantile, such as 0.99.
        """
        total = counts.sum()
        if total == 0:
            return math.nan
        position = torch.searchsorted(counts.cumsum(0), (total * level).clamp(min=1)).clamp(max=self.bins - 1)
        return math.exp((position.item() + 0.5) * self.WIDTH + self.low)


class TopHistogram:
    """Counts and sums of values of any sign by the upper half of their float32 bits: 2 x 65536 numbers that add up.

    A bin holds the values between two neighbouring bfloat16 numbers, so it is 2^-7 = 0.8 % of its values wide.
    """

    BINS = 2**16

    def of(self, values: Tensor, mask: Tensor) -> Tensor:
        """Return counts and sums of a tensor, float64 (2 * BINS,), smallest values first, which add up over ranks.

        Args:
            values: Tensor of any shape, in any unit.
            mask: Tensor of the same shape; 0 masks an entry.
        """
        kept = values.flatten().float()
        position = (ordered_bits(kept) >> 16).long() + self.BINS // 2
        weight = mask.flatten().bool()
        parts = torch.zeros(2, self.BINS, dtype=torch.float64, device=values.device)
        parts[0].scatter_add_(0, position, weight.double())
        parts[1].scatter_add_(0, position, kept.double().masked_fill(~weight, 0.0))
        return parts.flatten()

    def read(self, parts: Tensor, fraction: float) -> float:
        """Return the mean of the ``quota`` largest of n values; NaN when nothing was counted.

        Where a bin is only partly among them, its share counts with the mean of the bin. So the result is right to
        0.8 % of the smallest value among them, and exact where that bin lies wholly inside or holds one value.

        Args:
            parts: Counts and sums (2 * BINS,), a sum of those that ``of`` returns.
            fraction: Fraction of the n values that counts as the largest, in [0, 1].
        """
        counts, sums = parts.view(2, self.BINS).flip(1)
        total = counts.sum()
        if total == 0:
            return math.nan
        count = quota(total, fraction)
        taken = (count - (counts.cumsum(0) - counts)).clamp(min=0).minimum(counts)
        return ((sums * taken / counts.clamp(min=1)).sum() / count).item()


@dataclass(frozen=True)
class Distribution:
    """Numbers read off a histogram of the unmasked values, {name: level}.

    A ``LogHistogram`` takes logarithms and gives quantiles, a ``TopHistogram`` the means of the largest fractions.
    """

    levels: Mapping[str, float]
    histogram: LogHistogram | TopHistogram
    values: Tensor
    mask: Tensor
    op: ClassVar[str] = "sum"

    @property
    def name(self) -> str:
        """All names as one key."""
        return " ".join(self.levels)

    def parts(self) -> Tensor:
        """Return the numbers of the histogram, float64."""
        return self.histogram.of(self.values, self.mask)

    def reader(self) -> Read:
        """Return the function that reads every level."""
        histogram = self.histogram
        levels = dict(self.levels)
        return lambda parts: {name: histogram.read(parts, level) for name, level in levels.items()}


@dataclass(frozen=True)
class EffectiveShare:
    """(sum of w)^2 / (n * sum of w^2) over the n unmasked ``weights``: 1 where all are equal; NaN without any above 0.

    It is the effective sample size, as a share of the samples.
    """

    name: str
    weights: Tensor
    mask: Tensor
    op: ClassVar[str] = "sum"

    def parts(self) -> Tensor:
        """Return (sum of w, sum of w^2, n), float64 (3,)."""
        mask = self.mask.bool()
        kept = self.weights.detach().double().masked_fill(~mask, 0.0)
        return torch.stack([kept.sum(), kept.square().sum(), mask.sum().double()])

    def reader(self) -> Read:
        """Return the function that reads the share."""
        return partial(_read_effective_share, self.name)


Metric = Mean | Sum | Max | Distribution | EffectiveShare


class MetricBuffer:
    """Collects metrics on one rank between two logs and reduces them over all ranks in at most two collectives.

    The set of names must be the same on every rank, so recorders emit every name on every call, with weight 0 where
    there is nothing to say.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[str, str], list[Tensor]] = {}
        self._readers: dict[tuple[str, str], Read] = {}

    def add(self, *metrics: Metric) -> None:
        """Record metrics; names already seen are merged."""
        for metric in metrics:
            key = (metric.op, metric.name)
            parts = metric.parts()
            seen = self._parts.setdefault(key, [])
            if seen and len(parts) > 2:
                seen[0] = seen[0] + parts  # one histogram, not one per micro-batch
            else:
                seen.append(parts)
            self._readers[key] = metric.reader()

    def reduce(self, all_reduce: AllReduce) -> dict[str, float]:
        """Return the values of everything recorded since the last call, over all ranks, and empty the buffer.

        Args:
            all_reduce: Reduces a 1-d tensor over all ranks, by "sum" or "max". It is called at most once for each.
        """
        values = {}
        for op, combine in (("sum", torch.sum), ("max", torch.amax)):
            keys = sorted(key for key in self._parts if key[0] == op)
            if not keys:
                continue
            local = [combine(torch.stack(self._parts[key]), 0) for key in keys]
            # one copy to the host for all metrics of an operation, not one for each
            reduced = all_reduce(torch.cat(local), op).cpu().split([len(parts) for parts in local])
            for key, parts in zip(keys, reduced, strict=True):
                values |= self._readers[key](parts)
        self.__init__()
        return values


def _read_mean(name: str, parts: Tensor) -> dict[str, float]:
    total, weight = parts.tolist()
    return {name: total / weight if weight else math.nan}


def _read_effective_share(name: str, parts: Tensor) -> dict[str, float]:
    total, squares, count = parts.tolist()
    return {name: total**2 / (count * squares) if squares else math.nan}


def _scalar(value: Tensor | float, device: torch.device | None = None) -> Tensor:
    """Return a value as float64, 0-d: a tensor on its device, a number on the given one."""
    if isinstance(value, Tensor):
        return value.detach().double().reshape(())
    # A number is written on the device; a copy of it from the host would make the host wait.
    return torch.full((), value, dtype=torch.float64, device=device)
