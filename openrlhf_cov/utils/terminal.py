"""Make text safe for a terminal: no control characters, and no secrets in messages, whoever chose the text."""

import argparse
import difflib
import logging
import os
import re
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TextIO

from openrlhf_cov.utils.redaction import redact


def printable(text: str) -> str:
    """Return the text with "?" for each character that is not printed as itself.

    These are control characters, codes that change the direction of writing, characters without width and halves of
    surrogate pairs. White space becomes a space.
    """
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
    """Return a message as one printable line without secrets."""
    return printable(redact(" ".join(str(message).split())))


def say(text: str, stream: TextIO | None = None) -> None:
    """Write lines to a stream. Characters that its encoding lacks become "?".

    If nobody reads the stream any more (``| head``), the program ends as other programs do, silently with status 141.
    Nothing is written where stdout was closed before the program began, or where stderr cannot be written to.

    Args:
        text: The lines, with their line ends.
        stream: The stream; None for stdout.

    Raises:
        OSError: The stream cannot be written to, as on a full disk; the error names the stream.
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


def command_name() -> list[str]:
    """Return the words that start this package's command in a shell in the current folder.

    That is ``openrlhf-cov`` where the shell finds this installation under that name, else its path, and
    ``python -m openrlhf_cov.cli.main`` where it was never installed.
    """
    beside = Path(sys.executable).with_name("openrlhf-cov")
    if not beside.is_file():
        return [sys.executable, "-m", "openrlhf_cov.cli.main"]
    found = shutil.which("openrlhf-cov")
    if found and Path(found).samefile(beside):
        return ["openrlhf-cov"]
    here = Path.cwd()
    return [str(beside.relative_to(here)) if beside.is_relative_to(here) else str(beside)]


def refuse(program: str, reason: object, status: int = 2) -> int:
    """Write in one line to stderr why a command ends, and return its exit status.

    Args:
        program: The command as users type it, such as ``openrlhf-cov train``.
        reason: The message, or an error. Secrets in it are hidden.
        status: The exit status.
    """
    say(f"{program}: error: {one_line(reason)}\n", sys.stderr)
    return status


# Names that other trainers, or OpenRLHF before 0.11, use for a flag that does not resemble them.
USUAL_NAMES = {
    "actor_learning_rate": "--actor.adam.lr",
    "batch_size": "--rollout.batch_size",
    "cov_type": "--method",
    "dataset": "--data.prompt_dataset",
    "epochs": "--train.num_episodes",
    "generate_max_len": "--rollout.max_new_tokens",
    "init_kl_coef": "--algo.kl.init_coef",
    "kl_coef": "--algo.kl.init_coef",
    "learning_rate": "--actor.adam.lr",
    "max_tokens": "--rollout.max_new_tokens",
    "micro_train_batch_size": "--train.micro_batch_size",
    "model": "--actor.model_name_or_path",
    "n": "--rollout.n_samples_per_prompt",
    "num_generations": "--rollout.n_samples_per_prompt",
    "output_dir": "--ckpt.output_dir",
    "pretrain": "--actor.model_name_or_path",
    "prompt_data": "--data.prompt_dataset",
    "remote_rm_url": "--reward.remote_url",
    "reward_func": "--reward.remote_url",
    "save_path": "--ckpt.output_dir",
    "seed": "--train.seed",
    "temperature": "--rollout.temperature",
}


# The same for values: GRPO is the estimator group_norm of OpenRLHF, PPO the estimator gae.
USUAL_VALUES = {"grpo": "group_norm", "ppo": "gae"}


def closest_flag(flag: str, known: Sequence[str]) -> str | None:
    """Return the flag that somebody probably meant; None if none is close.

    A short name such as ``--lr`` or ``--adam.lr`` stands for a dotted flag that ends in it. If several flags end in
    it, the flag of the policy, ``--actor.``, is meant.

    Args:
        flag: The flag as it was written.
        known: All flags of the command.
    """
    name = flag.lstrip("-").replace("-", "_")
    if (usual := USUAL_NAMES.get(name)) in known:
        return usual
    endings = [option for option in known if option.endswith(f".{name}")]
    if endings:
        return next((option for option in endings if option.startswith("--actor.")), endings[0])
    # Without the dashes, which all flags have in common.
    by_name = {option.lstrip("-"): option for option in reversed(known)}
    close = difflib.get_close_matches(name, by_name, n=1, cutoff=0.7)
    if close:
        return by_name[close[0]]
    # A mistyped last part, such as --max_new_token for --rollout.max_new_tokens.
    by_ending = {option.rpartition(".")[2].lstrip("-"): option for option in reversed(known)}
    close = difflib.get_close_matches(name.rpartition(".")[2], by_ending, n=1, cutoff=0.8)
    return by_ending[close[0]] if close else None


class HelpFormatter(argparse.HelpFormatter):
    """A help formatter that keeps the paragraphs of a description and the lines of a flag's help.

    The lines of a flag's help after the first one are indented.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(paragraph, width, indent) for paragraph in text.strip().split("\n\n"))

    def _split_lines(self, text: str, width: int) -> list[str]:
        first, *choices = text.splitlines()
        parts = super()._split_lines(first, width)
        for line in choices:
            parts += textwrap.wrap(line, width, initial_indent="  ", subsequent_indent="    ")
        return parts


# Flags in brackets that a usage line still shows one by one.
MOST_IN_USAGE = 6

# Type of a value -> its name in --help, and what a value of another type must be.
METAVARS = {int: "N", float: "X", Path: "PATH"}
TYPES = {"int": "a whole number", "float": "a number"}


# Messages of argparse.
UNRECOGNIZED = re.compile(r"unrecognized arguments: (.*)", re.DOTALL)
NO_SUCH_CHOICE = re.compile(r"argument (--\S+|[A-Z_]+): invalid choice: (.*) \(choose from (.*)", re.DOTALL)
WRONG_TYPE = re.compile(r"argument (--\S+|[A-Z_]+): invalid (\w+) value: '(.*)'", re.DOTALL)
WRONG_COUNT = re.compile(r"argument (--\S+|[A-Z_]+): expected (.*)", re.DOTALL)
NOT_TOGETHER = re.compile(r"argument (--\S+): not allowed with argument (--\S+)")
OF_ARGUMENT = re.compile(r"argument (--\S+|[A-Z_]+): (.*)", re.DOTALL)
MISSING = re.compile(r"the following arguments are required: (.*)", re.DOTALL)
ONE_MISSING = re.compile(r"one of the arguments (.*) is required", re.DOTALL)
AMBIGUOUS = re.compile(r"ambiguous option: (\S+) could match (.*)", re.DOTALL)


# A flag that takes several names in one value, so that users may expect to give it several times.
METHOD = "--method"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line on stderr and exit status 2.

    Args:
        about: The docstring of the command, as the description. A command in front, with ``: `` after it, is left out.
        settings: Arguments of ``argparse.ArgumentParser``.
    """

    def __init__(self, *, about: str | None = None, **settings: Any) -> None:
        settings.setdefault("formatter_class", HelpFormatter)
        super().__init__(**settings)
        # Python 3.11 takes -1e-3 for a flag, and -0.001 for a number.
        self._negative_number_matcher = re.compile(r"-(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?\Z")
        self.description = re.sub(r"^``[^`]*``: ", "", about) if about else self.description

    def error(self, message: str) -> NoReturn:
        """Print one line that says what is wrong and what to do, and exit with status 2."""
        sys.exit(refuse(self.prog, self.explained(message)))

    def explained(self, message: str) -> str:
        """Return a message of argparse as ``--flag value: problem; what to do``; any other message is unchanged."""
        for match, explain in (
            (UNRECOGNIZED.fullmatch, self._unknown),
            (NO_SUCH_CHOICE.fullmatch, _no_such_choice),
            (WRONG_TYPE.fullmatch, _wrong_type),
            (WRONG_COUNT.fullmatch, _wrong_count),
            (NOT_TOGETHER.fullmatch, "{0} and {1}: give one of the two".format),
            (OF_ARGUMENT.fullmatch, "{0}: {1}".format),
            (MISSING.fullmatch, self._missing),
            (ONE_MISSING.fullmatch, self._one_missing),
            (AMBIGUOUS.fullmatch, "{0}: several flags begin so; give one of {1}".format),
        ):
            if found := match(message):
                return explain(*found.groups())
        return message

    def _unknown(self, words: str) -> str:
        flags = re.findall(r"(?:^|\s)(--?[^\s=\d][^\s=]*)", words)
        if not flags:
            return f"{words}: unexpected; {self.prog} --help says what it takes"
        known = [option for action in self._actions for option in action.option_strings]
        guesses = list(filter(None, (closest_flag(flag, known) for flag in flags)))
        then = f"did you mean {', '.join(guesses)}?" if guesses else f"{self.prog} --help lists all"
        return f"{words}: unknown flag{'s' if len(flags) > 1 else ''}; {then}"

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - argparse declares overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parse the flags as ``argparse.ArgumentParser`` does, and keep the words for the message of an error.

        If ``METHOD`` is given several times, a note on stderr says that the last one counts.
        """
        self._words = list(sys.argv[1:] if args is None else args)
        if METHOD in self._option_string_actions:
            self._note_several_methods()
        return super().parse_known_args(args, namespace)

    def _note_several_methods(self) -> None:
        given = []
        for place, word in enumerate(self._words):
            flag, equals, value = word.partition("=")
            if flag == METHOD:
                given.append(value if equals else "".join(self._words[place + 1 : place + 2]))
        if len(set(given)) > 1:
            say(
                f"note: {METHOD} is given {len(given)} times, and the last one counts: {one_line(given[-1])}; several "
                f"methods are {METHOD} {one_line(','.join(dict.fromkeys(given)))}\n",
                sys.stderr,
            )

    def _mistyped(self) -> list[str]:
        """Return the flags on the command line that are unknown and resemble a known one."""
        known = [option for action in self._actions for option in action.option_strings]
        flags = [word.partition("=")[0] for word in self._words if re.match(r"--\w", word)]
        unknown = [flag for flag in flags if not any(option.startswith(flag) for option in known)]
        return [flag for flag in unknown if closest_flag(flag, known)]

    def _missing(self, names: str) -> str:
        if mistyped := self._mistyped():
            return self._unknown(" ".join(mistyped))
        verb, pronoun = ("are", "them") if ", " in names else ("is", "it")
        return f"{names} {verb} missing; {self.prog} --help describes {pronoun}"

    def _one_missing(self, names: str) -> str:
        if mistyped := self._mistyped():
            return self._unknown(" ".join(mistyped))
        return f"{' or '.join(names.split())} is missing; {self.prog} --help describes them"

    def format_help(self) -> str:
        """Return the help, with a short usage line where the command has many flags."""
        for action in self._actions:
            if action.option_strings and action.nargs != 0 and action.metavar is None and action.choices is None:
                action.metavar = METAVARS.get(action.type, "TEXT")
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

    def _print_message(self, message: str, file: Any = None) -> None:
        say(message, file or sys.stderr)


def _no_such_choice(flag: str, given: str, choices: str) -> str:
    value = given.strip("'")
    known = re.findall(r"[^\s,']+", choices.removesuffix(")"))
    close = difflib.get_close_matches(value.lower().replace("-", "_"), known, n=1)
    close = close or difflib.get_close_matches(value.lower(), known, n=1)
    usual = USUAL_VALUES.get(value.lower())
    guess = usual if usual in known else next(iter(close), None)
    if value.isdigit():  # another number is no guess
        guess = None
    return f"{flag} {value}: must be one of {', '.join(known)}" + (f"; did you mean {guess}?" if guess else "")


def _wrong_type(flag: str, kind: str, value: str) -> str:
    return f"{flag} {value}: must be {TYPES.get(kind, kind)}"


def _wrong_count(flag: str, expected: str) -> str:
    count = {"one argument": "a value", "at least one argument": "one value or more"}.get(expected, expected)
    return f"{flag}: give {count.replace('arguments', 'values')}"


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

    make_clean.cleans = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_clean)


def _say_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    say(_clean_traceback(kind, error, trace), sys.stderr)


def _clean_traceback(*error: Any) -> str:
    return _printable_lines(redact("".join(traceback.format_exception(*error))))


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
