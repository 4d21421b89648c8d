"""A cluster that starts no process: it notes what is reserved and started, and which calls reach the actors.

Placement is decided by the driver before a model is loaded, so these notes are all there is to see without GPUs.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from openrlhf.trainer.ray import launcher, vllm_engine
from played_ray import Call, Now, PlayedRay, install

from openrlhf_cov.cluster import connection
from openrlhf_cov.trainer import build
from openrlhf_cov.trainer.ray import engines

# The order of the bundles by node: they are on two nodes in turn, and those of a node come in no order.
BUNDLES = [4, 6, 0, 2, 1, 3, 5, 7]
ANSWERS = {"get_master_addr_port": ("localhost", 29500), "max_steps": 100}


@dataclass
class Group:
    """A placement group, known by its number, from 1."""

    number: int

    def ready(self) -> None:
        """Return what Ray gives when the group has its place."""


class Started(NamedTuple):
    """An actor that was started: its place, its part of a GPU and of a CPU, its arguments by position and by name."""

    group: int | None
    bundle: int | None
    part: float
    positional: tuple
    arguments: dict[str, Any]


@dataclass
class Handle:
    """The handle of an actor; a call is noted when its answer is fetched."""

    cluster: "PlayedCluster"
    kind: str
    number: int

    def __getattr__(self, method: str) -> Now:
        def answer(*arguments: Any) -> Any:
            self.cluster.calls.append((self.kind, self.number, method, arguments))
            if self.number == 0 and method != "get_master_addr_port":
                # The strategy, which goes first, is not shown.
                self.cluster.events.append((self.kind, method, *arguments[1:]))
            return ANSWERS.get(method)

        return Now(lambda *arguments, **_: Call(answer, arguments, {}))


@dataclass
class ActorClass:
    """A class under Ray's decorator."""

    cluster: "PlayedCluster"
    kind: str
    place: dict[str, Any] = field(default_factory=dict)

    def options(self, **options: Any) -> "ActorClass":
        assert options["num_cpus"] == options["num_gpus"]
        return ActorClass(self.cluster, self.kind, options)

    def remote(self, *positional: Any, **arguments: Any) -> Handle:
        started = self.cluster.started[self.kind]
        if not started:
            self.cluster.events.append(f"start {self.kind}")
        strategy = self.place.get("scheduling_strategy")
        group = bundle = None
        if strategy is not None:
            group, bundle = strategy.placement_group.number, strategy.placement_group_bundle_index
        started.append(Started(group, bundle, self.place.get("num_gpus", 0), positional, arguments))
        return Handle(self.cluster, self.kind, len(started) - 1)


class PlayedCluster(PlayedRay):
    """Takes the place of Ray until the end of the test.

    Attributes:
        reserved: The bundles of each placement group.
        started: Class -> its actors.
        calls: (class, number of the actor, method, arguments) of each call.
        events: What happened in order; of several actors of a class the first alone.
    """

    def __init__(self, monkeypatch: Any) -> None:
        super().__init__()
        self.reserved: list[list[dict]] = []
        self.started: defaultdict[str, list[Started]] = defaultdict(list)
        self.calls: list[tuple] = []
        self.events: list[Any] = []
        install(monkeypatch, self)
        monkeypatch.setattr(ray, "remote", lambda kind: ActorClass(self, kind.__name__))
        monkeypatch.setattr(build, "TrainingController", ActorClass(self, "TrainingController"))
        monkeypatch.setattr(vllm_engine, "RolloutRayActor", ActorClass(self, "RolloutRayActor"))
        for module in (connection, launcher, vllm_engine):
            monkeypatch.setattr(module, "placement_group", self.reserve)
        for module in (vllm_engine, engines):
            monkeypatch.setattr(module, "get_bundle_indices", self.bundles)

    def reserve(self, bundles: list[dict], strategy: str) -> Group:
        assert strategy == "PACK"
        self.reserved.append(bundles)
        self.events.append(f"reserve {len(bundles)}")
        return Group(len(self.reserved))

    @staticmethod
    def bundles(group: Group, index: int, length: int) -> list[int]:
        return BUNDLES[index * length : (index + 1) * length]
