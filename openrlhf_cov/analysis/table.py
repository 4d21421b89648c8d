"""Columns of numbers by step, put together from rows as a log holds them: repeated, out of order, with holes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.utils.metric_table import TIME

# Beyond it floats are whole, but not all whole numbers are floats.
LARGEST_STEP = 2**53
# Largest value of a metric: no training computes a larger one, and results of arithmetic with it stay finite.
LARGEST = 1e100


@dataclass(frozen=True, eq=False)
class Table:
    """``steps`` (n,) are ascending and distinct; each column is (n,), a finite number or NaN where there is none."""

    steps: NDArray[np.int64]
    columns: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.steps)

    def column(self, name: str) -> Floats:
        """Return the values (n,) of a name, all NaN if the log does not have it."""
        found = self.columns.get(name)
        return np.full(len(self.steps), np.nan) if found is None else found


EMPTY = Table(np.zeros(0, dtype=np.int64), {})


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows in the order in which they were written; ``steps`` is NaN where a row has none."""

    steps: Floats
    columns: dict[str, Floats]


def join(parts: Sequence[Rows]) -> Rows:
    """Return all rows of all parts; a name that a part lacks is NaN there."""

    def column(name: str) -> Floats:
        nothing = (np.full(len(part.steps), np.nan) for part in parts)
        return np.concatenate([part.columns.get(name, empty) for part, empty in zip(parts, nothing, strict=True)])

    names = dict.fromkeys(name for part in parts for name in part.columns)
    steps = np.concatenate([np.zeros(0), *(part.steps for part in parts)])
    return Rows(steps, {name: column(name) for name in names})


def to_table(rows: Rows, *, whole_rows: bool) -> tuple[Table, list[str]]:
    """Return a table with one row per step, and warnings about what was odd in the rows.

    A run that was stopped and resumed writes steps again. Of two rows of a step the one written last counts. Rows that
    a resumed run has left behind it, i.e. of higher steps than one that was written later by the clock in ``time`` as
    well, belong to no one and are left out. Columns without a number are left out.

    Args:
        rows: The rows in the order in which they were written.
        whole_rows: True if all of the last row of a step counts; False if each value counts that a row has. An export
            may hold training and evaluation of a step in two rows.
    """
    usable = (abs(rows.steps) <= LARGEST_STEP) & (rows.steps == np.floor(rows.steps))
    warnings = [] if usable.all() else [f"rows without a whole step left out, {(~usable).sum()}"]
    times = rows.columns.get(TIME)
    stale = np.zeros(len(usable), dtype=bool) if times is None else _abandoned(rows.steps, times) & usable
    if stale.any():
        low = rows.steps[stale].min()
        high = rows.steps[stale].max()
        warnings.append(f"rows from before the run was resumed left out, {stale.sum()}: steps {low:.0f} to {high:.0f}")
    kept = np.flatnonzero(usable & ~stale)
    if len(kept) == len(usable) and (np.diff(rows.steps) > 0).all():
        # The usual case, without a copy.
        steps = rows.steps
        columns = rows.columns
    else:
        steps, place = np.unique(rows.steps[kept], return_inverse=True)
        columns, repeated = _merged(rows, kept, place, len(steps), whole_rows)
        if repeated:
            warnings.append(f"rows of a step that was written again left out, {repeated}")
    numbers = {name: values for name, values in columns.items() if not np.isnan(values).all()}
    return Table(steps.astype(np.int64), numbers), warnings


def _merged(
    rows: Rows, kept: NDArray[np.intp], place: NDArray[np.intp], count: int, whole_rows: bool
) -> tuple[dict[str, Floats], int]:
    """Return the columns (count,) of the ``kept`` rows, each at its ``place``.

    Also return the number of rows that lost a value to a later row of the same step.
    """
    order = np.zeros(count, dtype=np.intp)
    order[place] = np.arange(len(kept))  # numpy keeps the last of repeated places
    if whole_rows:
        chosen = kept[order]
        return {name: values[chosen] for name, values in rows.columns.items()}, len(kept) - count
    columns = {}
    repeated = np.zeros(len(kept), dtype=bool)
    for name, values in rows.columns.items():
        values = values[kept]
        there = np.flatnonzero(~np.isnan(values))
        latest = np.full(count, -1, dtype=np.intp)
        latest[place[there]] = there
        columns[name] = np.where(latest >= 0, values[latest], np.nan)
        repeated[there] |= latest[place[there]] != there
    return columns, int(repeated.sum())


def _abandoned(steps: Floats, times: Floats) -> NDArray[np.bool_]:
    """Return the mask (n,) of the rows that a resumed run abandoned: a later row goes back to a lower step."""
    goes_back = _goes_back(steps, times)
    if not goes_back.any():
        return np.zeros(len(steps), dtype=bool)
    lowest = np.where(goes_back, steps, np.inf)
    after = np.minimum.accumulate(lowest[::-1])[::-1]  # the lowest step that is gone back to, here or later
    return steps > np.append(after[1:], np.inf)


def _goes_back(steps: Floats, times: Floats) -> NDArray[np.bool_]:
    """Return the mask (n,) of the rows that go back to a lower step than one before them.

    The clock must agree that the row is later.
    A row copied to the end of the file carries an old time and goes back to nothing.
    """
    before = np.maximum.accumulate(np.concatenate([[-np.inf], np.nan_to_num(steps, nan=-np.inf)]))[:-1]
    clock = np.maximum.accumulate(np.concatenate([[-np.inf], np.nan_to_num(times, nan=-np.inf)]))[:-1]
    return (steps < before) & (times > clock)


def without_abandoned_evaluations(evaluations: Rows, training: Sequence[Rows]) -> tuple[Rows, list[str]]:
    """Return the evaluations that a resumed run has not left behind, and a warning about the others.

    An evaluation is left behind if a later row of the training goes back to a step before it. Its own rows may not
    tell: the resumed run has perhaps not come to its next evaluation yet.

    Args:
        evaluations: The rows of the evaluations.
        training: Rows of the training, in the order in which they were written, all with a ``time``.
    """
    left = np.zeros(len(evaluations.steps), dtype=bool)
    for rows in training:
        times = rows.columns[TIME]
        for place in np.flatnonzero(_goes_back(rows.steps, times)):
            left |= (evaluations.steps > rows.steps[place]) & (evaluations.columns[TIME] < times[place])
    if not left.any():
        return evaluations, []
    kept = Rows(evaluations.steps[~left], {name: values[~left] for name, values in evaluations.columns.items()})
    return kept, [f"evaluations from before the run was resumed left out, {left.sum()}"]


def missing_steps(steps: NDArray[np.int64]) -> tuple[int, int]:
    """Return how many steps an ascending log skips, and the step before the first gap; (0, 0) if none.

    The stride is the distance that most neighbors have: a log of every tenth step has no gaps. Where fewer than half
    of them have one distance there is no usual stride, and nothing is missing.
    """
    apart = np.diff(steps)
    strides, counts = np.unique(apart, return_counts=True)
    if not len(apart) or 2 * counts.max() < len(apart):
        return 0, 0
    missing = np.rint(apart / strides[counts.argmax()]).astype(np.int64) - 1
    places = np.flatnonzero(missing > 0)
    return (int(missing[places].sum()), int(steps[places[0]])) if len(places) else (0, 0)


def to_numbers(values: Sequence[Any]) -> tuple[Floats, int]:
    """Return values as floats (n,), and how many of them are no numbers.

    Args:
        values: The n values. None and "" are missing values.

    Returns:
        Floats with NaN for missing values and for what is no number up to ``LARGEST``, and the count of the latter.
    """
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.empty(0)
    if numbers.shape != (len(values),):  # also where all values are lists of one length
        numbers = np.array([_to_number(value) for value in values], dtype=np.float64)
    # Negated, because NaN is not at most anything either.
    absent = np.flatnonzero(~(abs(numbers) <= LARGEST))
    numbers[absent] = np.nan
    return numbers, sum(values[i] is not None and values[i] != "" for i in absent)


def _to_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan
