"""The simulation behind the table of expected gains, on cases worked out by hand."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def plan(monkeypatch):
    """The benchmark with a rollout of 10 s on its engines, 6 s of training, and transfers that take no time."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    sys.modules.pop("staleness_plan", None)
    import staleness_plan

    monkeypatch.setattr(staleness_plan, "generation_seconds", lambda lengths, engines: 10.0)
    monkeypatch.setattr(staleness_plan, "training_seconds", lambda lengths, gpus: 6.0)
    monkeypatch.setattr(staleness_plan, "TRANSFER_SECONDS", 0.0)
    return staleness_plan


def test_an_engine_fills_its_slots_and_slows_down_with_each_sequence(plan, monkeypatch):
    monkeypatch.setattr(plan, "SLOTS", 2)
    # 10 and 30 tokens run first. After 10 steps of two sequences, at 5 + 20 ms, the 5 tokens follow; after 5 more
    # steps of two, 15 steps of one sequence are left, at 5 + 10 ms.
    assert plan.seconds_of_engine([10, 30, 5]) == pytest.approx(15 * 0.025 + 15 * 0.015)


@pytest.mark.parametrize(
    ("staleness", "seconds"),
    [
        (0, 16.0),  # one after the other
        (1, 10.0),  # a rollout is generated while the policy trains on the one before
        (2, 10.0),
    ],
)
def test_generation_hides_training(plan, staleness, seconds):
    assert plan.seconds_of_step(plan.simulate([[1]] * 8, 1, 1, staleness)) == pytest.approx(seconds)


def test_rollouts_never_begin_with_weights_that_are_too_old(plan, monkeypatch):
    """Where training takes longer, 20 s, the engines wait for weights instead of running ahead."""
    monkeypatch.setattr(plan, "training_seconds", lambda lengths, gpus: 20.0)
    steps = plan.simulate([[1]] * 8, 1, 1, 1)
    assert plan.seconds_of_step(steps) == pytest.approx(20.0)
    for number in range(2, 8):
        assert steps[number].generation_began >= steps[number - 2].training_ended
