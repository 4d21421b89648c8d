"""``openrlhf-cov methods``: what it shows is what the methods' records say, and its examples run."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from openrlhf_cov.cli import methods
from openrlhf_cov.cli.main import COMMANDS
from openrlhf_cov.experiments.lab.request import LabRequest, build_parser
from openrlhf_cov.models.methods import METHODS


def shown(capsys, *words):
    assert methods.main(list(words)) == 0
    return capsys.readouterr().out


def test_a_method_has_its_flags_with_defaults_and_its_paper(capsys):
    text = shown(capsys, "kl_cov")
    assert METHODS["kl_cov"].source in text
    assert "--kl_cov_ratio (default: 0.002)" in text
    assert "--kl_cov_keep_ppo_clip (default: off)" in text
    assert "--cegppo_clip (default: 0.2 0.2)" in shown(capsys, "cegppo")  # as the command line has a pair


def test_the_list_has_every_method_once_under_its_family(capsys):
    text = shown(capsys)
    family = ""
    found = {}
    for line in text.splitlines():
        first, *_ = line.split() or [""]
        if not line.startswith(" "):
            family = first.rstrip(":")
        elif line.startswith(f"  {first}"):  # a line that continues an effect is indented further
            assert first not in found
            found[first] = family
    assert found == {name: method.slot.name for name, method in METHODS.items()}
    assert max(map(len, text.splitlines()[:-2])) <= 100  # the last line names the program, in a folder of any length


@pytest.mark.parametrize("name", METHODS)
def test_the_example_is_a_command_that_is_accepted(name, parse):
    record = json.loads(json.dumps(methods.record(METHODS[name])))
    program, command, *flags = shlex.split(record["example"])
    assert program.endswith("openrlhf-cov")
    assert command in COMMANDS
    if command == "lab":
        chosen = LabRequest.of(build_parser(), flags).config
    else:
        chosen = parse(*flags)
        assert chosen.dry_run
    assert name in chosen.method.split(",")


@pytest.mark.slow
def test_json_has_all_methods(capsys):
    records = json.loads(shown(capsys, "--json"))
    assert [each["name"] for each in records] == list(METHODS)
    (one,) = [each for each in records if each["name"] == "kl_cov"]
    assert one == json.loads(shown(capsys, "kl_cov", "--json"))
    assert one["flags"][0]["flag"] == "--kl_cov_ratio"
    assert one["flags"][0]["default"] == 2e-3


def test_the_command_of_the_example_is_named_as_the_shell_finds_it(monkeypatch, capsys, tmp_path):
    scripts = Path(sys.executable).parent

    def first_word():
        return shlex.split(json.loads(shown(capsys, "kl_cov", "--json"))["example"])[0]

    monkeypatch.setenv("PATH", str(scripts))
    assert first_word() == "openrlhf-cov"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(scripts.parents[1])
    assert first_word() == str(Path(scripts.parent.name, scripts.name, "openrlhf-cov"))
    monkeypatch.chdir(tmp_path)
    assert first_word() == str(scripts / "openrlhf-cov")
    (tmp_path / "openrlhf-cov").write_text("#!/bin/sh\n")  # of another environment
    (tmp_path / "openrlhf-cov").chmod(0o755)
    assert first_word() == str(scripts / "openrlhf-cov")
