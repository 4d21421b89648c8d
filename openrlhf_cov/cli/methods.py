"""List all methods, or describe one method with its flags, its paper and an example."""

import argparse
import inspect
import json
import shlex
import sys
import textwrap
from dataclasses import Field, fields
from typing import Any

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.lab.method_example import example_command
from openrlhf_cov.models.cov_config import methods_like
from openrlhf_cov.models.method import Method, fills
from openrlhf_cov.models.methods import METHODS, MODULES
from openrlhf_cov.models.slots import SLOTS
from openrlhf_cov.settings import flag_of, text_of
from openrlhf_cov.utils.terminal import Parser, command_name, say

# Columns of the text.
WIDTH = 100
NO_BREAK = "\N{NO-BREAK SPACE}"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = Parser(prog="openrlhf-cov methods", about=__doc__)
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the method to describe; without it, all methods are listed"
    )
    parser.add_argument("--json", action="store_true", help="print the same as JSON")
    return parser


@program("openrlhf-cov methods")
def main(argv: list[str] | None = None) -> None:
    """Print the list or one method; exit status 2 with one line on stderr for a name that no method has."""
    args = build_parser().parse_args(argv)
    if args.name is None:
        say(json.dumps([record(each) for each in METHODS.values()], indent=1) + "\n" if args.json else table())
        return
    if "," in args.name:
        raise UsageError(f"{args.name}: this command describes one method; name one of them")
    if args.name not in METHODS:
        raise UsageError(f"no method is called {args.name!r}; {methods_like(args.name)}")
    method = METHODS[args.name]
    say(json.dumps(record(method), indent=1) + "\n" if args.json else description(method))


def table() -> str:
    """Return all methods, family by family: name, effect and paper."""
    column = 2 + max(len(name) for name in METHODS) + 2
    lines = []
    for slot in SLOTS:
        lines.append(f"{slot.name}: {slot.effect}")
        for method in METHODS.values():
            if fills(method, slot):
                # A paper and its number stay on one line.
                paper = method.source.replace(" ", NO_BREAK)
                effect = f"{method.summary} ({paper})"
                first = f"  {method.name}".ljust(column)
                lines += textwrap.wrap(effect, WIDTH, initial_indent=first, subsequent_indent=" " * column)
        lines.append("")
    lines = [line.replace(NO_BREAK, " ") for line in lines]
    more = shlex.join([*command_name(), "methods", "kl_cov"])
    lines += [
        "Choose methods with --method NAME[,NAME]: at most one of each family, and any number of the family weight.",
        f"One method with its flags: {more}",
        "",
    ]
    return "\n".join(lines)


def description(method: Method) -> str:
    """Return one method: what it does, its paper, its flags with defaults, and a command that trains with it."""
    about = textwrap.fill(f"{method.title}: {method.summary}.", WIDTH)
    parts = [
        about,
        f"family   {method.slot.name}: it {method.slot.effect}\npaper    {method.source}\nchoose   {method.flag}",
        notes_of(method),
        "flags\n" + (flags_of(method) or "  none of its own"),
        f"example\n  {shlex.join(example_command(method))}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def notes_of(method: Method) -> str:
    """Return the text of the docstring of a method's module after its first sentence."""
    module = next(each for each in MODULES if each.METHOD is method)
    _, _, notes = (inspect.getdoc(module) or "").partition("\n\n")
    return notes.replace("``", "")


def settings_of(method: Method) -> list[tuple[str, Any, str]]:
    """Return (flag, default, help) of each setting of a method, a switch with the default False."""

    def entry_of(entry: Field) -> tuple[str, Any, str]:
        return f"--{flag_of(entry)}", entry.default, entry.metadata["help"]

    return [entry_of(entry) for entry in fields(method.settings)]


def flags_of(method: Method) -> str:
    """Return the flags of a method, each with its default and its meaning."""
    lines = []
    for flag, default, about in settings_of(method):
        shown = "none" if default in (None, "") else text_of(default)
        if default is False:
            shown = "off"
        lines.append(f"  {flag} (default: {shown})")
        for number, line in enumerate(about.splitlines()):
            # The lines after the first one describe the choices.
            indent = " " * (8 if number else 6)
            lines += textwrap.wrap(line, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")
    return "\n".join(lines)


def record(method: Method) -> dict[str, Any]:
    """Return what is printed of a method, by name."""
    return {
        "name": method.name,
        "title": method.title,
        "family": method.slot.name,
        "summary": method.summary,
        "paper": method.source,
        "flags": [{"flag": flag, "default": default, "help": about} for flag, default, about in settings_of(method)],
        "example": shlex.join(example_command(method)),
    }


if __name__ == "__main__":
    sys.exit(main())
