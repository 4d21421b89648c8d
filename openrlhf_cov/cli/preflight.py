"""Checks of everything a run will read or write, before any actor starts. Each raises UsageError with one line."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from openrlhf.datasets.utils import blending_datasets
from openrlhf.utils.logging_utils import init_logger
from openrlhf.utils.utils import get_strategy

from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.metrics_log import METRICS_FILE

logger = init_logger(__name__)

WEIGHT_FILES = ("*.safetensors", "*.bin")


def check(args: SimpleNamespace) -> None:
    """Check folders, models, reward, data and the size of a step, cheapest first."""
    check_engines(args)
    check_output(Path(args.ckpt.output_dir), resume=args.ckpt.load_enable)
    for flag, path in (
        ("--actor.model_name_or_path", args.actor.model_name_or_path),
        ("--critic.model_name_or_path", args.critic.model_name_or_path),
        ("--reward.model_name_or_path", None if args.reward.remote_url else args.reward.model_name_or_path),
    ):
        check_model(flag, path, required=flag.startswith("--actor"))
    reward = load_reward(args.reward.remote_url)
    rows = load_rows(args, "--data.prompt_dataset", args.data.prompt_dataset, args.data.prompt_split)
    check_labels(args.data.prompt_dataset, args.data.label_key, rows, reward)
    check_step_size(args, len(rows))
    if args.eval.dataset:
        eval_rows = load_rows(args, "--eval.dataset", args.eval.dataset, args.eval.split)
        check_labels(args.eval.dataset, args.data.label_key, eval_rows, reward)


def check_engines(args: SimpleNamespace) -> None:
    """Upstream generates with vLLM only."""
    if not args.vllm.num_engines:
        raise UsageError(f"--vllm.num_engines {args.vllm.num_engines}: rollouts come from vLLM; use at least 1")


def check_output(folder: Path, resume: bool) -> None:
    """Refuse a folder that holds another run, or that cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"--ckpt.output_dir {folder} cannot be written: {error.strerror}") from error
    if (folder / METRICS_FILE).exists() and not resume:
        raise UsageError(
            f"--ckpt.output_dir {folder} holds {METRICS_FILE} of another run; "
            "choose a new folder, or continue that run with --ckpt.load_enable"
        )


def check_model(flag: str, path: str | None, required: bool) -> None:
    """A local path must be a Hugging Face model folder; anything else is taken for a name on the hub."""
    if not path:
        if required:
            raise UsageError(f"{flag} is missing: give a Hugging Face model folder or a hub name")
        return
    folder = Path(path).expanduser()
    if not folder.exists():
        if _looks_like_path(path):
            raise UsageError(f"{flag} {path}: no such folder")
        _check_hub_model(flag, path)
        return
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    if not any(any(folder.glob(pattern)) for pattern in WEIGHT_FILES):
        missing.append("weights (*.safetensors or *.bin)")
    if missing:
        raise UsageError(f"{flag} {path} is not a Hugging Face model folder: no {', no '.join(missing)}")


def load_reward(remote_url: list[str] | None) -> ModuleType | None:
    """The module of a ``reward_func.py``; None for reward servers, reward models and agents."""
    if not remote_url or not remote_url[0].endswith(".py"):
        return None
    path = Path(remote_url[0])
    if not path.is_file():
        raise UsageError(f"--reward.remote_url {path}: no such file")
    spec = importlib.util.spec_from_file_location("reward_func", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # user code may fail in any way while it is imported
        raise UsageError(f"--reward.remote_url {path} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, "reward_func", None)):
        raise UsageError(f"--reward.remote_url {path} has no function reward_func(queries, prompts, labels)")
    return module


def load_rows(args: SimpleNamespace, flag: str, names: str | None, split: str) -> Any:
    """The rows of a prompt dataset, read as upstream reads them; neither empty nor without the keys of the flags."""
    if not names:
        raise UsageError(f"{flag} is missing: give a JSON Lines file or a dataset on the hub")
    for name in names.split(","):
        path = name.split("@")[0].strip()
        if _looks_like_path(path) and not Path(path).expanduser().exists():
            raise UsageError(f"{flag} {path}: no such file")
        if Path(path).is_file() and Path(path).stat().st_size == 0:
            raise UsageError(f"{flag} {path} is empty")
    try:
        rows = blending_datasets(names, None, get_strategy(args), max_count=args.data.max_samples, dataset_split=split)
    except Exception as error:  # the datasets library raises its own and its backends' errors for a bad file
        while error.__cause__ is not None:  # the cause names the row
            error = error.__cause__
        raise UsageError(f"{flag} {names} cannot be read: {type(error).__name__}: {error}") from error
    rows = rows.select(range(min(args.data.max_samples, len(rows))))
    if len(rows) == 0:
        raise UsageError(f"{flag} {names} has no rows")
    for key_flag, key in (("--data.input_key", args.data.input_key), ("--data.label_key", args.data.label_key)):
        if key is not None and key not in rows.column_names:
            raise UsageError(f"{key_flag} {key}: {names} has no such key; it has {', '.join(rows.column_names)}")
    return rows


def check_labels(names: str, label_key: str | None, rows: Any, reward: ModuleType | None) -> None:
    """Let ``check_label(label)`` of the reward module, if it has one, refuse a label with ValueError."""
    check_label: Callable[[Any], None] | None = getattr(reward, "check_label", None)
    if check_label is None:
        return
    if label_key is None:
        raise UsageError("--data.label_key is missing: the reward function compares with labels")
    for row, label in enumerate(rows[label_key], start=1):
        try:
            check_label(label)
        except ValueError as error:
            raise UsageError(f"{names}, row {row}: --data.label_key {label_key} is {label!r}: {error}") from error


def check_step_size(args: SimpleNamespace, num_rows: int) -> None:
    """At least one optimizer step must fit in the data; KL-Cov needs more than one per rollout to act."""
    prompts = min(args.rollout.batch_size, num_rows)
    samples = prompts * args.rollout.n_samples_per_prompt
    if samples < args.train.batch_size:
        raise UsageError(
            f"--train.batch_size {args.train.batch_size} is more than one rollout gives: {prompts} prompts (of "
            f"{num_rows} in the data, --rollout.batch_size {args.rollout.batch_size}) x "
            f"--rollout.n_samples_per_prompt {args.rollout.n_samples_per_prompt} = {samples} samples; not one "
            "optimizer step would be made"
        )
    if samples % args.train.batch_size:
        logger.warning(
            f"one rollout gives {samples} samples, no multiple of --train.batch_size {args.train.batch_size}: what is "
            "left over is trained together with the next rollout"
        )
    updates = samples // args.train.batch_size * args.train.max_epochs
    if args.cov_type == "kl_cov" and updates == 1:
        logger.warning(
            "--cov_type kl_cov with one update per rollout has no effect: the policy is still the one that sampled, "
            "there is no drift to penalise. Lower --train.batch_size or raise --rollout.batch_size (the paper makes 8)"
        )


def _looks_like_path(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or Path(name).suffix in (".json", ".jsonl", ".csv")


def _check_hub_model(flag: str, name: str) -> None:
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(name, trust_remote_code=True)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{flag} {name}: neither a folder here nor a model that the hub gives ({str(error).splitlines()[0]})"
        ) from error
