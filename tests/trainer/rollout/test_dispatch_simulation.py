"""How well dynamic sampling keeps engines busy: simulated steps with heavy-tailed responses, on a clock of tokens."""

import heapq
import random
from dataclasses import dataclass, field

import pytest
from played_engines import one_step

ENGINES, SLOTS, BATCH, STEPS, LONGEST = 4, 64, 64, 5, 8192


@dataclass
class Slots:
    """Takes the place of an engine's delays: ``SLOTS`` responses at a time, one token of each per tick."""

    clock: object
    chance: random.Random
    free: list = field(default_factory=lambda: [0.0] * SLOTS)
    busy: list = field(default_factory=list)

    def random(self) -> float:
        """Ticks until the slowest response of one more group is there; median 800 tokens, one in 100 the most."""
        ends = []
        for _ in range(4):
            start = max(self.clock.now, heapq.heappop(self.free))
            ends.append(start + min(LONGEST, self.chance.lognormvariate(6.7, 1.0)))
            heapq.heappush(self.free, ends[-1])
            self.busy.append((start, ends[-1]))
        return max(ends) - self.clock.now

    def busy_between(self, begin: float, end: float) -> float:
        """Ticks in which at least one slot had something to do."""
        ticks, last = 0.0, begin
        for start, stop in sorted(self.busy):
            ticks += max(0.0, min(stop, end) - max(start, last))
            last = max(last, stop)
        return ticks


def simulate(make_sampler, passing: float, **settings) -> tuple[float, float, float, float]:
    """Ticks of the first step; of those after it the ticks, the idle share of engines and the groups that wait."""
    sampler, engines = make_sampler(
        score=lambda p: [1.0, float(random.Random(p).random() >= passing)],
        prompts=100_000, batch=BATCH, engines=ENGINES, **settings,
    )  # fmt: skip
    for place, engine in enumerate(engines):
        engine.delays = Slots(engine.clock, random.Random(place))
    one_step(sampler)
    first = engines[0].clock.now
    waiting = [one_step(sampler)[1]["sampling/buffer_groups"] for _ in range(STEPS)]
    end = engines[0].clock.now
    busy = sum(engine.delays.busy_between(first, end) for engine in engines)
    return first, (end - first) / STEPS, 1.0 - busy / (ENGINES * (end - first)), sum(waiting) / STEPS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("passing", "first_limit", "later_limit"), [(0.2, 2.0, 1.6), (0.5, 1.5, 1.3), (0.8, 1.5, 1.2)]
)
def test_engines_idle_little_in_a_step_of_dynamic_sampling(make_sampler, passing, first_limit, later_limit):
    # a round after another costs one longest response more; a fifth passing needs several waves of SLOTS anyway, for
    # (64 + 2 sqrt(64 * 0.8)) / 0.2 = 392 = 6.1 * 64 groups, of which the recipes' 6 * 64 are allowed
    first, later, idle, waiting = simulate(make_sampler, passing, sampling_oversample_max=6.0)
    assert first <= first_limit * LONGEST
    assert later <= later_limit * LONGEST
    assert idle <= 0.15
    assert waiting <= BATCH / 4
