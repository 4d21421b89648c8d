"""Every command ends in the same way, whatever ends it: one line and the exit status."""

import argparse
import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from openrlhf_cov.cli import main as console
from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cli.main import COMMANDS
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.utils.json_lines import write_lines
from openrlhf_cov.utils.output_folders import check_file

ENDS = [
    (UsageError("--flag 3: too many"), 2, "--flag 3: too many"),
    (ValueError("--flag 0: must be at least 1"), 2, "--flag 0: must be at least 1"),
    (RunStopped("no engine is left"), 1, "no engine is left"),
    (OSError(errno.ENOSPC, "No space left on device", "a/table.json"), 1, "a/table.json: No space left on device"),
    (PermissionError(errno.EACCES, "Permission denied", "a/b"), 1, "a/b: Permission denied"),
    (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), 1, "File name too long"),
    (OSError(errno.EIO, "Input/output error"), 1, "Input/output error"),
    (KeyboardInterrupt(), 130, "interrupted"),
]


@pytest.fixture
def silent(monkeypatch):
    """The checks of versions and of Ray that stand in front of the trainer's flags do nothing."""
    from openrlhf_cov.cli import train_ppo_ray

    for name in ("check_versions", "protect_own_ray", "clean_logs"):
        monkeypatch.setattr(train_ppo_ray, name, lambda **_: None)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("error", "status", "said"), ENDS, ids=lambda value: type(value).__name__)
def test_whatever_ends_a_command_is_one_line(monkeypatch, capsys, name, error, status, said):
    def end(*_):
        raise error

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", end)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", end)
    monkeypatch.setattr(sys, "argv", ["openrlhf-cov", name])
    assert console.main() == status
    out, line = capsys.readouterr()
    assert out == ""
    assert line.strip().count("\n") == 0
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


@pytest.mark.parametrize("name", ["--help", "grade", "methods"])
def test_an_output_that_is_full_is_one_line(name):
    words = [sys.executable, "-m", "openrlhf_cov.cli.main", name, *(["--help"] if name in COMMANDS else [])]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "<stdout>: No space left on device" in ended.stderr


@pytest.mark.parametrize(("redirection", "status"), [(">&-", 0), ("2>&-", 0), ("2>/dev/full", 0), (">&- 2>&-", 0)])
def test_closed_streams_are_no_error(redirection, status):
    words = f"{sys.executable} -m openrlhf_cov.cli.main --help {redirection}"
    ended = subprocess.run(words, shell=True, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (status, "")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_the_status_says_what_stderr_cannot(redirection):
    words = f"{sys.executable} -m openrlhf_cov.cli.main nonsense {redirection}"
    assert subprocess.run(words, shell=True, capture_output=True, text=True, timeout=120).returncode == 2


def test_a_full_disk_names_the_file(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as error:
        write_lines(tmp_path / "full", ["x" * 100_000])
    assert error.value.filename == str(tmp_path / "full")


def test_only_a_file_of_its_own_is_replaced(tmp_path):
    mine, theirs, empty = (tmp_path / name for name in ("mine", "theirs", "empty"))
    mine.write_text('{"line": 1}\n')
    theirs.write_text("# Notes\n")
    empty.touch()
    for path in (mine, empty, tmp_path / "new"):
        check_file("--output", path, b'{"line": ')
    for path in (theirs, tmp_path, tmp_path / "no" / "new", theirs / "new"):
        with pytest.raises(UsageError, match=r"--output .*; ") as error:
            check_file("--output", path, b'{"line": ')
        assert str(path) in str(error.value)
    assert theirs.read_text() == "# Notes\n"
