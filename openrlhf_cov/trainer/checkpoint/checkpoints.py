"""Checkpoints that are whole or not there: written beside the others, renamed when complete, then pointed to."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.cov_config import has_critic, has_process_reward
from openrlhf_cov.trainer.checkpoint.best_model import changed_settings
from openrlhf_cov.utils.json_lines import MAX_SETTINGS_BYTES, parse_object, read_bounded, replacing

logger = init_logger(__name__)

# Name of a checkpoint that is being written, before its tag.
PARTIAL = "partial-"
# DeepSpeed's file with the tag of the checkpoint to load.
LATEST = "latest"
# And that of its universal checkpoints, which ``--ds.use_universal_ckpt`` loads.
UNIVERSAL = "latest_universal"
# What is a plain name: a tag does not lead out of its folder.
TAG = re.compile(r"(?!\.+$)[\w.=@+-]{1,200}", re.ASCII)
# What must be equal for a checkpoint to be loaded: ranks, ZeRO stage, size of the model.
RUN_FILE = "run.json"
# What of it a universal checkpoint does not depend on.
PLACEMENT = ("ranks", "ZeRO stage", "tensor parallel size")
# Follows the tag of a checkpoint that replaces the one to which ``latest`` points.
AGAIN = "-again"
# Upstream's entry of the client states for what the controller alone needs: ``CheckpointedLoader.state_dict``.
ROLLOUTS = "data_loader_state_dict"
# File of a policy's checkpoint that holds it, megabytes of tensors, once.
ROLLOUTS_FILE = "rollouts.safetensors"
# Entry of ``RUN_FILE``: increase the version when a field of a checkpoint is removed or changes its meaning.
FORMAT = "format"
FORMAT_VERSION = 3
# Entry of ``RUN_FILE`` for what determines a run (``openrlhf_cov.trainer.checkpoint.run_record.record_of``).
SETTINGS = "settings"
# Entry of ``RUN_FILE`` for what the metric of a checkpoint means: settings of the evaluation, and name of the metric.
EVALUATION = "evaluation"
NO_LIMIT = 10**9

# Folder in ``--ckpt.path`` with the exported model of the best evaluation.
BEST = "best"
# File of that folder: global step, name and value of the metric.
BEST_FILE = "best.json"

Writer = Callable[..., None]
Share = Callable[[str | None], list[str | None]]


def save_whole(
    save: Callable[[str], None],
    folder: Path,
    tag: str,
    run: dict[str, Any],
    *,
    first: bool,
    share: Share,
) -> None:
    """Write a checkpoint under a temporary name, and give it its name when it is complete.

    Every rank calls this function. Whatever happens meanwhile, the file ``latest`` names a complete checkpoint. The
    checkpoint that it names is never touched, so a tag that is saved once more gets the name ``tag`` + ``AGAIN``.

    Args:
        save: ``save(name)`` writes the part of this rank into the folder ``name`` in ``folder``.
        folder: The folder of the model's checkpoints.
        tag: Name of the complete checkpoint.
        run: Content of ``RUN_FILE``, which JSON can hold.
        first: True on the one rank that renames and removes folders.
        share: ``share(error)`` returns the errors of all ranks in the order of the ranks, None for a rank without one.

    Raises:
        RunStopped: The disk of a rank refuses the checkpoint; on every rank alike.
    """
    name = PARTIAL + tag

    def clear() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / name, ignore_errors=True)

    def commit() -> None:
        (folder / name / RUN_FILE).write_text(json.dumps(run), encoding="utf-8")
        _sync(folder / name / RUN_FILE)
        _sync(folder / name)
        # The checkpoint that ``latest`` names is never touched: a kill in between would leave none.
        if pointed_to(folder) == tag:
            old = tag
            new = tag + AGAIN
        else:
            old = tag + AGAIN
            new = tag
        _discard(folder / new)
        os.replace(folder / name, folder / new)
        _point_to(folder, new)
        _discard(folder / old)

    # Every rank syncs the files, because on a network file system a host flushes only what it wrote itself.
    parts = [(first, clear), (True, lambda: save(name)), (True, lambda: _sync_files(folder / name)), (first, commit)]
    _on_all_ranks(parts, f"checkpoint {folder / tag}", share)


def export_best(
    export: Callable[[str], None], parent: Path, record: dict[str, Any], *, first: bool, share: Share
) -> None:
    """Let ``export(path)`` write a model into a folder, and replace the folder ``best`` in ``parent`` by it.

    Called on every rank, like ``save_whole``. A kill leaves the former model, or the new one, whole.

    Args:
        export: Writes the files; it is called on every rank with the path of a new folder.
        parent: ``--ckpt.path``.
        record: Content of ``BEST_FILE``.
        first: True on the rank that renames folders.
        share: Tells all ranks the error of each.

    Raises:
        RunStopped: On every rank alike, if the disk refuses one of them.
    """
    new = parent / f"{PARTIAL}{BEST}"
    # A folder cannot replace another one in one step, so the former one is moved aside first.
    old = parent / f"{PARTIAL}{BEST}-removed"

    def clear() -> None:
        parent.mkdir(parents=True, exist_ok=True)
        if old.exists() and not (parent / BEST).exists():  # killed between the two renames
            os.replace(old, parent / BEST)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(new, ignore_errors=True)

    def commit() -> None:
        (new / BEST_FILE).write_text(json.dumps(record), encoding="utf-8")
        _sync_files(new)
        _sync(new)
        with suppress(FileNotFoundError):
            os.replace(parent / BEST, old)
        os.replace(new, parent / BEST)
        _sync(parent)
        shutil.rmtree(old, ignore_errors=True)

    _on_all_ranks([(first, clear), (True, lambda: export(str(new))), (first, commit)], f"{parent / BEST}", share)


def _on_all_ranks(parts: list[tuple[bool, Callable[[], None]]], what: str, share: Share) -> None:
    """Run every part that is this rank's; each part begins when the one before it has ended on all ranks."""
    for mine, part in parts:
        for rank, error in enumerate(share(_error_of(part) if mine else None)):
            if error is not None:
                reason = f"{error} (rank {rank}); the one before it is whole"
                raise RunStopped(f"{what} could not be written: {reason}")


@contextmanager
def errors_at_the_end(*writers: tuple[Any, str]) -> Iterator[Callable[[Writer], Writer]]:
    """Let writers note the error of a disk instead of raising it, and raise the first one when the body ends.

    A rank that left DeepSpeed's saving half-way would leave the others at its next barrier. DeepSpeed makes the
    objects that write itself, so no subclass can stand in.

    Args:
        writers: Pairs (object, name) of methods that write.

    Yields:
        A function that makes another writer note its errors, too.

    Raises:
        OSError: A writer failed.
    """
    errors: list[str] = []

    def noting(write: Writer) -> Writer:
        def attempt(*args, **kwargs) -> None:
            if not errors:
                try:
                    write(*args, **kwargs)
                except (OSError, RuntimeError) as error:  # torch's writer raises the latter when the disk is full
                    errors.append(getattr(error, "strerror", None) or " ".join(str(error).split())[:200])

        return attempt

    for owner, name in writers:
        setattr(owner, name, noting(getattr(owner, name)))
    try:
        yield noting
    finally:
        for owner, name in writers:
            delattr(owner, name)  # the method of its class is there again
    if errors:
        raise OSError(None, errors[0])


def _error_of(part: Callable[[], None]) -> str | None:
    try:
        part()
    except OSError as error:
        return error.strerror or str(error)
    return None


def writes_checkpoints(args: Any) -> bool:
    """Return True if these flags may lead to a checkpoint, as DeepSpeed's or as an exported model."""
    return args.ckpt.save_steps > 0 or args.on_signal == "checkpoint"


def keeps_best(args: Any) -> bool:
    """Return True if these flags may lead to an exported model of the best evaluation."""
    return bool(args.eval.dataset) and args.ckpt.best_metric_key != "none"


def uses_checkpoints(args: Any) -> bool:
    """Return True if these flags may lead to a DeepSpeed checkpoint, or continue from one."""
    return args.ckpt.load_enable or (writes_checkpoints(args) and not args.ckpt.disable_ds)


def checkpoint_folder(args: Any, model: str) -> Path:
    """Return the folder of the DeepSpeed checkpoints of a model.

    Args:
        args: The flags of the run.
        model: ``actor``, ``critic`` or ``prm``.
    """
    return Path(args.ckpt.path) / f"_{model}"


def checkpoint_tag(step: int) -> str:
    """Return the name of the checkpoint after a global step."""
    return f"global_step{step}"


def trained_models(args: Any) -> list[str]:
    """Return the models of a run that have checkpoints: actor, and where the run has them critic and prm."""
    exist = {"actor": True, "critic": has_critic(args), "prm": has_process_reward(args)}
    return [name for name, exists in exist.items() if exists]


def can_resume(args: Any) -> bool:
    """Return True if every trained model has a checkpoint to continue from.

    A run that was killed before its first save, or during it, has none for at least one model. It starts afresh.
    """
    folders = [checkpoint_folder(args, model) for model in trained_models(args)]
    return all(any((folder / name).is_file() for name in (LATEST, UNIVERSAL)) for folder in folders)


def start_afresh_without_checkpoint(args: Any) -> None:
    """Switch ``--ckpt.load_enable`` off in this process where there is nothing to continue from.

    Upstream resumes whenever the folder ``_actor`` exists, also when a kill left nothing but a partial checkpoint in
    it, and then fails because the client states are empty.
    """
    args.ckpt.load_enable = args.ckpt.load_enable and can_resume(args)


def tag_to_restore(args: Any, folder: Path) -> str | None:
    """Return the tag of the newest checkpoint that all trained models have; without one, the tag of this folder.

    A kill while a step was saved leaves some models a checkpoint ahead.

    Args:
        args: The flags of the run.
        folder: The folder of the checkpoints of one model.

    Returns:
        A tag that a file ``latest`` names. None if no checkpoint is common to all models and ``folder`` has no such
        file, as in upstream, and for a universal checkpoint, which DeepSpeed finds by a pointer of its own.
    """
    if args.ds.use_universal_ckpt:
        return None
    models = [checkpoint_folder(args, name) for name in trained_models(args)]
    tags = [pointed_to(model) for model in models]
    common = (tag for tag in tags if tag and all((model / tag / RUN_FILE).is_file() for model in models))
    return next(common, pointed_to(folder))


def pointed_to(folder: Path, name: str = LATEST) -> str | None:
    """Return the tag of the checkpoint that a pointer file names; None if the file is missing or holds no plain name.

    Args:
        folder: The folder of the checkpoints of one model.
        name: The pointer file in that folder, ``LATEST`` or ``UNIVERSAL``.
    """
    pointer = folder / name
    tag = pointer.read_text(encoding="utf-8", errors="replace").strip() if pointer.is_file() else ""
    return tag if TAG.fullmatch(tag) else None


def prune(folder: Path, newest: str, max_num: int, max_mem: float, metric_of: Callable[[str], float | None]) -> None:
    """Remove old checkpoints, as upstream does before it saves, but never the newest or one that a pointer file names.

    If the newest checkpoint is a ``best…`` checkpoint, older ones of that kind are removed. Of the other checkpoints
    those without a metric go first, then those of the worst metric, and among equal ones the oldest.

    Args:
        folder: The folder of the model's checkpoints, beside those of the other models.
        newest: Name of the checkpoint that was just saved.
        max_num: Most checkpoints to keep, without the ``best…`` checkpoints.
        max_mem: Most disk space of the whole folder, in GiB.
        metric_of: Returns the value of the metric of the checkpoint at a path, None if it has none; larger is better.
    """
    # A run continues from the newest checkpoint that policy and critic both have, so neither may lose it.
    kept = {newest} | {pointed_to(model, name) for model in folder.parent.glob("_*") for name in (LATEST, UNIVERSAL)}
    tags = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(PARTIAL)]
    if newest.startswith("best"):
        for path in tags:
            if path.name.startswith("best") and path.name not in kept:
                _remove(path, "a better one was saved")
    regular = [path for path in tags if not path.name.startswith("best")]
    removable = sorted((path for path in regular if path.name not in kept), key=lambda path: _rank(path, metric_of))
    while removable and (len(regular) > max_num or _size(folder) > max_mem * 1024**3):
        path = removable.pop(0)
        regular.remove(path)
        _remove(path, "--ckpt.max_num or --ckpt.max_mem")


def comparable_metric(run: Mapping[str, Any], metric_of: Callable[[str], float | None], place: str) -> float | None:
    """Return the metric of a checkpoint; None if it has none, or one of an evaluation with other settings.

    Args:
        run: The content of the ``RUN_FILE`` of a checkpoint that the run writes now.
        metric_of: See ``prune``.
        place: The checkpoint.
    """
    try:
        saved = parse_object(read_bounded(Path(place) / RUN_FILE, MAX_SETTINGS_BYTES))
    except (OSError, ValueError):
        return None
    return None if changed_settings(run[EVALUATION], saved.get(EVALUATION, {})) else metric_of(place)


class ClientStates(dict):
    """The state of a checkpoint beside the model; its repr shows numbers and names, and other values by type.

    Upstream logs it on resuming, and the groups that wait in it are megabytes of tensors.
    """

    def __repr__(self) -> str:
        return repr({k: v if isinstance(v, int | float | str | None) else type(v) for k, v in self.items()})


def whole_checkpoints(folder: Path) -> list[str]:
    """Return the names of the complete checkpoints in a folder, the oldest first."""
    if not folder.is_dir():
        return []
    whole = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(PARTIAL)]
    return [path.name for path in sorted(whole, key=lambda path: path.stat().st_mtime)]


def partial_checkpoints(folder: Path) -> list[str]:
    """Return the names of the checkpoints that were not completed."""
    return sorted(path.name for path in folder.glob(f"{PARTIAL}*"))


def differences(folder: Path, run: dict[str, Any], universal: bool = False) -> str | None:
    """Return how the newest checkpoint in a folder differs from this run, in one line.

    Args:
        folder: The folder of the model's checkpoints.
        run: Result of ``describe_run`` for this run.
        universal: True for DeepSpeed's universal checkpoints, which ranks, ZeRO stage and tensor parallelism may
            change.

    Returns:
        The first fault, or all entries that differ with both values; None if the checkpoint fits, if there is none, or
        if upstream wrote it.
    """
    for pointer in filter(Path.is_file, (folder / UNIVERSAL, folder / LATEST)):
        tag = pointer.read_text(encoding="utf-8", errors="replace").strip()
        if not TAG.fullmatch(tag):
            return f"{pointer.name} names no folder beside it: {tag[:80]!r}"
    tag = pointed_to(folder)
    if tag is None:
        return None  # DeepSpeed's universal checkpoints have a pointer of their own
    if not (folder / tag).is_dir():
        return f"{LATEST} names {tag}, which is not there"
    if not (folder / tag / RUN_FILE).is_file():
        return None  # written by upstream
    try:
        saved = parse_object(read_bounded(folder / tag / RUN_FILE, MAX_SETTINGS_BYTES))
    except ValueError as error:
        return f"{tag}/{RUN_FILE} cannot be read ({error})"
    if FORMAT in run and (version := saved.get(FORMAT)) != run[FORMAT]:
        return (
            f"{tag} has the checkpoint format {version}, this version reads {run[FORMAT]}; finish the run with the "
            "version that wrote it, or start a new run from its exported model"
        )
    compared = run.keys() - (PLACEMENT if universal else ())
    # An entry that the checkpoint lacks is one that its version did not compare.
    differing = [name for name in run if name in compared & saved.keys() and saved[name] != run[name]]
    other = [f"{name} {saved[name]}, this run has {run[name]}" for name in differing]
    return f"{tag} has {'; '.join(other)}" if other else None


def describe_run(args: Any, model_config: Any, model: str = "actor") -> dict[str, Any]:
    """Return what must be equal for a checkpoint of a trained model to be loaded, name -> value.

    Args:
        args: The flags of the run.
        model_config: The Hugging Face config of the model; an entry that it lacks is None.
        model: ``actor``, ``critic`` or ``prm``.
    """
    sizes = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
    # The process reward model has as many ranks as the policy, and is trained with Adam.
    is_prm = model == "prm"
    processes = args.actor if is_prm else getattr(args, model)
    return {
        FORMAT: FORMAT_VERSION,
        "ranks": processes.num_nodes * processes.num_gpus_per_node,
        "ZeRO stage": args.ds.zero_stage,
        "tensor parallel size": args.ds.tensor_parallel_size,
        "dtype": args.ds.param_dtype,
        "Adam offload": args.ds.adam_offload,
        "Adam of": "PyTorch" if cpu_host.trains_with_torch_adam(args) else "DeepSpeed",
        "optimizer": "adam" if is_prm else processes.optim,
        "LoRA": _describe_lora(args.ds.lora),
        **{name: getattr(model_config, name, None) for name in sizes},
    }


def _describe_lora(lora: Any) -> str:
    """Return the settings that the names, shapes and scale of LoRA adapters follow from, as one text."""
    if not lora.rank:
        return "none"
    modules = lora.target_modules
    shown = modules if isinstance(modules, str) else " ".join(sorted(modules))
    return f"rank {lora.rank}, alpha {lora.alpha}, {shown}"


def saved_settings(args: Any) -> tuple[Path, dict[str, Any]] | None:
    """Return the checkpoint of the policy that these flags continue from, and what determined its run.

    Return None where there is no such checkpoint, or where upstream wrote it.
    """
    folder = checkpoint_folder(args, "actor")
    tag = tag_to_restore(args, folder) or pointed_to(folder)
    if tag is None or not (folder / tag / RUN_FILE).is_file():
        return None
    try:
        saved = parse_object(read_bounded(folder / tag / RUN_FILE, MAX_SETTINGS_BYTES)).get(SETTINGS)
    except ValueError:
        return None  # differences() has reported it
    return (folder / tag, saved) if isinstance(saved, dict) else None


def point_back(folder: Path, tag: str) -> None:
    """Let ``latest`` name the checkpoint from which a run resumes, where another model lacks a newer one.

    The next save of that newer step then has the same tag in the folders of policy and critic.

    Args:
        folder: The folder of the checkpoints of one model. Without a file ``latest`` nothing is written.
        tag: Name of a complete checkpoint in that folder.
    """
    if pointed_to(folder) not in (None, tag) and (folder / tag / RUN_FILE).is_file():
        _point_to(folder, tag)


def _point_to(folder: Path, tag: str) -> None:
    with replacing(folder / LATEST) as file:
        file.write(tag.encode())
        file.flush()
        os.fsync(file.fileno())
    _sync(folder)


def _sync_files(folder: Path) -> None:
    """Make the content of all files in ``folder`` survive a power cut; there may be none on a rank of another host."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            _sync(path)


def _sync(path: Path) -> None:
    """Make a file, or the renames in a folder, survive a power cut, where the file system can."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _rank(path: Path, metric_of: Callable[[str], float | None]) -> tuple:
    metric = metric_of(str(path))
    return metric is not None, metric if metric is not None else 0.0, path.stat().st_mtime


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _discard(path: Path) -> None:
    """Remove a checkpoint, if it is there; half-removed ones do not pass for whole."""
    removed = path.with_name(f"{PARTIAL}{path.name}-removed")
    shutil.rmtree(removed, ignore_errors=True)
    with suppress(OSError):  # it is not there, or has to stay
        os.replace(path, removed)
    shutil.rmtree(removed, ignore_errors=True)


def _remove(path: Path, reason: str) -> None:
    _discard(path)
    logger.info(f"removed checkpoint {path} ({reason})")
