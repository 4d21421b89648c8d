"""Metrics that know how to add up: over micro-batches, and over data-parallel ranks, without averaging averages."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

AllReduce = Callable[[Tensor, str], Tensor]
"""(tensor, "sum" | "max") -> the tensor reduced over all ranks."""


@dataclass(frozen=True)
class Mean:
    """A weighted sum on its way to the log; the logged value is total / weight, NaN when nothing was weighed.

    Both are 0-d tensors (or numbers), so that recording does not wait for the device.
    """

    name: str
    total: Tensor | float
    weight: Tensor | float


@dataclass(frozen=True)
class Max:
    """The largest value seen; 0-d tensor or number."""

    name: str
    value: Tensor | float


@dataclass(frozen=True)
class Quantile:
    """The ``level`` quantile of the unmasked values seen, given by their logarithms; see ``LogHistogram``."""

    name: str
    log_values: Tensor
    mask: Tensor
    level: float


class LogHistogram:
    """Counts of positive values by their natural logarithm, so that quantiles add up exactly over ranks.

    ``BINS`` bins of width ``WIDTH`` cover logarithms in [-LIMIT, LIMIT]; a quantile is right to a factor of
    exp(WIDTH / 2), i.e. 0.2 %, and values outside are counted in the outermost bin.
    """

    LIMIT = 8.0
    WIDTH = 1 / 256
    BINS = int(2 * LIMIT / WIDTH)

    @classmethod
    def of(cls, log_values: Tensor, mask: Tensor) -> Tensor:
        """Counts (BINS,) float64 of the logarithms where ``mask`` is non-zero; NaN counts as the largest."""
        bins = ((log_values.float() + cls.LIMIT) / cls.WIDTH).floor().nan_to_num(cls.BINS - 1).clamp(0, cls.BINS - 1)
        counts = torch.zeros(cls.BINS, dtype=torch.float64, device=log_values.device)
        return counts.scatter_add_(0, bins.flatten().long(), mask.flatten().double())

    @classmethod
    def quantile(cls, counts: Tensor, level: float) -> float:
        """exp of the centre of the bin in which the ``level`` quantile lies; NaN when nothing was counted."""
        total = counts.sum()
        if total == 0:
            return math.nan
        position = torch.searchsorted(counts.cumsum(0), (total * level).clamp(min=1)).clamp(max=cls.BINS - 1)
        return math.exp((position.item() + 0.5) * cls.WIDTH - cls.LIMIT)


class MetricBuffer:
    """Collects metrics on one rank between two logs and reduces them over all ranks in two collectives.

    The set of names must be the same on every rank, so recorders emit every name on every call, with weight 0 where
    there is nothing to say.
    """

    def __init__(self) -> None:
        self._means: dict[str, list[Tensor]] = {}
        self._maxima: dict[str, Tensor] = {}
        self._histograms: dict[str, tuple[float, Tensor]] = {}

    def add(self, *metrics: Mean | Max | Quantile) -> None:
        """Record metrics; names already seen are merged."""
        for metric in metrics:
            match metric:
                case Mean(name, total, weight):
                    pair = torch.stack([_scalar(total), _scalar(weight)])
                    self._means.setdefault(name, []).append(pair)
                case Max(name, value):
                    value = _scalar(value)
                    self._maxima[name] = torch.maximum(self._maxima.get(name, value), value)
                case Quantile(name, log_values, mask, level):
                    _, counts = self._histograms.get(name, (level, 0.0))
                    self._histograms[name] = (level, counts + LogHistogram.of(log_values, mask))

    def reduce(self, all_reduce: AllReduce) -> dict[str, float]:
        """Values of everything recorded since the last call, over all ranks; empties the buffer."""
        values = {}
        if self._means or self._histograms:
            pairs = [torch.stack(pairs).sum(0).cpu() for _, pairs in sorted(self._means.items())]
            counts = [counts.cpu() for _, (_, counts) in sorted(self._histograms.items())]
            sums = all_reduce(torch.cat([*pairs, *counts]), "sum")
            for i, name in enumerate(sorted(self._means)):
                total, weight = sums[2 * i].item(), sums[2 * i + 1].item()
                values[name] = total / weight if weight else math.nan
            offset = 2 * len(pairs)
            for name, (level, _) in sorted(self._histograms.items()):
                values[name] = LogHistogram.quantile(sums[offset : offset + LogHistogram.BINS], level)
                offset += LogHistogram.BINS
        if self._maxima:
            maxima = all_reduce(torch.stack([value.cpu() for _, value in sorted(self._maxima.items())]), "max")
            values |= dict(zip(sorted(self._maxima), maxima.tolist(), strict=True))
        self.__init__()
        return values


def _scalar(value: Tensor | float) -> Tensor:
    return torch.as_tensor(value).detach().double().reshape(())
