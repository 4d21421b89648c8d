"""The command line without its training: upstream's flags and checks, our parser."""

import argparse
import sys
from collections.abc import Callable
from datetime import datetime
from types import SimpleNamespace

import pytest

from openrlhf_cov.cli import train_ppo_ray
from openrlhf_cov.cli.arguments import CovArgumentParser
from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.trainer.ray.seams import upstream_main

cpu_host.install()

REWARD = ("--reward.remote_url", "reward.py")
"""A command line without a reward is refused; later flags win over earlier ones."""


class Parsed(Exception):
    """Carries the flags as our parser leaves them, before upstream's checks."""


class StoppingParser(CovArgumentParser):
    def parse_args(self, args=None, namespace=None):
        raise Parsed(super().parse_args(args, namespace))


@pytest.fixture
def parse(monkeypatch) -> Callable[..., argparse.Namespace]:
    """Function (flags...) -> the flat namespace of our parser: ``getattr(args, "actor.eps_clip")``; has a reward."""

    def run(*flags: str) -> argparse.Namespace:
        monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *REWARD, *flags])
        fake_argparse = SimpleNamespace(ArgumentParser=StoppingParser, Namespace=argparse.Namespace)
        namespace = {"__name__": "__main__", "argparse": fake_argparse, "datetime": datetime}
        try:
            exec(upstream_main(), namespace)
        except Parsed as parsed:
            return parsed.args[0]
        raise AssertionError("upstream did not parse")

    return run


@pytest.fixture
def parse_nested(monkeypatch) -> Callable[..., SimpleNamespace]:
    """Function (flags...) -> what ``train(args)`` gets, after upstream's checks: ``args.actor.eps_clip``."""

    def run(*flags: str) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *flags])
        return train_ppo_ray.parse_args()

    return run


@pytest.fixture
def refused(capsys) -> Callable[..., str]:
    """Function (callable, arguments...) -> the one line on stderr with which it exits, status 2."""

    def run(function: Callable, *arguments: str) -> str:
        with pytest.raises(SystemExit) as stop:
            function(*arguments)
        assert stop.value.code == 2
        line = capsys.readouterr().err
        assert line.endswith("\n")
        assert len(line.splitlines()) == 1
        assert line.startswith("train_ppo_ray: error: ")
        return line

    return run
