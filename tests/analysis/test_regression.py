import numpy as np
import pytest

from openrlhf_cov.analysis.regression import Design, Regression, block_length, student_quantile

X = np.array([9.0, 5, 4, 3, 2.5, 2, 1.5, 1, 0])
LINE = np.stack([np.ones(9), X], axis=1)


# --- least squares


def test_line_by_hand():
    # means 1 and 3; slope (-1 * -2 + 0 * 1 + 1 * 1) / (1 + 0 + 1) = 3/2, intercept 3 - 3/2
    regression = Regression.least_squares(Design(np.array([[1.0, 0], [1, 1], [1, 2]])), [1.0, 4, 4])
    np.testing.assert_allclose(regression.coefficients, [1.5, 1.5], rtol=0, atol=1e-12)
    np.testing.assert_allclose(regression.residuals, [-0.5, 1, -0.5], rtol=0, atol=1e-12)


@pytest.mark.parametrize("regressors", [np.ones((9, 2)), np.ones((2, 2)), np.stack([X, 2 * X], axis=1)])
def test_regressors_that_follow_from_others_are_refused(regressors):
    with pytest.raises(ValueError, match=r"regressor|points"):
        Design(regressors)


# --- autocorrelation of residuals


def moments(autocorrelation):
    """E r'r, E r'Lr and cov(Q'u) of noise of variance 1, from dense matrices."""
    S = autocorrelation ** abs(np.subtract.outer(np.arange(9), np.arange(9)))
    Q, _ = np.linalg.qr(LINE)
    M = np.eye(9) - Q @ Q.T
    shift = (np.eye(9, k=1) + np.eye(9, k=-1)) / 2
    return np.trace(M @ S @ M), np.trace(M @ shift @ M @ S), Q.T @ S @ Q, M @ shift @ M


@pytest.mark.parametrize("autocorrelation", [-0.5, 0.0, 0.5, 0.8, 0.95])
def test_noise_of_residuals_with_exactly_the_expected_moments(autocorrelation):
    squares, products, covariance, residual_shift = moments(autocorrelation)
    values, vectors = np.linalg.eigh(residual_shift)
    # r = sqrt(w) v_low + sqrt(1 - w) v_high has r'Lr = w low + (1 - w) high; both ends are residuals of the line
    weight = (values[-1] - products / squares) / (values[-1] - values[0])
    residuals = np.sqrt(squares) * (np.sqrt(weight) * vectors[:, 0] + np.sqrt(1 - weight) * vectors[:, -1])
    found, variance, covariances = Design(LINE).noise_of(3 * residuals[None])
    np.testing.assert_allclose([found[0], variance[0]], [autocorrelation, 9.0], rtol=1e-9, atol=1e-9)
    # up to the sign of each column of Q
    np.testing.assert_allclose(abs(covariances[0]), 9 * abs(covariance), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_autocorrelation_is_not_biased_by_the_fit(law_curve):
    # naive lag-1 correlations of residuals of 36 points average 0.35 here; standard error of the mean is 0.008
    found, naive = [], []
    for seed in range(400):
        points = law_curve(36, 0.5, seed)
        design = Design(np.stack([np.ones(36), np.exp(points.entropy)], axis=1))
        regression = Regression.least_squares(design, points.reward)
        found.append(regression.noise.autocorrelation)
        residuals = regression.residuals
        naive.append(residuals[1:] @ residuals[:-1] / (residuals @ residuals))
    assert abs(np.mean(found) - 0.5) < 0.05
    assert np.mean(naive) < 0.4


def test_effective_points(noise):
    # the mean of AR(1) noise has the variance of n (1 - phi) / (1 + phi) independent points, here 1000 / 3
    series = noise(1000, 0.5, np.random.default_rng(0))
    regression = Regression.least_squares(Design(np.ones((1000, 1))), series)
    phi = regression.noise.autocorrelation
    assert regression.effective_points == pytest.approx(1000 * (1 - phi) / (1 + phi), rel=5e-3)  # ends, table
    assert 270 < regression.effective_points < 400  # phi is 0.5 to 0.05


# --- blocks


def test_block_length_of_independent_values_is_short_and_of_autocorrelated_ones_long(noise):
    lengths = {
        phi: np.mean([block_length(noise(400, phi, np.random.default_rng(seed))) for seed in range(100)])
        for phi in (0.0, 0.5, 0.9)
    }
    # the rule's value for known covariances: (2 G^2 / D)^(1/3) n^(1/3), G = 2 phi / (1 - phi)^2,
    # D = 4/3 ((1 + phi) / (1 - phi))^2 in units of the variance: 10.2 for phi = 0.5, 38 for 0.9
    assert lengths[0.0] < 3
    assert 7 < lengths[0.5] < 14
    assert 25 < lengths[0.9] < 50


@pytest.mark.parametrize("series", [[], [1.0], [1.0, 2.0, 3.0], np.ones(50), np.arange(50.0) % 2])
def test_block_length_of_odd_series(series):
    assert 1 <= block_length(series) <= max(1, len(series) / 3)


def test_blocks_keep_what_ar1_does_not_explain(noise):
    # u[t] = 0.7 u[t - 2] + e[t] has no lag-1 correlation. In units of the variance of e, that of sqrt(n) times the
    # mean is 1 / 0.3^2, that of u 1 / 0.51: AR(1) would make the standard error of the mean 2.4 times too small
    rng = np.random.default_rng(2)
    even, odd = noise(300, 0.7, rng), noise(300, 0.7, rng)
    series = np.stack([even, odd], axis=1).ravel()
    regression = Regression.least_squares(Design(np.ones((600, 1))), series)
    drawn = regression._resampled_noise(400, np.random.default_rng(0)).mean(axis=1)
    assert abs(regression.noise.autocorrelation) < 0.15
    assert regression.block_length >= 8
    assert drawn.std() > 1.7 * series.std() / np.sqrt(600)


# --- draws


def test_noise_is_resampled_in_its_size(noise):
    # the estimate of a resample's standard deviation, at 200 points uncertain to some 15 %, is right on average
    y = noise(200, 0.8, np.random.default_rng(1))
    drawn = Regression.least_squares(Design(np.ones((200, 1))), y).draws(resamples=500)
    assert np.median(drawn.sd_ratio) == pytest.approx(1, abs=0.06)
    # of 9 white values the plausible variance over the estimate is about 8 / chi-squared(8), of mean 8 / 6; that of
    # its inverse is 1
    few = Regression.least_squares(Design(np.ones((9, 1))), np.random.default_rng(1).standard_normal(9)).draws()
    assert np.mean(few.sd_ratio**2) > 1.2


def test_blocks_of_equal_values_are_no_certainty():
    # resamples without the 1 do not vary at all
    drawn = Regression.least_squares(Design(np.ones((12, 1))), [0.0] * 11 + [1.0]).draws()
    assert np.isfinite(drawn.coefficients).all()
    assert drawn.sd_ratio.max() <= 10
    assert np.ptp(np.quantile(drawn.coefficients, [0.05, 0.95])) < 2


def test_skewed_noise_leaves_more_room_on_its_side():
    # the mean of exponential values errs low together with its standard error: the truth is further up than down
    y = np.random.default_rng(2).exponential(size=30)
    drawn = Regression.least_squares(Design(np.ones((30, 1))), y).draws().coefficients[:, 0]
    low, high = np.quantile(drawn, [0.025, 0.975]) - y.mean()
    assert high > 1.2 * -low


# --- long series


@pytest.mark.parametrize(
    ("freedom", "level", "expected"),  # Student's table
    [(1, 0.95, 12.7062), (7, 0.95, 2.3646), (7, 0.99, 3.4995), (4, 0.5, 0.7407), (4, 0, 0)],
)
def test_quantiles_are_those_of_the_tables(freedom, level, expected):
    assert student_quantile(freedom, level) == pytest.approx(expected, abs=5e-5)
