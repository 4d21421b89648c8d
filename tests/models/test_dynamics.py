import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.models.dynamics import EntropyDynamics, spearman

series = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), max_size=30)


@given(series)
def test_rank_correlation_is_the_correlation_of_ranks(pairs):
    x, y = ([pair[i] for pair in pairs] for i in (0, 1))

    def ranks(values):
        return [sum(v < value for v in values) + (sum(v == value for v in values) + 1) / 2 for value in values]

    if len(set(x)) < 2 or len(set(y)) < 2:
        assert math.isnan(spearman(x, y))
    else:
        assert spearman(x, y) == pytest.approx(np.corrcoef(ranks(x), ranks(y))[0, 1], abs=1e-12)


def test_a_prediction_is_compared_with_the_step_after_it():
    dynamics = EntropyDynamics()
    first = dynamics.step(2.0, prob_weighted_cov=0.5, cov=3.0, eta=0.1)
    assert math.isnan(first["entropy/delta"])
    assert first["entropy/delta_theorem1"] == pytest.approx(-0.05)  # -0.1 * 0.5
    assert first["entropy/delta_theorem2"] == pytest.approx(-0.3)  # -0.1 * 3
    assert dynamics.step(1.5, 0.0, 0.0, 0.1)["entropy/delta"] == -0.5


def correlations(entropies, covs, weighted):
    dynamics = EntropyDynamics()
    values = [dynamics.step(*step, eta=1.0) for step in zip(entropies, weighted, covs, strict=True)]
    return [(value["entropy/corr_theorem1"], value["entropy/corr_theorem2"]) for value in values]


def test_correlations_from_the_fifth_pair_on():
    # entropy falls by 1, 2, 3, 4, 5; covariances of the step before have that order, the weighted ones the reverse
    seen = correlations([15.0, 14.0, 12.0, 9.0, 5.0, 0.0], [1, 2, 3, 4, 5, 0], [5, 4, 3, 2, 1, 0])
    assert all(math.isnan(value) for pair in seen[:5] for value in pair)
    assert seen[5] == pytest.approx((-1.0, 1.0))


def test_a_step_without_tokens_breaks_two_pairs():
    entropies, covs = [15.0, 14.0, math.nan, 12.0, 9.0, 5.0, 0.0, -6.0], [1, 2, math.nan, 3, 4, 5, 6, 0]
    seen = correlations(entropies, covs, covs)
    assert math.isnan(seen[6][1])  # pairs so far: steps 2, 5, 6, 7
    assert seen[7] == pytest.approx((1.0, 1.0))


def test_only_the_last_pairs_count():
    dynamics = EntropyDynamics()
    for step in range(2 * EntropyDynamics.WINDOW):
        sign = 1 if step < EntropyDynamics.WINDOW else -1  # first the wrong sign, then the right one
        value = dynamics.step(-float(step**2), 0.0, -float(sign * step), eta=1.0)
    assert value["entropy/corr_theorem2"] == pytest.approx(1.0)
