"""Requests over engines that answer in any order, fail and die; Ray is replaced by a table of results."""

import random
from dataclasses import dataclass, field

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.rollout import generation
from openrlhf_cov.trainer.rollout.generation import EngineGroup, finished, generate_groups, in_order
from openrlhf_cov.trainer.rollout.prompts import Prompt

ENGINES = "abc"


@dataclass
class Cluster:
    """Takes the place of the module ``ray``. ``fails[item]`` times a request fails; engine ``dies[engine]`` at that
    request of its own, and every later one fails too."""

    chance: random.Random
    fails: dict[int, int] = field(default_factory=dict)
    dies: dict[str, int] = field(default_factory=dict)
    sent: list[tuple[str, int]] = field(default_factory=list)
    under_way: dict[int, tuple[str, int]] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    most: int = 0
    exceptions = ray.exceptions

    def dispatch(self, engine, items):
        references = []
        for item in items:
            self.sent.append((engine, item))
            references.append(len(self.sent))
            self.under_way[references[-1]] = (engine, item)
            if [name for name, _ in self.sent].count(engine) >= self.dies.get(engine, 10**9):
                self.dead.add(engine)
        self.most = max(self.most, len(self.under_way))
        return references

    def wait(self, references, num_returns, timeout):
        assert set(references) == self.under_way.keys()
        ready = self.chance.sample(references, num_returns if timeout else self.chance.randint(1, num_returns))
        return ready, [reference for reference in references if reference not in ready]

    def get(self, reference):
        engine, item = self.under_way.pop(reference)
        if engine in self.dead:
            raise ray.exceptions.RayActorError()
        if self.fails.get(item, 0) > 0:
            self.fails[item] -= 1
            raise ray.exceptions.RayTaskError("complete", "trace", ValueError("out of blocks"))
        return f"response {item}"


@pytest.fixture
def walk(monkeypatch):
    """Function (cluster, number of items, ...) -> what ``finished`` gives, in its order."""

    def run(cluster, count, engines=ENGINES, window=None):
        monkeypatch.setattr(generation, "ray", cluster)
        group = EngineGroup(list(engines))
        return finished(range(count), group, cluster.dispatch, lambda item: f"item {item}", window)

    return run


@pytest.mark.slow
@given(
    count=st.integers(0, 30),
    window=st.none() | st.integers(1, 12),
    fails=st.dictionaries(st.integers(0, 29), st.just(1), max_size=5),
    death=st.none() | st.tuples(st.sampled_from(ENGINES), st.integers(1, 6)),
    chance=st.randoms(use_true_random=False),
)
def test_every_result_comes_once_whatever_happens(count, window, fails, death, chance):
    # one failure of its own and one death: no item fails three times
    cluster = Cluster(chance, fails, dict([death] if death else []))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "ray", cluster)
        group = EngineGroup(list(ENGINES))
        results = list(finished(range(count), group, cluster.dispatch, str, window))
    assert sorted(results) == [(place, f"response {place}") for place in range(count)]
    assert cluster.most <= (count if window is None else window)
    assert set(group.unfinished.values()) <= {0}
    assert cluster.under_way == {}


def test_a_window_is_kept_full_and_given_to_who_has_least_to_do(walk):
    cluster = Cluster(random.Random(0))
    results = walk(cluster, 9, window=6)
    place, _ = next(results)
    assert len(cluster.sent) >= 7
    assert cluster.sent[:6] == [("a", 0), ("a", 3), ("b", 1), ("b", 4), ("c", 2), ("c", 5)]
    assert cluster.sent[6] == (ENGINES[place % 3], 6)  # the engine that has just finished one
    assert len(list(results)) == 8
    assert cluster.most == 6


@given(chance=st.randoms(use_true_random=False))
def test_groups_come_in_the_order_of_their_prompts_as_soon_as_they_can(chance):
    cluster = Cluster(chance)
    prompts = [Prompt(number, str(number), None) for number in range(6)]
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "ray", cluster)
        for place, group in in_order(generate_groups(prompts, EngineGroup(list(ENGINES)), cluster.dispatch)):
            assert place == len(seen)
            seen.append(group)
            if len(prompts) < 9:
                prompts.append(Prompt(len(prompts), "x", None))
            done = {item.number for item in prompts} - {item.number for _, item in cluster.under_way.values()}
            assert set(range(len(seen))) <= done
    assert seen == [f"response {prompt}" for prompt in prompts]


def test_a_request_that_fails_three_times_stops_the_run_with_what_it_was(walk):
    cluster = Cluster(random.Random(0), fails={4: 3})
    with pytest.raises(RunStopped, match=r"^a request failed 3 times \(ValueError: out of blocks\); item 4$"):
        list(walk(cluster, 6, window=2))
    assert [item for _, item in cluster.sent].count(4) == 3


def test_no_engine_left_stops_the_run(walk):
    cluster = Cluster(random.Random(0), dies=dict.fromkeys(ENGINES, 2))
    with pytest.raises(RunStopped, match=r"^no vLLM engine answers any more"):
        list(walk(cluster, 20, window=6))


def test_an_engine_that_is_dead_when_it_is_asked_is_passed_over(walk):
    cluster = Cluster(random.Random(0))
    dispatch = cluster.dispatch

    def refuse(engine, items):
        if engine == "a":
            raise ray.exceptions.RayActorError()
        return dispatch(engine, items)

    cluster.dispatch = refuse
    assert sorted(place for place, _ in walk(cluster, 9)) == list(range(9))
    assert {engine for engine, _ in cluster.sent} == {"b", "c"}


class HangingCluster(Cluster):
    """Engines in ``hung`` never answer; ``killed`` lists those that were ended."""

    hung: frozenset = frozenset()
    slow_waits: int = 0

    def wait(self, references, num_returns, timeout):
        ready = [reference for reference in references if self.under_way[reference][0] not in self.hung]
        if timeout and self.slow_waits:
            self.slow_waits -= 1
            return [], references
        ready = ready[:num_returns]
        return ready, [reference for reference in references if reference not in ready]

    def kill(self, engine):
        self.killed = [*getattr(self, "killed", []), engine]
        assert len(self.sent) < 100


def hanging(monkeypatch, hung, timeout, slow_waits=0, count=7, window=None):
    cluster = HangingCluster(random.Random(0))
    cluster.hung, cluster.slow_waits, cluster.killed = frozenset(hung), slow_waits, []
    monkeypatch.setattr(generation, "ray", cluster)
    group = EngineGroup(list(ENGINES), timeout)
    return cluster, group, finished(range(count), group, cluster.dispatch, lambda item: f"item {item}", window)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("hung", ["a", "bc"])
def test_a_hung_engine_ends_like_a_dead_one(monkeypatch, hung, window):
    cluster, group, results = hanging(monkeypatch, hung, timeout=30.0, window=window)
    assert sorted(results) == [(place, f"response {place}") for place in range(7)]
    assert cluster.killed == list(hung)
    assert group.alive == [engine for engine in ENGINES if engine not in hung]


def test_a_result_begins_the_limit_anew(monkeypatch):
    # two waits of 10 s without a result, below 30 s; then all engines answer at once
    cluster, group, results = hanging(monkeypatch, "", timeout=30.0, slow_waits=2)
    next(results)
    cluster.slow_waits = 2
    assert len(list(results)) == 6
    assert (cluster.killed, len(group.alive)) == ([], 3)
