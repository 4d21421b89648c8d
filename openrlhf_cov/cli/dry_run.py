"""``--dry_run``: everything that is checked before a run, and what the run would need, without starting anything."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from openrlhf_cov.errors import UsageError
from openrlhf_cov.sizing import limits, report
from openrlhf_cov.sizing.budget import PHASES, Budget, budget
from openrlhf_cov.sizing.memory import GIB
from openrlhf_cov.sizing.model_shape import KNOWN, ModelShape, shape_of_config
from openrlhf_cov.sizing.placement import Plan, place
from openrlhf_cov.sizing.plan import engine_of, host_bytes, layout_of, model_names, ranks_of, roles_of, step_of
from openrlhf_cov.trainer import cpu_host

PROMPTS_TO_MEASURE = 1000
"""Prompts of the data that are tokenized for their length."""

MEND = {
    "generate": "lower --vllm.gpu_memory_utilization, or let what rests leave the GPU (--ds.enable_sleep)",
    "score": "lower --rollout.max_tokens_per_gpu (or --rollout.micro_batch_size), or let the engine leave the GPU "
    "(--vllm.enable_sleep)",
    "train": "lower --train.max_tokens_per_gpu (or --train.micro_batch_size), add "
    "--actor.gradient_checkpointing_enable, --ds.zero_stage 3, --ds.adam_offload or --vllm.enable_sleep, or take more "
    "GPUs",
    "send": "let what rests leave the GPU (--vllm.enable_sleep, --ds.enable_sleep), or take more GPUs",
}
"""Phase -> what makes it need less."""


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


@dataclass(frozen=True)
class Cluster:
    """GPUs of every node, by its name; ``gpu_bytes`` None: not known, or not worth knowing on a CPU host."""

    nodes: dict[str, int]
    gpu_bytes: float | None
    source: str

    @property
    def title(self) -> str:
        """Nodes, GPUs and how that is known."""
        sizes = sorted(set(self.nodes.values()))
        gpus = " or ".join(map(str, sizes)) or "no"
        memory = "" if self.gpu_bytes is None else f" of {self.gpu_bytes / GIB:g} GiB"
        return f"{len(self.nodes)} node{'s' * (len(self.nodes) != 1)} x {gpus} GPUs{memory} ({self.source})"


def run(args: SimpleNamespace, complain: Callable[[str], int]) -> int:
    """Print the plan of a run; 0 if it would run, else 2 after ``complain`` was called with every shortfall."""
    found = Findings()
    shapes, tokenizer = _models(args, found)
    with leaves_no_folders(Path(args.ckpt.output_dir), Path(args.ckpt.path)):
        rows = _check(args, found, tokenizer)
    found.shortfalls += limits.faults(args, ranks_of(args), shapes.get("actor"))
    found.notes += limits.notes(args, ranks_of(args), shapes.get("actor"))
    lines = [*_step(args, found, rows, tokenizer), *_placement(args, found, shapes)]
    lines += [f"note: {note}" for note in dict.fromkeys(found.notes)]
    faults = list(dict.fromkeys(found.shortfalls))
    lines.append(f"dry run: {len(faults)} shortfalls" if faults else "dry run: it would run")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
    return max((complain(fault) for fault in faults), default=0)


@contextmanager
def leaves_no_folders(*folders: Path) -> Iterator[None]:
    """Afterwards remove what the body has made of these folders and of those above them."""
    new = [path for folder in folders for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        for path in sorted(set(new), key=lambda path: -len(path.parts)):
            with suppress(OSError):  # it was not made, or holds what others have made meanwhile
                path.rmdir()


def _models(args: SimpleNamespace, found: Findings) -> tuple[dict[str, ModelShape], Any]:
    """Shape of every model that has one, by its role; and the tokenizer, if it can be had here."""
    shapes: dict[str, ModelShape] = {}
    for role, (flag, name) in model_names(args).items():
        config = _read_config(name)
        if config is None:
            if name in KNOWN:
                shapes[role] = KNOWN[name]
                found.notes.append(
                    f"{flag} {name}: shape from the built-in table, config.json not read; tokenizer not checked"
                )
            continue  # that it cannot be read is a shortfall of the model's own check
        try:
            shapes[role] = shape_of_config(config)
        except ValueError as error:
            found.shortfalls.append(f"{flag} {name}: {error}; plan its memory by hand, and run it without --dry_run")
    tokenizer = None
    actor = args.actor.model_name_or_path
    if actor and _read_config(actor) is not None:
        tokenizer = _load_tokenizer(args, actor, found)
    return shapes, tokenizer


def _read_config(name: str | None) -> dict[str, Any] | None:
    """The config.json of a folder or a hub model, None if it cannot be read; ``KNOWN`` ones are not downloaded."""
    if not name:
        return None
    try:
        if Path(name).exists():
            return dict(json.loads((Path(name) / "config.json").read_text(encoding="utf-8")))
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(name, trust_remote_code=True, local_files_only=name in KNOWN).to_dict()
    except Exception:  # a config of any shape; the model's own code may run
        return None


def _load_tokenizer(args: SimpleNamespace, name: str, found: Findings) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            name, trust_remote_code=True, use_fast=not args.data.disable_fast_tokenizer
        )
    except Exception as error:  # as above
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        found.shortfalls.append(
            f"--actor.model_name_or_path {name}: its tokenizer cannot be loaded ({reason}); copy or download it again"
        )
        return None


def _check(args: SimpleNamespace, found: Findings, tokenizer: Any) -> Any:
    """What a run checks before it starts, all of it; the rows of the data if they can be read."""
    from openrlhf_cov.cli import preflight

    known = [name for name in KNOWN if not Path(name).exists()]
    return preflight.check(args, found.attempt, known, ask_tokenizer=tokenizer is not None)


def _step(args: SimpleNamespace, found: Findings, rows: Any, tokenizer: Any) -> list[str]:
    """Samples and tokens of a step."""
    lengths = _prompt_lengths(args, rows, tokenizer) if rows is not None and tokenizer is not None else []
    room = args.data.max_len - (args.rollout.max_new_tokens or 1)
    if cut := sum(length > room for length in lengths):
        found.notes.append(
            f"{cut} of {len(lengths)} prompts are longer than the {room} tokens that --data.max_len "
            f"{args.data.max_len} leaves beside the response: upstream cuts them"
        )
    return ["step", *report.step_lines(step_of(args, fmean(lengths) if lengths else None))]


def _prompt_lengths(args: SimpleNamespace, rows: Any, tokenizer: Any) -> list[int]:
    """Tokens of the first prompts, with the template that the flags name; none if they cannot be written."""
    prompts = rows[: min(PROMPTS_TO_MEASURE, len(rows))][args.data.input_key]
    try:
        return [len(tokenizer(_written(args, prompt, tokenizer))["input_ids"]) for prompt in prompts]
    except Exception:  # a chat template is code; bad prompts have been reported
        return []


def _written(args: SimpleNamespace, prompt: Any, tokenizer: Any) -> str:
    if args.data.apply_chat_template:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return args.data.input_template.format(prompt) if args.data.input_template else prompt


def _placement(args: SimpleNamespace, found: Findings, shapes: dict[str, ModelShape]) -> list[str]:
    """Where everything goes, and what it needs there."""
    cluster = _cluster(args, found)
    if cluster is None:
        return []
    names = list(cluster.nodes)
    plan = place(layout_of(args).groups(), list(cluster.nodes.values()))
    for group in plan.unplaced:
        found.shortfalls.append(
            f"{group.title}: no room for {group.slots} GPUs beside what comes before; the run needs "
            f"{sum(each.slots for each in layout_of(args).groups())}, there are {sum(cluster.nodes.values())}: lower "
            "--actor.num_gpus_per_node, --ref.num_gpus_per_node or --vllm.num_engines, colocate "
            "(--train.colocate_all, --train.colocate_actor_ref), or take more GPUs"
        )
    for engine in plan.spanning_engines():
        found.notes.append(f"engine {engine} of --vllm.tensor_parallel_size spans nodes, which is slow")
    lines = [f"cluster: {cluster.title}", "placement", *report.placement_lines(plan, names)]
    return lines + _memory(args, found, shapes, cluster, plan)


def _cluster(args: SimpleNamespace, found: Findings) -> Cluster | None:
    """The cluster of the flags, or what Ray has; None if there is no Ray."""
    memory = args.dry_run_gpu_memory * GIB or None
    if args.dry_run_nodes:
        nodes = {f"node {number}": args.dry_run_gpus for number in range(args.dry_run_nodes)}
        return Cluster(nodes, memory, "--dry_run_nodes, --dry_run_gpus")
    import ray

    from openrlhf_cov.cli.host.facts import find_gpus
    from openrlhf_cov.trainer.ray import cluster

    needs = cluster.needs_of_training(args)
    with found.attempt():
        try:
            cluster.connect(needs)
            cluster.check_capacity(needs)
        finally:
            nodes = cluster.gpus_of_nodes() if ray.is_initialized() else None
            ray.shutdown()
    gpus = () if cpu_host.is_cpu_host() else find_gpus() or ()
    return None if nodes is None else Cluster(nodes, memory or _least(gpus), "what Ray has")


def _least(gpus: tuple[Any, ...]) -> float | None:
    """Bytes of the smallest GPU of this host."""
    return min((gpu.memory * 2.0**20 for gpu in gpus), default=None)


def _memory(
    args: SimpleNamespace, found: Findings, shapes: dict[str, ModelShape], cluster: Cluster, plan: Plan
) -> list[str]:
    """A table for each kind of GPU, the engines and the hosts; shortfalls where something does not fit."""
    if "actor" not in shapes:
        return ["memory: not estimated, the shape of the model is not known"]
    on_gpus = bool(args.dry_run_gpu_memory) or not cpu_host.is_cpu_host()
    roles = roles_of(args, shapes, fused_loss=on_gpus)
    engine = engine_of(args, cluster.gpu_bytes) if cluster.gpu_bytes else None
    lines = ["memory of a GPU, GiB, estimated (docs/sizing.md)"]
    kinds = [gpu.kinds for gpu in plan.gpus]
    for kind in dict.fromkeys(kinds):
        there = [roles[name] for name in kind if name in roles]
        table = budget(
            there,
            engine if "engine" in kind else None,
            shapes["actor"],
            engine_sleeps=args.vllm.enable_sleep,
            states_sleep=args.ds.enable_sleep,
        )
        lines += report.budget_lines(f"{kinds.count(kind)} x {' + '.join(kind)}", table, cluster.gpu_bytes)
        _compare(found, " + ".join(kind), table, cluster.gpu_bytes)
    if engine:
        lines += ["engine", report.engine_line(engine, shapes["actor"], args.data.max_len)]
        _check_engine(args, found, engine, shapes["actor"])
    else:
        found.notes.append("engines are not counted: the memory of a GPU is not known (--dry_run_gpu_memory)")
    return [*lines, "host of the fullest node", report.host_line(host_bytes(args, roles, plan, shapes["actor"]))]


def _compare(found: Findings, kind: str, table: Budget, capacity: float | None) -> None:
    for phase, need in zip(PHASES, table.totals, strict=True):
        if capacity is not None and need > capacity:
            found.shortfalls.append(
                f"memory: a GPU of {kind} needs {need / GIB:.1f} GiB of {capacity / GIB:g} in phase {phase}; "
                f"{MEND[phase]}"
            )


def _check_engine(args: SimpleNamespace, found: Findings, engine: Any, shape: ModelShape) -> None:
    if engine.kv_tokens(shape) < args.data.max_len:
        found.shortfalls.append(
            f"--vllm.gpu_memory_utilization {args.vllm.gpu_memory_utilization:g} leaves a KV cache of "
            f"{engine.kv_tokens(shape):,} tokens per engine, less than one sequence of --data.max_len "
            f"{args.data.max_len}; raise it or --vllm.tensor_parallel_size"
        )
