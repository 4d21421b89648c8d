"""The settings that determine a run, so that a resume can name differences from the checkpoint's run."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_cov.config import EvaluationConfig, PromptConfig, RunConfig
from openrlhf_cov.models.cov_config import has_critic, has_process_reward, process_reward_of, reference_model
from openrlhf_cov.settings import flag_of
from openrlhf_cov.utils.rows import column_of, value_at

# Name of the entry for the prompts and labels.
DATA = "data"

# Flags of the length of a run, over which the learning rate is scheduled.
LENGTHS = ("rollout_limit", "train.num_episodes")

# Flags that may change between a checkpoint and its resume without a word: where a run reads, writes and logs, how
# long it is, how it is placed on hardware, and how it is evaluated. Every flag that is not listed here is compared.
# docs/resuming.md has the same table.
FREE = (
    # Files and logs. The content of the data, models and reward functions is compared, not their paths.
    *("ckpt.*", "logger.*", "cov_dump_*", "rollout_dump_dir", "use_ms", "local_rank", "trust_remote_code", "allow_*"),
    *("data.prompt_dataset", "data.prompt_split", "data.max_samples"),
    *("data.input_key", "data.label_key", "data.image_key", "data.dataloader_num_workers"),
    *("reward.remote_url", "train.agent_func_path", "*.model_name_or_path"),
    # Length of a run. It is compared where it shapes the learning rate.
    *LENGTHS,
    # Hardware, memory and speed. Ranks, ZeRO stage and the like are compared by describe_run.
    *("*.num_nodes", "*.num_gpus_per_node", "*.offload", "train.colocate_*", "vllm.*", "ray.*", "placement_timeout"),
    *("train.micro_batch_size", "rollout.micro_batch_size", "*.max_tokens_per_gpu", "train.dynamic_batch_enable"),
    *("train.full_determinism_enable", "actor.gradient_checkpointing_*", "actor.optim", "critic.optim"),
    *("ds.zero_stage", "ds.zpg", "ds.adam_offload", "ds.param_dtype", "ds.tensor_parallel_size", "ds.ring_attn_*"),
    *("ds.overlap_comm", "ds.deepcompile", "ds.enable_sleep", "ds.use_universal_ckpt", "ds.packing_samples"),
    *("ds.attn_implementation", "ds.experts_implementation", "ds.use_liger_kernel"),
    *("reward_workers", "reward_timeout", "reward_max_error_frac", "code_sandbox"),
    # Evaluation, planning, and what ends a run.
    *("eval.*", "dry_run*", "train.on_nan", "train.check_weight_update", "critic.save_value_network"),
)

# Files that are larger than READ_WHOLE are read in samples: their size, and one block of BLOCK bytes in every STRIDE.
# A matrix that is larger than STRIDE bytes cannot change unseen, and 15 GB of weights take 240 MB of reading.
READ_WHOLE = 64 * 2**20
STRIDE = 4 * 2**20
BLOCK = 64 * 2**10

MODEL_FILES = ("config.json", "generation_config.json", "*.safetensors", "*.bin")
TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
)


def record_of(args: SimpleNamespace, rows: Any) -> dict[str, Any]:
    """Return what determines a run, by name: digests of data, models and reward code, and every flag that is not free.

    Args:
        args: The parsed flags, as upstream nests them.
        rows: The rows of the training data, in order.
    """
    record: dict[str, Any] = {DATA: digest_of_rows(rows, args.data)}
    has_sources = column_of(rows.column_names, OF_VERL) is not None
    record[OF_VERL] = _digest_of_columns(rows, [OF_VERL]) if has_sources else None
    actor = args.actor.model_name_or_path
    record["model"] = digest_of_files(actor, MODEL_FILES)
    record["tokenizer"] = digest_of_files(actor, TOKENIZER_FILES)
    # Every name is always there, None where a run has no such thing: changed_names passes over a name that is missing,
    # and would not see that a reward function took the place of a reward model.
    urls = args.reward.remote_url or []
    agent = args.train.agent_func_path
    record["critic_model"] = digest_of_files(args.critic.model_name_or_path, MODEL_FILES)
    prm = reference_model(args) if has_process_reward(args) else None
    record["process_reward_model"] = digest_of_files(prm, MODEL_FILES)
    record["reward_function"] = [digest_of_source(url) for url in urls] or None
    record["reward_model"] = None if urls else digest_of_files(args.reward.model_name_or_path, MODEL_FILES)
    record["agent_function"] = digest_of_source(agent) if agent else None
    record |= {name: value for name, value in flags_of(args) if not is_free(name, args)}
    return {name: _as_json(value) for name, value in record.items()}


# Flags that decide which samples make up a micro-batch, and so what is selected with --cov_scope micro_batch.
MICRO_BATCH_FLAGS = ("train.micro_batch_size", "train.max_tokens_per_gpu", "train.dynamic_batch_enable")


def selects_tokens(args: SimpleNamespace) -> bool:
    """Return True if a method of the run selects tokens."""
    return any(name not in ("", "none") for name in (args.cov_type, args.method))


def scheduled_rates(args: SimpleNamespace, steady: Iterable[str] = ("constant",)) -> list[str]:
    """Return the flags of the schedulers of trained models whose learning rate depends on the length of the run.

    Args:
        args: The flags of the run.
        steady: The schedulers that do not count.
    """
    models = ("actor", "critic") if has_critic(args) else ("actor",)
    return [f"--{model}.lr_scheduler" for model in models if getattr(args, model).lr_scheduler not in steady]


def is_free(name: str, args: SimpleNamespace) -> bool:
    """Return True if a flag may change on a resume without being accepted by ``--ckpt.allow_changed``.

    Args:
        name: The name of the flag, as ``flags_of`` yields it.
        args: The flags of the run, on some of which the answer depends.
    """
    if name in LENGTHS:
        return not scheduled_rates(args)
    if name in MICRO_BATCH_FLAGS and args.cov_scope == "micro_batch" and selects_tokens(args):
        return False
    if name.startswith("critic.") and name != "critic.freezing_steps" and not has_critic(args):
        return True
    model = process_reward_of(args)
    if model is not None and f"--{name}" == model.model_flag:
        return True
    return any(fnmatchcase(name, pattern) for pattern in FREE)


def flags_of(args: SimpleNamespace, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of every flag, with names as on the command line and without the dashes.

    Args:
        args: The parsed flags, as upstream nests them, or one of their groups.
        prefix: The dotted name of the group with a dot at its end; empty for all flags.
    """
    for name, value in vars(args).items():
        if isinstance(value, SimpleNamespace):
            yield from flags_of(value, f"{prefix}{name}.")
        elif name not in ATTACHED:
            yield OUR_FLAGS.get(name, prefix + name), value


# Settings of ours whose flag has another name than their field.
OUR_FLAGS = {
    entry.name: flag_of(entry) for config in (EvaluationConfig, PromptConfig, RunConfig) for entry in fields(config)
}

RECORD = "run_record"
DATA_CHANGED = "data_changed"
# What ``attach`` adds to the parsed flags.
ATTACHED = (RECORD, DATA_CHANGED)


def attach(args: SimpleNamespace, record: dict[str, Any], *, data_changed: bool) -> None:
    """Store the record in the flags, which take it to the actors that write checkpoints.

    Args:
        args: The flags of the run; changed in place.
        record: Result of ``record_of``.
        data_changed: True if the run continues from a checkpoint that was made with other data.
    """
    setattr(args, RECORD, record)
    setattr(args, DATA_CHANGED, data_changed)


def changed_names(saved: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """Return the names whose values differ, in the order of ``record``.

    A name that one of the two lacks does not count: the versions that wrote them know different settings.

    Args:
        saved: The record in the checkpoint.
        record: The record of this run.
    """
    return [name for name in record if name in saved and saved[name] != record[name]]


def describe_changes(names: Iterable[str], saved: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Return one line that gives both values of every name.

    Args:
        names: The names whose values differ; both records have all of them.
        saved: The record in the checkpoint.
        record: The record of this run.
    """
    return "; ".join(f"{name} {_shown(saved[name])} (this run: {_shown(record[name])})" for name in names)


def parse_names(text: str) -> list[str]:
    """Return the names of ``--ckpt.allow_changed``, which are separated by commas and may begin with dashes."""
    return [name.strip().removeprefix("--") for name in text.split(",") if name.strip()]


# Columns with the name of a row's data source, and that of data for verl.
SOURCES = ("datasource", "source")
OF_VERL = "data_source"


def digest_of_rows(rows: Any, data: SimpleNamespace) -> str:
    """Return one line with the number of rows and a digest of prompts, labels, images and sources, in order.

    Args:
        rows: The rows of the training data, a Hugging Face dataset.
        data: The flags ``--data``, which name the columns.
    """
    return _digest_of_columns(rows, [data.input_key, data.label_key, getattr(data, "image_key", None), *SOURCES])


def _digest_of_columns(rows: Any, keys: Sequence[str | None]) -> str:
    found = {column_of(rows.column_names, key) for key in keys if key}
    columns = sorted(column for column in found if column is not None)
    digest = hashlib.sha256()
    for row in rows.select_columns(columns):
        # The names of columns do not matter, their roles do: a renamed key with equal content is equal data.
        values = [key and value_at(row, key, default=None) for key in keys]
        digest.update(json.dumps(values, sort_keys=True, default=repr).encode() + b"\n")
    return f"{len(rows)} rows, digest {digest.hexdigest()[:16]}"


def digest_of_files(name: str | None, patterns: Iterable[str]) -> str | None:
    """Return a digest of the files of a model folder.

    Args:
        name: A folder, or the name of a model on the hub; None or empty for no model.
        patterns: Patterns of the names of the files that count. Large files are read in samples.

    Returns:
        The digest; ``name`` itself if it is no folder here.
    """
    folder = Path(name) if name else None
    if folder is None or not folder.is_dir():
        return name
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}):
        digest.update(path.name.encode() + b"\0" + str(path.stat().st_size).encode() + b"\0")
        for block in _blocks(path):
            digest.update(block)
    return f"digest {digest.hexdigest()[:16]}"


def digest_of_source(path: str) -> str:
    """Return a digest of a Python file of the user.

    A reward server is compared by its kind alone, because its address may differ after a restart. The reward function
    of this package is compared by its name, because its settings are flags.
    """
    if not path.endswith(".py"):
        return "server"
    source = Path(path)
    if source.parts[-3:] == ("openrlhf_cov", "rewards", "reward_func.py"):
        return "openrlhf_cov"
    if not source.is_file():
        return path
    return f"digest {hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"


def _blocks(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= READ_WHOLE:
            while block := file.read(STRIDE):
                yield block
            return
        for place in [*range(0, size - BLOCK, STRIDE), size - BLOCK]:
            file.seek(place)
            yield file.read(BLOCK)


def _as_json(value: Any) -> Any:
    """Return a value in the form in which the JSON of a checkpoint gives it back."""
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value if value is None or is_number or isinstance(value, str) else str(value)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split()) or "''"
    return text if len(text) <= 80 else f"{text[:77]}..."
