"""Every command in the docs is parsed by its own parser, and then executed where a host like this one can.

A comment before a block says how it is tested beyond that, see ``MARKERS``.
"""

import os
import re
import subprocess
import sys
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

from openrlhf_cov.cli import train_ppo_ray
from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.errors import UsageError

SHELL = ("bash",)
OTHER_LANGUAGES = ("", "text", "python", "json", "diff", "markdown", "yaml", "toml", "ini", "html")
# How a block of commands is tested, beyond parsing.
MARKERS = {
    "run": "executed in test_execution.py",
    "terminal": "executed there, those that need a terminal in one",
    "minutes": "executed in test_slow_execution.py",
    "gpu": "needs a GPU: what trains is dry-run in test_execution.py",
    "cluster": "needs several GPUs: the recipes are dry-run in tests/scripts",
    "hub": "needs a hub of data sets: the recipes are dry-run in tests/scripts",
    "packages": "installs: versions and files are compared with the lists of requirements",
    "suite": "the test suite itself",
    "parse": "has a place for the reader's own flags",
    "run with the changes": "executed with the changes of its page in test_extending.py",
}

TRAINER = "train_ppo_ray"
# Programs whose flags are not ours to check.
FOREIGN = (
    "cat cd cp curl docker export git head jq kubectl ls mkdir nvidia-smi pip pre-commit ruff sbatch scancel scp "
    "source squeue ssh sudo tail tee tmux vllm"
).split()
# Flags of sbatch that the pages may use.
SBATCH = {"--nodes", "--partition", "--account", "--time"}
MODULES = ("venv", "pytest", "json.tool", "pip", "http.server", "mkdocs", "build", "torch.distributed.run")


def test_commands_of_a_script(commands_of):
    script = "A=1 make demo   # it's\ncat > x <<'END'\nmake nothing\nEND\na \\\n  'b\nc' && d \"${E:-f}\" $(g h) | i\n"
    expected = [["A=1", "make", "demo"], ["cat"], ["a", "b\nc"], ["d", "f", "VALUE"], ["i"]]
    assert list(commands_of(script)) == expected


@cache
def ray_commands():
    """Ray's command line, a group of click."""
    from ray.scripts.scripts import cli

    return cli


class Checker:
    """Fails for a command that could not start: no such program, file, target or flag, or a value that is refused."""

    def __init__(self, repository: Path, parser, console, capsys, monkeypatch) -> None:
        self.repository, self.parser, self.console = repository, parser, console
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def check(self, words: list[str]) -> None:
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0], flags=re.S):
            words = words[1:]
        if not words:
            return
        program, rest = words[0].removeprefix(".venv/bin/"), words[1:]
        if program.startswith("--"):
            self.check_flags(words)
        elif program.endswith(".sh"):
            self.check_script(program, rest)
        elif program in ("bash", "sh", "sbatch"):
            flags = [word for word in takewhile(lambda word: not word.endswith((".sh", ".sbatch")), rest)]
            assert {flag for flag in flags if flag.startswith("-")} <= SBATCH, f"{program} has no such flag: {flags}"
            self.check_script(rest[len(flags)], rest[len(flags) + 1 :])
        elif re.fullmatch(r"python(3(\.\d+)?)?", program):
            self.check_python(rest)
        elif program == "make":
            self.check_make(rest)
        elif program == "ray":
            self.check_ray(rest)
        elif program == "openrlhf-cov":
            self.check_module(self.console[rest[0]], rest[1:])
        else:
            assert program in FOREIGN, f"no such program: {program}"
            self.check_files(rest)
            self.check_versions(rest)

    def check_ray(self, words: list[str]) -> None:
        command, path = ray_commands(), list(takewhile(lambda word: not word.startswith("-"), words))
        for word in path[: 2 if path[:1] == ["job"] else 1]:
            assert word in command.commands, f"no `ray {' '.join(path)}`"
            command = command.commands[word]
        known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        end = words.index("--") if "--" in words else len(words)
        for flag in (word.split("=")[0] for word in words[:end] if word.startswith("--")):
            assert flag in known, f"`ray {' '.join(path)}` has no {flag}"
        self.check(words[end + 1 :])

    def check_script(self, name: str, words: list[str]) -> None:
        assert (self.repository / name).is_file(), f"no file {name}"
        if Path(name).name.startswith("train_"):  # passes on what is added
            self.check_flags(words)
            # With this PYTHON a dry run starts nothing, and fails where the script refuses a model or a method.
            command = [str(self.repository / name), *words, "--dry_run"]
            done = subprocess.run(command, env=os.environ | {"PYTHON": "true"}, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr

    def check_python(self, words: list[str]) -> None:
        if words[0] == "-m" and words[1].startswith("openrlhf_cov.cli."):
            self.check_module(words[1].removeprefix("openrlhf_cov.cli."), words[2:])
        elif words[0] == "-m":
            assert words[1] in MODULES, f"no module {words[1]}"
            self.check_files(words[2:])
        elif words[0].endswith(".py"):
            source = (self.repository / words[0]).read_text(encoding="utf-8")
            for flag in (word.split("=")[0] for word in words[1:] if word.startswith("--")):
                assert f'"{flag}"' in source, f"{words[0]} has no {flag}"
        else:
            assert words[0] in ("-c", "-")

    def check_files(self, words: list[str]) -> None:
        """Files of the repository that are named do exist."""
        for word in words:
            if re.match(r"(tests|scripts|docs|benchmarks|requirements)[/-]", word):
                assert (self.repository / word.split("::")[0]).exists(), f"no file {word}"

    def check_versions(self, words: list[str]) -> None:
        """Versions to install are those of a list of requirements."""
        lists = "\n".join(path.read_text(encoding="utf-8") for path in self.repository.glob("requirements*.txt"))
        for word in words:
            if re.fullmatch(r"[\w.\[\]-]+==\S+", word):
                name = re.escape(re.split(r"[=[]", word)[0])
                assert re.search(rf"^{name}(\[\w+\])?=={re.escape(word.split('==')[1])}$", lists, flags=re.M), word

    def check_make(self, words: list[str]) -> None:
        makefile = (self.repository / "Makefile").read_text(encoding="utf-8")
        for word in words:
            name, is_variable, _ = word.partition("=")
            pattern = rf"\$\({name}\)|^{name} [?:]?=" if is_variable else rf"^{name}:"
            assert re.search(pattern, makefile, flags=re.M), f"the Makefile knows no {name}"

    def check_module(self, module: str, words: list[str]) -> None:
        if "--help" in words or any("…" in word for word in words):
            self.check_flags(words, module)
        elif module == TRAINER:
            self.monkeypatch.setattr(sys, "argv", [TRAINER, *words])
            self.refuse_nothing(train_ppo_ray.parse_args)
        else:
            self.refuse_nothing(self.parser(module).parse_args, words)

    def check_flags(self, words: list[str], module: str = TRAINER) -> None:
        for flag in (word.split("=")[0] for word in words if word.startswith("--")):
            assert flag in self.parser(module)._option_string_actions, f"{module} has no {flag}"

    def refuse_nothing(self, parse, *args) -> None:
        try:
            parse(*args)
        except (SystemExit, UsageError) as error:
            pytest.fail(f"{error} {self.capsys.readouterr().err}")


@pytest.fixture
def checker(repository, parser, console, capsys, monkeypatch) -> Checker:
    return Checker(repository, parser, console, capsys, monkeypatch)


def test_every_block_is_of_a_kind_that_a_test_covers(pages):
    for page in pages:
        for block in page.blocks:
            language = block.language.split()[0] if block.language else ""
            assert language in (*SHELL, *OTHER_LANGUAGES), f"{block.place}: {language}"
            markers = MARKERS if language in SHELL else ("", "output")
            assert block.marker in markers, f"{block.place}: '{block.marker}' says not how it is tested"


def test_every_command_could_start(page, page_name, checker, commands_of, monkeypatch):
    for block in page(page_name).blocks:
        if block.language not in SHELL or block.marker == "run with the changes":
            continue
        if block.marker in ("gpu", "cluster", "hub"):
            monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
        for words in commands_of(block.text):
            try:
                checker.check(words)
            except (AssertionError, pytest.fail.Exception) as error:
                pytest.fail(f"{block.place}: {' '.join(words)}\n{error}")
        monkeypatch.undo()


@pytest.mark.parametrize(
    "command",
    [
        "make dmeo",
        "make demo COV_TIPE=none",
        "python -m openrlhf_cov.cli.evaluate --limit many",
        "ray job submit --address x -- python -m openrlhf_cov.cli.train_ppo_ray --cov_type kl-cov",
        "python -m openrlhf_cov.cli.train_ppo_ray --cov_type kl_cov",  # no reward
        "python -m openrlhf_cov.cli.train_ppo_ray … --kl_cov_ration 1",
        "python benchmarks/selection.py --stesp 16",
        "scripts/no_such.sh",
        "scripts/train_qwen2.5.sh 7b grpo --dry_rum",
        "scripts/train_qwen2.5.sh 7b gpro",
        "pip install -r requirements-gpu.txt",
        "pip install vllm==0.28.0 wheel",
        "ray start --head --num-gpuz 8",
        "ray job submit --adress x -- python -m openrlhf_cov.cli.doctor",
        "sbatch --nodez 4 scripts/slurm_train.sbatch scripts/train_qwen2.5_32b_kl_cov.sh",
        "openrlhf_cov train",
    ],
)
def test_a_wrong_command_is_found(checker, commands_of, command):
    (words,) = commands_of(command)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        checker.check(words)
