"""Engines that a run leaves to the next: which are taken, and that no other is left."""

from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import RayActorError

from openrlhf_cov.cluster.ray_here import KEEP_ENGINES
from openrlhf_cov.trainer.ray import warm_engines


class Cluster:
    """Stands in for Ray: named engines, each with the answer that it gives when it is asked for a run."""

    def __init__(self, monkeypatch) -> None:
        self.answers: dict[str, object] = {}
        self.output: dict[str, int] = {}
        self.started: list[dict] = []
        self.killed: list[str] = []
        monkeypatch.setattr(warm_engines, "_lent", [])
        monkeypatch.setattr(warm_engines, "_outputs", {})
        monkeypatch.setattr(ray, "get", self.get)
        monkeypatch.setattr(ray, "get_actor", self.named)
        monkeypatch.setattr(ray, "kill", lambda engine: self.end(engine.name))
        monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(runtime_env={"env_vars": {}}))
        monkeypatch.setattr(ray.util, "list_named_actors", lambda all_namespaces: self.listed())

    @staticmethod
    def get(calls, timeout: float | None = None):
        return [call() for call in calls] if isinstance(calls, list) else calls()

    def listed(self) -> list[dict]:
        return [{"name": name, "namespace": warm_engines.NAMESPACE} for name in self.answers] + [
            {"name": "of somebody else", "namespace": "theirs"}
        ]

    def named(self, name: str, namespace: str) -> SimpleNamespace:
        if name not in self.answers:
            raise ValueError(name)

        def begin():
            answer, self.answers[name] = self.answers[name], None
            if isinstance(answer, Exception):
                raise answer
            return answer

        def wait():
            if isinstance(self.answers[name], Exception):
                raise self.answers[name]
            self.answers[name] = self.output

        call = lambda work: SimpleNamespace(remote=lambda: work)  # noqa: E731
        # an engine says where its output is, or that it is not free
        return SimpleNamespace(name=name, begin_a_run=call(begin), wait_for_a_run=call(wait))

    def end(self, name: str) -> None:
        self.killed.append(name)
        del self.answers[name]

    def options(self, *, name: str, namespace: str, **of_actor) -> SimpleNamespace:
        """Of the actor class."""
        assert of_actor == {"num_cpus": 0, "num_gpus": 0, "lifetime": "detached"}

        def remote(**arguments):
            self.answers[name] = None
            self.started.append(arguments)
            return self.named(name, namespace)

        return SimpleNamespace(remote=remote)

    def run(self, *engines: dict, well: bool = True) -> list[str]:
        """A run that asks for engines; their names."""
        names = [warm_engines.engine(self, arguments).name for arguments in engines]
        if well:
            warm_engines.give_back()
        warm_engines._lent.clear()
        return names


@pytest.fixture
def cluster(monkeypatch) -> Cluster:
    return Cluster(monkeypatch)


def engine(seed: int = 0, model: str = "tiny") -> dict:
    return {"model": model, "seed": seed, "max_model_len": 64}


def test_the_next_run_has_the_engines_of_the_last_whatever_its_seed(cluster):
    first = cluster.run(engine(0), engine(1))
    assert len(set(first)) == 2  # two engines of one run are two
    assert cluster.run(engine(7), engine(8)) == first
    assert len(cluster.started) == 2
    assert cluster.killed == []


def test_an_engine_of_other_arguments_ends_what_waits(cluster):
    first = cluster.run(engine())
    second = cluster.run(engine(model="another"))
    assert second != first
    assert cluster.killed == first


@pytest.mark.parametrize("answer", [None, RayActorError()], ids=["not given back", "dead"])
def test_an_engine_of_a_run_that_failed_is_not_taken(cluster, answer):
    names = cluster.run(engine(), well=False)
    cluster.answers[names[0]] = answer
    assert cluster.run(engine()) == names  # a new one, by the same name
    assert cluster.killed == names
    assert len(cluster.started) == 2


def test_what_a_used_engine_says_is_said_by_the_run_that_has_it(cluster, tmp_path, capsys):
    file = tmp_path / "worker.err"
    file.write_text("of the run before\n")
    cluster.output = {str(file): file.stat().st_size, str(tmp_path / "gone"): 0}
    cluster.run(engine())
    warm_engines.show_outputs()
    assert capsys.readouterr().err == ""  # Ray shows it
    cluster.run(engine())
    with file.open("a") as more:
        more.write("of this run\n")
    warm_engines.show_outputs()
    warm_engines.show_outputs()
    assert capsys.readouterr().err == "of this run\n"


def flags(seeded=True, backend="gloo", sleeps=False, asynchronous=False, agent=None):
    vllm = SimpleNamespace(enable_sleep=sleeps, sync_backend=backend)
    train = SimpleNamespace(async_enable=asynchronous, colocate_all=False, agent_func_path=agent)
    return SimpleNamespace(vllm=vllm, train=train, rollout_seeded=seeded)


def test_engines_are_kept_where_that_is_asked_for_and_changes_nothing(monkeypatch):
    monkeypatch.delenv(KEEP_ENGINES, raising=False)
    assert not warm_engines.are_kept(flags())
    monkeypatch.setenv(KEEP_ENGINES, "1")
    assert warm_engines.are_kept(flags())
    for other in ({"seeded": False}, {"backend": "nccl"}, {"sleeps": True}, {"asynchronous": True}, {"agent": "a.py"}):
        assert not warm_engines.are_kept(flags(**other))
