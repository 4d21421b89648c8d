"""Checks of the prompts and labels that a run will read. Each raises UsageError with one line."""

import reprlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from datasets import DatasetDict
from openrlhf.datasets.utils import blending_datasets
from openrlhf.utils.logging_utils import init_logger
from transformers import AutoTokenizer

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.data.columns import WRITTEN_MESSAGES
from openrlhf_cov.data.readers import refuse_suffix
from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards.loading import label_check, label_of
from openrlhf_cov.utils.json_lines import BOM
from openrlhf_cov.utils.rows import column_of, value_at

logger = init_logger(__name__)

# Endings that upstream takes for a local file.
DATA_SUFFIXES = (".json", ".jsonl", ".csv", ".parquet", ".arrow")


def load_rows(args: SimpleNamespace, flag: str, names: str | None, split_flag: str, split: str) -> Any:
    """Return the rows of a prompt dataset as upstream reads them, at most ``--data.max_samples`` of them.

    Args:
        args: The flags of the run.
        flag: The flag that names the data, for messages; the training data are sampled by ``--data.prompt_probs``.
        names: Files or names on the hub, separated by commas; None where the flag is missing.
        split_flag: The flag that names the split, for messages.
        split: The split.

    Raises:
        UsageError: The flag is missing, the data cannot be found or read, or they have no rows or lack a key that a
            flag names.
    """
    if not names:
        raise UsageError(f"{flag} is missing: give a JSON Lines file or a dataset on the hub")
    for name in names.split(","):
        path = name.split("@")[0].strip()
        if not path:
            raise UsageError(f"{flag} {names}: a name is empty; give files or names on the hub, separated by commas")
        if not Path(path).expanduser().exists():
            refuse_local_name(flag, path, "file")
        if Path(path).is_file():
            refuse_suffix(path, flag)
        if Path(path).is_file() and Path(path).stat().st_size == 0:
            raise UsageError(f"{flag} {path} is empty")
        if Path(path).is_file() and Path(path).suffix in (".json", ".jsonl"):
            _check_encoding(flag, Path(path))
    probabilities = args.data.prompt_probs if flag == "--data.prompt_dataset" else None
    strategy = SimpleNamespace(args=args, print=logger.info, is_rank_0=lambda: True)
    try:
        rows = blending_datasets(names, probabilities, strategy, max_count=args.data.max_samples, dataset_split=split)
    except Exception as error:  # the datasets library raises its own and its backends' errors for a bad file
        splits = getattr(error, "obj", None)
        # AttributeError: upstream takes all splits together for the rows
        if splits is not None and isinstance(splits, DatasetDict):
            raise UsageError(f"{split_flag} {split}: {names} has no such split; it has {', '.join(splits)}") from error
        while error.__cause__ is not None:  # the cause names the row
            error = error.__cause__
        raise UsageError(f"{flag} {names} cannot be read: {type(error).__name__}: {error}") from error
    rows = rows.select(range(min(args.data.max_samples, len(rows))))
    if len(rows) == 0:
        raise UsageError(f"{flag} {names} has no rows")
    for key_flag, key in (("--data.input_key", args.data.input_key), ("--data.label_key", args.data.label_key)):
        if key is not None and not _has_key(rows, key):
            raise UsageError(f"{key_flag} {key}: {names} has no such key; it has {', '.join(_keys_of(rows))}")
    return rows


def _check_encoding(flag: str, path: Path) -> None:
    """Check that a file is UTF-8. The datasets library reads any bytes, and fails when a text is used.

    Raises:
        UsageError: A line is not UTF-8.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UsageError(
                    f"{flag} {path}, line {number}: byte {error.start + 1} is not UTF-8; save the file as UTF-8"
                ) from error


def check_chat_template(args: SimpleNamespace) -> None:
    """Check that the tokenizer of the policy has the chat template that ``--data.apply_chat_template`` needs.

    Raises:
        UsageError: It has none.
    """
    if not args.data.apply_chat_template or args.data.max_images_per_prompt > 0:
        return  # the processor of a model with images may have the template
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            args.actor.model_name_or_path,
            trust_remote_code=args.trust_remote_code,
            use_fast=not args.data.disable_fast_tokenizer,
        )
    except Exception:  # the checks of the model say what is wrong with it
        return
    if not tokenizer.chat_template:
        raise UsageError(
            "--data.apply_chat_template: the tokenizer of --actor.model_name_or_path "
            f"{args.actor.model_name_or_path} has no chat template; drop the flag, or take a model with one"
        )


def check_prompts(names: str, data: SimpleNamespace, rows: Any) -> None:
    """Check that every row has a prompt.

    Args:
        names: The data, as its flag names them, for the message.
        data: The ``--data`` flags, which name the key of the prompt.
        rows: The rows, a Hugging Face dataset.

    Raises:
        UsageError: A row has no prompt of the form that the flags require; the message gives its number, from 1.
    """
    key = data.input_key
    for row, record in enumerate(rows.select_columns(column_of(rows.column_names, key)), start=1):
        prompt = value_at(record, key, default=None)
        if fault := _prompt_fault(prompt, data):
            shown = reprlib.repr(prompt)
            raise UsageError(f"{names}, row {row}: --data.input_key {key} is {shown}: {fault}")


def check_labels(args: SimpleNamespace, names: str, rows: Any, reward: ModuleType | None) -> None:
    """Check that the reward function accepts the label of every row.

    With ``--reward_skip_bad_labels`` it is enough that it accepts the label of one row. Nothing is checked without a
    reward function that checks labels.

    Args:
        args: The flags of the run.
        names: The data, as their flag names them, for the message.
        rows: The rows, a Hugging Face dataset.
        reward: The module of the reward function; None where the run has none.

    Raises:
        UsageError: A label is refused, or ``--data.label_key`` is missing.
    """
    config = RewardConfig.from_args(args)
    key = args.data.label_key
    check_label = label_check(reward, config)
    if check_label is None:
        return
    if key is None:
        raise UsageError("--data.label_key is missing: the reward function compares with labels")
    # Every row is checked, because the row with a bad label may be sampled after days of training only.
    bad = 0
    label_column = column_of(rows.column_names, key)
    columns = [column for column in rows.column_names if column in (label_column, "source")]
    for row, record in enumerate(rows.select_columns(columns), start=1):
        try:
            check_label(label_of(record, key, config))
        except ValueError as error:
            bad += 1
            if not config.reward_skip_bad_labels or bad == len(rows):
                place = _place(names, row)
                label = value_at(record, key, default=None)
                raise UsageError(
                    f"{place}: --data.label_key {key} is {label!r}: {error}; mend the row, or drop such rows "
                    "with --reward_skip_bad_labels"
                ) from error


def _has_key(rows: Any, key: str) -> bool:
    """Return whether the rows have a key, which may be nested; one row with it is enough."""
    column = column_of(rows.column_names, key)
    if column is None or column == key:
        return column is not None
    missing = object()
    return any(value_at(row, key, default=missing) is not missing for row in rows.select_columns(column))


def _keys_of(rows: Any) -> list[str]:
    """Return the names of the columns, and with dots those of the values in columns of objects."""
    keys = []
    for column, kind in rows.features.items():
        keys.append(column)
        if isinstance(kind, Mapping):
            keys += [f"{column}.{inner}" for inner in kind]
    return keys


def _place(names: str, row: int) -> str:
    """Return the file and line of row number ``row`` of the blended files, where they are known."""
    for name in names.split(","):
        path = Path(name.strip())
        if path.suffix not in (".json", ".jsonl") or not path.is_file() or _is_json_array(path):
            break
        with path.open(encoding="utf-8") as file:
            lines = [number for number, line in enumerate(file, start=1) if line.strip()]
        if row <= len(lines):
            return f"{path}, line {lines[row - 1]}"
        row -= len(lines)
    return f"{names}, row {row}"


def _is_json_array(path: Path) -> bool:
    """Return True if a file holds one array of JSON, whose rows may take any number of lines."""
    with path.open("rb") as file:
        return file.read(4096).removeprefix(BOM).lstrip()[:1] == b"["


def refuse_local_name(flag: str, name: str, kind: str) -> None:
    """Refuse the name of something that does not exist here, unless the name can be meant for the hub.

    A look-up on the hub retries for long, so a name that can only be local is refused at once.

    Args:
        flag: The flag that gives the name, for the message.
        name: A path that does not exist, or a name on the hub.
        kind: What the name should be, "file" or "folder", for the message.

    Raises:
        UsageError: The name can only be local, or its first part is a folder here.
    """
    path = Path(name)
    if name.startswith(("/", ".", "~")) or name.count("/") > 1 or path.suffix in DATA_SUFFIXES:
        raise UsageError(f"{flag} {name}: no such {kind}")
    if "/" in name and path.parent.is_dir():
        raise UsageError(f"{flag} {name}: no such {kind} in {path.parent}/; if you mean the hub, rename that folder")


def _prompt_fault(prompt: Any, data: SimpleNamespace) -> str | None:
    """Return why upstream could not use a prompt; None if it can."""
    if not prompt or (isinstance(prompt, str) and not prompt.strip()):
        return "every row needs a prompt that is not empty; mend the row or drop it"
    if isinstance(prompt, str) and WRITTEN_MESSAGES.match(prompt):
        return "it is a list of messages written as a text; openrlhf-cov prepare reads JSON, or store a list"
    if data.apply_chat_template:
        return _chat_fault(prompt)
    if isinstance(prompt, str) or data.input_template:
        return None
    return "without --data.apply_chat_template a prompt is a text"


def _chat_fault(prompt: Any) -> str | None:
    """Return why a chat template could not write a prompt as one that the model answers; None if it can."""
    if isinstance(prompt, str):
        return None
    if not isinstance(prompt, list):
        return "a prompt is a text or a list of messages"
    if not all(isinstance(message, dict) and message.get("role") for message in prompt):
        return "a list of messages has a role and a content in each"
    if prompt[-1]["role"] == "assistant":
        return (
            "the last message is the assistant's answer, which the model would see; leave it out, or let "
            "openrlhf-cov prepare split the messages into prompt and answer"
        )
    return None
