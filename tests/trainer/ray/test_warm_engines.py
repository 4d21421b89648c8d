"""Engines that a run leaves to the next: which are taken, and that no other is left."""

import asyncio

import pytest
import ray
from idle_actor import IdleActor
from played_cluster import PlayedCluster
from played_ray import PlayedActor
from ray.exceptions import RayTaskError
from run_flags import run_flags
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_cov.cluster.ray_here import KEEP_ENGINES
from openrlhf_cov.trainer.ray import engines, warm_engines

KEPT = {"rollout_seeded": True, "vllm.sync_backend": "gloo", "vllm.enable_prefix_caching": False}


class Engine(IdleActor):
    """An engine actor without vLLM, whose output is in some files."""

    is_alive = True

    def __init__(self, output):
        super().__init__(llm=self, new_executor=lambda: None, output=output)

    async def check_health(self):
        if not self.is_alive:
            raise EngineDeadError

    async def begin_a_run(self):
        return None if await super().begin_a_run() is None else self.output


class Context:
    """What Ray says of the job."""

    def __init__(self):
        self.runtime_env = {"env_vars": {}}


class Cluster(PlayedCluster):
    """A cluster with named engines that outlive a run."""

    def __init__(self, monkeypatch):
        super().__init__(monkeypatch)
        self.engines = {}
        self.output = {}
        self.starts = 0
        self.ended = []
        monkeypatch.setenv(KEEP_ENGINES, "1")
        monkeypatch.setattr(ray, "remote", lambda kind: self)
        monkeypatch.setattr(ray, "get_actor", lambda name, namespace: self.handle(name))
        monkeypatch.setattr(ray, "get_runtime_context", Context)
        monkeypatch.setattr(ray.util, "list_named_actors", self.listed)

    def listed(self, all_namespaces):
        ours = [{"name": name, "namespace": warm_engines.NAMESPACE} for name in self.engines]
        return [*ours, {"name": "of somebody else", "namespace": "theirs"}]

    def handle(self, name):
        if name not in self.engines:
            raise ValueError(name)

        def call(method):
            try:
                return asyncio.run(getattr(self.engines[name], method)())
            except EngineDeadError as error:
                raise RayTaskError(method, "trace", error).as_instanceof_cause() from error

        answers = {method: lambda method=method: call(method) for method in ("begin_a_run", "wait_for_a_run")}
        return PlayedActor(name=name, **answers)

    def options(self, *, name, namespace, **of_actor):
        assert of_actor == {"num_cpus": 0, "num_gpus": 0, "lifetime": "detached"}
        self.engines[name] = None  # until ``remote``
        return self

    def remote(self, **arguments):
        self.starts += 1
        (name,) = [name for name, engine in self.engines.items() if engine is None]
        self.engines[name] = Engine(self.output)
        return self.handle(name)

    def kill(self, handle):
        self.ended.append(handle.answers["name"])
        del self.engines[handle.answers["name"]]

    def run(self, count=1, seed=0, model="tiny", well=True):
        """Make a run with so many engines; return their names."""
        flags = {"vllm.num_engines": count, "train.seed": seed, "actor.model_name_or_path": model}
        handles = engines.start_engines(run_flags(KEPT | flags), None)
        if well:
            warm_engines.give_back()
        warm_engines._lent.clear()  # a run is a process of its own
        return [handle.answers["name"] for handle in handles]


@pytest.fixture
def cluster(monkeypatch):
    return Cluster(monkeypatch)


def test_the_next_run_has_the_engines_of_the_last_whatever_its_seed(cluster):
    first = cluster.run(2, seed=0)
    assert len(set(first)) == 2  # two engines of one run are two
    assert cluster.run(2, seed=7) == first
    assert cluster.starts == 2
    assert cluster.ended == []
    assert len(cluster.reserved) == 2  # their GPUs are booked for each run


def test_an_engine_of_other_arguments_ends_what_waits(cluster):
    first = cluster.run()
    assert cluster.run(model="another") != first
    assert cluster.ended == first


@pytest.mark.parametrize("dies", [False, True], ids=["not given back", "dead"])
def test_an_engine_of_a_run_that_failed_is_not_taken(cluster, dies):
    names = cluster.run(well=dies)
    cluster.engines[names[0]].is_alive = not dies
    assert cluster.run() == names  # a new one, by the same name
    assert cluster.ended == names
    assert cluster.starts == 2


def test_what_a_used_engine_says_is_said_by_the_run_that_has_it(cluster, tmp_path, capsys):
    file = tmp_path / "worker.err"
    file.write_text("of the run before\n")
    cluster.output = {str(file): file.stat().st_size, str(tmp_path / "gone"): 0}
    cluster.run()
    warm_engines.show_outputs()
    assert capsys.readouterr().err == ""  # Ray shows it
    cluster.run()
    with file.open("a") as more:
        more.write("of this run\n")
    warm_engines.show_outputs()
    warm_engines.show_outputs()
    assert capsys.readouterr().err == "of this run\n"


def test_engines_are_kept_where_that_is_asked_for_and_changes_nothing(monkeypatch):
    monkeypatch.delenv(KEEP_ENGINES, raising=False)
    assert not warm_engines.are_kept(run_flags(KEPT))
    monkeypatch.setenv(KEEP_ENGINES, "1")
    assert warm_engines.are_kept(run_flags(KEPT))
    for other in (
        {"rollout_seeded": False},
        {"vllm.sync_backend": "nccl"},
        {"vllm.enable_sleep": True},
        {"train.async_enable": True},
        {"train.agent_func_path": "a.py"},
    ):
        assert not warm_engines.are_kept(run_flags(KEPT | other))
