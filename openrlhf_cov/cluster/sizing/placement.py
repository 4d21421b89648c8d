"""Placement of the processes of a run: upstream's placement groups, put on nodes as Ray's PACK does (pure)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tenant:
    """Processes of one kind, one per GPU: process i is in slot i of its group."""

    name: str
    count: int
    # Above 1 for engines: so many consecutive processes, on one node if that can be, are one engine.
    tensor_parallel: int = 1


@dataclass(frozen=True)
class GpuGroup:
    """A Ray placement group: ``slots`` bundles of one GPU each, and the tenants that share them."""

    slots: int
    tenants: tuple[Tenant, ...]

    @property
    def title(self) -> str:
        """The names of its tenants."""
        return " + ".join(tenant.name for tenant in self.tenants)


@dataclass(frozen=True, kw_only=True)
class GpuLayout:
    """The number of GPUs of each model that a run starts, and the number of its engines.

    A model that the run does not start is None. Each engine has ``tensor_parallel`` GPUs.
    """

    actor: int
    # Number of engines; 0: the run needs none.
    engines: int
    tensor_parallel: int = 1
    ref: int | None = None
    prm: int | None = None
    critic: int | None = None
    reward: int | None = None
    # All models share GPUs, the engines included unless ``asynchronous``.
    colocate_all: bool = False
    colocate_actor_ref: bool = False
    colocate_critic_reward: bool = False
    asynchronous: bool = False

    @property
    def engines_share(self) -> bool:
        """True if the engines are on the actor's GPUs."""
        return self.colocate_all and not self.asynchronous

    @property
    def way_out(self) -> str:
        """The flags by which a run needs fewer GPUs, as an instruction to the user."""
        lowered = [
            f"--{name}.num_gpus_per_node" for name in ("actor", "ref", "critic", "reward") if getattr(self, name)
        ]
        lowered += ["--vllm.num_engines"] if self.engines > 1 and not self.engines_share else []
        listed = " or ".join([", ".join(lowered[:-1]), lowered[-1]] if lowered[1:] else lowered)
        if self.colocate_all:
            return f"lower {listed}"
        colocate = ["--train.colocate_all"]
        if self.ref and not self.colocate_actor_ref:
            colocate.append("--train.colocate_actor_ref")
        return f"lower {listed}, colocate ({', '.join(colocate)})"

    def groups(self) -> list[GpuGroup]:
        """Return the placement groups in the order in which upstream asks for them."""
        actor, ref, prm, critic, reward = (
            [Tenant(name, size)] if (size := getattr(self, name)) else []
            for name in ("actor", "ref", "prm", "critic", "reward")
        )
        count = self.engines * self.tensor_parallel
        engines = [Tenant("engine", count, self.tensor_parallel)] if count else []
        shared = list(actor)
        apart = []
        first = engines if not self.engines_share else []
        shared += engines if self.engines_share else []
        if self.colocate_all or self.colocate_actor_ref:
            shared += ref + prm
        else:
            apart += [ref, prm]
        if self.colocate_critic_reward and critic:
            apart += [critic + reward]
        elif self.colocate_all:
            shared += critic + reward
        else:
            apart += [critic, reward]
        # Upstream reserves GPUs that models share first. Without such GPUs it starts the engines first.
        own = [shared, first] if self.colocate_all or self.colocate_actor_ref else [first, shared]
        return [GpuGroup(tenants[0].count, tuple(tenants)) for tenants in (*own, *apart) if tenants]


@dataclass(frozen=True)
class PlacedGpu:
    """One GPU and the processes on it, such as ``actor 3`` and ``engine 0.3``."""

    node: int
    index: int
    processes: tuple[str, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of processes on this GPU, without their numbers."""
        return tuple(process.split()[0] for process in self.processes)


@dataclass(frozen=True)
class Placement:
    """Every GPU that is used, node by node, and the groups for which there is no room."""

    gpus: tuple[PlacedGpu, ...]
    unplaced: tuple[GpuGroup, ...]

    def spanning_engines(self) -> list[int]:
        """Return the numbers of the engines whose GPUs are on several nodes."""
        nodes: dict[int, set[int]] = {}
        for gpu in self.gpus:
            for process in gpu.processes:
                if process.startswith("engine"):
                    nodes.setdefault(int(process.split()[1].split(".")[0]), set()).add(gpu.node)
        return sorted(engine for engine, where in nodes.items() if len(where) > 1)


def pack(slots: int, free: Sequence[int]) -> list[int] | None:
    """Return the node of every slot as Ray's PACK chooses it; None if there is no room.

    The node with the most room takes as many slots as it can, then the next; equal ones in their order, where Ray's is
    not defined.

    Args:
        slots: Number of slots, each of one GPU.
        free: GPUs that are left on each node.
    """
    chosen: list[int] = []
    for node in sorted(range(len(free)), key=lambda node: -free[node]):
        chosen += [node] * min(free[node], slots - len(chosen))
    return chosen if len(chosen) == slots else None


def place(groups: Sequence[GpuGroup], nodes: Sequence[int]) -> Placement:
    """Put groups on nodes, in their order. A group that finds no room stays unplaced.

    Args:
        groups: The placement groups, in the order in which upstream asks for them.
        nodes: Number of GPUs of each node.
    """
    free = list(nodes)
    used = Counter()
    gpus = []
    unplaced = []
    for group in groups:
        where = pack(group.slots, free)
        if where is None:
            unplaced.append(group)
            continue
        # The GPUs of a node are numbered in the order in which the groups take them.
        for node, names in zip(where, _processes(group), strict=True):
            gpus.append(PlacedGpu(node, used[node], tuple(names)))
            used[node] += 1
            free[node] -= 1
    return Placement(tuple(sorted(gpus, key=lambda gpu: (gpu.node, gpu.index))), tuple(unplaced))


def _processes(group: GpuGroup) -> list[list[str]]:
    """Return the names of the processes in every slot.

    Slots are in the order of nodes, as upstream orders them for engines.
    """
    names: list[list[str]] = [[] for _ in range(group.slots)]
    for tenant in group.tenants:
        # Too few slots are a fault of their own.
        for number, slot in zip(range(tenant.count), names, strict=False):
            engine, part = divmod(number, tenant.tensor_parallel)
            slot.append(f"{tenant.name} {engine}.{part}" if tenant.tensor_parallel > 1 else f"{tenant.name} {number}")
    return names
