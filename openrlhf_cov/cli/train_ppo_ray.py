"""``python -m openrlhf_cov.cli.train_ppo_ray``: upstream's command line and training, with our flags and losses.

Upstream's own main block declares and checks its flags, with our parser class in place of argparse's. Then inputs and
cluster are checked, the seams are installed, and upstream's ``train(args)`` runs.
"""

import argparse
import sys
from datetime import datetime
from types import SimpleNamespace

from openrlhf_cov.cli.arguments import CovArgumentParser
from openrlhf_cov.errors import UsageError
from openrlhf_cov.trainer import cpu_host

NO_REWARD = "no reward: give --reward.remote_url (a reward_func.py or a server) or --reward.model_name_or_path"


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
    except AttributeError as error:  # upstream derives the critic from a reward model that was not named
        raise UsageError(NO_REWARD) from error
    if not (parsed[0].reward.remote_url or parsed[0].reward.model_name_or_path):
        raise UsageError(NO_REWARD)
    cpu_host.adapt(parsed[0])
    return parsed[0]


def main() -> None:
    """Train; exit status 2 with one line on stderr for anything the user can mend before training starts."""
    try:
        args = parse_args()
        cpu_host.install()
        from openrlhf_cov.cli import preflight
        from openrlhf_cov.trainer.ray import cluster, seams

        preflight.check(args)
        seams.accept_fp32()
        cluster.connect(args)
        cluster.check_capacity(args)
    except UsageError as error:
        sys.exit(_one_line(error))

    seams.install(args)
    from openrlhf.cli.train_ppo_ray import train

    train(args)


def _one_line(error: UsageError) -> int:
    sys.stderr.write(f"train_ppo_ray: error: {' '.join(str(error).split())}\n")
    return 2


if __name__ == "__main__":
    main()
