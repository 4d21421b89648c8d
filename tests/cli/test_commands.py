"""All commands: help, names, streams and signals; every command ends with one line and its exit status."""

import argparse
import errno
import os
import signal
import subprocess
import sys
import time
from importlib import import_module, metadata

import pytest

from openrlhf_cov.cli import train_ppo_ray
from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cli.main import COMMANDS
from openrlhf_cov.errors import RunStopped, UsageError

HEAVY = ("torch", "ray", "vllm", "transformers", "deepspeed", "matplotlib", "plotly", "textual", "datasets", "pandas")


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_lists_all_commands(run_command, words):
    status, out, _ = run_command(*words)
    assert status == 0
    assert all(f"\n  {name} " in out for name in COMMANDS)


def test_version(run_command):
    assert run_command("--version") == (0, f"openrlhf-cov {metadata.version('openrlhf-cov')}\n", "")


HELP = """
import sys
from openrlhf_cov.cli.main import COMMANDS, main
for name in COMMANDS:
    if name != "train":  # its parser is that of OpenRLHF
        sys.argv = ["openrlhf-cov", name, "--help"]
        try:
            main()
        except SystemExit as end:
            assert end.code == 0
sys.exit(" ".join(set(sys.modules) & {heavy!r}))
"""


@pytest.mark.slow
def test_help_answers_without_what_takes_seconds_to_import():
    code = HELP.replace("{heavy!r}", repr(set(HEAVY)))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (ended.stderr.strip(), ended.stdout.count("usage: ")) == ("", len(COMMANDS) - 1)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_and_errors_have_the_name_that_was_typed(monkeypatch, capsys, run_command, name):
    status, out, _ = run_command(name, "--help")
    assert status == 0
    assert out.startswith(f"usage: openrlhf-cov {name} ")
    status, _, error = run_command(name, "--no_such_flag_at_all")
    assert status == 2
    assert error.startswith(f"openrlhf-cov {name}: error: ")
    # Started by its module a command has the same name.
    module = COMMANDS[name][0]
    monkeypatch.setattr(sys, "argv", ["x", "--no_such_flag_at_all"])
    with pytest.raises(SystemExit):
        import_module(f"openrlhf_cov.cli.{module}").main()
    assert capsys.readouterr().err.startswith(f"openrlhf-cov {name}: error: ")


ENDS = [
    (UsageError("--flag 3: too many"), 2, "--flag 3: too many"),
    (ValueError("--flag 0: must be at least 1"), 2, "--flag 0: must be at least 1"),
    (RunStopped("no engine is left"), 1, "no engine is left"),
    (OSError(errno.ENOSPC, "No space left on device", "a/table.json"), 1, "a/table.json: No space left on device"),
    (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), 1, "File name too long"),
    (OSError(errno.EIO, "Input/output error"), 1, "Input/output error"),
    (KeyboardInterrupt(), 130, "interrupted"),
]


@pytest.mark.parametrize("name", COMMANDS)
def test_whatever_ends_a_command_is_one_line(monkeypatch, run_command, name):
    for check in ("check_versions", "protect_own_ray", "clean_logs"):  # they stand in front of the trainer's flags
        monkeypatch.setattr(train_ppo_ray, check, lambda **_: None)
    for error, status, said in ENDS:

        def end(*_, error=error):
            raise error

        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", end)
        monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", end)
        ended, out, line = run_command(name)
        assert (ended, out, line.strip().count("\n")) == (status, "", 0)
        assert said in line


@pytest.mark.parametrize("error", [ValueError("a mistake"), KeyError("x"), ConnectionError("of a library")])
def test_an_error_of_the_program_keeps_its_traceback(error):
    @program("name")
    def main():
        raise error

    with pytest.raises(type(error)):
        main()


def test_handlers_of_signals_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert program("name")(lambda: None)() == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_work_cleans_up_after_a_signal(capsys, signum):
    cleaned = []

    @program("name", "nothing is lost")
    def main():
        try:
            os.kill(os.getpid(), signum)
            time.sleep(10)
        finally:
            cleaned.append(True)

    assert main() == 128 + signum
    assert cleaned
    assert capsys.readouterr().err.strip() == "name: interrupted; nothing is lost"


def test_a_signal_during_a_wait_for_ray_is_an_interruption_too(capsys):
    """There Ray raises a SystemExit of its own, with status 1, in place of what the handler raises."""

    @program("name", "nothing is lost")
    def main():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        except SystemExit:
            raise SystemExit(1) from None

    assert main() == 128 + signal.SIGTERM
    assert capsys.readouterr().err.strip() == "name: interrupted; nothing is lost"


def test_a_status_that_is_asked_for_is_kept():
    @program("name")
    def main():
        sys.exit(3)

    with pytest.raises(SystemExit, match="3"):
        main()


def started(words, redirection):
    """Run the command in a process, with streams as a shell redirects them."""
    line = f"{sys.executable} -m openrlhf_cov.cli.main {words} {redirection}"
    return subprocess.run(line, shell=True, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--help", "grade --help", "methods"])
def test_an_output_that_is_full_is_one_line(words):
    ended = started(words, ">/dev/full")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "<stdout>: No space left on device" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "redirection", "status"),
    [
        *(("--help", streams, 0) for streams in (">&-", "2>&-", "2>/dev/full", ">&- 2>&-")),
        ("nonsense", "2>&-", 2),  # the status says what stderr cannot
        ("nonsense", "2>/dev/full", 2),
    ],
)
def test_closed_streams_are_no_error(words, redirection, status):
    ended = started(words, redirection)
    assert (ended.returncode, ended.stderr) == (status, "")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["grade", "--help"], ["train", "--help"]])
def test_a_reader_who_leaves_is_no_error(words):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "openrlhf_cov.cli.main", *words]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")
