"""Everything that is checked before any actor starts, in order; and the models and the reward that a run will read."""

import logging
from pathlib import Path
from types import ModuleType, SimpleNamespace

from openrlhf_cov.cli import check_data, check_run
from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation import benchmarks
from openrlhf_cov.rewards.loading import MissingRewardFunction, load_reward_module

logger = logging.getLogger(__name__)


def check(args: SimpleNamespace) -> None:
    """Check numbers, folders, models, reward, data and the size of a step, cheapest first."""
    check_run.check_colocation(args)
    check_run.check_lengths(args)
    check_run.check_batches(args)
    models = {
        "--actor.model_name_or_path": args.actor.model_name_or_path,
        "--critic.model_name_or_path": args.critic.model_name_or_path,
        "--reward.model_name_or_path": None if args.reward.remote_url else args.reward.model_name_or_path,
    }
    check_run.check_output(args, models)
    for flag, path in models.items():
        check_model(flag, path, required=flag.startswith("--actor"))
    check_run.check_checkpoints(args)
    reward = load_reward(args.reward.remote_url)
    rows = check_data.load_rows(
        args, "--data.prompt_dataset", args.data.prompt_dataset, "--data.prompt_split", args.data.prompt_split
    )
    check_data.check_prompts(args.data.prompt_dataset, args.data, rows)
    check_data.check_labels(args, args.data.prompt_dataset, rows, reward)
    check_run.check_step_size(args, len(rows))
    if benchmarks.names_in(args.eval.dataset) is not None:
        check_benchmarks(args)
    elif args.eval.dataset:
        rows = check_data.load_rows(args, "--eval.dataset", args.eval.dataset, "--eval.split", args.eval.split)
        check_data.check_prompts(args.eval.dataset, args.data, rows)
        check_data.check_labels(args, args.eval.dataset, rows, reward)


def check_benchmarks(args: SimpleNamespace) -> None:
    """Load the problems and write the prompts of --eval.dataset; choose the metric of the best checkpoint."""
    from openrlhf.utils import get_tokenizer

    from openrlhf_cov.trainer.benchmark_evaluation import best_metric, plan_of

    plan = plan_of(args, get_tokenizer(args.actor.model_name_or_path, None))
    args.ckpt.best_metric_key = args.ckpt.best_metric_key or best_metric(plan)
    longest = max(len(ids) for _, ids in plan.prompts)
    wanted = longest + max(each.max_tokens for each in plan.benchmarks)
    if wanted > args.data.max_len:
        logger.warning(
            f"--eval.dataset {args.eval.dataset}: prompt and response may take {wanted} tokens, --data.max_len "
            f"{args.data.max_len} cuts them; raise it, or lower --eval.max_tokens"
        )


def check_model(flag: str, path: str | None, required: bool) -> None:
    """A path must be a Hugging Face model folder; what is not here is taken for a name on the hub."""
    if not path:
        if required:
            raise UsageError(f"{flag} is missing: give a Hugging Face model folder or a hub name")
        return
    folder = Path(path)
    if not folder.exists():
        check_data.refuse_local_name(flag, path, "folder")
        _check_config(path, f"{flag} {path}: neither a folder here nor a model that the hub gives")
        return
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    weights = check_run.find_weights(folder)
    if not weights:
        missing.append(f"weights ({' or '.join(check_run.WEIGHT_FILES)})")
    if missing:
        raise UsageError(f"{flag} {path} is not a Hugging Face model folder: no {', no '.join(missing)}")
    empty = [file.name for file in weights if file.stat().st_size == 0]
    if empty:
        raise UsageError(f"{flag} {path}: {empty[0]} is empty; copy or download the model again")
    _check_config(path, f"{flag} {path}: config.json is not that of a model")


def load_reward(remote_url: list[str] | None) -> ModuleType | None:
    """The module of a ``reward_func.py``; None for reward servers, reward models and agents."""
    if not remote_url or not remote_url[0].endswith(".py"):
        return None
    path = Path(remote_url[0])
    if not path.is_file():
        raise UsageError(f"--reward.remote_url {path}: no such file")
    try:
        return load_reward_module(path)
    except MissingRewardFunction as error:
        raise UsageError(f"--reward.remote_url {error}") from error
    except Exception as error:  # user code may fail in any way while it is imported
        raise UsageError(f"--reward.remote_url {path} cannot be imported: {type(error).__name__}: {error}") from error


def _check_config(model: str, refusal: str) -> None:
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(model, trust_remote_code=True)
    except Exception as error:  # a config of any shape; the model's own code may run
        reason = str(error).strip() or type(error).__name__
        raise UsageError(f"{refusal} ({reason.splitlines()[0]})") from error
