"""Make text safe for a terminal: no control characters, and no secrets in messages, whoever chose the text."""

import argparse
import difflib
import logging
import os
import re
import signal
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, TextIO

from openrlhf_cov.utils.redaction import redact


def printable(text: str) -> str:
    """The text with "?" for each character that is not printed as itself: control characters, codes that turn the
    direction of writing, characters without width, halves of surrogate pairs. A white space becomes a space."""
    if text.isprintable():
        return text
    characters = []
    for each in text:
        if each.isprintable():
            characters.append(each)
        else:
            characters.append(" " if each.isspace() else "?")
    return "".join(characters)


def one_line(message: object) -> str:
    """A message as one printable line without secrets."""
    return printable(redact(" ".join(str(message).split())))


def say(text: str, stream: TextIO | None = None) -> None:
    """Write lines to ``stream``, stdout by default; characters that its encoding lacks become "?".

    Where nobody reads any more (``| head``) the program ends as other programs do, silently with status 141. OSError
    where stdout cannot be written to, as on a full disk; a stderr that cannot be is passed over, as is a closed one.
    """
    out = stream or sys.stdout
    if out is None:  # closed before the program began
        return
    encoding = getattr(out, "encoding", None) or "utf-8"
    try:
        out.write(_printable_lines(text).encode(encoding, "replace").decode(encoding))
        out.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # for what Python flushes at its end
        if isinstance(error, BrokenPipeError):
            sys.exit(128 + signal.SIGPIPE)
        if out is not sys.stderr:
            error.filename = out.name
            raise


# Name of a command in its own code -> what the user typed, such as "openrlhf-cov train" for "train_ppo_ray".
_typed_names: dict[str, str] = {}


@contextmanager
def typed_as(program: str, typed: str) -> Iterator[None]:
    """While the body runs, usage and errors of ``program`` have the name that the user typed."""
    _typed_names[program] = typed
    try:
        yield
    finally:
        del _typed_names[program]


def typed_name(program: str) -> str:
    """Return the name by which the user started a command."""
    return _typed_names.get(program, program)


def refuse(program: str, reason: object, status: int = 2) -> int:
    """Say why in one line on stderr; the exit status."""
    say(f"{typed_name(program)}: error: {one_line(reason)}\n", sys.stderr)
    return status


def closest_flag(flag: str, known: Sequence[str]) -> str | None:
    """Return the flag that somebody who wrote ``flag`` probably meant, None if none is close.

    A short name such as ``--lr`` or ``--adam.lr`` stands for a dotted flag that ends in it; among several the one of
    the policy, ``--actor.``, is meant.
    """
    name = flag.lstrip("-").replace("-", "_")
    endings = [option for option in known if option.endswith(f".{name}")]
    if endings:
        return next((option for option in endings if option.startswith("--actor.")), endings[0])
    close = difflib.get_close_matches(f"--{name}", known, n=1, cutoff=0.7)
    if close:
        return close[0]
    # A mistyped last part, such as --max_new_token for --rollout.max_new_tokens.
    by_ending = {option.rpartition(".")[2].lstrip("-"): option for option in reversed(known)}
    close = difflib.get_close_matches(name.rpartition(".")[2], by_ending, n=1, cutoff=0.8)
    return by_ending[close[0]] if close else None


class HelpFormatter(argparse.HelpFormatter):
    """Keeps the lines of the help of a flag, and indents what is left of a line in the next one."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        if len(lines := text.splitlines()) == 1:
            return super()._split_lines(text, width)
        return [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="  ")]


# Flags in brackets that a usage line still shows one by one.
MOST_IN_USAGE = 6


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line on stderr and exit status 2; ``about`` is a docstring, of which a command in
    front, with ``: `` after it, is left out."""

    def __init__(self, *, about: str | None = None, **settings: Any) -> None:
        settings.setdefault("formatter_class", HelpFormatter)
        super().__init__(**settings)
        self.prog = typed_name(self.prog)
        self.description = re.sub(r"^``[^`]*``: ", "", about) if about else self.description

    def error(self, message: str) -> NoReturn:
        """Print one line, with a hint where a flag or a value looks mistyped, and exit with status 2."""
        unknown = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            guess = closest_flag(unknown[1], known)
        elif "invalid choice: " in message and " (choose from " in message:
            given, _, choices = message.partition("invalid choice: ")[2].rpartition(" (choose from ")
            known = re.findall(r"'([^']*)'", choices)
            guess = next(iter(difflib.get_close_matches(given.strip("'").lower(), known, n=1)), None)
        else:
            guess = None
        sys.exit(refuse(self.prog, f"{message} (did you mean {guess}?)" if guess else message))

    def format_help(self) -> str:
        """Return the help, with a short usage line where the command has many flags."""
        if self.usage is None:
            self.usage = self._short_usage()
        return super().format_help()

    def _short_usage(self) -> str | None:
        """Return a usage line without the flags that may be left out, None where they are few."""
        needed = [
            action for group in self._mutually_exclusive_groups if group.required for action in group._group_actions
        ]
        optional = [
            action
            for action in self._actions
            if action.option_strings and not action.required and action not in needed
        ]
        if len(optional) <= MOST_IN_USAGE:
            return None
        always = [action for action in self._actions if action not in optional]
        required = argparse.HelpFormatter("", width=1000)
        required.add_usage(None, always, self._mutually_exclusive_groups, prefix="")
        words = " ".join(required.format_help().split())
        return " ".join(part for part in (self.prog, words, "[flags]") if part).replace("%", "%%")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.nargs is None and arg_strings == ["--"]:  # of --flag=--, which argparse makes an empty list
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)

    def _print_message(self, message: str, file: TextIO | None = None) -> None:
        say(message, file or sys.stderr)


def clean_logs() -> None:
    """Make every later log record and uncaught traceback of this process printable and free of secrets."""
    sys.excepthook = _say_traceback
    make = logging.getLogRecordFactory()
    if getattr(make, "cleans", False):
        return

    def make_clean(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit: logging says so
            return record
        if (cleaned := _printable_lines(redact(message))) != message:
            record.msg = cleaned
            record.args = ()
        if record.exc_info and record.exc_info[0]:
            record.exc_text = _clean_traceback(*record.exc_info).rstrip("\n")
        return record

    make_clean.cleans = True
    logging.setLogRecordFactory(make_clean)


def _say_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    say(_clean_traceback(kind, error, trace), sys.stderr)


def _clean_traceback(*error: Any) -> str:
    return _printable_lines(redact("".join(traceback.format_exception(*error))))


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
