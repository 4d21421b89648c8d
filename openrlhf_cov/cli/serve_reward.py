"""Serve rule-based rewards over HTTP, for --reward.remote_url http://….

Start one service per machine or port, and give the trainer all URLs, separated by commas. OpenRLHF's client uses them
in turn. If the service requires a token, write it into these URLs (http://HOST:PORT/?token=TOKEN), because the client
sends no Authorization header.
"""

import logging
import signal
import sys
from dataclasses import fields
from pathlib import Path

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.packages import SERVICE, require, require_grader
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards.limits import REWARD_TOKEN, ServiceLimits
from openrlhf_cov.rewards.service_token import read_token
from openrlhf_cov.rewards.serving import listen, serve
from openrlhf_cov.rewards.unread_reward_flags import unread_reward_flags
from openrlhf_cov.utils.config_flags import add_config_arguments, given_flags
from openrlhf_cov.utils.terminal import Parser, clean_logs

# Settings of the trainer's side: nobody tells the service which response was truncated, and it reads no data.
TRAINER_ONLY = ("reward_keep_truncated", "reward_skip_bad_labels", "reward_max_error_frac")
# That of upstream.
LOG_FORMAT = "%(levelname)s %(asctime)s %(filename)s:%(lineno)d] %(message)s"


def build_parser() -> Parser:
    """Return the parser of this command; limits and rewards have the defaults of their configs."""
    parser = Parser(prog="openrlhf-cov serve-reward", about=__doc__, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1", help="address to bind to (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=5000, help="port to bind to; 0: any free one (default: 5000)")
    parser.add_argument(
        "--token_file",
        type=Path,
        metavar="FILE",
        help=f"file with the token that requests must carry (default: the environment's {REWARD_TOKEN}, or none)",
    )
    add_config_arguments(parser, "limits", ServiceLimits)
    own = [entry.name for entry in fields(RewardConfig) if entry.name not in TRAINER_ONLY]
    add_config_arguments(parser, "rewards", RewardConfig, own)
    parser.set_defaults(**{entry.name: entry.default for entry in fields(RewardConfig) if entry.name in TRAINER_ONLY})
    return parser


@program("openrlhf-cov serve-reward")
def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT: exit status 0. Exit status 2 with one line for anything the user can mend."""
    parser = build_parser()
    args = parser.parse_args(argv)
    require(SERVICE)
    config = RewardConfig.from_args(args)
    for reason in unread_reward_flags(config, given_flags(parser.parse_args, argv, args)):
        raise UsageError(reason)
    limits = ServiceLimits.from_args(args)
    require_grader(config.reward_grader)
    token = read_token(args.token_file)
    with listen(args.host, args.port) as listener:
        clean_logs()
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, datefmt="%m-%d %H:%M:%S")
        for stop in (signal.SIGTERM, signal.SIGINT):
            signal.signal(stop, lambda *_: sys.exit(0))  # while the server runs it has handlers of its own
        serve(listener, config, limits, token)
    return 0


if __name__ == "__main__":
    sys.exit(main())
