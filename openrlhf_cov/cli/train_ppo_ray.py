"""``python -m openrlhf_cov.cli.train_ppo_ray``: upstream's command line and training, with our flags and losses.

Upstream's own main block declares and checks its flags, with our parser class in place of argparse's. Then inputs and
cluster are checked, the seams are installed, and upstream's ``train(args)`` runs.
"""

import argparse
import sys
from datetime import datetime
from types import SimpleNamespace

from openrlhf_cov.cli.arguments import CovArgumentParser
from openrlhf_cov.errors import RunStopped, StoppedBySignal, UsageError
from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.utils.command import COMMAND_FILE, write_command


def parse_args() -> SimpleNamespace:
    """Parsed flags of ``sys.argv`` as upstream nests them (``args.actor.adam.lr``); exits with one line if wrong."""
    from openrlhf_cov.trainer.ray.seams import upstream_main

    parsed: list[SimpleNamespace] = []
    namespace = {
        "__name__": "__main__",
        "argparse": SimpleNamespace(ArgumentParser=CovArgumentParser, Namespace=argparse.Namespace),
        "datetime": datetime,
        "train": parsed.append,
    }
    try:
        exec(upstream_main(), namespace)
    except AssertionError as error:
        raise UsageError(str(error) or "upstream refused the combination of flags") from error
    if not parsed[0].dry_run_gpu_memory:
        cpu_host.adapt(parsed[0])
    return parsed[0]


def main() -> None:
    """Train, or with --dry_run say what would happen. Exit status 2 with one line on stderr for anything the user can
    mend before training starts, 1 for a run that stopped itself, 128 + signal after SIGTERM and Ctrl-C."""
    try:
        args = parse_args()
        cpu_host.install()
        if args.dry_run:
            from openrlhf_cov.cli import dry_run

            sys.exit(dry_run.run(args, _one_line))
        from openrlhf_cov.cli import preflight
        from openrlhf_cov.trainer import extension_locks, stopping
        from openrlhf_cov.trainer.ray import adapters, cluster, seams

        preflight.check(args)
        adapters.accept_fp32()
        needs = cluster.needs_of_training(args)
        cluster.connect(needs)
        cluster.check_capacity(needs)
        extension_locks.remove_stale_locks()
        seams.install(args)
        _write_command(args.ckpt.output_dir)
        from openrlhf.cli.train_ppo_ray import train
    except UsageError as error:
        sys.exit(_one_line(str(error)))
    except ImportError as error:
        sys.exit(_one_line(f"{error}; install all of requirements.txt (requirements-cpu.txt on a host without a GPU)"))

    try:
        with stopping.stop_on_signals():
            train(args)
    except RunStopped as error:
        cause = _cause_of(error)
        _one_line(str(cause))
        sys.exit(128 + stopping.stop_requested() if isinstance(cause, StoppedBySignal) else 1)


def _write_command(folder: str) -> None:
    try:
        write_command(folder, ["train_ppo_ray", *sys.argv[1:]])
    except OSError as error:
        raise UsageError(
            f"--ckpt.output_dir {folder}: {COMMAND_FILE} cannot be written ({error.strerror}); make room or choose "
            "another folder"
        ) from error


def _cause_of(error: Exception) -> Exception:
    """The error itself, out of those that Ray wraps around it on its way through actors."""
    while isinstance(getattr(error, "cause", None), Exception):
        error = error.cause
    return error


def _one_line(message: str) -> int:
    sys.stderr.write(f"train_ppo_ray: error: {' '.join(message.split())}\n")
    return 2


if __name__ == "__main__":
    main()
