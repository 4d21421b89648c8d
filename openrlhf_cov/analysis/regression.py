"""Least squares on a series whose noise is autocorrelated: coefficients with draws of what they may be (pure).

Steps of a run are not independent: a policy that happened to be good at one step still is at the next. Intervals that
ignore it are too narrow, at a lag-1 autocorrelation of 0.5 by a factor of 1.7. Here everything that is inferred from
a series (law, theory, curvature tests) goes through one block bootstrap, ``Regression.draws``.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from mpmath import betainc
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.utils.estimates import SEED

Floats = NDArray[np.float64]

RESAMPLES = 2000
# Longer series are averaged over consecutive points, to at most this many, before they are resampled.
#
# The noise of an evaluation is white, that of a policy that wanders is not, and AR(1) takes their sum for white. Of
# 200 points with noise of autocorrelation 0.8 and white noise of 2.25 times its variance, 83 % of the intervals would
# hold the truth without this, 93 % do with it; of 60 such points, which are not averaged, 85 %. Where the noise is
# AR(1) alone, intervals are a tenth to a fifth wider for it.
MAX_POINTS = 64
# Lag-1 autocorrelations for which the moments of a design are tabulated; values between are interpolated.
AUTOCORRELATIONS: Floats = np.concatenate([np.linspace(-0.9, 0.9, 73), [0.925, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99]])
# A resampled series is started so early that this share of its first value is left where it is used.
BURN_IN = 0.01
RANK_TOLERANCE = 1e-9
# Residuals smaller than this, in parts of the largest value, are none.
ROUNDING = 1e-13
# Resampled noise with less than this part of the variance of the noise is no measure of an error.
SMALLEST_VARIANCE = 0.01


@dataclass(frozen=True)
class Noise:
    """AR(1) noise, u[t] = autocorrelation * u[t - 1] + innovation[t], with the standard deviation ``sd`` of u."""

    autocorrelation: float
    sd: float


@dataclass(frozen=True)
class Draws:
    """Plausible coefficients: ``coefficients`` (resamples, k), of which the middle 95 % are a 95 % interval.

    ``sd_ratio`` (resamples,) is the plausible standard deviation of the noise, in parts of the estimate.
    ``statistic`` (resamples,) is ``Regression.statistic`` of noise alone: what it is where the tested terms are 0.
    """

    coefficients: Floats
    sd_ratio: Floats
    statistic: Floats


class Design:
    """Regressors (n, k) in the order of time, and what least squares does to AR(1) noise that is seen through them.

    With X = QR, P = QQ', M = I - P, S = the correlation matrix of AR(1) noise with autocorrelation phi, and L the
    matrix for which u'Lu = sum of u[t] u[t + 1], the residuals r = Mu have

        E r'r = sd^2 (n - tr Q'SQ),    E r'Lr = sd^2 tr(MLMS),    cov(Q'u) = sd^2 Q'SQ.

    Residuals of a trending regressor look less autocorrelated than the noise is: at n = 36 and phi = 0.5 by 0.15.
    Hence phi is the one for which E r'Lr / E r'r is what the residuals show, instead of their own autocorrelation.
    """

    def __init__(self, regressors: ArrayLike) -> None:
        self.regressors = np.asarray(regressors, dtype=np.float64)
        points, terms = self.regressors.shape
        if points <= terms:
            raise ValueError(f"{terms} coefficients need more than {terms} points, got {points}")
        self.q, self.r = np.linalg.qr(self.regressors)
        # The diagonal of R is what is left of each column after the columns before it.
        size = np.abs(np.diag(self.r))
        if (size <= RANK_TOLERANCE * np.linalg.norm(self.regressors, axis=0)).any():
            raise ValueError("a regressor does not vary, or follows from the others")

    def __len__(self) -> int:
        return len(self.q)

    @cached_property
    def _moments(self) -> tuple[Floats, Floats, Floats]:
        """At each of ``AUTOCORRELATIONS``: lag-1 correlation of residuals, E r'r / sd^2, cov(Q'u) / sd^2."""
        points = len(self)
        powers = AUTOCORRELATIONS[:, None] ** np.arange(points)
        neighbors = np.zeros_like(self.q)  # LQ
        neighbors[1:] += self.q[:-1] / 2
        neighbors[:-1] += self.q[1:] / 2
        covariances = _quadratic(self.q, self.q, powers)
        squares = points - np.trace(covariances, axis1=1, axis2=2)
        products = (points - 1) * AUTOCORRELATIONS - 2 * np.trace(_quadratic(neighbors, self.q, powers), 0, 1, 2)
        products = products + np.einsum("ij,gji->g", self.q.T @ neighbors, covariances)
        # Rounding must not make the table fall: np.interp needs ascending values.
        return np.maximum.accumulate(products / squares), squares, covariances

    def noise_of(self, residuals: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the autocorrelation (m,), variance (m,) and covariance (m, k, k) of Q'u for residuals (m, n)."""
        expected, expected_squares, covariances = self._moments
        squares = (residuals**2).sum(axis=1)
        products = (residuals[:, 1:] * residuals[:, :-1]).sum(axis=1)
        # residuals without any size have no autocorrelation
        seen = np.divide(products, squares, out=np.zeros_like(squares), where=squares > 0)
        phi = np.interp(seen, expected, AUTOCORRELATIONS)
        variance = squares / np.interp(phi, AUTOCORRELATIONS, expected_squares)
        terms = self.q.shape[1]
        flat = [np.interp(phi, AUTOCORRELATIONS, column) for column in covariances.reshape(len(covariances), -1).T]
        return phi, variance, variance[:, None, None] * np.stack(flat, axis=-1).reshape(-1, terms, terms)


@dataclass(frozen=True)
class Regression:
    """A fit y = X c + u: ``coefficients`` (k,) and ``residuals`` (n,), orthogonal to the columns of X."""

    design: Design
    coefficients: Floats
    residuals: Floats

    @classmethod
    def least_squares(cls, design: Design, y: ArrayLike) -> "Regression":
        """Return the fit of least squares.

        Args:
            design: The regressors, of n rows.
            y: The response (n,).
        """
        y = np.asarray(y, dtype=np.float64)
        scores = design.q.T @ y
        residuals = y - design.q @ scores
        # Points on a line have residuals of rounding, whose autocorrelation means nothing.
        if np.abs(residuals).max() <= ROUNDING * np.abs(y).max():
            residuals = np.zeros_like(residuals)
        return cls(design, np.asarray(np.linalg.solve(design.r, scores), dtype=np.float64), residuals)

    @cached_property
    def noise(self) -> Noise:
        """The noise that the residuals show."""
        phi, variance, _ = self.design.noise_of(self.residuals[None])
        return Noise(float(phi[0]), math.sqrt(variance[0]))

    @cached_property
    def score_covariance(self) -> Floats:
        """Covariance (k, k) of Q'y under the noise found."""
        return self.design.noise_of(self.residuals[None])[2][0]

    @property
    def block_length(self) -> int:
        """Length of the blocks of ``draws``: the automatic one of the innovations."""
        return block_length(self.innovations)

    @cached_property
    def innovations(self) -> Floats:
        """The innovations (n - 1,) of AR(1) residuals, centred and scaled to the variance of the noise."""
        phi = self.noise.autocorrelation
        sd = self.noise.sd
        innovations = self.residuals[1:] - phi * self.residuals[:-1]
        innovations = innovations - innovations.mean()
        size = math.sqrt((innovations**2).mean())
        return innovations * (sd * math.sqrt(1 - phi**2) / size) if size else innovations

    @property
    def effective_points(self) -> float:
        """Number of independent rows whose mean is as certain, for a design whose first regressor is constant."""
        return self.noise.sd**2 / self.variance_of_mean if self.variance_of_mean else float(len(self.design))

    @property
    def variance_of_mean(self) -> float:
        """Variance of the mean of the noise, for a design whose first regressor is constant."""
        # The first column of Q is then 1 / sqrt(n) in every row.
        return float(self.score_covariance[0, 0]) / len(self.design)

    def statistic(self, tested: int) -> float:
        """Return the Wald statistic of the last ``tested`` coefficients; 0 without noise."""
        scores = self.design.r @ self.coefficients
        return float(_wald(scores[None], self.score_covariance[None], tested)[0])

    def draws(self, *, tested: int = 0, resamples: int = RESAMPLES, seed: int = SEED) -> Draws:
        """Return plausible coefficients by a studentized, post-blackened moving-block bootstrap.

        1. Prewhiten: innovations e[t] = r[t] - phi r[t - 1] of the residuals (Davison & Hinkley 1997, sec. 8.2).
        2. Draw blocks of ``block_length`` consecutive innovations with replacement, circularly, and put the AR(1)
           back: noise series u* with the same regressors. Blocks keep what AR(1) does not explain.
        3. Fit each u*: the error Q'u* and the covariance C* estimated from its residuals, as C from the real ones.
        4. A plausible coefficient is estimate - R^-1 C^(1/2) C*^(-1/2) Q'u*: the error in units of the standard error
           that goes with it. Without it, intervals are as if noise and phi were known: 89 % instead of 94 % at n = 36.

        Differs from the textbook: the regressors stay in their place, since they trend (blocks of pairs would mix
        high entropies into late steps), and the noise has the same distribution at every step.

        Args:
            tested: Number of the last coefficients whose Wald statistic is drawn; 0 for none.
            resamples: Number of draws.
            seed: Seed of the draws.
        """
        rng = np.random.default_rng(seed)
        # (resamples, n): noise seen through the same regressors, and below what a fit would find in it.
        noise = self._resampled_noise(resamples, rng)
        scores = noise @ self.design.q
        _, variances, covariances = self.design.noise_of(noise - scores @ self.design.q.T)
        variance = self.noise.sd**2
        if variance == 0:
            return Draws(np.tile(self.coefficients, (resamples, 1)), np.ones(resamples), np.zeros(resamples))
        # blocks of equal values, of a series that takes few
        still = variances <= SMALLEST_VARIANCE * variance
        variances = np.where(still, variance, variances)
        covariances = np.where(still[:, None, None], self.score_covariance, covariances)
        whitened = np.linalg.solve(np.linalg.cholesky(covariances), scores[:, :, None])[:, :, 0]
        errors = np.linalg.solve(self.design.r, np.linalg.cholesky(self.score_covariance) @ whitened.T).T
        statistic = _wald(scores, covariances, tested) if tested else np.zeros(resamples)
        return Draws(self.coefficients - errors, np.sqrt(variance / variances), statistic)

    def _resampled_noise(self, resamples: int, rng: np.random.Generator) -> Floats:
        """Return noise series (resamples, n)."""
        phi = self.noise.autocorrelation
        innovations = self.innovations
        length = self.block_length
        burn_in = math.ceil(math.log(BURN_IN) / math.log(abs(phi))) if abs(phi) > BURN_IN else 1
        points = len(self.design) + burn_in
        # Circular blocks: one that begins near the end goes on at the start, so every innovation is drawn equally
        # often.
        starts = rng.integers(0, len(innovations), (resamples, -(-points // length)))
        places = (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :points] % len(innovations)
        # Time first, so that each round of the loop below works on one stretch of memory.
        noise = np.ascontiguousarray(innovations[places].T)
        # The first value has the stationary variance, so a short burn-in is enough.
        noise[0] /= math.sqrt(1 - phi**2)
        for t in range(1, points):
            noise[t] += phi * noise[t - 1]
        return np.ascontiguousarray(noise[burn_in:].T)


def block_length(series: ArrayLike) -> int:
    """Return the length for a circular block bootstrap of the mean of a series (Politis & White 2004, corrected 2009).

    (2 G^2 / D)^(1/3) n^(1/3) with G = sum of |k| R(k), D = 4/3 (sum of R(k))^2, over autocovariances R(k) under the
    flat-top window 2M, where M is the first lag after which K correlations lie within 2 sqrt(log10(n) / n). From 1 to
    the smaller of 3 sqrt(n) and n / 3.
    """
    series = np.asarray(series, dtype=np.float64)
    points = len(series)
    if points < 4 or not np.ptp(series):
        return 1
    # K of the paper, the number of small correlations in a row that end the search.
    checked = max(5, math.ceil(math.sqrt(math.log10(points))))
    most = min(math.ceil(math.sqrt(points)) + checked, points - 1)
    centred = series - series.mean()
    covariances = np.array([centred[lag:] @ centred[: points - lag] / points for lag in range(most + 1)])
    small = np.abs(covariances[1:]) < 2 * math.sqrt(math.log10(points) / points) * covariances[0]
    last = next((lag for lag in range(len(small)) if small[lag : lag + checked].all()), len(small))
    lags = np.arange(1, min(2 * max(last, 1), most) + 1)
    # The flat-top window is 1 up to half of the lags, and then falls to 0.
    weights = np.clip(2 * (1 - lags / lags[-1]), 0, 1) if len(lags) > 1 else np.ones(1)
    weighted = weights * covariances[lags]
    bias = 2 * (lags * weighted).sum()
    variance = 4 / 3 * (covariances[0] + 2 * weighted.sum()) ** 2
    length = (2 * bias**2 / variance * points) ** (1 / 3) if variance else 1.0
    return int(np.clip(math.ceil(length), 1, max(1, min(3 * math.sqrt(points), points / 3))))


def running_mean(values: Floats, window: int, places: NDArray[np.intp]) -> Floats:
    """Return the mean of the values around each of some places, (m,). At an end the window has fewer values.

    Args:
        values: Values (n,).
        window: Number of values in the mean, an odd number.
        places: Indices (m,) of the values in the middle of each mean.
    """
    if window == 1:
        return values[places]
    half = window // 2
    sums = np.concatenate([[0.0], values.cumsum()])
    first = np.maximum(places - half, 0)
    last = np.minimum(places + half + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def extremes(values: Floats, most: int) -> NDArray[np.intp]:
    """Return the places of at most ``most`` values, ascending: both ends, and the extremes of each of equal parts.

    Args:
        values: Values (n,).
        most: Largest number of places.
    """
    if len(values) <= most:
        return np.arange(len(values))
    starts = np.linspace(0, len(values), max(1, (most - 2) // 2) + 1).astype(np.intp)
    parts = [(start, values[start:end]) for start, end in pairwise(starts)]
    found = [start + place for start, part in parts for place in (part.argmin(), part.argmax())]
    return np.unique([0, *found, len(values) - 1])


def thinned(series: Floats, most: int = MAX_POINTS) -> Floats:
    """Return the means of consecutive rows, all of the same number of rows but the last.

    A linear law of the rows is one of their means, too.

    Args:
        series: Rows (n, ...) in the order of time.
        most: Largest number m of means.

    Returns:
        Means (m, ...); the series itself if it has at most ``most`` rows.
    """
    if len(series) <= most:
        return series
    size = -(-len(series) // most)
    starts = np.arange(0, len(series), size)
    counts = np.diff(np.append(starts, len(series)))
    return np.add.reduceat(series, starts) / counts.reshape(-1, *[1] * (series.ndim - 1))


def _quadratic(a: Floats, b: Floats, powers: Floats) -> Floats:
    """Return a'Sb (g, k, k) for every row of ``powers`` (g, n): phi^0, phi^1, ..., with S[i, j] = phi^|i - j|."""
    points = len(a)
    by_lag = np.empty((a.shape[1], b.shape[1], points))
    for i, j in np.ndindex(*by_lag.shape[:2]):
        # S depends on |i - j| alone, so a'Sb is a sum over lags of these correlations, for every phi.
        products = np.correlate(a[:, i], b[:, j], "full")
        by_lag[i, j] = products[points - 1 :]
        by_lag[i, j, 1:] += products[: points - 1][::-1]
    return np.einsum("gn,ijn->gij", powers, by_lag, optimize=True)


def _wald(scores: Floats, covariances: Floats, tested: int) -> Floats:
    """Return s' C^-1 s of the last ``tested`` of scores (m, k) with covariances (m, k, k); 0 where C is 0."""
    scores = scores[:, -tested:]
    covariances = covariances[:, -tested:, -tested:]
    if not covariances.any():
        return np.zeros(len(scores))
    return (scores * np.linalg.solve(covariances, scores[:, :, None])[:, :, 0]).sum(axis=1)


@lru_cache
def student_quantile(freedom: float, level: float) -> float:
    """Return t with P(|T| <= t) = ``level`` for Student's T, by Newton's method on the incomplete beta function.

    Args:
        freedom: Degrees of freedom, above 0.
        level: Probability inside [-t, t], in (0, 1).
    """
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    t = 0.0
    # The density of |T| falls, so the probability is concave in t, and no step from below passes the quantile.
    while True:
        density = 2 * math.exp(log_scale - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = (level - _inside(t, freedom)) / density
        t += step
        if step <= 1e-14 * t:
            return t


def _inside(t: float, freedom: float) -> float:
    return 1 - float(betainc(freedom / 2, 0.5, 0, freedom / (freedom + t * t), regularized=True))
