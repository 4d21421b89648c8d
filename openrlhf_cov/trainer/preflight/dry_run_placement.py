"""``--dry_run``: the cluster of a run, where its processes go there, and whether they have the memory."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.sizing import host, prose
from openrlhf_cov.cluster.sizing.budget import PHASES, Budget, Role, budget
from openrlhf_cov.cluster.sizing.flag_sizes import engine_of, layout_of, roles_of
from openrlhf_cov.cluster.sizing.memory import GIB, Engine
from openrlhf_cov.cluster.sizing.model_shape import ModelShape
from openrlhf_cov.cluster.sizing.placement import Placement, place
from openrlhf_cov.errors import UsageError
from openrlhf_cov.models.cov_config import has_engines

# Phase -> what makes a GPU need less in it.
MEND = {
    "generate": "lower --vllm.gpu_memory_utilization, or let what rests leave the GPU (--ds.enable_sleep)",
    "score": "lower --rollout.max_tokens_per_gpu (or --rollout.micro_batch_size), or let the engine leave the GPU "
    "(--vllm.enable_sleep)",
    "train": "lower --train.max_tokens_per_gpu (or --train.micro_batch_size), add "
    "--actor.gradient_checkpointing_enable, --ds.zero_stage 3, --ds.adam_offload or --vllm.enable_sleep, or take more "
    "GPUs",
    "send": "let what rests leave the GPU (--vllm.enable_sleep, --ds.enable_sleep), or take more GPUs",
}

MEND_NODE = (
    "keep more on the GPUs (without --ds.adam_offload, --ds.enable_sleep, --vllm.enable_sleep, --ref.offload), or "
    "take nodes with more memory"
)
MEND_CPU_NODE = (
    "take a smaller model, lower --train.micro_batch_size or --data.max_len, or take a host with more memory; to plan "
    "for GPUs add --dry_run_gpu_memory"
)


@dataclass
class Findings:
    """Every shortfall and note of a dry run."""

    shortfalls: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Note the fault with which the body ends, and go on after it."""
        try:
            yield
        except (UsageError, OSError) as error:
            self.shortfalls.append(" ".join(str(error).split()))


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Nodes, by their names."""

    gpus: dict[str, int]
    # None: not known, or the GPUs are logical.
    gpu_bytes: float | None
    # Bytes of the nodes beside their GPUs; empty: not known.
    memory: dict[str, float]
    # On a CPU host: GPUs are numbers to Ray, the processes on them are in the memory of their node.
    logical: bool
    source: str

    @property
    def title(self) -> str:
        """Nodes, GPUs, memory and how that is known."""
        sizes = sorted(set(self.gpus.values()))
        kind = "logical GPU" if self.logical else "GPU"
        plural = "" if sizes == [1] else "s"
        gpus = f"{' or '.join(map(str, sizes)) or 'no'} {kind}{plural}"
        of = "" if self.gpu_bytes is None else f" of {self.gpu_bytes / GIB:g} GiB"
        memory = f", {min(self.memory.values()) / GIB:.4g} GiB of memory" if self.memory else ""
        return f"{prose.counted(len(self.gpus), 'node')} x {gpus}{of}{memory} ({self.source})"


def placement(args: SimpleNamespace, found: Findings, shapes: dict[str, ModelShape]) -> list[str]:
    """Return the lines of a dry run about the placement of all processes and their memory.

    Args:
        args: The flags of the run.
        found: Gets a shortfall for each process or memory that does not fit, and notes.
        shapes: Role -> shape of its model, as far as the shapes are known.

    Returns:
        The lines; none if the cluster is not known.
    """
    cluster = _cluster(args, found)
    if cluster is None:
        return []
    layout = layout_of(args)
    groups = layout.groups()
    there = sum(cluster.gpus.values())
    plan = place(groups, list(cluster.gpus.values()))
    for group in plan.unplaced:
        found.shortfalls.append(
            f"{group.title}: no room for {prose.counted(group.slots, 'GPU')} beside what comes before; the run needs "
            f"{sum(each.slots for each in groups)}, there {'is' if there == 1 else 'are'} {there}: "
            f"{layout.way_out}, or take more GPUs"
        )
    for engine in plan.spanning_engines():
        found.notes.append(f"engine {engine} of --vllm.tensor_parallel_size spans nodes, which is slow")
    lines = [f"cluster: {cluster.title}", "placement", *prose.placement_lines(plan, list(cluster.gpus))]
    if "actor" not in shapes:
        return [*lines, "memory: not estimated, the shape of the model is not known"]
    memory = _memory_of_nodes if cluster.logical else _memory_of_gpus
    roles = roles_of(args, shapes, on_gpus=not cluster.logical)
    return lines + memory(args, found, shapes["actor"], roles, cluster, plan)


def _cluster(args: SimpleNamespace, found: Findings) -> Cluster | None:
    """Return the cluster of the flags, or what Ray has; None if there is no Ray."""
    gpu_memory = args.dry_run_gpu_memory * GIB or None
    cpu = cpu_host.is_cpu_host()
    memory: dict[str, float] = {}
    if args.dry_run_nodes:
        gpus = {f"node {number}": args.dry_run_gpus for number in range(args.dry_run_nodes)}
        source = "--dry_run_nodes, --dry_run_gpus"
    else:
        from openrlhf_cov.cluster.host.facts import find_gpus

        nodes = _ask_ray(args, found)
        if nodes is None:
            return None
        gpus = {name: count for name, (count, _) in nodes.items()}
        source = "what Ray has"
        if not (cpu and gpu_memory):  # GPUs of which there are none here are not on this host either
            memory = {name: size for name, (_, size) in nodes.items()}
        if gpu_memory is None and not cpu:
            gpu_memory = min((gpu.memory * 2.0**20 for gpu in find_gpus() or ()), default=None)
    if args.dry_run_node_memory:
        memory = {name: args.dry_run_node_memory * GIB for name in gpus}
    logical = cpu and not args.dry_run_gpu_memory
    return Cluster(gpus=gpus, gpu_bytes=gpu_memory, memory=memory, logical=logical, source=source)


def _ask_ray(args: SimpleNamespace, found: Findings) -> dict[str, tuple[int, float]] | None:
    """Return address -> GPUs and bytes of memory of every node of Ray with GPUs; None if there is no Ray.

    The memory of a Ray that runs already is what was free when it started there; else it is that of this host.
    """
    import ray

    from openrlhf_cov.cluster import connection
    from openrlhf_cov.cluster.host import facts

    needs = connection.needs_of_training(args)
    nodes = None
    alone = False
    with found.attempt():
        try:
            alone = connection.connect(needs)
            connection.check_capacity(needs, args.placement_timeout, may_scale=False)
        finally:
            if ray.is_initialized():
                kinds = ("memory", "object_store_memory")
                free: dict[str, float] = {}  # nodes of Ray on one host share its memory
                for node in ray.nodes():
                    if node["Alive"]:
                        memory = sum(node["Resources"].get(kind, 0.0) for kind in kinds)
                        address = node["NodeManagerAddress"]
                        free[address] = max(memory, free.get(address, 0.0))
                nodes = {
                    name: (count, float(facts.memory()) if alone else free[name])
                    for name, count in connection.gpus_of_nodes().items()
                }
            ray.shutdown()
    return nodes


# What runs on one GPU.
Kinds = tuple[str, ...]


def _budgets(plan: Placement, budget_of: Callable[[Kinds], Budget]) -> dict[Kinds, tuple[str, Budget]]:
    """Return title and budget of every kind of GPU; those without room would need as much elsewhere."""
    placed = Counter(gpu.kinds for gpu in plan.gpus)
    room = [sum(group.slots for group in plan.unplaced)]
    unplaced = Counter(gpu.kinds for gpu in place(plan.unplaced, room).gpus)
    titles = {
        kinds: f"{count} x {' + '.join(kinds)}" + (f" ({unplaced[kinds]} without room)" if unplaced[kinds] else "")
        for kinds, count in (placed + unplaced).items()
    }
    return {kinds: (title, budget_of(kinds)) for kinds, title in titles.items()}


def _memory_of_gpus(
    args: SimpleNamespace,
    found: Findings,
    shape: ModelShape,
    roles: dict[str, Role],
    cluster: Cluster,
    plan: Placement,
) -> list[str]:
    """Return a table for each kind of GPU, the engines and the hosts; add shortfalls where something does not fit."""
    engine = engine_of(args, cluster.gpu_bytes) if cluster.gpu_bytes and has_engines(args) else None

    def budget_of(kinds: Kinds) -> Budget:
        return budget(
            [roles[name] for name in kinds if name in roles],
            engine if "engine" in kinds else None,
            shape,
            engine_sleeps=args.vllm.enable_sleep,
            states_sleep=args.ds.enable_sleep,
        )

    lines = ["memory of a GPU, GiB, estimated (docs/sizing.md)"]
    for kinds, (title, table) in _budgets(plan, budget_of).items():
        lines += prose.budget_lines(title, table, cluster.gpu_bytes)
        _compare(found, " + ".join(kinds), table, cluster.gpu_bytes)
    if engine:
        lines += ["engine", prose.engine_line(engine, shape, args.data.max_len)]
        share = f"--vllm.gpu_memory_utilization {args.vllm.gpu_memory_utilization:g}"
        _check_engine(args, found, engine, shape, share)
    elif has_engines(args):
        found.notes.append("engines are not counted: the memory of a GPU is not known (--dry_run_gpu_memory)")
    return [*lines, *_hosts(found, host.off_gpu_bytes(args, roles, plan, shape), cluster)]


def _hosts(found: Findings, parts: dict[int, dict[str, float]], cluster: Cluster) -> list[str]:
    """Return the lines about the fullest host; add the shortfalls of all hosts."""
    names = list(cluster.gpus)
    needs = {names[node]: sum(each.values()) for node, each in parts.items()}
    _compare_nodes(found, needs, cluster, "beside the GPUs, for what sleeps or is offloaded", MEND_NODE)
    if not cluster.memory:
        found.notes.append("the memory of the hosts is not checked (--dry_run_node_memory)")
    fullest = max(parts.values(), key=lambda each: sum(each.values()), default={})
    return ["host of the fullest node", prose.host_line(fullest)]


def _memory_of_nodes(
    args: SimpleNamespace,
    found: Findings,
    shape: ModelShape,
    roles: dict[str, Role],
    cluster: Cluster,
    plan: Placement,
) -> list[str]:
    """Check the memory of CPU hosts, where all processes of a node share its memory."""
    given = os.environ.get(cpu_host.KV_VARIABLE)
    try:
        space = None if given is None else float(given) * GIB
    except ValueError:
        found.shortfalls.append(f"{cpu_host.KV_VARIABLE} {given} is no number of GiB; set one, or unset it")
        return []
    engine = host.cpu_engine(args, shape, space)
    budgets = _budgets(plan, lambda kinds: host.cpu_budget(roles, kinds, engine))
    lines = ["memory of a logical GPU, which is memory of its node, GiB, estimated (docs/sizing.md)"]
    for title, table in budgets.values():
        lines += prose.budget_lines(title, table, None)
    if has_engines(args):
        lines += ["engine", prose.engine_line(engine, shape, args.data.max_len)]
        _check_engine(args, found, engine, shape, f"{cpu_host.KV_VARIABLE} {given or cpu_host.KV_SPACE // GIB}")
    names = list(cluster.gpus)
    tables = {kinds: table for kinds, (_, table) in budgets.items()}
    needs = {names[node]: need for node, need in host.cpu_bytes(plan, tables).items()}
    _compare_nodes(found, needs, cluster, "for all processes together, as GPUs are logical there", MEND_CPU_NODE)
    return [*lines, "all processes of a node, at most", *prose.node_lines(needs, cluster.memory)]


def _compare(found: Findings, kind: str, table: Budget, capacity: float | None) -> None:
    for phase, need in zip(PHASES, table.totals, strict=True):
        if capacity is not None and need > capacity:
            found.shortfalls.append(
                f"memory: a GPU of {kind} needs {need / GIB:.1f} GiB of {capacity / GIB:g} in phase {phase}; "
                f"{MEND[phase]}"
            )


def _compare_nodes(found: Findings, needs: dict[str, float], cluster: Cluster, what: str, mend: str) -> None:
    """Add a shortfall for each amount of memory that is missing, however many nodes lack it."""
    short: dict[str, list[str]] = {}
    for name, need in needs.items():
        if cluster.memory and need > cluster.memory[name]:
            lack = f"{need / GIB:.1f} GiB of {cluster.memory[name] / GIB:.1f} {what}"
            short.setdefault(lack, []).append(name)
    for lack, (first, *others) in short.items():
        nodes = f"{first} and {len(others)} more need" if others else f"{first} needs"
        found.shortfalls.append(f"memory: {nodes} {lack}; {mend}")


def _check_engine(args: SimpleNamespace, found: Findings, engine: Engine, shape: ModelShape, share: str) -> None:
    if engine.kv_tokens(shape) < args.data.max_len:
        found.shortfalls.append(
            f"{share} leaves a KV cache of {prose.counted(engine.kv_tokens(shape), 'token')} per engine, less than "
            f"one sequence of --data.max_len {args.data.max_len}; raise it or --vllm.tensor_parallel_size"
        )
