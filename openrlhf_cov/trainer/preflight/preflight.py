"""Everything that is checked before any actor starts, in order; and the models and the reward that a run will read."""

import logging
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from openrlhf_cov.cluster.packages import require_grader
from openrlhf_cov.cluster.sizing import conditions
from openrlhf_cov.cluster.sizing.model_shape import shape_of_config
from openrlhf_cov.data.templates import own_template_warning
from openrlhf_cov.errors import UsageError, reason_of
from openrlhf_cov.evaluation import benchmarks
from openrlhf_cov.models.cov_config import process_reward_of
from openrlhf_cov.rewards.loading import MissingRewardFunction, load_module, load_reward_module
from openrlhf_cov.trainer.checkpoint.checkpoints import uses_checkpoints
from openrlhf_cov.trainer.flags.reward_flags import fault_of_file
from openrlhf_cov.trainer.preflight import check_data, check_recordings, check_run, check_upstream
from openrlhf_cov.utils.json_lines import parse_object, read_bounded
from openrlhf_cov.utils.output_folders import check_folder

logger = logging.getLogger(__name__)

# Files of a model that may name code of its own.
CONFIG_FILES = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")


def flag_faults(args: SimpleNamespace) -> list[str]:
    """Return all faults that follow from the flags alone."""
    return [
        *check_upstream.upstream_faults(args),
        *check_run.number_faults(args),
        *conditions.rollout_faults(args),
        *conditions.faults(args),
    ]


def check(
    args: SimpleNamespace,
    attempt: Callable[[], AbstractContextManager] = nullcontext,
    known: Container[str] = (),
    ask_tokenizer: bool = True,
) -> Any:
    """Check numbers, folders, models, reward, data and the size of a step, cheapest first.

    Args:
        args: The flags of the run.
        attempt: Every check runs inside of a context that it returns. The default lets UsageError pass, so that the
            first fault ends the checks; ``Findings.attempt`` collects the faults of all checks.
        known: Names of models that are not looked up.
        ask_tokenizer: False to do without the tokenizer, for a dry run that cannot load it.

    Returns:
        The rows of the training data, a Hugging Face dataset; None if they cannot be read.

    Raises:
        UsageError: The first fault, unless ``attempt`` keeps it.
    """
    for fault in flag_faults(args):
        with attempt():
            raise UsageError(fault)
    models = {
        "--actor.model_name_or_path": args.actor.model_name_or_path,
        "--critic.model_name_or_path": args.critic.model_name_or_path,
        "--reward.model_name_or_path": None if args.reward.remote_url else args.reward.model_name_or_path,
    }
    process_reward = process_reward_of(args)
    if process_reward is not None:
        models[process_reward.model_flag] = process_reward.model or None
    with attempt():
        check_run.check_output(args, models)
    for flag, path in models.items():
        with attempt():
            if path not in known:
                is_actor = flag.startswith("--actor")
                config = check_model(flag, path, required=is_actor, trusted=args.trust_remote_code)
                if is_actor:
                    _check_shape(args, config)
                    _check_experts(args, config)
                    if args.ds.lora.rank and (fault := check_upstream.lora_model_fault(args, config)):
                        raise UsageError(fault)
    if args.logger.tensorboard_dir:
        with attempt():
            check_folder(Path(args.logger.tensorboard_dir), "--logger.tensorboard_dir")
    with attempt():
        if args.actor.model_name_or_path not in known:
            check_run.check_entropies(args)
    with attempt():
        check_run.check_checkpoints(args)
    with attempt():
        check_recordings.check_dump(args)
    with attempt():
        check_recordings.check_replay(args, ask_tokenizer)
    if not args.dry_run:
        check_upstream.check_strategy(args)
    rows = _check_inputs(args, attempt, ask_tokenizer)
    if rows is not None and uses_checkpoints(args):
        with attempt():
            check_run.check_settings(args, rows)
    return rows


def _check_inputs(args: SimpleNamespace, attempt: Callable[[], AbstractContextManager], ask_tokenizer: bool) -> Any:
    """Check reward, data and benchmarks; return the rows of the data, None if they cannot be read."""
    reward = None
    data = args.data
    evaluation = args.eval
    if data.dataloader_num_workers:
        logger.warning(
            f"--data.dataloader_num_workers {data.dataloader_num_workers} has no effect: all prompts are read before "
            "the first step; drop it"
        )
    with attempt():
        require_grader(args.reward_grader)
    with attempt():
        reward = load_reward(args.reward.remote_url)
        if fault := fault_of_file(args, reward):
            raise UsageError(fault)
    if ask_tokenizer:
        with attempt():
            check_data.check_chat_template(args)
    if args.train.agent_func_path:
        with attempt():
            check_agent(args.train.agent_func_path)
    source = ("--data.prompt_dataset", data.prompt_dataset, "--data.prompt_split", data.prompt_split)
    rows = _check_rows(args, source, reward, attempt)
    if rows is not None:
        with attempt():
            check_run.check_step_size(args, len(rows))
        check_run.warn_of_schedule(args, len(rows))
    if benchmarks.names_in(evaluation.dataset) is not None:
        check_benchmarks(args, attempt, ask_tokenizer)
    elif evaluation.dataset:
        _check_rows(args, ("--eval.dataset", evaluation.dataset, "--eval.split", evaluation.split), reward, attempt)
    return rows


def _check_rows(
    args: SimpleNamespace,
    source: tuple[str, str, str, str],
    reward: ModuleType | None,
    attempt: Callable[[], AbstractContextManager],
) -> Any:
    """Check a dataset and return its rows; ``source``: its flag and names, the flag of its split and the split."""
    rows = None
    with attempt():
        rows = check_data.load_rows(args, *source)
    if rows is not None:
        with attempt():
            check_data.check_prompts(source[1], args.data, rows)
        with attempt():
            check_data.check_labels(args, source[1], rows, reward)
    return rows


def check_benchmarks(
    args: SimpleNamespace,
    attempt: Callable[[], AbstractContextManager] = nullcontext,
    ask_tokenizer: bool = True,
) -> None:
    """Load the problems and write the prompts of ``--eval.dataset``; choose the metric of the best checkpoint.

    Args:
        args: The flags of the run. Where ``--ckpt.best_metric_key`` is missing it is set in place.
        attempt: See ``check``.
        ask_tokenizer: False to do without the tokenizer. Prompts then stay texts, and those that need a chat template
            are not written.

    Raises:
        UsageError: The first fault, unless ``attempt`` keeps it.
    """
    from openrlhf_cov.trainer.evaluation import benchmarks_of, check_problems

    chosen = None
    readable = []
    with attempt():
        chosen = benchmarks_of(args)
    for benchmark in chosen or ():
        with attempt():
            check_problems(args, benchmark)
            readable.append(benchmark)
    if readable == chosen:
        with attempt():
            _check_plan(args, ask_tokenizer)


def _check_plan(args: SimpleNamespace, ask_tokenizer: bool) -> None:
    from openrlhf.utils import get_tokenizer

    from openrlhf_cov.trainer.evaluation import best_metric, plan_of

    template = args.eval_template or benchmarks.get_protocol(args.eval_protocol).template
    if not ask_tokenizer and template == "chat":
        return
    tokenizer = get_tokenizer(args.actor.model_name_or_path, None) if ask_tokenizer else None
    if not args.eval_template and (warning := own_template_warning(template, tokenizer, "--eval.template")):
        logger.warning(warning)
    plan = plan_of(args, tokenizer)
    args.ckpt.best_metric_key = args.ckpt.best_metric_key or best_metric(plan)
    if not ask_tokenizer:
        return
    wanted = plan.longest_prompt + max(each.max_tokens for each in plan.benchmarks)
    if wanted > args.data.max_len:
        logger.warning(
            f"--eval.dataset {args.eval.dataset}: prompt and response may take {wanted} tokens, --data.max_len "
            f"{args.data.max_len} cuts them; raise it, or lower --eval.max_tokens"
        )


def _check_shape(args: SimpleNamespace, config: Mapping[str, Any]) -> None:
    try:
        shape = shape_of_config(config)
    except ValueError:
        return  # another kind of model
    for fault in conditions.shape_faults(args, shape):
        raise UsageError(fault)


def _check_experts(args: SimpleNamespace, config: Mapping[str, Any]) -> None:
    """Refuse ``--actor.aux_loss_coef`` for a model that has no experts; OpenRLHF finds them by the same setting."""
    if args.actor.aux_loss_coef and config and "output_router_logits" not in config:
        raise UsageError(
            f"--actor.aux_loss_coef {args.actor.aux_loss_coef:g} has no effect: --actor.model_name_or_path "
            f"{args.actor.model_name_or_path} has no experts to balance; drop it"
        )


def check_model(flag: str, path: str | None, *, required: bool, trusted: bool) -> Mapping[str, Any]:
    """Return the config of a model; {} where no model is named and none is required.

    Args:
        flag: The flag that names the model, for messages.
        path: A Hugging Face model folder, or a name on the hub; None or empty for no model.
        required: True if the run needs the model.
        trusted: ``--trust_remote_code``: True to accept a model that brings code of its own along.

    Raises:
        UsageError: The model is missing, its folder is incomplete, its config cannot be read, or its code is not
            trusted.
    """
    if not path:
        if required:
            raise UsageError(f"{flag} is missing: give a Hugging Face model folder or a hub name")
        return {}
    folder = Path(path)
    if not folder.exists():
        check_data.refuse_local_name(flag, path, "folder")
        return _checked_config(flag, path, "neither a folder here nor a model that the hub gives", trusted)
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    weights = check_run.find_weights(folder)
    if not weights:
        missing.append(f"weights ({' or '.join(check_run.WEIGHT_FILES)})")
    if missing:
        raise UsageError(f"{flag} {path} is not a Hugging Face model folder: no {', no '.join(missing)}")
    if absent := _missing_shards(folder):
        raise UsageError(
            f"{flag} {path}: {absent[0]} is missing ({len(absent)} files of the index are); copy or download the "
            "model again"
        )
    empty = [file.name for file in weights if file.stat().st_size == 0]
    if empty:
        raise UsageError(f"{flag} {path}: {empty[0]} is empty; copy or download the model again")
    return _checked_config(flag, path, "config.json is not that of a model", trusted)


def _missing_shards(folder: Path) -> list[str]:
    """Return the files that the index of a model's weights names and its folder lacks.

    The index that transformers reads decides: that of safetensors, unless one file has all weights.
    """
    for whole in ("model.safetensors", "pytorch_model.bin"):
        if (folder / whole).is_file():
            return []
        index = folder / f"{whole}.index.json"
        if not index.is_file():
            continue
        try:
            shards = parse_object(read_bounded(index)).get("weight_map")
        except (OSError, ValueError):
            return []  # transformers says what is wrong with it
        names = {str(name) for name in shards.values()} if isinstance(shards, dict) else set()
        return sorted(name for name in names if not (folder / name).is_file())
    return []


def load_reward(remote_url: list[str] | None) -> ModuleType | None:
    """Return the module of a ``reward_func.py``; None for reward servers, reward models and agents.

    Args:
        remote_url: ``--reward.remote_url``; None or empty without that flag.

    Raises:
        UsageError: The file does not exist, cannot be imported or defines no reward function.
    """
    if not remote_url or not remote_url[0].endswith(".py"):
        return None
    path = Path(remote_url[0])
    if not path.is_file():
        raise UsageError(f"--reward.remote_url {path}: no such file")
    try:
        return load_reward_module(path)
    except MissingRewardFunction as error:
        raise UsageError(f"--reward.remote_url {error}") from error
    except (Exception, SystemExit) as error:  # user code may fail in any way while it is imported, and end the process
        raise UsageError(f"--reward.remote_url {path} cannot be imported: {type(error).__name__}: {error}") from error


def check_agent(agent_func_path: str) -> None:
    """Check that the file of an agent has a class that the engines can use. The file is imported.

    Args:
        agent_func_path: ``--train.agent_func_path``.

    Raises:
        UsageError: The file does not exist, cannot be imported or defines no executor.
    """
    from openrlhf.utils.agent import AgentExecutorBase

    flag = f"--train.agent_func_path {agent_func_path}"
    path = Path(agent_func_path)
    if path.suffix != ".py" or not path.is_file():
        raise UsageError(f"{flag}: no such file, or its name does not end in .py")
    try:
        executor = load_module("agent_module", path).__dict__.get("AgentExecutor")
    except (Exception, SystemExit) as error:  # user code may fail in any way
        raise UsageError(f"{flag} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(executor, type) and issubclass(executor, AgentExecutorBase)):
        raise UsageError(
            f"{flag} has no class AgentExecutor that inherits from openrlhf.utils.agent.AgentExecutorBase"
        )


def _checked_config(flag: str, model: str, refusal: str, trusted: bool) -> Mapping[str, Any]:
    from transformers import AutoConfig

    try:
        if not trusted and (file := _file_with_code(model)):
            raise UsageError(
                f"{flag} {model} brings code of its own along ({file}: auto_map), which is not run: add "
                "--trust_remote_code if you know it, or take auto_map out where transformers has the model itself"
            )
        return AutoConfig.from_pretrained(model, trust_remote_code=trusted).to_dict()
    except UsageError:
        raise
    except Exception as error:  # a config of any shape; the model's own code may run
        raise UsageError(f"{flag} {model}: {refusal} ({reason_of(error)})") from error


def _file_with_code(model: str) -> str | None:
    """Return the first file of a model that names code of its own."""
    from transformers.utils.hub import cached_files

    # all at once: without a network the hub is waited for once, not for each of them
    for path in map(Path, cached_files(model, list(CONFIG_FILES), _raise_exceptions_for_missing_entries=False) or ()):
        if parse_object(read_bounded(path)).get("auto_map"):
            return path.name
    return None
