"""Train with OpenRLHF's flags and ours.

``python -m openrlhf_cov.cli.train_ppo_ray`` is the same as ``openrlhf-cov train``, for jobs that are submitted to Ray.
The flags are parsed and completed, inputs and cluster are checked, and ``openrlhf_cov/trainer/build.py`` builds and
runs the training.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.packages import ALLOW_OPENRLHF, check_versions
from openrlhf_cov.cluster.ray_here import protect_own_ray
from openrlhf_cov.errors import RunStopped, StoppedBySignal, UsageError
from openrlhf_cov.rewards.limits import REWARD_TOKEN
from openrlhf_cov.trainer.flags.parser import FLAG_OF_FIELD, parse_args
from openrlhf_cov.utils import garbage_collection
from openrlhf_cov.utils.command import COMMAND_FILE, SETTINGS_FILE, write_command, write_settings
from openrlhf_cov.utils.output_folders import alone_in
from openrlhf_cov.utils.redaction import HIDDEN
from openrlhf_cov.utils.terminal import clean_logs, refuse

NAME = "openrlhf-cov train"

logger = logging.getLogger(__name__)


@program(NAME)
def main() -> int | None:
    """Train, or with --dry_run say what would happen. Exit status 2 with one line on stderr for anything the user can
    mend before training starts, 1 for a run that stopped itself, 128 + signal after SIGTERM and Ctrl-C."""
    with ExitStack() as locks:
        return _run(locks)


def _run(locks: ExitStack) -> int | None:
    clean_logs()
    garbage_collection.pause()
    try:
        protect_own_ray()  # before the first import of Ray
        check_versions(allow_other=ALLOW_OPENRLHF in sys.argv)  # what follows reads upstream's source
        args = parse_args()
        fill_in_secrets(args)
        cpu_host.install()
        from openrlhf_cov.cluster.workers import trust_remote_code

        trust_remote_code(args.trust_remote_code)
        if args.dry_run:
            from openrlhf_cov.trainer.preflight import dry_run

            return dry_run.run(args, partial(refuse, NAME))
        from openrlhf_cov.cluster import connection
        from openrlhf_cov.trainer.checkpoint import stopping
        from openrlhf_cov.trainer.preflight import preflight
        from openrlhf_cov.trainer.ray import warm_engines

        preflight.check(args)
        _lock_folders(args, locks)
        needs = connection.needs_of_training(args)
        connection.connect(needs)
        connection.check_capacity(needs, args.placement_timeout)
        _write_command(args.ckpt.output_dir)
        _write_settings(args)
        from openrlhf_cov.trainer.build import train

        garbage_collection.resume()
    except ImportError as error:
        raise UsageError(
            f"{error}; install all of requirements.txt (requirements-cpu.txt on a host without a GPU)"
        ) from error

    try:
        try:
            with stopping.stop_on_signals():
                train(args)
            warm_engines.give_back()
        finally:
            warm_engines.show_outputs()
    except RunStopped as error:
        # Ray wraps other errors around the error on its way through actors.
        cause: Exception = error
        while isinstance(inner := getattr(cause, "cause", None), Exception):
            cause = inner
        refuse(NAME, cause)
        return 128 + (stopping.stop_requested() or 0) if isinstance(cause, StoppedBySignal) else 1


def _lock_folders(args: SimpleNamespace, locks: ExitStack) -> None:
    """Lock the folders that a run writes, so that a second run of the same command is refused.

    Args:
        args: The flags of the run.
        locks: Holds the locks until the run has ended. A file system may have no locks; then there is a warning.

    Raises:
        UsageError: Another run writes to one of the folders.
    """
    folders = {Path(args.ckpt.output_dir).resolve(): "output_dir"}
    # All runs without checkpoints share the default of --ckpt.path.
    if args.ckpt.save_steps > 0 or args.ckpt.load_enable:
        folders.setdefault(Path(args.ckpt.path).resolve(), "path")
    for folder, flag in folders.items():
        try:
            locks.enter_context(alone_in(folder, f"--ckpt.{flag}"))
        except OSError as error:
            logger.warning("%s has no lock, so a second run would not be refused: %s", folder, error.strerror)


def fill_in_secrets(args: SimpleNamespace) -> None:
    """Put back what stands as ``***`` in a command that was copied from ``command.txt``, from the environment.

    So a secret need not stand on a command line at all, where every process of the host can read it. Raises
    UsageError where the variable is not set.
    """
    reward = args.reward
    wandb = args.logger.wandb
    urls = reward.remote_url
    reward.remote_url = urls and [_filled("--reward.remote_url", url, REWARD_TOKEN) for url in urls]
    wandb.key = wandb.key and _filled("--logger.wandb.key", wandb.key, "WANDB_API_KEY")


def _filled(flag: str, text: str, variable: str) -> str:
    if HIDDEN not in text:
        return text
    if not os.environ.get(variable):
        raise UsageError(f"{flag} {text}: {HIDDEN} stands for the value of {variable}, which is not set; set it")
    return text.replace(HIDDEN, os.environ[variable])


def _write_command(folder: str) -> None:
    try:
        write_command(folder, [*NAME.split(), *sys.argv[1:]])
    except OSError as error:
        raise _not_writable(folder, COMMAND_FILE, error) from error


def _write_settings(args: SimpleNamespace) -> None:
    folder = args.ckpt.output_dir
    try:
        write_settings(folder, dict(_flags_of(args)))
    except OSError as error:
        raise _not_writable(folder, SETTINGS_FILE, error) from error


def _flags_of(args: SimpleNamespace, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every flag and its value, with upstream's nested names joined by dots."""
    for name, value in vars(args).items():
        if isinstance(value, SimpleNamespace):
            yield from _flags_of(value, f"{prefix}{name}.")
        else:
            yield f"--{prefix}{FLAG_OF_FIELD.get(name, name) if not prefix else name}", value


def _not_writable(folder: str, name: str, error: OSError) -> UsageError:
    return UsageError(
        f"--ckpt.output_dir {folder}: {name} cannot be written ({error.strerror}); make room or choose another folder"
    )


if __name__ == "__main__":
    sys.exit(main())
