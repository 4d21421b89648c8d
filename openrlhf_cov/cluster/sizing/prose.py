"""The text of a dry run (pure)."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from openrlhf_cov.cluster.sizing.budget import PHASES, Budget
from openrlhf_cov.cluster.sizing.flag_sizes import Step
from openrlhf_cov.cluster.sizing.memory import GIB, Engine
from openrlhf_cov.cluster.sizing.model_shape import ModelShape
from openrlhf_cov.cluster.sizing.placement import Placement

WIDTH = 36


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 GPU``, ``2 GPUs``, ``2 processes``.

    Args:
        number: The number, at least 0.
        noun: The noun in the singular.
    """
    if number == 1:
        return f"1 {noun}"
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{plural}"


def placement_lines(plan: Placement, nodes: Sequence[str]) -> list[str]:
    """Return one line for each stretch of GPUs of a node with the same kinds of processes.

    Args:
        plan: The GPUs and their processes.
        nodes: Name of each node, by the number that the plan gives it.
    """
    lines = []
    for (node, kinds), stretch in groupby(plan.gpus, key=lambda gpu: (gpu.node, gpu.kinds)):
        gpus = list(stretch)
        parts = []
        for place, kind in enumerate(kinds):
            names = [gpu.processes[place].split()[1] for gpu in gpus]
            # A process that is one of several parts of an engine is called "0.1" and the like.
            numbers = f"{names[0]}-{names[-1]}" if "." in names[0] else ", ".join(_stretches(names))
            parts.append(f"{kind} {numbers}")
        lines.append(
            f"  {nodes[node]:<{WIDTH - 12}} GPU {_range(gpus[0].index, gpus[-1].index):<7} {', '.join(parts)}"
        )
    return lines


def budget_lines(title: str, budget: Budget, capacity: float | None) -> list[str]:
    """Return the lines of a table in GiB: a row for each kind of bytes, a column for each phase, and their sums.

    Args:
        title: Head of the first column.
        budget: The bytes of one GPU.
        capacity: Bytes that the GPU has, shown beside the sum; None if that is not known.
    """
    head = f"  {title:<{WIDTH}}" + "".join(f"{phase:>10}" for phase in PHASES)
    rows = [_row(row.name, row.values) for row in budget.rows]
    total = _row("sum" if capacity is None else f"sum, of {capacity / GIB:g}", budget.totals)
    return [head, *rows, total]


def engine_line(engine: Engine, shape: ModelShape, longest: int) -> str:
    """Return the line that says how an engine uses its share of a GPU: weights, KV cache and sequences at once.

    Args:
        engine: The engine.
        shape: Shape of its model.
        longest: Tokens of the longest sample, prompt and response together.
    """
    kv = max(0.0, engine.kv_bytes(shape))
    return (
        f"  {engine.share / GIB:.1f} GiB of every GPU: weights {engine.weights(shape) / GIB:.1f}, KV cache "
        f"{kv / GIB:.1f} = {engine.kv_tokens(shape):,} tokens per engine, room for "
        f"{counted(engine.sequences(shape, longest), 'sequence')} of {longest:,} at once"
    )


def host_line(parts: Mapping[str, float]) -> str:
    """Return the line with the memory of a node's host."""
    shown = " + ".join(f"{value / GIB:.1f} {name}" for name, value in parts.items() if value)
    return f"  {sum(parts.values()) / GIB:.1f} GiB" + (f" = {shown}" if shown else "")


def node_lines(needs: Mapping[str, float], memory: Mapping[str, float]) -> list[str]:
    """Return one line for each node with the memory that it needs, and the memory that it has where that is known.

    Args:
        needs: Node -> bytes that its processes need.
        memory: Node -> bytes that it has. Nodes may be missing.
    """
    there = {name: f" of {size / GIB:.1f}" for name, size in memory.items()}
    return [f"  {name:<{WIDTH - 12}} {need / GIB:.1f} GiB{there.get(name, '')}" for name, need in needs.items()]


def step_lines(step: Step) -> list[str]:
    """Return the lines with the samples and tokens of a step."""
    prompt = (
        f"prompts of {step.prompt_tokens:,.0f} tokens, the mean of the data"
        if step.prompt_tokens is not None
        else "prompts as long as they may be"
    )
    return [
        f"  {counted(step.prompts, 'prompt')} x {step.samples_per_prompt} = {counted(step.samples, 'sample')}, "
        f"updates: {step.updates}",
        f"  {step.worst:,} tokens if all are as long as they may be ({step.longest:,}, of which "
        f"{step.longest_response:,} response)",
        f"  {step.expected:,.0f} tokens with {prompt}, and responses half as long as they may be",
    ]


def _row(name: str, values: Sequence[float]) -> str:
    return f"  {name:<{WIDTH}}" + "".join(f"{value / GIB:>10.1f}" if value else f"{'-':>10}" for value in values)


def _stretches(names: Sequence[str]) -> Iterator[str]:
    """Yield stretches of consecutive numbers: 0, 1, 2, 5 -> 0-2, 5."""
    numbers = [int(name) for name in names]
    # Place less number is the same within a run of consecutive numbers.
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        yield _range(members[0], members[-1])


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
