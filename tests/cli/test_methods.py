"""``openrlhf-cov methods``: what it shows is what the methods' records say, and its examples run."""

import json
import shlex

import pytest

from openrlhf_cov.cli import methods
from openrlhf_cov.cli.main import COMMANDS
from openrlhf_cov.experiments.lab.request import LabRequest, build_parser
from openrlhf_cov.models.methods import METHODS


def shown(capsys, *words):
    assert methods.main(list(words)) == 0
    return capsys.readouterr().out


def test_a_method_has_its_flags_with_defaults_and_its_paper(capsys):
    names = [line.split()[1] for line in shown(capsys).splitlines()[1 : 1 + len(METHODS)]]
    assert set(names) == METHODS.keys()
    text = shown(capsys, "kl_cov")
    assert METHODS["kl_cov"].source in text
    assert "--kl_cov_ratio (default: 0.002)" in text
    assert "--kl_cov_keep_ppo_clip (default: off)" in text


@pytest.mark.parametrize("name", METHODS)
def test_the_example_is_a_command_that_is_accepted(name, parse):
    record = json.loads(json.dumps(methods.record(METHODS[name])))
    program, command, *flags = shlex.split(record["example"])
    assert program.endswith("openrlhf-cov")
    assert command in COMMANDS
    if command == "lab":
        request = LabRequest.of(build_parser(), flags)
        chosen = request.config
    else:
        chosen = parse(*flags)
        assert chosen.dry_run
    assert name in chosen.method.split(",")


def test_json_has_all_methods(capsys):
    records = json.loads(shown(capsys, "--json"))
    assert [each["name"] for each in records] == list(METHODS)
    (one,) = [each for each in records if each["name"] == "kl_cov"]
    assert one == json.loads(shown(capsys, "kl_cov", "--json"))
    assert one["flags"][0]["flag"] == "--kl_cov_ratio"
    assert one["flags"][0]["default"] == 2e-3


def test_several_names_are_one_line(capsys):
    assert methods.main(["kl_cov,clip_cov"]) == 2
    line = "openrlhf-cov methods: error: kl_cov,clip_cov: this command describes one method; name one of them\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("name", "hint"),
    [("kl-cov", "did you mean kl_cov?"), ("clipcov", "did you mean clip_cov?"), ("xyz", "choose from")],
)
def test_a_name_that_no_method_has_is_one_line(capsys, name, hint):
    assert methods.main([name]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"openrlhf-cov methods: error: no method is called {name!r}; ")
    assert hint in error
