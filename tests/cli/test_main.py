import os
import signal
import subprocess
import sys
from importlib import import_module, metadata

import pytest

from openrlhf_cov.cli import main as console
from openrlhf_cov.cli.main import COMMANDS, main, usage

HEAVY = ("torch", "ray", "vllm", "transformers", "deepspeed", "matplotlib", "plotly", "textual", "datasets", "pandas")


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["openrlhf-cov", *words])
    return main()


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_lists_all(monkeypatch, capsys, words):
    assert run(monkeypatch, *words) == 0
    assert capsys.readouterr().out == usage()
    assert all(f"\n  {name} " in usage() for name in COMMANDS)


def test_the_rest_of_the_line_is_the_commands_own(monkeypatch):
    seen = []
    monkeypatch.setattr(import_module("openrlhf_cov.cli.grade"), "main", lambda: seen.append(sys.argv) or 7)
    assert run(monkeypatch, "grade", "file.jsonl", "--help", "train") == 7
    assert seen == [["openrlhf-cov grade", "file.jsonl", "--help", "train"]]


@pytest.mark.parametrize(
    ("word", "hint"), [("evalute", "did you mean evaluate?"), ("xyz", "choose one of train, "), ("", "choose one of")]
)
def test_an_unknown_command_is_one_line(monkeypatch, capsys, word, hint):
    assert run(monkeypatch, word) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"openrlhf-cov: error: no command {word!r}; ")
    assert hint in error


def test_a_flag_before_a_command_is_not_taken_for_a_command(monkeypatch, capsys):
    assert run(monkeypatch, "--lr", "1e-6") == 2
    line = "openrlhf-cov: error: --lr: flags come after a command; openrlhf-cov --help lists the commands\n"
    assert capsys.readouterr().err == line


def test_version(monkeypatch, capsys):
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"openrlhf-cov {metadata.version('openrlhf-cov')}\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "train"])  # its parser is upstream's
def test_help_answers_without_what_takes_seconds_to_import(name):
    program = (
        f"import sys; sys.argv[1:] = [{name!r}, '--help']\n"
        "from openrlhf_cov.cli.main import main\n"
        "try: sys.exit(main())\n"
        f"finally: sys.stderr.write(' '.join(set(sys.modules) & {set(HEAVY)!r}))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (ended.stderr, ended.returncode) == ("", 0)
    assert ended.stdout.startswith("usage: ")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_and_errors_have_the_name_that_users_type(monkeypatch, capsys, name):
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, name, "--help")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: openrlhf-cov {name} ")
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, name, "--no_such_flag_at_all")
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"openrlhf-cov {name}: error: ")
    # Started by its module it has the same name.
    monkeypatch.setattr(sys, "argv", ["x", "--no_such_flag_at_all"])
    with pytest.raises(SystemExit):
        import_module(f"openrlhf_cov.cli.{COMMANDS[name][0]}").main()
    assert capsys.readouterr().err.startswith(f"openrlhf-cov {name}: error: ")


@pytest.mark.parametrize("name", ["--help", "grade", "train"])
def test_a_reader_who_leaves_is_no_error(name):
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "openrlhf_cov.cli.main", name, *(["--help"] if name in COMMANDS else [])]
    ended = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


def test_the_console_command_is_that_of_the_package():
    (entry,) = metadata.entry_points(group="console_scripts", name="openrlhf-cov")
    assert entry.load() is console.main
