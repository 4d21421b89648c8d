"""Does entropy move as the paper's theory predicts? Statistics over the steps of a run, of numbers only."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Rank correlation of two series of equal length, equal values sharing their mean rank; NaN if one is constant."""
    return correlation(_centred_ranks(x), _centred_ranks(y)) if len(x) else math.nan


def correlation(u: np.ndarray, v: np.ndarray) -> float:
    """Pearson's correlation of two series (n,) whose means are 0; NaN if one is constant."""
    scale = math.sqrt((u**2).sum() * (v**2).sum())
    return float((u * v).sum() / scale) if scale else math.nan


def _centred_ranks(values: Sequence[float]) -> np.ndarray:
    _, inverse, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return ranks - ranks.mean()


class EntropyDynamics:
    """First-order predictions of the change of entropy (paper, theorems 1 and 2) beside the change that came.

    The mean entropy of a step is that of the policy before the updates of the step, so the prediction made in step t
    is about the difference that step t + 1 measures.
    """

    WINDOW = 200
    """Pairs of (prediction, change) that the correlations look back on."""
    MIN_PAIRS = 5

    def __init__(self) -> None:
        self._entropy = math.nan
        self._predictions = (math.nan, math.nan)
        self._pairs: deque[tuple[float, float, float]] = deque(maxlen=self.WINDOW)

    def step(self, entropy: float, prob_weighted_cov: float, cov: float, eta: float) -> dict[str, float]:
        """Values of one global step; NaN where there is no step before, or fewer than ``MIN_PAIRS`` pairs.

        ``entropy`` is the token mean, ``prob_weighted_cov`` = Cov(log pi, pi * A), ``cov`` = Cov(log pi, A), and
        ``eta`` stands for the step size of the theorems, which is known up to a constant.
        """
        delta = entropy - self._entropy
        pair = (delta, *self._predictions)
        if all(map(math.isfinite, pair)):
            self._pairs.append(pair)
        self._entropy = entropy
        self._predictions = (-eta * prob_weighted_cov, -eta * cov)
        return {
            "entropy/delta": delta,
            "entropy/delta_theorem1": self._predictions[0],
            "entropy/delta_theorem2": self._predictions[1],
            "entropy/corr_theorem1": self._correlation(1),
            "entropy/corr_theorem2": self._correlation(2),
        }

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on."""
        return {"entropy": self._entropy, "predictions": self._predictions, "pairs": list(self._pairs)}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from ``state_dict``; None starts anew."""
        if state is not None:
            self._entropy, self._predictions = state["entropy"], state["predictions"]
            self._pairs.extend(state["pairs"])

    def _correlation(self, theorem: int) -> float:
        if len(self._pairs) < self.MIN_PAIRS:
            return math.nan
        return spearman([pair[0] for pair in self._pairs], [pair[theorem] for pair in self._pairs])
