"""Find the checkpoint that all models of a run restored, from which the run continues."""

import socket
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.checkpoint.checkpoints import (
    can_resume,
    checkpoint_folder,
    start_afresh_without_checkpoint,
    trained_models,
)
from openrlhf_cov.trainer.model_groups import ModelGroups

logger = init_logger(__name__)

# Models beside the policy that have checkpoints.
TITLES = {"critic": "critic", "prm": "process reward model"}


def restored_states(args: SimpleNamespace, groups: ModelGroups) -> Mapping[str, Any]:
    """Return the client states of the checkpoint that the models restored; empty after a fresh start.

    Args:
        args: The flags of the run. ``--ckpt.load_enable`` is switched off in place where no checkpoint exists.
        groups: The models, which have loaded their checkpoints.

    Raises:
        RunStopped: The trained models and this process do not continue from the same checkpoint.
    """
    if args.ckpt.load_enable:
        _check_restored(args, groups.restored())
    start_afresh_without_checkpoint(args)
    if not args.ckpt.load_enable:
        return {}
    states = groups.client_states()
    logger.info(f"checkpoint states: {states}")
    return states


def _check_restored(args: SimpleNamespace, tags: list[str | None]) -> None:
    policy = tags[0]
    folder = checkpoint_folder(args, "actor")
    if can_resume(args) != (policy is not None):
        raise RunStopped(
            f"--ckpt.load_enable: the policy continues from {policy or 'no checkpoint'}, but {folder} has "
            f"{'none' if policy else 'one'} on host {socket.gethostname()}, where the controller runs; name a "
            "--ckpt.path on a file system that all hosts mount at this path"
        )
    for name, tag in zip(trained_models(args)[1:], tags[1:], strict=True):
        if tag != policy:
            raise RunStopped(
                f"--ckpt.load_enable: the policy continues from {policy or 'no checkpoint'}, the {TITLES[name]} from "
                f"{tag or 'none'}; write the name of one that both have into the files latest in "
                f"{folder} and {checkpoint_folder(args, name)}"
            )
