"""Flags, make targets, files and metrics that the docs mention exist, and every flag of ours is mentioned."""

import re
from dataclasses import fields

import pytest

import openrlhf_cov
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.trainer.flags.parser import GROUPS

FLAG = re.compile(r"(?<![\w-])--([a-z][\w.-]*[\w]|[a-z])")

FOREIGN_FLAGS = {
    *("address", "runtime-env-json", "num-gpus", "node-ip-address"),  # ray
    *("no-deps", "extra-index-url", "no-build-isolation", "editable", "durations", "quick"),  # pip, pytest
    *("shm-size", "strict", "help"),
}

TRAINER = "train_ppo_ray"


@pytest.fixture(scope="session")
def known_flags(parser, commands, repository):
    """Flags of all commands, and of the programs in benchmarks/ and scripts/, without their dashes."""
    options = {option for name in commands for option in parser(name)._option_string_actions}
    programs = [*(repository / "benchmarks").glob("*.py"), *(repository / "scripts").glob("*.py")]
    declared = (re.findall(r'add_argument\(\s*"--([\w.]+)"', path.read_text(encoding="utf-8")) for path in programs)
    return {option.removeprefix("--") for option in options if option.startswith("--")}.union(*declared)


def test_every_flag_that_is_mentioned_exists(page, page_name, known_flags):
    mentioned = {match for span in page(page_name).code_spans for match in FLAG.findall(span)}
    unknown = mentioned - known_flags - FOREIGN_FLAGS
    assert {name for name in unknown if not any(flag.startswith(name) for flag in known_flags)} == set()
    for span in page(page_name).code_spans:  # a prefix is written with … or * after it
        for name in unknown & set(FLAG.findall(span)):
            assert re.search(rf"--{re.escape(name)}[_.]?[…*]", span), f"no flag --{name}"


def test_every_flag_of_ours_is_mentioned(pages, parser, commands):
    mentioned = set(FLAG.findall("\n".join(page.text for page in pages)))
    ours = {field.metadata["flag"] or field.name for config in GROUPS.values() for field in fields(config)}
    for name in commands:
        if name != TRAINER:
            ours |= {option.removeprefix("--") for option in parser(name)._option_string_actions if option[:2] == "--"}
    assert ours - {"help"} - mentioned == set()


def test_every_command_is_mentioned(pages, commands, console):
    """As ``openrlhf-cov NAME``; a module that is no command of ``openrlhf-cov`` by the name of the module."""
    text = "\n".join(page.text for page in pages)
    expected = [f"openrlhf-cov {name}" for name in console] + sorted(set(commands) - set(console.values()))
    assert [name for name in expected if name not in text] == []


def test_every_make_target_that_is_mentioned_exists(pages, repository):
    targets = set(re.findall(r"^([a-z][\w-]*):", (repository / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    assert {"demo", "test", "check"} <= targets
    for page in pages:
        found = {match for span in page.code_spans for match in re.findall(r"^make ([a-z][\w-]*)", span)}
        assert found <= targets, page.name
    everything = "\n".join(page.text for page in pages)
    assert [target for target in sorted(targets) if f"make {target}" not in everything] == []


def test_every_file_that_is_mentioned_exists(page, page_name, repository):
    """Paths in code that begin with a folder of the repository, or of the package."""
    package = repository / "openrlhf_cov"
    folders = [path.name for root in (repository, package) for path in root.iterdir() if path.is_dir()]
    pattern = re.compile(
        rf"(?<![\w./<-])((?:{'|'.join(map(re.escape, folders))})/[\w./-]+\.(?:py|sh|md|yaml|jsonl\.xz|jsonl|toml))"
    )
    for span in page(page_name).code_spans:
        for name in pattern.findall(span):
            if not name.startswith(("runs/", "results/", "data/")):
                assert (repository / name).exists() or (package / name).exists(), f"no file {name}"


# Where a number of methods is stated. "N other" are those beside Clip-Cov and KL-Cov.
COUNTS = {
    "README.md": (r"(\d+) other methods", r"without clip-higher \| (\d+)"),
    "docs/index.md": (r"(\d+) other methods",),
    "docs/methods/index.md": (r"among (\d+) methods",),
}


@pytest.mark.parametrize("name", [*COUNTS, "openrlhf_cov"])
def test_every_count_of_the_methods_is_that_of_the_code(page, name):
    text = str(openrlhf_cov.__doc__) if name == "openrlhf_cov" else page(name).text
    for pattern in COUNTS.get(name, (r"(\d+) other methods", r"models/methods``: (\d+)")):
        (number,) = re.findall(pattern, text)
        assert int(number) + 2 * ("other" in pattern) == len(METHODS)


def test_every_metric_that_is_mentioned_is_defined(page, page_name):
    """``group/name`` in code, of the groups of docs/metrics.md."""
    defined = set(re.findall(r"`([^`\s]+)`", page("docs/metrics.md").text))
    groups = {name.split("/")[0] for name in defined if re.fullmatch(r"[a-z]+/[a-z_0-9.-]+", name)}
    assert {"entropy", "cov", "ppo", "reward", "sampling"} <= groups
    for span in page(page_name).code_spans:
        if re.fullmatch(rf"(?:{'|'.join(groups - {'eval'})})/[a-z_0-9.-]+", span) and not span.endswith(
            (".py", ".md")
        ):
            assert span in defined, span
