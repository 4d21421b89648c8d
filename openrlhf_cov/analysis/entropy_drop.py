"""Correlation of predictions of the entropy's fall with the fall that was measured on the same tokens (pure).

``openrlhf-cov lab --record_mechanism`` logs both at every step. The predictions are defined in
``openrlhf_cov.models.entropy_change``.
"""

from collections.abc import Mapping

import numpy as np

from openrlhf_cov.analysis.table import Table
from openrlhf_cov.models.dynamics import spearman

# Column of the measured fall.
MEASURED = "drop/measured"
# Column of a prediction -> its name in a table.
PREDICTIONS = {
    "drop/theorem1": "theorem 1",
    "drop/theorem2": "theorem 2",
    "drop/discriminator": "discriminator",
    "drop/natural": "natural gradient",
    "drop/drift": "drift alone",
}
# Steps below which there is no correlation.
FEWEST_STEPS = 10


def drop_correlations(table: Table) -> Mapping[str, float]:
    """Return Spearman's correlation of each prediction with the measured fall of the same step.

    Args:
        table: Metrics of a run with ``--record_mechanism``.

    Returns:
        Column of the prediction -> correlation over the steps that have both. NaN for fewer than ``FEWEST_STEPS``
        steps, and for a prediction that is constant: the drift is, to rounding, where positive and negative
        advantages balance.
    """
    measured = table.column(MEASURED)
    found: dict[str, float] = {}
    for name in PREDICTIONS:
        predicted = table.column(name)
        both = np.isfinite(predicted) & np.isfinite(measured)
        enough = int(both.sum()) >= FEWEST_STEPS and not is_rounding(predicted[both], measured[both])
        found[name] = spearman(predicted[both].tolist(), measured[both].tolist()) if enough else float("nan")
    return found


# A prediction whose largest value is below this share of the largest measured fall predicts nothing but rounding.
ROUNDING = 1e-4


def is_rounding(predicted: np.ndarray, measured: np.ndarray) -> bool:
    """Return True if a prediction is 0 up to rounding.

    Args:
        predicted: Predicted falls of the entropy in nats (n,), finite, n at least 1.
        measured: Measured falls in nats (n,), to whose largest the prediction is compared.
    """
    return bool(np.abs(predicted).max() < ROUNDING * np.abs(measured).max())
