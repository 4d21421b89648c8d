"""Where optimizer steps end: for upstream's buffer, for DeepSpeed and for our windows alike."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer import boundaries
from openrlhf_cov.trainer.boundaries import StepBoundaries


class Engine:
    """DeepSpeed's count of micro-batches, which goes on from rollout to rollout; or what it was told."""

    def __init__(self, accumulation):
        self.accumulation, self.micro_steps, self.told = accumulation, 0, []

    def is_gradient_accumulation_boundary(self):
        return (self.micro_steps + 1) % self.accumulation == 0

    def set_gradient_accumulation_boundary(self, ends):
        self.told.append(ends)


def trainer(accumulation=1, micro_batch=1, samples=0, dynamic=None):
    """``dynamic``: the micro-batches of every update, each a number of samples."""
    updates = dynamic or []
    result = StepBoundaries()
    result.args = SimpleNamespace(train=SimpleNamespace(dynamic_batch_enable=dynamic is not None, batch_size=64))
    result.strategy = SimpleNamespace(accumulated_gradient=accumulation, is_rank_0=lambda: True)
    result.replay_buffer = SimpleNamespace(
        items=[None] * samples,
        sample_batch_size=micro_batch,
        dynamic_indices=[[0] * size for update in updates for size in update],
        dynamic_optimizer_step=[int(n == len(update) - 1) for update in updates for n in range(len(update))],
    )
    return result


@given(
    accumulation=st.integers(1, 5),
    micro_batch=st.integers(1, 4),
    rollouts=st.lists(st.integers(1, 60), min_size=1, max_size=4),
)
def test_static_steps_agree_or_the_run_stops(accumulation, micro_batch, rollouts):
    """The first rollout that is no whole number of updates ends the run before any of it is trained on."""
    engine = Engine(accumulation)
    for samples in rollouts:
        here = trainer(accumulation, micro_batch, samples)
        if samples % (accumulation * micro_batch):
            with pytest.raises(RunStopped):
                here.check_whole_steps()
            return
        here.check_whole_steps()
        for number in range(samples // micro_batch):
            here.align(engine, number)
            assert here.ends_step(number) is engine.is_gradient_accumulation_boundary()
            engine.micro_steps += 1


def test_a_deepspeed_that_ends_elsewhere_stops_the_run():
    engine, here = Engine(2), trainer(accumulation=2)
    engine.micro_steps = 1  # somebody trained on one micro-batch
    for number in (0, 1):
        with pytest.raises(RunStopped, match=f"micro-batch {number + 1} "):
            here.align(engine, number)
        engine.micro_steps += 1


def test_deepspeed_is_told_where_dynamic_steps_end():
    engine, here = Engine(1), trainer(dynamic=[[2, 1], [3], [1, 1, 1]])
    for number in range(6):
        here.align(engine, number)
    assert engine.told == [False, True, True, False, False, True]


@pytest.mark.parametrize(("samples", "warnings"), [(6, 0), (8, 1)])
def test_samples_that_dynamic_steps_leave_out_are_told(samples, warnings, monkeypatch):
    told = []
    monkeypatch.setattr(boundaries.logger, "warning", told.append)
    trainer(samples=samples, dynamic=[[2, 1], [3]]).check_whole_steps()
    assert len(told) == warnings
    assert all("2 of 8 samples" in message for message in told)
