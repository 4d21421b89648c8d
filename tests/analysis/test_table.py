import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import missing

from openrlhf_cov.analysis.table import Rows, join, missing_steps, to_numbers, to_table

NAN = math.nan


def rows(steps, **columns):
    return Rows(np.array(steps, dtype=float), {name: np.array(each, dtype=float) for name, each in columns.items()})


def values(table):
    return table.steps.tolist(), {name: column.tolist() for name, column in table.columns.items()}


def test_row_written_last_counts_as_a_whole():
    table, warnings = to_table(rows([1, 2, 3, 2], a=[1, 2, 3, 20], b=[1, 2, 3, NAN]), whole_rows=True)
    assert table.column("a").tolist() == [1, 20, 3]
    np.testing.assert_array_equal(table.column("b"), [1, NAN, 3])
    assert [missing(warning, "written again", "1") for warning in warnings] == [[]]


def test_values_of_a_step_in_several_rows():
    # an export with training and evaluation in rows of their own; step 2 has two rewards, the later one counts
    table, warnings = to_table(
        rows([1, 1, 2, 2], reward=[0.1, NAN, 0.2, 0.3], score=[NAN, 0.5, NAN, NAN]), whole_rows=False
    )
    assert table.column("reward").tolist() == [0.1, 0.3]
    np.testing.assert_array_equal(table.column("score"), [0.5, NAN])
    assert [missing(warning, "written again", "1") for warning in warnings] == [[]]


def test_rows_that_a_resumed_run_left_behind():
    # stopped after step 5, resumed at 3, and now at 4: step 5 is of another history
    table, warnings = to_table(
        rows([1, 2, 3, 4, 5, 3, 4], time=[10, 20, 30, 40, 50, 60, 70], a=[1, 2, 3, 4, 5, 33, 44]), whole_rows=True
    )
    assert table.column("a").tolist() == [1, 2, 33, 44]
    # steps 4 and 5 of the first attempt; its step 3 lost to the second attempt's
    left_behind, replaced = warnings
    assert missing(left_behind, "resumed", "2: steps 4 to 5") == []
    assert missing(replaced, "written again", "1") == []


def test_a_copied_row_leaves_nothing_behind():
    # the same file with an old line at its end: the clock says that it is no restart; without a clock, nothing does
    copied = dict(time=[10, 20, 30, 10], a=[1, 2, 3, 1])
    assert values(to_table(rows([1, 2, 3, 1], **copied), whole_rows=True)[0])[0] == [1, 2, 3]
    assert values(to_table(rows([1, 2, 3, 1], a=[1, 2, 3, 1]), whole_rows=True)[0])[0] == [1, 2, 3]


def test_rows_without_a_step():
    table, warnings = to_table(rows([1, NAN, 2.5, 3], a=[1, 2, 3, 4]), whole_rows=True)
    assert values(table) == ([1, 3], {"a": [1, 4]})
    assert [missing(warning, "without a whole step", "2") for warning in warnings] == [[]]


def test_join():
    both = join([rows([1], a=[1]), rows([2, 3], b=[2, 3])])
    np.testing.assert_array_equal(both.steps, [1, 2, 3])
    np.testing.assert_array_equal(both.columns["a"], [1, NAN, NAN])
    np.testing.assert_array_equal(both.columns["b"], [NAN, 2, 3])
    assert len(join([]).steps) == 0


@given(st.lists(st.tuples(st.integers(1, 8), st.one_of(st.none(), st.integers(0, 9))), max_size=30), st.booleans())
def test_last_one_wins(written, whole_rows):
    data = rows([step for step, _ in written], a=[NAN if value is None else value for _, value in written])
    table, _ = to_table(data, whole_rows=whole_rows)
    expected = {step: value for step, value in written if whole_rows or value is not None}
    assert table.steps.tolist() == sorted({step for step, _ in written})
    for step, value in zip(table.steps.tolist(), table.column("a"), strict=True):
        wanted = expected.get(step)
        assert np.isnan(value) if wanted is None else value == wanted


@pytest.mark.parametrize(
    ("found", "numbers", "odd"),
    [
        ([1, 2.5, None], [1, 2.5, NAN], 0),
        (["1", "", "2e-3"], [1, NAN, 0.002], 0),
        ([NAN, math.inf, 1.0], [NAN, NAN, 1], 2),
        ([[1], {}, True], [NAN, NAN, 1], 2),
        ([], [], 0),
    ],
)
def test_numbers(found, numbers, odd):
    got, count = to_numbers(found)
    np.testing.assert_array_equal(got, numbers)
    assert count == odd


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        ([], (0, 0)),
        ([1, 2, 3, 4], (0, 0)),
        ([1, 2, 3, 6, 7, 9], (3, 3)),  # 4, 5, 8
        ([1, 10, 20, 30, 37], (0, 0)),  # first and last step beside every tenth
        ([10, 20, 30, 60], (2, 30)),  # 40 and 50
        ([1, 4, 11, 13, 20, 41], (0, 0)),  # no usual stride: 3, 7, 2, 7, 21
    ],
)
def test_missing_steps(steps, missing):
    assert missing_steps(np.array(steps, dtype=np.int64)) == missing
