"""Rank correlations of predicted and measured falls of the entropy."""

import math

import numpy as np
import pytest

from openrlhf_cov.analysis.entropy_drop import drop_correlations
from openrlhf_cov.analysis.table import Table

STEPS = np.arange(1, 13)


def table(**columns):
    return Table(STEPS, {f"drop/{name}": np.asarray(values, dtype=float) for name, values in columns.items()})


def test_a_correlation_is_one_of_ranks():
    measured = STEPS**2
    # One exchange of neighbours among 12 ranks: 1 - 6 * (1 + 1) / (12 * 143).
    exchanged = [2, 1, *range(3, 13)]
    found = drop_correlations(
        table(measured=measured, theorem1=np.exp(STEPS), theorem2=-STEPS, discriminator=exchanged)
    )
    assert found["drop/theorem1"] == pytest.approx(1.0)
    assert found["drop/theorem2"] == pytest.approx(-1.0)
    assert found["drop/discriminator"] == pytest.approx(1 - 12 / 1716)
    assert math.isnan(found["drop/natural"])


def test_rounding_and_few_steps_have_no_correlation():
    # The largest drift is a hundred-thousandth of the largest fall.
    found = drop_correlations(table(measured=STEPS, drift=STEPS * 1e-5))
    assert math.isnan(found["drop/drift"])
    few = np.where(STEPS < 10, STEPS, np.nan)
    assert math.isnan(drop_correlations(table(measured=few, theorem1=STEPS))["drop/theorem1"])
