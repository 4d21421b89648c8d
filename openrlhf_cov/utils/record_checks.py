"""Check content that others wrote against a class of records, and say in one line what is wrong with it.

A class of records is a dataclass with ``__pydantic_config__ = STRICT`` or ``OPEN``, or a model of pydantic. The first
check imports pydantic, because that takes a moment which ``--help`` of a command does not need.
"""

import difflib
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from openrlhf_cov.utils.json_lines import BOM, parse_json, read_bounded

if TYPE_CHECKING:
    from pydantic import ValidationError

Record = TypeVar("Record")

# Records have these fields, of exactly these types, and no others.
STRICT = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
# Records have these fields, of exactly these types. Further fields are ignored.
OPEN = {**STRICT, "extra": "ignore"}
# Longest value, and longest name of a field, in a message.
MAX_QUOTED = 100
# Errors beyond this number are not described one by one. Each of them takes memory.
MAX_PROBLEMS = 1000
# Types of errors of pydantic, for models and for dataclasses.
UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")
NO_RECORD = ("model_type", "dataclass_type")
# Pydantic's words, such as "Input should be greater than or equal to 1", and those of this project.
WORDS = (
    (re.compile(r"^(?:Input|String|List|Tuple|Dictionary|Value) should "), "must "),
    (re.compile("greater than or equal to"), "at least"),
    (re.compile("less than or equal to"), "at most"),
    (re.compile(" after validation"), ""),
)

_quoting = reprlib.Repr()
_quoting.maxstring = _quoting.maxother = MAX_QUOTED


@dataclass(frozen=True)
class StopsAtFirstError:
    """Annotation of a list: its check ends at the first entry that is wrong.

    A list may have a million wrong entries, and each error that pydantic collects takes 250 bytes.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the schema of the list with its option for this."""
        return {**handler(source), "fail_fast": True}


@dataclass(frozen=True)
class _TakesMapping:
    """Annotation of a dataclass: a mapping of its fields is a record, although a strict dataclass takes no mapping."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return the schema of the dataclass with its option for this. The types of the fields stay strict."""
        return {**handler.resolve_ref_schema(handler(source)), "strict": False}


def checked(kind: type[Record], content: bytes) -> Record:
    """Return the record in JSON.

    Args:
        kind: A class of records, or a type that is made of some, such as ``list[int]``.
        content: The JSON, in UTF-8. It may begin with a byte order mark.

    Raises:
        ValueError: The content is not JSON or not such a record. The message is one line about the first problem.
    """
    try:
        return _adapter(kind)[0].validate_json(content.removeprefix(BOM), strict=True)
    except ValueError as error:
        raise _first_problem(error, kind) from None


def checked_value(kind: type[Record], value: Any) -> Record:
    """Return the record that a parsed value describes; see ``checked``.

    Args:
        kind: A class of records, or a type that is made of some. A dataclass must not hold other dataclasses, because
            these take no mapping.
        value: The value, as ``parse_json`` returns it.

    Raises:
        ValueError: The value is not such a record. The message is one line about the first problem.
    """
    adapter, strict = _adapter(kind)
    try:
        return adapter.validate_python(value, strict=strict)
    except ValueError as error:
        raise _first_problem(error, kind) from None


def find_record(kind: type[Record], path: Path) -> Record | None:
    """Return the record in a file of JSON; None where there is none that can be read. See ``checked_value``."""
    try:
        return checked_value(kind, parse_json(read_bounded(path)))
    except (OSError, ValueError):
        return None


def _first_problem(error: ValueError, kind: Any) -> ValueError:
    """Return the error that says in one line what an error of pydantic says first; another error as it is."""
    from pydantic import ValidationError

    return ValueError(problems(error, kind)[0]) if isinstance(error, ValidationError) else error


# Also caches what is the same for every row of a file, because files have many rows.
@cache
def _adapter(kind: Any) -> tuple[Any, bool | None]:
    """Return the adapter of a class of records, and the strictness with which it checks a parsed value."""
    from pydantic import TypeAdapter

    if not is_dataclass(kind):
        return TypeAdapter(kind), True
    # Type checkers do not know a type that is made at run time.
    annotated: Any = Annotated
    # None: the schema says it. True would count before the schema and refuse a mapping.
    return TypeAdapter(annotated[kind, _TakesMapping()]), None


def problems(error: "ValidationError", kind: Any) -> list[str]:
    """Return one line for each problem of content that is not a record of a class.

    A line is ``place: what must be; got value``, for example ``arms[1].tier: must be a valid integer; got 'two'``. For
    a field that does not exist it has the name that was probably meant, or all names.

    Args:
        error: The error of pydantic.
        kind: The class of records against which the content was checked.

    Returns:
        The lines, unknown fields first; a single line for more than ``MAX_PROBLEMS`` problems.
    """
    if error.error_count() > MAX_PROBLEMS:
        return [f"{error.error_count():,} of its values are not what they must be; give another file"]
    # A misspelt name comes first, because its right name is then missing as well.
    errors = sorted(error.errors(include_url=False), key=lambda each: each["type"] not in UNKNOWN_FIELD)
    return [_line(each, kind) for each in errors]


def short(value: Any) -> str:
    """Return a value as a message quotes it, at most ``MAX_QUOTED`` characters long."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return "a number of more than 300 digits"
    quoted = _quoting.repr(value)
    return quoted if len(quoted) <= MAX_QUOTED else f"{quoted[:MAX_QUOTED]}..."


def _line(error: Mapping[str, Any], kind: Any) -> str:
    place = error["loc"]
    if error["type"] in UNKNOWN_FIELD:
        known = _fields(_kind_at(kind, place[:-1]))
        close = difflib.get_close_matches(str(place[-1]), known, n=1)
        message = (
            f"no such field; did you mean {close[0]}?" if close else f"no such field; choose from {', '.join(known)}"
        )
    elif error["type"].startswith("missing"):
        message = "this field is missing; add it"
    elif error["type"] == "value_error":
        # A validator of ours names the value where that helps.
        message = str(error.get("ctx", {})["error"])
    elif error["type"] == "json_invalid":
        message = error["msg"]
    elif error["type"] in NO_RECORD:
        message = f"must have the fields {', '.join(_fields(_kind_at(kind, place)))}; got {short(error['input'])}"
    else:
        message = error["msg"]
        for theirs, ours in WORDS:
            message = theirs.sub(ours, message)
        message += f"; got {short(error['input'])}"
    return f"{_place(place)}: {message}" if place else message


def _place(place: Sequence[int | str]) -> str:
    """Return the place of a value, such as ``arms[1].grid``."""
    parts: list[str] = []
    for key in place:
        if isinstance(key, int):
            parts.append(f"[{key}]")
        elif key != "[key]":  # pydantic marks an error in a key by this name behind the key
            is_plain = key.isprintable() and 0 < len(key) <= MAX_QUOTED
            parts.append(f".{key if is_plain else short(key)}")
    return "".join(parts).removeprefix(".")


def _kind_at(kind: Any, place: Sequence[int | str]) -> Any:
    """Return the type of the values at a place inside of records of ``kind``."""
    kind = _bare(kind)
    for key in place:
        arguments = get_args(kind)
        if get_origin(kind) is dict:
            kind = arguments[1]
        elif arguments:
            kind = arguments[0]
        else:
            kind = get_type_hints(kind)[str(key)]
        kind = _bare(kind)
    return kind


def _bare(kind: Any) -> Any:
    """Return a type without its annotations and without None as an alternative."""
    while get_origin(kind) is Annotated or NoneType in get_args(kind):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    return kind


def _fields(kind: Any) -> Sequence[str]:
    """Return the names of the fields of a class of records."""
    return tuple(getattr(kind, "model_fields", None) or getattr(kind, "__dataclass_fields__", ()))
