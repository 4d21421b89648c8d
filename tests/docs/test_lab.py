"""docs/lab.md names functions that exist, in the order in which a run calls them and the file has them."""

import inspect
import re
import sys
from pkgutil import resolve_name

import pytest

from openrlhf_cov.cli import lab
from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig

cpu_host.install()
STEP = re.compile(r"^\d+\. .*?(?=^\d+\. |^$)", re.M | re.S)
NAME = re.compile(r"`((?:experiments\.lab|models)\.(?!json`)[\w.]+)`")
# Of a run that calls each function of the loop's steps once, but for evaluations.
FLAGS = """
    --cov_type kl_cov --kl_cov_ratio 0.02 --entropy_target 1 --steps 1 --updates 1 --rollout.batch_size 2
    --rollout.n_samples_per_prompt 2 --eval.n_samples_per_prompt 1 --test_samples 1
""".split()


@pytest.fixture
def named(page):
    """{code of a function: name} of the steps, in their order."""
    steps = STEP.findall(page("docs/lab.md").text)
    names = [name for step in steps for name in NAME.findall(step)]
    assert len(steps) > 5
    assert len(names) > 15
    found = {name: resolve_name(f"openrlhf_cov.{name}") for name in names}
    return {inspect.unwrap(each).__code__: name for name, each in found.items() if inspect.isroutine(each)}


def test_the_steps_of_the_loop_stand_in_the_file_in_that_order(named):
    lines = [code.co_firstlineno for code, name in named.items() if name.startswith("experiments.lab.training.")]
    assert len(lines) > 8
    assert lines == sorted(lines)


def test_a_run_calls_the_functions_of_the_steps_in_that_order(named, tmp_path, monkeypatch):
    from openrlhf_cov.experiments.lab import tasks

    small = BasePolicyConfig(layers=1, heads=2, hidden_size=16, intermediate_size=32, max_length=16, steps=1)
    monkeypatch.setattr(tasks, "COMMANDS_POLICY", small)
    names, called = {id(code): name for code, name in named.items()}, []

    def note(frame, event, _):
        if event == "call" and id(frame.f_code) in names:
            called.append(names[id(frame.f_code)])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        lab.main([*FLAGS, "--output", str(tmp_path / "run"), "--base_policies", str(tmp_path / "base")])
    finally:
        sys.setprofile(before)
    left = iter(called)
    for name in named.values():
        assert name in left, name  # after the one before it
