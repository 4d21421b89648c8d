"""The table of benchmarks/asynchronous.py from results that were measured."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def asynchronous(load_benchmark):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)  # it imports the race beside it
        return load_benchmark("asynchronous")


def row(mode, seed, step, tokens, reward):
    times = {"timing/generation": 0.5, "timing/make_experience": 0.25, "timing/ppo_train": 1.0, "cpu": 2.0}
    measured = dict(step=step, tokens=tokens, reward=reward, entropy=0.2, staleness=0.0)
    return {"mode": mode, "seed": seed} | measured | times


def test_runs_are_paired_by_seed(asynchronous):
    synchronous = next(iter(asynchronous.SYNCHRONOUS))
    other = next(iter(asynchronous.ASYNCHRONOUS))
    rows = [
        row(synchronous, 1, 2.0, 1000.0, 0.5),
        row(synchronous, 2, 1.8, 2000.0, 0.7),
        row(other, 2, 1.5, 2400.0, 0.8),
        row(other, 1, 1.4, 1300.0, 0.4),
    ]
    lines = asynchronous.table(rows).splitlines()
    # The median of two values is their mean; equal values have no range.
    assert lines[2].startswith(
        "| synchronous, all cores | 1.90 (1.80–2.00) | 0.50 | 0.25 | 1.00 | 2.00 | 1,500 (1,000–2,000) |"
    )
    # Nothing else was measured, so there is one comparison.
    # Differences -0.1 and +0.1: mean 0, standard deviation sqrt(0.02), t(0.975, 1) = 12.706: 12.706 * 0.1 = 1.27.
    assert lines[-2:] == [
        "",
        f"- {other}, against {synchronous}: 1.20 to 1.30 times the tokens per second; reward +0.00 [-1.27, +1.27] "
        "(95 %, paired by seed).",
    ]


@pytest.mark.parametrize("count", [0, 1])
def test_without_a_pair_nothing_is_compared(asynchronous, count):
    rows = [row(next(iter(asynchronous.MODES)), 1, 2.0, 1000.0, 0.5)] * count
    assert "against" not in asynchronous.table(rows)
