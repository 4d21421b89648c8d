"""The entropy law R = -a exp(H) + b: fit, forecast, running fit (pure).

H is the mean token entropy in nats, R the reward or the accuracy on validation problems, one pair per step (Cui et al.
2025, arXiv:2505.22617, eq. 6; the box in its section 2 misprints it as -a exp(H + b)). As entropy is used up, R rises
to the ceiling R(H = 0) = -a + b. ``openrlhf_cov.analysis.verdict.examine_law`` says whether the law holds on a run.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.analysis.regression import RESAMPLES, Design, Floats, Regression, thinned
from openrlhf_cov.utils.estimates import HIGHEST_ENTROPY, SEED, Interval, interval_of

# Two coefficients, and enough residuals to say anything about their autocorrelation.
FEWEST_POINTS = 6
# Points below which a verdict is not worth its name.
MIN_POINTS = 10
# Points below which a forecast's interval is too narrow.
#
# In a simulation of 250 runs (15 % fitted, autocorrelated noise) with 15 fitted points, 0.90 of the later points lie
# inside the 95 % interval, and the ceiling lies inside its interval in 0.88 of the runs. From 30 points on both are
# near 0.95.
NARROW_BELOW = 30
# Residuals above this many standard deviations count as if they were there: 95 % efficient under normal noise.
HUBER = 1.345
# At most; the reweighting ends as soon as the line no longer moves.
HUBER_ROUNDS = 200
# Places on the exp(H) axis at which a band is computed; linear between.
BAND_PLACES = 65


@dataclass(frozen=True)
class LawPoints:
    """The points of the law: ``steps``, ``entropy`` H and ``reward`` R, (n,) each, finite, in the order of time."""

    steps: Floats
    entropy: Floats
    reward: Floats

    @classmethod
    def of(cls, steps: ArrayLike, entropy: ArrayLike, reward: ArrayLike) -> "LawPoints":
        """Return points sorted by step, without those that lack a value or have an entropy that no policy can have.

        Args:
            steps: Global steps (n,).
            entropy: Mean token entropy H (n,) in nats; values from ``HIGHEST_ENTROPY`` on are left out.
            reward: Reward or accuracy R (n,).
        """
        rows = np.array([steps, entropy, reward], dtype=np.float64).reshape(3, -1)
        rows = rows[:, np.isfinite(rows).all(axis=0) & (np.abs(rows[1]) < HIGHEST_ENTROPY)]
        return cls(*rows[:, np.argsort(rows[0], kind="stable")])

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, part: slice | NDArray[np.intp]) -> "LawPoints":
        return LawPoints(self.steps[part], self.entropy[part], self.reward[part])


@dataclass(frozen=True, eq=False)
class LawFit:
    """R = -a exp(H) + b. Intervals are those of ``Regression.draws``, which allow for autocorrelated noise.

    ``rmse`` is in units of R, ``r2`` the share of the variance of R that the law explains. ``line_draws``
    (resamples, 2) are plausible pairs (b, -a), ``residual_draws`` (resamples,) plausible distances of a further point
    from the line. ``independent_points`` is the number of independent points whose mean is as certain as that of all
    points. The rest says how much there is behind the intervals, of the means of consecutive points that they come
    from (at most ``MAX_POINTS``): ``autocorrelation`` of neighbors, corrected for the fit, ``effective_points``, the
    number of independent ones that these means are worth, and the ``block_length`` of the bootstrap.
    """

    a: Interval
    b: Interval
    ceiling: Interval
    r2: float
    rmse: float
    points: int
    independent_points: float
    effective_points: float
    autocorrelation: float
    block_length: int
    method: str
    line_draws: Floats = field(repr=False)
    residual_draws: Floats = field(repr=False)

    def reward_at(self, entropy: ArrayLike) -> Floats:
        """Return -a exp(H) + b at each entropy H in nats, of any shape."""
        return self.b.estimate - self.a.estimate * np.exp(np.asarray(entropy, dtype=np.float64))

    def band(self, entropy: ArrayLike, *, further_points: bool = False) -> tuple[Floats, Floats]:
        """Return the lower and the upper end of the interval of the line at each entropy, or of a further point there.

        Pointwise, at the level of the fit's intervals. A further point is one far from those fitted: what noise it
        shares with the last of them is left out.

        Args:
            entropy: Entropies (n,) in nats.
            further_points: True for the interval of a further point.
        """
        x = np.exp(np.asarray(entropy, dtype=np.float64))
        if not x.size:
            return x, x
        # The draws at every point of a long run would take (resamples, n) numbers.
        places = np.unique(x) if x.size <= BAND_PLACES else np.linspace(x.min(), x.max(), BAND_PLACES)
        drawn = self.line_draws[:, :1] + self.line_draws[:, 1:] * places
        if further_points:
            drawn = drawn + self.residual_draws[:, None]
        ends = np.quantile(drawn, [(1 - self.a.level) / 2, (1 + self.a.level) / 2], axis=0)
        return np.interp(x, places, ends[0]), np.interp(x, places, ends[1])

    def slope_at(self, entropy: float) -> Interval:
        """Return dR/dH = -a exp(H), what a nat of entropy costs in reward, at an entropy in nats."""
        x = math.exp(entropy)
        # The factor is negative, so the upper end of a gives the lower end of the slope.
        return Interval(-self.a.estimate * x, -self.a.high * x, -self.a.low * x, self.a.level)

    def record(self) -> dict[str, Any]:
        """Return the numbers as JSON takes them, without the draws."""
        ends = {name: vars(getattr(self, name)) for name in ("a", "b", "ceiling")}
        names = ("r2", "rmse", "points", "independent_points", "effective_points")
        names += ("autocorrelation", "block_length", "method")
        values = ends | {name: getattr(self, name) for name in names}
        return values | {"r2": self.r2 if math.isfinite(self.r2) else None}


def fit_law(points: LawPoints, *, method: str = "least_squares", resamples: int = RESAMPLES) -> LawFit:
    """Return the fit of a and b.

    Differs from the paper, which reports neither intervals nor the autocorrelation of its residuals, and which fits
    validation accuracy alone. The fit of more than ``MAX_POINTS`` points is that of all of them; their intervals come
    from means of consecutive points.

    Args:
        points: Entropy in nats and reward of the steps.
        method: A key of ``METHODS``: ``least_squares``, or ``huber`` for a robust fit.
        resamples: Resamples of the intervals.

    Raises:
        ValueError: There are fewer than ``FEWEST_POINTS`` points, or the entropy does not vary.
    """
    if len(points) < FEWEST_POINTS:
        raise ValueError(f"the law needs at least {FEWEST_POINTS} points with entropy and reward, got {len(points)}")
    # (n, 2); the coefficients are (b, -a).
    regressors = np.stack([np.ones(len(points)), np.exp(points.entropy)], axis=1)
    design = Design(thinned(regressors))
    line, working = METHODS[method](regressors, points.reward)
    regression = Regression.least_squares(design, thinned(working))
    drawn = regression.draws(resamples=resamples)
    # The draws are around the fit of the thinned points; move them to the fit of all points.
    line_draws = drawn.coefficients + (line - regression.coefficients)
    residuals = points.reward - regressors @ line
    spread = ((points.reward - points.reward.mean()) ** 2).sum()
    return LawFit(
        a=interval_of(-line[1], -line_draws[:, 1]),
        b=interval_of(line[0], line_draws[:, 0]),
        ceiling=interval_of(line.sum(), line_draws.sum(axis=1)),
        r2=float(1 - (residuals**2).sum() / spread) if spread else math.nan,
        rmse=math.sqrt((residuals**2).mean()),
        points=len(points),
        independent_points=_independent_points(working - regressors @ line, regression),
        effective_points=regression.effective_points,
        autocorrelation=regression.noise.autocorrelation,
        block_length=regression.block_length,
        method=method,
        line_draws=line_draws,
        residual_draws=_further_residuals(residuals, regression, drawn.sd_ratio),
    )


def _independent_points(residuals: Floats, regression: Regression) -> float:
    """Return the number of independent points whose mean is as certain as that of all points.

    It is the variance of a point over the variance of the mean, at most the number of points.

    Args:
        residuals: Residuals (n,) of all points.
        regression: The regression of the means of consecutive points, whose first regressor is constant.
    """
    variance_of_mean = regression.variance_of_mean
    if not variance_of_mean:
        return float(len(residuals))
    # A fit takes about the same part of the noise from a point as from a mean of consecutive points.
    absorbed = regression.noise.sd**2 - (regression.residuals**2).mean()
    variance = (residuals**2).mean() + max(0.0, float(absorbed))
    return min(float(len(residuals)), float(variance) / variance_of_mean)


def _further_residuals(residuals: Floats, regression: Regression, sd_ratio: Floats) -> Floats:
    """Return residuals drawn with replacement, scaled to the size of the noise before a line is fitted to it."""
    fitted = math.sqrt((regression.residuals**2).mean())
    size = regression.noise.sd / fitted if fitted else 1.0
    # A stream of its own, independent of the draws of the line, which begin with SEED.
    chosen = np.random.default_rng([SEED, 1]).choice(residuals, len(sd_ratio))
    return chosen * size * sd_ratio


def _line(regressors: Floats, y: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(regressors, y)[0], dtype=np.float64)


def _least_squares(regressors: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the line of least squares, and the response that it works on: ``y`` itself."""
    return _line(regressors, y), y


def _huber(regressors: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the line of Huber's M-estimate (Huber 1981, ch. 7), and the response that it works on.

    Outlying rewards hardly move the line. The scale is the median absolute residual / 0.6745. Least squares of the
    working response, the fit plus the residuals cut at HUBER scales over the share that is not cut, is the same line
    and has, to first order, the same errors: intervals are those of a straight fit to it. Outlying entropies move the
    line as they do least squares'.
    """
    line = _line(regressors, y)
    # Nothing is cut before the first round.
    cut = y - regressors @ line
    inside = np.ones(len(y), dtype=bool)
    for _ in range(HUBER_ROUNDS):
        residuals = y - regressors @ line
        limit = HUBER * np.median(np.abs(residuals)) / 0.6745
        cut = np.clip(residuals, -limit, limit)
        inside = np.abs(residuals) <= limit
        # Inside the limit the weight is 1, also where the residual is 0.
        weights = np.divide(cut, residuals, out=np.ones_like(cut), where=~inside)
        root = np.sqrt(weights)
        updated = _line(regressors * root[:, None], y * root)
        if np.allclose(updated, line, rtol=1e-12, atol=1e-14):
            break
        line = updated
    return line, regressors @ line + cut / inside.mean()


METHODS: dict[str, Callable[[Floats, Floats], tuple[Floats, Floats]]] = {
    "least_squares": _least_squares,
    "huber": _huber,
}


@dataclass(frozen=True, eq=False)
class Forecast:
    """The law of the first ``fit.points`` points against the points ``later`` that it has not seen.

    ``predicted``, ``low`` and ``high`` (n,) are for the entropies that came; the law says what reward an entropy is
    worth, not when it comes. ``rmse`` and ``final_error`` (predicted minus observed, last point) are in units of R:
    the paper's 0.9 % and 0.5 % of accuracy are 0.009 and 0.005 here. ``in_band_frac`` is the share of the later points
    inside [low, high], ``persistence_rmse`` the error of forecasting the mean of the last points fitted, as many as a
    tenth of them: a forecast above it is worth nothing.
    """

    fit: LawFit
    later: LawPoints
    predicted: Floats
    low: Floats
    high: Floats
    rmse: float
    final_error: float
    in_band_frac: float
    persistence_rmse: float


def forecast(
    points: LawPoints, share: float, *, method: str = "least_squares", resamples: int = RESAMPLES
) -> Forecast:
    """Fit the law to the first points and predict the others (paper, section 2.3).

    The paper fits 36 steps, evaluated every 4, that is 9 points. Below ``NARROW_BELOW`` points warn the reader.

    Args:
        points: Entropy in nats and reward of the steps.
        share: Share of the points to fit, rounded down; the paper takes 0.15.
        method: ``least_squares``, or ``huber`` for a robust fit.
        resamples: Resamples of the intervals.

    Raises:
        ValueError: The share is not in (0, 1), or leaves fewer than ``FEWEST_POINTS`` points to fit.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"the share of points to fit is a fraction in (0, 1), got {share}")
    # The small number keeps a point from being lost to rounding: 0.29 * 100 is 28.999999999999996.
    count = int(share * len(points) + 1e-9)
    if count < FEWEST_POINTS:
        raise ValueError(f"a forecast needs at least {FEWEST_POINTS} points with entropy and reward, got {count}")
    known = points[:count]
    later = points[count:]
    fit = fit_law(known, method=method, resamples=resamples)
    predicted = fit.reward_at(later.entropy)
    low, high = fit.band(later.entropy, further_points=True)
    errors = predicted - later.reward
    last = known.reward[-max(1, count // 10) :].mean()
    return Forecast(
        fit=fit,
        later=later,
        predicted=predicted,
        low=low,
        high=high,
        rmse=math.sqrt((errors**2).mean()),
        final_error=float(errors[-1]),
        in_band_frac=float(((low <= later.reward) & (later.reward <= high)).mean()),
        persistence_rmse=math.sqrt(((last - later.reward) ** 2).mean()),
    )
