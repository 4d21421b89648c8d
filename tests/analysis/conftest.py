"""Curves of which the law is known."""

from collections.abc import Callable

import numpy as np
import pytest

from openrlhf_cov.analysis.law import LawPoints


def ar1(points: int, autocorrelation: float, rng: np.random.Generator) -> np.ndarray:
    """Stationary AR(1) noise (points,) of standard deviation 1."""
    noise = rng.standard_normal(points)
    noise[1:] *= np.sqrt(1 - autocorrelation**2)
    for t in range(1, points):
        noise[t] += autocorrelation * noise[t - 1]
    return noise


def falling_entropy(points: int) -> np.ndarray:
    """From 1.05 nats to 0.05, nine tenths of the way in the first 38 % of the steps."""
    return 0.05 + np.exp(-6 * np.arange(points) / points)


@pytest.fixture(scope="session")
def noise() -> Callable[..., np.ndarray]:
    return ar1


@pytest.fixture(scope="session")
def entropy() -> Callable[[int], np.ndarray]:
    return falling_entropy


@pytest.fixture(scope="session")
def law_curve() -> Callable[..., LawPoints]:
    """R = -0.3 exp(H) + 0.8 and AR(1) noise, or with other coefficients."""

    def make(points: int, autocorrelation: float, seed, *, a=0.3, b=0.8, sd=0.02) -> LawPoints:
        rng, H = np.random.default_rng(seed), falling_entropy(points)
        reward = b - a * np.exp(H) + sd * ar1(points, autocorrelation, rng)
        return LawPoints.of(np.arange(points) + 1, H, reward)

    return make
