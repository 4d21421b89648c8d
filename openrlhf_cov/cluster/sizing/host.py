"""Bytes in the memory of nodes: what leaves the GPUs, and everything where there are none (pure)."""

from collections.abc import Mapping
from types import SimpleNamespace

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.sizing.budget import PHASES, Budget, Need, Role, budget
from openrlhf_cov.cluster.sizing.flag_sizes import BYTES, engine_of
from openrlhf_cov.cluster.sizing.memory import GIB, Engine
from openrlhf_cov.cluster.sizing.model_shape import ModelShape
from openrlhf_cov.cluster.sizing.placement import Placement
from openrlhf_cov.utils.engine_limits import engine_limits

# Measured on the embedded task, on a CPU host: Python, torch and Ray in one process, without model.
CPU_PROCESS = 2 * GIB // 3

# Processes of a vLLM engine of several ranks on a CPU host, beside its ranks: Ray's actor and the scheduler. An engine
# of one rank is one process.
SHARDED_ENGINE_PROCESSES = 2

# Processes of the run: its command, the trainer, and those of Ray, counted as one.
RUN_PROCESSES = 3


def off_gpu_bytes(
    args: SimpleNamespace, roles: Mapping[str, Role], plan: Placement, engine_shape: ModelShape
) -> dict[int, dict[str, float]]:
    """Return the bytes in the memory of each node that is taken by what sleeps or is offloaded: node -> kind -> bytes.

    Parts of ZeRO that leave a GPU are pinned in the host's memory; a sleeping engine leaves its weights there.

    Args:
        args: The flags of a training.
        roles: Name of a model -> the model.
        plan: The node of every process.
        engine_shape: Shape of the model in the engines.
    """
    engine = args.vllm.enable_sleep * engine_of(args, 0.0).weights(engine_shape)
    parts = {
        node: {
            "states of DeepSpeed": sum(
                kinds.count(name) * _on_host(role, args.ds.enable_sleep) for name, role in roles.items()
            ),
            "weights of engines": kinds.count("engine") * engine,
        }
        for node, kinds in _kinds(plan).items()
    }
    first = next((gpu.node for gpu in plan.gpus if "actor" in gpu.kinds), None)
    for node, kinds in _kinds(plan).items():
        if average := sum(_average(role, kinds.count(name), is_first=node == first) for name, role in roles.items()):
            parts[node]["averaged weights"] = average
    return parts


def cpu_engine(args: SimpleNamespace, shape: ModelShape, kv_space: float | None = None) -> Engine:
    """Return an engine on a CPU host, which takes memory for its weights and the KV cache alone.

    Args:
        args: The flags of a training.
        shape: Shape of the model.
        kv_space: Bytes of the KV cache of one process; None for ``cpu_host.kv_cache_bytes``.
    """
    shards = args.vllm.tensor_parallel_size
    element = BYTES[args.ds.param_dtype]
    limits = engine_limits(args.vllm_max_num_seqs, args.vllm_max_num_batched_tokens, on_gpus=False)
    if kv_space is None:
        kv_space = cpu_host.kv_cache_bytes(
            shape,
            sequences=limits.sequences,
            longest=args.data.max_len,
            element=element,
            keeps_prefixes=args.vllm.enable_prefix_caching,
        )
    weights = shape.parameters * element / shards
    return Engine(
        tensor_parallel=shards,
        utilization=1.0,
        gpu_bytes=weights + kv_space,
        element=element,
        limits=limits,
        has_workspace=False,
    )


def cpu_budget(roles: Mapping[str, Role], kinds: tuple[str, ...], engine: Engine) -> Budget:
    """Return the bytes that the processes on one logical GPU take in the memory of their node.

    Nothing can be moved out of the way: vLLM does not sleep on a CPU host, and what DeepSpeed offloads stays in the
    same memory.

    Args:
        roles: Name of a model -> the model.
        kinds: Kinds of the processes on the logical GPU, such as ``actor`` and ``engine``.
        engine: The engine, as ``cpu_engine`` returns it; it counts where ``kinds`` has one.
    """
    there = [roles[name] for name in kinds if name in roles]
    more_of_engine = SHARDED_ENGINE_PROCESSES if engine.tensor_parallel > 1 else 0
    processes = len(kinds) + more_of_engine * kinds.count("engine")
    *rows, _ = budget(there, engine if "engine" in kinds else None).rows  # the last one is CUDA's
    more = {
        "offloaded, here all the same": sum(_on_host(role, sleeps=False) for role in there),
        "Python, torch": float(processes * CPU_PROCESS),
    }
    rows += [Need(name, (value,) * len(PHASES)) for name, value in more.items() if value]
    return Budget(tuple(rows))


def cpu_bytes(plan: Placement, budgets: Mapping[tuple[str, ...], Budget]) -> dict[int, float]:
    """Return the bytes of all processes of each node in the phase that needs most, on a CPU host: node -> bytes.

    Args:
        plan: The node of every process.
        budgets: Kinds of processes -> budget of a logical GPU with these.
    """
    needs = {}
    for node in _kinds(plan):
        tables = [budgets[gpu.kinds].totals for gpu in plan.gpus if gpu.node == node]
        needs[node] = max(map(sum, zip(*tables, strict=True))) + RUN_PROCESSES * CPU_PROCESS
    return needs


def _kinds(plan: Placement) -> dict[int, list[str]]:
    """Return node -> kinds of its processes."""
    nodes: dict[int, list[str]] = {}
    for gpu in plan.gpus:
        nodes.setdefault(gpu.node, []).extend(gpu.kinds)
    return nodes


def _on_host(role: Role, sleeps: bool) -> float:
    """Return the bytes that one process keeps in its host's memory instead of on its GPU."""
    sharding = role.sharding
    shape = role.shape
    weights = shape.parameters * sharding.element / sharding.world if sharding.weights_on_cpu else 0.0
    if role.training is None:
        return weights if sharding.stage == 3 else 0.0
    if sharding.optimizer_on_cpu:  # fp32 master weights, moments and gradients
        return 16.0 * sharding.trained_parameters(shape) / sharding.world
    return sharding.optimizer(shape) + sharding.gradients(shape) if sleeps else 0.0


def _average(role: Role, processes: int, is_first: bool) -> float:
    """Return the bytes of the averaged weights on one node (``trainer/model/moving_average.py``).

    The average is in fp32. In stage 3 every process has its part of it, and of the offloaded model that is exported;
    in other stages the first process of the policy has all of it.

    Args:
        role: The model.
        processes: Its processes on the node.
        is_first: True for the node of its first process.
    """
    if not role.averaged:
        return 0.0
    if role.sharding.stage == 3:
        return processes * (4.0 + role.sharding.element) * role.shape.parameters / role.sharding.world
    return 4.0 * role.shape.parameters if is_first else 0.0
