"""``openrlhf-cov methods``: what it shows is what the methods' records say, and its examples run."""

import json
import shlex
from dataclasses import fields

import pytest

from openrlhf_cov.cli import methods
from openrlhf_cov.cli.main import COMMANDS
from openrlhf_cov.experiments.lab.request import LabRequest, build_parser
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.slots import SLOTS
from openrlhf_cov.settings import flag_of


def shown(capsys, *words):
    assert methods.main(list(words)) == 0
    return capsys.readouterr().out


def test_the_table_has_each_method_with_family_paper_and_effect(capsys):
    lines = shown(capsys).splitlines()
    rows = {line.split()[1]: line for line in lines[1 : 1 + len(METHODS)]}
    assert rows.keys() == METHODS.keys()
    for name, method in METHODS.items():
        assert rows[name].startswith(f"{method.slot.name} ")
        assert method.source in rows[name]
        assert rows[name].endswith(method.summary)
    families = [line.split()[0] for line in lines[1 : 1 + len(METHODS)]]
    assert sorted(families, key=[slot.name for slot in SLOTS].index) == families


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_its_flags_with_defaults_and_its_paper(capsys, name):
    text = shown(capsys, name)
    assert METHODS[name].title in text
    assert METHODS[name].source in text
    for entry in fields(METHODS[name].settings):
        assert f"--{flag_of(entry)} (default: " in text
    if name == "kl_cov":
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


@pytest.mark.parametrize(
    ("name", "hint"),
    [("kl-cov", "did you mean kl_cov?"), ("clipcov", "did you mean clip_cov?"), ("xyz", "choose from")],
)
def test_a_name_that_no_method_has_is_one_line(capsys, name, hint):
    assert methods.main([name]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"methods: error: no method is called {name!r}; ")
    assert hint in error
