"""Check where a run writes and that its numbers fit together.

Functions whose name ends with ``faults`` yield one line for each fault; the others raise UsageError for the first one.
"""

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.logging_utils import init_logger
from transformers import AutoConfig

from openrlhf_cov.cluster.sizing.flag_sizes import process_groups, processes
from openrlhf_cov.cluster.sizing.prose import counted
from openrlhf_cov.cluster.sizing.updates import update_unit, usable_groups
from openrlhf_cov.errors import UsageError
from openrlhf_cov.models.cov_config import CovConfig, has_critic, has_engines, has_reference, reference_model
from openrlhf_cov.models.method import fills
from openrlhf_cov.models.slots import Estimator
from openrlhf_cov.trainer.checkpoint import checkpoints, run_record
from openrlhf_cov.utils.metrics_log import METRICS_FILE

logger = init_logger(__name__)

WEIGHT_FILES = ("model*.safetensors", "pytorch_model*.bin")


def check_entropies(args: SimpleNamespace) -> None:
    """Check that ``--entropy_target`` and similar flags are entropies that the policy can have.

    Raises:
        UsageError: An entropy is not below that of the uniform distribution over the vocabulary.
    """
    settings = CovConfig.from_args(args)
    if not settings.entropies:
        return
    path = args.actor.model_name_or_path
    config = AutoConfig.from_pretrained(path, trust_remote_code=args.trust_remote_code)
    try:
        if vocabulary := getattr(config, "vocab_size", None):
            settings.check_reachable(vocabulary)
    except ValueError as error:
        raise UsageError(str(error)) from error


def check_output(args: SimpleNamespace, models: dict[str, str | None]) -> None:
    """Check that ``--ckpt.output_dir`` can be written and holds neither another run nor a model.

    Args:
        args: The flags of the run.
        models: The flag of each model that the run reads -> its folder or name on the hub; None without a model.

    Raises:
        UsageError: The folder cannot be written, is that of such a model, or holds another run or a model.
    """
    folder = Path(args.ckpt.output_dir)
    for flag, model in models.items():
        if model and folder.resolve() == Path(model).resolve():
            raise UsageError(
                f"--ckpt.output_dir {folder} is also {flag}, which the trained model would overwrite; choose a new "
                "folder"
            )
    if (folder / METRICS_FILE).exists():
        _check_resumed(args, folder)
    elif weights := find_weights(folder):
        raise UsageError(
            f"--ckpt.output_dir {folder} holds {weights[0].name}, which the trained model would overwrite; "
            "choose a new folder"
        )
    require_writable("--ckpt.output_dir", folder)


def check_checkpoints(args: SimpleNamespace) -> None:
    """Check that ``--ckpt.path`` can be written and read as the flags want, and holds no other run's checkpoints.

    Raises:
        UsageError: The folder cannot be written, holds checkpoints of another run, or has checkpoints that this run
            cannot resume from with ``--ckpt.load_enable``.
    """
    folder = Path(args.ckpt.path)
    ckpt = args.ckpt
    if ckpt.load_enable and checkpoints.can_resume(args):
        for model in checkpoints.trained_models(args):
            _check_resumable(args, folder / f"_{model}", model)
    elif ckpt.load_enable:
        _check_fresh_start(args)
    patterns = []
    if checkpoints.writes_checkpoints(args) and not ckpt.disable_ds:
        patterns += ["_actor/*", "_critic/*", "_prm/*"]
    if checkpoints.writes_checkpoints(args) and ckpt.save_hf:
        patterns.append("*_hf")
    if checkpoints.keeps_best(args):
        patterns.append(checkpoints.BEST)
    if not (checkpoints.writes_checkpoints(args) or checkpoints.keeps_best(args)):
        return
    found = next((path for pattern in patterns for path in sorted(folder.glob(pattern))), None)
    if found is not None and not ckpt.load_enable:
        raise UsageError(
            f"--ckpt.path {folder} holds {found.relative_to(folder)} of another run, which this one would replace; "
            f"choose a new folder{_or_resume(folder)}"
        )
    require_writable("--ckpt.path", folder)


def check_settings(args: SimpleNamespace, rows: Any) -> None:
    """Check that a resumed run has the settings, data and models of its checkpoint, or that changes were accepted.

    Args:
        args: The flags of the run. The record of this run is attached in place, for its own checkpoints.
        rows: The rows of the training data, a Hugging Face dataset.

    Raises:
        UsageError: A setting differs that ``--ckpt.allow_changed`` does not name, or that flag names a setting that is
            not compared or is given without ``--ckpt.load_enable``.
    """
    allowed = run_record.parse_names(args.allow_changed)
    if allowed and not args.ckpt.load_enable:
        raise UsageError(f"--ckpt.allow_changed {args.allow_changed} only applies with --ckpt.load_enable; drop it")
    record = run_record.record_of(args, rows)
    for name in allowed:
        if name not in record:
            close = difflib.get_close_matches(name, record, n=1)
            advice = f"did you mean {close[0]}?" if close else "give a name that the refusal of the resume gives"
            raise UsageError(f"--ckpt.allow_changed {name}: a resume does not compare this; {advice}")
    resumes = args.ckpt.load_enable and checkpoints.can_resume(args)
    found = checkpoints.saved_settings(args) if resumes else None
    changed: list[str] = []
    if found is not None:
        path, saved = found
        changed = run_record.changed_names(saved, record)
        if any(name not in allowed for name in changed):
            accepting = f"--ckpt.allow_changed {','.join(changed)}"
            raise UsageError(
                f"--ckpt.load_enable: {path} was made with {run_record.describe_changes(changed, saved, record)}; "
                f"resume with the former settings, or accept the new ones with {accepting}"
            )
        if changed:
            logger.warning(f"--ckpt.allow_changed: {run_record.describe_changes(changed, saved, record)}")
    run_record.attach(args, record, data_changed=run_record.DATA in changed)


def find_weights(folder: Path) -> list[Path]:
    """Return the files of a Hugging Face model's weights in a folder."""
    return [path for pattern in WEIGHT_FILES for path in sorted(folder.glob(pattern))]


def number_faults(args: SimpleNamespace) -> Iterator[str]:
    """Yield all faults of numbers that follow from the flags alone."""
    yield from _colocation_faults(args)
    yield from _length_faults(args)
    yield from _batch_faults(args)
    yield from _kl_faults(args)


def _kl_faults(args: SimpleNamespace) -> Iterator[str]:
    """Yield a fault if the estimator k1 is a loss.

    The gradient of k1 = log pi - log pi_ref is that of log pi. Its expectation over samples of pi is 0, so it adds
    noise and does not move pi toward pi_ref.
    """
    has_kl_loss = args.algo.kl.use_loss and args.algo.kl.init_coef > 0
    if has_kl_loss and args.algo.kl.estimator == "k1" and not args.algo.kl.unbiased_gradient:
        yield (
            "--algo.kl.estimator k1 as a loss (--algo.kl.use_loss) has a gradient of 0 in expectation; choose k3, or "
            "add --algo.kl.unbiased_gradient"
        )


def _colocation_faults(args: SimpleNamespace) -> Iterator[str]:
    """Yield faults of models that share GPUs and differ in size, which upstream notices when its actors start."""
    train = args.train
    has_ref = has_reference(args)
    if has_ref and train.colocate_all:
        yield from _size_faults("--train.colocate_all", args, "actor", "ref")
    elif has_ref and train.colocate_actor_ref:
        yield from _size_faults("--train.colocate_actor_ref", args, "actor", "ref")
    if has_critic(args) and train.colocate_critic_reward:
        yield from _size_faults("--train.colocate_critic_reward", args, "critic", "reward")
    if not has_engines(args):
        return
    engines = args.vllm.num_engines
    shards = args.vllm.tensor_parallel_size
    if train.colocate_all and not train.async_enable and processes(args.actor) != engines * shards:
        yield (
            f"--train.colocate_all needs equal numbers: {_size('actor', args.actor)} = {processes(args.actor)}, "
            f"--vllm.num_engines {engines} x --vllm.tensor_parallel_size {shards} = {engines * shards}"
        )


def _length_faults(args: SimpleNamespace) -> Iterator[str]:
    """Yield a fault if prompts keep no token: upstream cuts them to the length limit less the tokens to generate."""
    new = args.rollout.max_new_tokens or 1
    if new >= args.data.max_len:
        yield (
            f"--data.max_len {args.data.max_len} is for prompt and response together and must be above "
            f"--rollout.max_new_tokens {new}: no token is left for the prompt"
        )


def _batch_faults(args: SimpleNamespace) -> Iterator[str]:
    """Yield faults of the sizes of batches.

    A step is generated whole, and DeepSpeed divides it into updates of micro-batch x ranks x accumulation steps.
    """
    generated = args.rollout.vllm_generate_batch_size
    rollout = args.rollout.batch_size
    if generated < rollout:
        yield (
            f"--rollout.vllm_generate_batch_size {generated} is less than --rollout.batch_size {rollout}, of which "
            "every step is made; drop it, or lower --rollout.batch_size"
        )
    # Processes that work on the same samples.
    copies = args.ds.ring_attn_size * args.ds.tensor_parallel_size
    for name, group in process_groups(args).items():
        size = f"{_size(name, group)} = {counted(processes(group), 'process')}"
        if processes(group) % copies:
            yield (
                f"{size}, no multiple of --ds.ring_attn_size {args.ds.ring_attn_size} x --ds.tensor_parallel_size "
                f"{args.ds.tensor_parallel_size}"
            )
            continue
        ranks = processes(group) // copies
        batch = args.train.batch_size
        micro = args.train.micro_batch_size
        if args.train.dynamic_batch_enable and name in ("actor", "critic"):
            if batch % ranks:
                yield (
                    f"--train.batch_size {batch} is no multiple of the {counted(ranks, 'rank')} of {name}: with "
                    "--train.dynamic_batch_enable upstream would never train on the samples beyond; change one of them"
                )
        elif batch % (micro * ranks):
            yield (
                f"--train.batch_size {batch} is no multiple of --train.micro_batch_size {micro} x "
                f"{counted(ranks, 'rank')} of {name} = {micro * ranks}; change one of them ({size})"
            )


def check_step_size(args: SimpleNamespace, num_rows: int) -> None:
    """Check that a rollout is a whole number of optimizer steps, and that the data suffice for one.

    Warn of methods that have no effect with one optimizer step per rollout.

    Args:
        args: The flags of the run.
        num_rows: Rows of the training data.

    Raises:
        UsageError: A rollout has fewer samples than one optimizer step, or is no multiple of it.
    """
    rollout = args.rollout
    batch = args.train.batch_size
    prompts = min(rollout.batch_size, num_rows)
    samples = prompts * rollout.n_samples_per_prompt
    # The last rollout of a run may be smaller, so it is the full one that must be a multiple.
    whole = rollout.batch_size * rollout.n_samples_per_prompt
    if not usable_groups(prompts, args):
        raise UsageError(
            f"--train.batch_size {batch} is more than one rollout gives: {prompts} prompts (of {num_rows} in the "
            f"data, --rollout.batch_size {rollout.batch_size}) x --rollout.n_samples_per_prompt "
            f"{rollout.n_samples_per_prompt} = {samples} samples; not one optimizer step would be made, which takes "
            f"a multiple of {update_unit(args)} on all ranks"
        )
    if whole % batch:
        raise UsageError(
            f"--rollout.batch_size {rollout.batch_size} x --rollout.n_samples_per_prompt "
            f"{rollout.n_samples_per_prompt} = {whole} samples are no multiple of --train.batch_size {batch}: "
            f"{counted(whole % batch, 'sample')} of every rollout would have no update; change one of them"
        )
    updates = samples // args.train.batch_size * args.train.max_epochs
    settings = CovConfig.from_args(args)
    low, high = args.actor.eps_clip_low_high
    if updates == 1 and low != high and settings.ppo_clip is None:
        logger.warning(
            f"--actor.eps_clip_low_high {low:g} {high:g} with one update per rollout: nothing is clipped, the policy "
            "is still the one that sampled. Lower --train.batch_size or raise --rollout.batch_size"
        )
    if args.rollout.top_p < 1:
        logger.warning(
            f"--rollout.top_p {args.rollout.top_p:g}: samples are of a part of the policy that is trained as a whole; "
            "probability that no sample shows collects in the rest. 1 is the policy itself"
        )
    for method in settings.methods:
        if method.one_update and updates == 1:
            logger.warning(
                f"{method.flag} with one update per rollout: {method.one_update}. Lower --train.batch_size or raise "
                "--rollout.batch_size"
            )
        if fills(method, Estimator) and method.slot.one_prompt and prompts == 1:
            logger.warning(
                f"{method.flag} with one prompt per rollout: {method.slot.one_prompt}. Raise --rollout.batch_size"
            )


def warn_of_schedule(args: SimpleNamespace, num_rows: int) -> None:
    """Warn if dynamic sampling ends a run before its learning rate has decayed.

    Args:
        args: The flags of the run.
        num_rows: Rows of the training data.
    """
    decaying = run_record.scheduled_rates(args, steady=("constant", "constant_with_warmup"))
    if not decaying or not args.algo.dynamic_filtering_enable:
        return
    drawn = num_rows * args.train.num_episodes
    if 0 < args.rollout_limit * args.rollout.batch_size < drawn:
        return  # the limit determines the number of updates, also where groups are dropped
    flag = decaying[0]
    scheduler = args.critic.lr_scheduler if flag.startswith("--critic") else args.actor.lr_scheduler
    logger.warning(
        f"{flag} {scheduler} with --algo.dynamic_filtering_enable: the learning rate is scheduled over the updates of "
        "all prompts, and dropped groups make none, so the run ends before the rate has decayed; choose constant, or "
        "give the number of rollouts that the run can make by --rollout_limit"
    )


def _size_faults(flag: str, args: SimpleNamespace, first: str, second: str) -> Iterator[str]:
    # Equal products are not enough: upstream compares nodes and GPUs per node.
    sizes = [(group.num_nodes, group.num_gpus_per_node) for group in (getattr(args, first), getattr(args, second))]
    if sizes[0] != sizes[1]:
        shown = " and ".join(_size(name, getattr(args, name)) for name in (first, second))
        yield f"{flag} needs equal sizes, got {shown}"


def _size(name: str, group: SimpleNamespace) -> str:
    return f"--{name}.num_nodes {group.num_nodes} x --{name}.num_gpus_per_node {group.num_gpus_per_node}"


def _check_resumed(args: SimpleNamespace, folder: Path) -> None:
    """Check that the run whose metrics a folder holds is resumed, from a checkpoint.

    Raises:
        UsageError: The run is not resumed, or it has an exported model and no checkpoint.
    """
    ckpt_path = Path(args.ckpt.path)
    if not args.ckpt.load_enable:
        raise UsageError(
            f"--ckpt.output_dir {folder} holds {METRICS_FILE} of another run; choose a new folder"
            f"{_or_resume(ckpt_path)}"
        )
    weights = find_weights(folder)
    if weights and not checkpoints.can_resume(args):
        raise UsageError(
            f"--ckpt.load_enable: --ckpt.path {ckpt_path} holds no checkpoint, and --ckpt.output_dir {folder} holds "
            f"{weights[0].name} of a finished run; name that run's --ckpt.path, or choose a new folder"
        )


def _check_fresh_start(args: SimpleNamespace) -> None:
    """Warn that a run starts afresh which was killed before its first checkpoint was complete.

    Raises:
        UsageError: One of two models has more than the first checkpoint and the other has none. A kill does not leave
            that behind, and a fresh start would replace the checkpoints.
    """
    for model in checkpoints.trained_models(args):
        whole = checkpoints.whole_checkpoints(checkpoints.checkpoint_folder(args, model))
        # A kill during the first save leaves at most one complete checkpoint, of one model.
        if len(whole) > 1:
            others = " or ".join(f"_{each}" for each in checkpoints.trained_models(args) if each != model)
            missing = f"a complete checkpoint in {others}" if others else f"the file {checkpoints.LATEST}"
            raise UsageError(
                f"--ckpt.load_enable: --ckpt.path {args.ckpt.path} holds _{model}/{whole[-1]}, but not {missing}; "
                "restore what is missing, or choose a new folder"
            )
    metrics = Path(args.ckpt.output_dir) / METRICS_FILE
    begun = [checkpoints.checkpoint_folder(args, model) for model in checkpoints.trained_models(args)]
    if metrics.exists() or any(folder.exists() for folder in begun):
        logger.warning(
            f"--ckpt.load_enable: --ckpt.path {args.ckpt.path} holds no complete checkpoint: the run starts afresh. "
            f"Lines of {METRICS_FILE} in --ckpt.output_dir {args.ckpt.output_dir} move to {METRICS_FILE}.bak"
        )


def _check_resumable(args: SimpleNamespace, folder: Path, model: str) -> None:
    """Check that the newest checkpoint is of this ``model`` and of as many ranks; warn of incomplete checkpoints.

    Raises:
        UsageError: The checkpoint differs from this run, or a pointer file names none.
    """
    for name in checkpoints.partial_checkpoints(folder):
        logger.warning(f"--ckpt.path: {folder / name} was never completed and is passed over")
    _check_pointer(folder, args.ds.use_universal_ckpt)
    path = reference_model(args) if model == "prm" else getattr(args, model).model_name_or_path
    config = AutoConfig.from_pretrained(path, trust_remote_code=args.trust_remote_code)
    run = checkpoints.describe_run(args, config, model)
    other = checkpoints.differences(folder, run, args.ds.use_universal_ckpt)
    # The pointer leads nowhere, whichever run wrote it.
    if other and other.startswith((checkpoints.LATEST, checkpoints.UNIVERSAL)):
        whole = checkpoints.whole_checkpoints(folder)
        advice = f"write {whole[-1]}, which is there, into it" if whole else "restore the folder, or choose a new one"
        raise UsageError(f"--ckpt.load_enable: {folder}: {other}; {advice}")
    if other:
        raise UsageError(f"--ckpt.load_enable: {folder}: {other}; resume with the same model and sizes")


def _check_pointer(folder: Path, universal: bool) -> None:
    """Check that the kind of checkpoint that the flags select exists, is complete, and is the newest.

    Raises:
        UsageError: The other kind exists alone or is newer, or a universal checkpoint lacks the state of the sampler.
    """
    plain, converted = (checkpoints.pointed_to(folder, name) for name in (checkpoints.LATEST, checkpoints.UNIVERSAL))
    if universal and plain and not converted:
        raise UsageError(
            f"--ds.use_universal_ckpt: {folder} has no {checkpoints.UNIVERSAL}; convert {plain} with DeepSpeed's "
            "ds_to_universal, or drop the flag"
        )
    if converted and not plain and not universal:
        raise UsageError(
            f"--ckpt.load_enable: {folder} has {checkpoints.UNIVERSAL} alone; add --ds.use_universal_ckpt"
        )
    if not (universal and plain and converted):
        return
    if _step_of(plain) > _step_of(converted):
        raise UsageError(
            f"--ds.use_universal_ckpt: {folder} was saved to since {converted} was made; drop the flag to go on from "
            f"{plain}, or convert that one"
        )
    rollouts = checkpoints.ROLLOUTS_FILE
    if (folder / plain / rollouts).is_file() and not (folder / converted / rollouts).is_file():
        raise UsageError(
            f"--ds.use_universal_ckpt: {folder / converted} has no {rollouts}, which the converter leaves behind; "
            f"copy it from {plain}"
        )


def _step_of(tag: str) -> int:
    """Return the global step in the name of a checkpoint; 0 without one."""
    digits = re.search(r"\d+", tag)
    return int(digits[0]) if digits else 0


def _or_resume(folder: Path) -> str:
    return ", or continue that run with --ckpt.load_enable" if has_checkpoint(folder) else ""


def has_checkpoint(folder: Path) -> bool:
    """Return True if a folder has a pointer file of DeepSpeed that names a checkpoint of the policy."""
    return any((folder / "_actor" / name).is_file() for name in (checkpoints.LATEST, checkpoints.UNIVERSAL))


def require_writable(flag: str, folder: Path) -> None:
    """Make a folder if it does not exist, and check that a file can be written into it.

    Args:
        flag: The flag that names the folder, for the message.
        folder: The folder.

    Raises:
        UsageError: The folder cannot be made, or no file can be written into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Tried out, because permissions do not tell everything: the disk may be full or mounted read-only.
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(f"{flag} {folder} cannot be written: {error.strerror}") from error
