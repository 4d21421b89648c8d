"""Every flag we add to upstream's parser, and the checks that need no file and no heavy import."""

import argparse
import difflib
import math
import re
import sys
from dataclasses import fields

from openrlhf_cov.config import CovConfig, Schedule
from openrlhf_cov.trainer import cpu_host

PUBLISHED_PPO_CLIP = {"clip_cov": (1.0, 1.0), "kl_cov": (math.inf, math.inf)}
"""PPO clip range (low, high) of the published methods: Clip-Cov's scripts open it wide, KL-Cov has none."""

CLIP_RANGE_FLAGS = ("actor.eps_clip", "actor.eps_clip_low_high")


class CovArgumentParser(argparse.ArgumentParser):
    """Upstream's parser with our flags: stands in for ``argparse.ArgumentParser`` while upstream declares its own.

    Errors are one line on stderr and exit status 2.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, prog="train_ppo_ray", **kwargs)

    def parse_args(self, args=None, namespace=None) -> argparse.Namespace:
        """Add our flags, parse, and check them against each other."""
        argv = sys.argv[1:] if args is None else list(args)
        self.declare()
        parsed = super().parse_args(argv, namespace)
        unset = object()
        marked = argparse.Namespace(**dict.fromkeys(vars(parsed), unset))
        given = {name for name, value in vars(super().parse_args(argv, marked)).items() if value is not unset}
        self._check(parsed, given)
        return parsed

    def declare(self) -> None:
        """Add our flags and the defaults of this host to the flags declared so far."""
        (param_dtype,) = (action for action in self._actions if action.dest == "ds.param_dtype")
        param_dtype.choices = [*param_dtype.choices, "fp32"]
        if cpu_host.is_cpu_host():
            self.set_defaults(**cpu_host.FLAG_DEFAULTS)
        add_cov_arguments(self)

    def error(self, message: str) -> None:
        """Print one line and exit with status 2."""
        unknown = re.fullmatch(r"unrecognized arguments: (--\S+?)(=.*|\s.*)?", message)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            close = difflib.get_close_matches(unknown[1], known, n=1)
            message += f" (did you mean {close[0]}?)" if close else ""
        self.exit(2, f"{self.prog}: error: {message}\n")

    def _check(self, args: argparse.Namespace, given: set[str]) -> None:
        try:
            config = CovConfig.from_args(args)
        except ValueError as error:
            self.error(str(error))
        self._reject_unused_flags(config, given)
        if config.cov_type != "none":
            self._open_ppo_clip(args, config, given)

    def _reject_unused_flags(self, config: CovConfig, given: set[str]) -> None:
        for setting in fields(CovConfig):
            owner = setting.metadata["only"]
            if owner and setting.name in given and config.cov_type not in owner.split(" or "):
                self.error(
                    f"--{setting.name} only applies to --cov_type {owner}, got --cov_type {config.cov_type}; "
                    f"drop it or set --cov_type {owner}"
                )
        if "cov_dump_tokens" in given and not config.cov_dump_every:
            self.error("--cov_dump_tokens only applies with --cov_dump_every; drop it or set --cov_dump_every")

    def _open_ppo_clip(self, args: argparse.Namespace, config: CovConfig, given: set[str]) -> None:
        """Give upstream's PPO clip the published range, unless the user set one."""
        policy_loss_type = getattr(args, "actor.policy_loss_type")
        if policy_loss_type != "ppo":
            self.error(
                f"--cov_type {config.cov_type} needs --actor.policy_loss_type ppo, got {policy_loss_type}: "
                "covariance is per token, this ratio is per sequence"
            )
        if config.kl_cov_keep_ppo_clip:
            return
        if config.cov_type == "kl_cov":
            for name in (*CLIP_RANGE_FLAGS, "actor.dual_clip"):
                if name in given:
                    self.error(
                        f"--{name} {getattr(args, name)} has no effect with --cov_type kl_cov, which has no PPO clip; "
                        "drop it or add --kl_cov_keep_ppo_clip"
                    )
        if given.isdisjoint(CLIP_RANGE_FLAGS):
            setattr(args, "actor.eps_clip_low_high", PUBLISHED_PPO_CLIP[config.cov_type])


def add_cov_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flag group of ``CovConfig``: one flag per field, with the field's default."""
    group = parser.add_argument_group("covariance policy loss")
    for setting in fields(CovConfig):
        help = f"{setting.metadata['help']} (default: {setting.default})"
        if isinstance(setting.default, bool):
            group.add_argument(f"--{setting.name}", action="store_true", default=setting.default, help=_escaped(help))
        else:
            group.add_argument(
                f"--{setting.name}",
                type=_number_or_schedule if setting.metadata["scheduled"] else type(setting.default),
                metavar="X|START:END:STEPS[:cosine]" if setting.metadata["scheduled"] else None,
                default=setting.default,
                choices=setting.metadata["choices"],
                help=_escaped(help),
            )


def _number_or_schedule(text: str) -> float | Schedule:
    try:
        return Schedule.parse(text)
    except ValueError as error:
        form = "neither a number nor START:END:STEPS[:linear|cosine]"
        raise argparse.ArgumentTypeError(f"{text!r} is {form}") from error


def _escaped(help: str) -> str:
    return help.replace("%", "%%")
