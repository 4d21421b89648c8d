"""Does entropy move as the paper's theory predicts? Statistics over the steps of a run, of numbers only."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from openrlhf_cov.utils.estimates import HIGHEST_ENTROPY, SMALLEST_SPREAD, correlation


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the rank correlation of two series, in which equal values share their mean rank.

    Args:
        x: The first series.
        y: The second series, as long as the first.

    Returns:
        A number in [-1, 1]; NaN if a series is constant or empty.
    """
    return correlation(_centred_ranks(x), _centred_ranks(y)) if len(x) else math.nan


def _centred_ranks(values: Sequence[float]) -> np.ndarray:
    _, inverse, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return ranks - ranks.mean()


class EntropyDynamics:
    """First-order predictions of the change of entropy (paper, theorems 1 and 2) beside the change that came.

    The mean entropy of a step is that of the policy before the updates of the step, so the prediction made in step t
    is about the difference that step t + 1 measures.
    """

    # Pairs of (prediction, change) that the correlations look back on.
    WINDOW = 200
    MIN_PAIRS = 5

    def __init__(self) -> None:
        self._entropy = math.nan
        self._predictions = (math.nan, math.nan)
        self._pairs: deque[tuple[float, float, float]] = deque(maxlen=self.WINDOW)

    def step(self, entropy: float, prob_weighted_cov: float, cov: float, eta: float) -> dict[str, float]:
        """Compare the entropy of one global step with the predictions of the theorems.

        Args:
            entropy: Mean token entropy, in nats.
            prob_weighted_cov: Cov(log pi, pi * A) of the step.
            cov: Cov(log pi, A) of the step.
            eta: Step size of the theorems, known up to a constant factor.

        Returns:
            Metrics by name; NaN without an earlier step, or with fewer than ``MIN_PAIRS`` pairs.
        """
        delta = entropy - self._entropy
        pair = (delta, self._predictions[0], self._predictions[1])
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
        """Return the state that the next step depends on."""
        return {"entropy": self._entropy, "predictions": self._predictions, "pairs": list(self._pairs)}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from ``state_dict``; None starts anew."""
        if state is not None:
            self._entropy = state["entropy"]
            self._predictions = state["predictions"]
            self._pairs.extend(state["pairs"])

    def _correlation(self, theorem: int) -> float:
        if len(self._pairs) < self.MIN_PAIRS:
            return math.nan
        return spearman([pair[0] for pair in self._pairs], [pair[theorem] for pair in self._pairs])


class RunningLaw:
    """The least-squares fit of all points so far, updated in constant time; for a log that grows with the run."""

    def __init__(self, fewest_points: int = 20) -> None:
        self.fewest_points = fewest_points
        self._count = 0
        self._means = np.zeros(2)  # of exp(H) and R
        self._products = np.zeros((2, 2))  # of their deviations from the means

    def add(self, entropy: float, reward: float) -> dict[str, float]:
        """Add a point to the fit, and return ``law/ceiling`` and ``law/r2`` of the fit.

        Args:
            entropy: Mean entropy of a step, in nats. As in ``LawPoints``, a point is left out if its entropy is not
                finite or is ``HIGHEST_ENTROPY`` or more.
            reward: Mean reward of the step. A point whose reward is not finite is left out.

        Returns:
            Metrics by name; NaN before there are ``fewest_points`` points, where all rewards are equal, and where the
            standard deviation of exp(H) is at most ``SMALLEST_SPREAD`` of its mean.
        """
        if abs(entropy) < HIGHEST_ENTROPY and math.isfinite(reward):
            self._count += 1
            # Welford's update of means and of the sums of products, which does not cancel as sums of squares do.
            deviation = np.array([math.exp(entropy), reward]) - self._means
            self._means = self._means + deviation / self._count
            self._products = self._products + np.outer(deviation, deviation) * (1 - 1 / self._count)
        # The law is R = -a exp(H) + b, linear in exp(H). Its ceiling is R at H = 0, where exp(H) = 1.
        (xx, xy), (_, yy) = self._products
        flat = xx <= self._count * (SMALLEST_SPREAD * self._means[0]) ** 2
        if self._count < self.fewest_points or flat or not yy:
            return {"law/ceiling": math.nan, "law/r2": math.nan}
        slope = xy / xx
        ceiling = self._means[1] + slope * (1 - self._means[0])
        return {"law/ceiling": float(ceiling), "law/r2": float(slope * xy / yy)}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next point is added to."""
        return {"count": self._count, "means": self._means.tolist(), "products": self._products.tolist()}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from ``state_dict``; None starts anew."""
        if state is not None:
            self._count = state["count"]
            self._means = np.array(state["means"])
            self._products = np.array(state["products"])
