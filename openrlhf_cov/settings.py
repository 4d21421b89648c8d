"""The form of a setting: a dataclass field that carries its flag, and values that move with the steps."""

import math
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

Group = TypeVar("Group", bound="Settings")


NOT_PERCENT = "shares are fractions, not percent (0.2 % is 2e-3)"


@dataclass(frozen=True)
class Schedule:
    """A value that is ``start`` until global step ``begin``, moves to ``end`` until step ``steps``, and stays."""

    start: float
    end: float
    steps: int
    shape: str = "linear"
    begin: int = 0

    @classmethod
    def parse(cls, text: str) -> "float | Schedule":
        """Return the number or the schedule that a text describes.

        Args:
            text: A plain number, or START:END:STEPS[:linear|cosine]. STEPS is a number of global steps, or FROM-TO.

        Raises:
            ValueError: The text is neither of the two, or the schedule does not end after it begins. The message
                has the text.
        """
        parts = text.split(":")
        try:
            if len(parts) == 1:
                return float(text)
            if len(parts) not in (3, 4) or parts[3:] not in ([], ["linear"], ["cosine"]):
                raise ValueError
            begin, steps = map(int, parts[2].split("-")) if "-" in parts[2] else (0, int(parts[2]))
            schedule = cls(float(parts[0]), float(parts[1]), steps, *parts[3:], begin=begin)
        except ValueError as error:
            hint = f"; {NOT_PERCENT}" if "%" in text else ""
            raise ValueError(f"{text!r} is neither a number nor START:END:STEPS[:linear|cosine]{hint}") from error
        if not 0 <= begin < steps:
            raise ValueError(
                f"{text!r} is a schedule of {parts[2]} global steps; give a number of at least 1, or FROM-TO where TO "
                "is above FROM"
            )
        return schedule

    def at(self, step: int) -> float:
        """Return the value in global step ``step``, counted from 0."""
        if step >= self.steps:
            return self.end
        progress = max(0, step - self.begin) / (self.steps - self.begin)
        if self.shape == "cosine":
            progress = (1.0 - math.cos(math.pi * progress)) / 2.0
        return self.start + (self.end - self.start) * progress


# A float or a ``Schedule``, which is a float in the settings of a step.
Scheduled = Any


def setting(
    default: Any,
    help: str,
    choices: tuple[str, ...] | None = None,
    scheduled: bool = False,
    fraction: bool = False,
    flag: str | None = None,
    only: tuple[str, Any] | None = None,
) -> Any:
    """Return a dataclass field that also carries its command-line flag.

    Args:
        default: Default of the field. Its type becomes the type of the flag; None stands for a float that is not set.
        help: Text of the flag in ``--help``.
        choices: The allowed values; None for any value.
        scheduled: True if the field takes a number or a ``Schedule``.
        fraction: True for a fraction of the tokens in (0, 1]. A large one has to be allowed with
            ``--allow_large_cov_ratio``, because it may be meant as percent.
        flag: Name of the flag without dashes; None for the name of the field.
        only: (field, value): the setting only has an effect where that other field has this value. None: always.
    """
    metadata = {"help": help, "choices": choices, "scheduled": scheduled, "fraction": fraction}
    return field(default=default, metadata=metadata | {"flag": flag, "only": only})


def flag_of(entry: Field) -> str:
    """Return the name of the flag of a field."""
    return entry.metadata["flag"] or entry.name


def text_of(value: Any) -> str:
    """Return a value as the command line has it: the numbers of a pair with a space between them."""
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def help_with_default(help: str, default: Any) -> str:
    """Return a flag's help for ``argparse``, with the default at the end of its first line.

    The lines after the first one describe the choices. A switch has no default to show, and neither has a flag that
    may be left unset.
    """
    first, newline, choices = help.replace("%", "%%").partition("\n")
    shown = "" if default in (None, "") or isinstance(default, bool) else f" (default: {text_of(default)})"
    return f"{first}{shown}{newline}{choices}"


def extremes(value: "float | Schedule") -> tuple[float, ...]:
    """Return the values between which a setting moves during a run: (start, end) of a schedule, otherwise (value,)."""
    return (value.start, value.end) if isinstance(value, Schedule) else (value,)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A group of flags: one field each, made with ``setting``. Raises ValueError for a value that is no choice.

    A group may have a ``check()`` of its own values, which is called when the settings are made and raises ValueError;
    groups may be joined by inheritance.
    """

    def __post_init__(self) -> None:
        for entry in fields(self):
            choices = entry.metadata["choices"]
            value = getattr(self, entry.name)
            if choices and value not in choices:
                raise ValueError(f"--{flag_of(entry)} {value}: must be one of {', '.join(choices)}")
        for group in reversed(type(self).__mro__):  # each its own, which none of them can forget to pass on
            if "check" in vars(group):
                group.check(self)

    def require(self, name: str, fits: Callable[[Any], bool], what: str, then: str = "") -> None:
        """Check a value, or both ends of a schedule.

        Args:
            name: The field.
            fits: Returns True for a value that is allowed.
            what: What the value must be, such as "must be at least 1".
            then: What the user may do, appended to the message.

        Raises:
            ValueError: A value does not fit. The message begins with the flag and the value.
        """
        for value in extremes(getattr(self, name)):
            if not fits(value):
                (entry,) = (entry for entry in fields(self) if entry.name == name)
                raise ValueError(f"--{flag_of(entry)} {text_of(value)}: {what}{then}")

    @classmethod
    def from_args(cls: type[Group], args: Any) -> Group:
        """Return the settings that parsed flags describe; ``args`` has one attribute per field."""
        return cls(**{entry.name: getattr(args, entry.name) for entry in fields(cls)})
