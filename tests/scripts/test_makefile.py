"""The set-up half of the Makefile, with a Python that installs nothing; and settings that it refuses."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from openrlhf_cov.experiments.tiny_task.catalogue import TINY_TASKS
from openrlhf_cov.experiments.tiny_task.demo_run import ALL
from openrlhf_cov.experiments.tiny_task.demo_training import METHOD_FLAGS

REPOSITORY = Path(__file__).parents[2]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")

PIP = """#!/bin/sh
echo "$@" >> {log}
case " $* " in {fails}) exit 1;; esac
"""

PYTHON = """#!/bin/sh
case "$*" in
  *ensurepip*) exit {no_venv};;
  "-m venv "*) mkdir -p "$3/bin"; cp {pip} "$3/bin/pip";;
esac
"""


def make(*words, **variables):
    """Run make as from a shell, not as a part of the make that runs these tests."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")} | variables
    command = ["make", "-C", REPOSITORY, "--no-print-directory", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env)


@pytest.fixture
def set_up(tmp_path):
    """Function: run the set-up; (status, stderr, the arguments of each pip call). ``fails``: a pattern of sh."""

    def run(*, no_venv=0, fails='"- none -"'):
        log = tmp_path / "pip.log"
        log.touch()
        for name, text in [
            ("pip", PIP.format(log=log, fails=fails)),
            ("python", PYTHON.format(no_venv=no_venv, pip=tmp_path / "pip")),
        ]:
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        variables = [f"VENV={tmp_path / 'venv'}", f"PYTHON={tmp_path / 'python'}", f"{tmp_path / 'venv'}/.ready"]
        done = make(*variables, PATH=f"{tmp_path}:{os.environ['PATH']}")
        return done.returncode, done.stderr, log.read_text().splitlines()

    return run


def torch_calls(calls):
    return [call for call in calls if " torch==" in call]


def test_an_index_with_the_cpu_build_is_the_only_one_asked(set_up):
    status, stderr, calls = set_up()
    assert status == 0, stderr
    assert len(torch_calls(calls)) == 1
    assert not any(CPU_INDEX in call for call in calls)
    assert [call.split("--no-deps ")[1] for call in calls[1:]] == [
        "-r requirements-cpu.txt",
        "--no-build-isolation --editable .",
    ]


def test_pytorchs_index_is_asked_for_torch_alone(set_up):
    status, stderr, calls = set_up(fails='*"--no-deps torch=="*')
    assert status == 0, stderr
    first, second = torch_calls(calls)
    assert second == first.replace("--no-deps ", f"--no-deps --extra-index-url {CPU_INDEX} ")
    assert [call for call in calls if CPU_INDEX in call] == [second]


def test_no_torch_anywhere_is_one_line(set_up):
    status, stderr, calls = set_up(fails='*" torch=="*')
    assert status == 2
    assert "make: no index gives torch==" in stderr
    assert "PIP_EXTRA_INDEX_URL" in stderr
    assert len(calls) == 2


def test_a_python_without_venv_is_one_line_before_anything_is_installed(set_up):
    status, stderr, calls = set_up(no_venv=1)
    assert status == 2
    assert stderr.splitlines()[0].startswith("make: needs the venv module of ")
    assert calls == []


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("METHOD=foo", f"METHOD=foo: choose one of {' '.join((*METHOD_FLAGS, ALL))}"),
        ("TASK=foo", f"TASK=foo: choose one of {' '.join(TINY_TASKS)}"),
        ("COV_TYPE=foo", "COV_TYPE=foo is not read: use METHOD=foo"),
    ],
)
def test_a_wrong_setting_of_the_demo_is_one_line_before_anything_is_installed(tmp_path, variable, line):
    done = make("--dry-run", f"VENV={tmp_path}", variable, "demo")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.split("*** ")[1] == f"{line}.  Stop.\n"
