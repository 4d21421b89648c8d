"""Values as one line of JSON and back: plain data only, whatever class a program gave it. Safe to read from anyone.

What JSON has stands for itself but for dicts; everything else is an object with one key, the kind. Objects that are no
plain data go as a reference that the caller makes. A subclass of a plain type goes as the plain value inside, so that
no ``__eq__`` of a program is ever asked; but a container of a program's own class is an object like others, where
there are references.
"""

import datetime
import fractions
import json
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from decimal import Decimal
from typing import Any

# Whole numbers from here on go as hexadecimal text, which takes linear time to write and to read.
BIG = 1 << 53
# The module of a program that others ask.
OWNER = "solution"
MUTABLE = frozenset(("list", "dict", "counter", "ordered", "default", "set", "deque", "bytearray"))
Refer = Callable[[Any], Any]


def no_reference(value: Any) -> Any:
    """Refuse an object where only plain data has a meaning.

    Raises:
        TypeError: Always; the message names the type of the value.
    """
    raise TypeError(f"no plain data: {type(value).__name__}")


def dump(value: Any, refer: Refer = no_reference) -> Any:
    """Return a value in a form for ``json.dumps``.

    Args:
        value: The value.
        refer: Returns the form of an object that is no plain data; by default such an object is refused.

    Raises:
        TypeError: The value holds an object that ``refer`` refuses.
    """
    if value is None or value is True or value is False or type(value) in (float, str):
        return value
    if isinstance(value, int):
        number = int.__index__(value)
        return number if -BIG < number < BIG else {"int": hex(number)}
    own = refer is not no_reference and type(value).__module__ == OWNER
    for kind, (base, parts, _) in KINDS.items():
        if isinstance(value, base) and not (own and kind in MUTABLE):
            packed = parts(value)
            if isinstance(packed, list):
                packed = [dump(each, refer) for each in packed]
            if kind in ("set", "frozenset"):  # in one order, whatever they were made from
                packed.sort(key=json.dumps)
            return packed if kind == "list" else {kind: packed}
    return refer(value)


def load(value: Any, resolve: Refer = no_reference) -> Any:
    """Return the value that ``dump`` packed.

    Args:
        value: The packed value. It may be anything that JSON has.
        resolve: Returns the object for the form that ``refer`` gave it; by default such a form is refused.

    Raises:
        Exception: ``dump`` did not make the value: ValueError, TypeError or an error of the type that the value names.
    """
    if isinstance(value, list):
        return [load(each, resolve) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError("an object on the wire has one key")
    ((kind, packed),) = value.items()
    if kind == "int":
        return int(packed, 16)
    if kind not in KINDS:
        return resolve(value)
    if isinstance(packed, list):
        packed = [load(each, resolve) for each in packed]
    return KINDS[kind][2](packed)


def kind_of(value: Any) -> str:
    """Return the kind of a value that is no scalar; empty for an object of a program's own."""
    found = next((kind for kind, (base, _, _) in KINDS.items() if isinstance(value, base)), "")
    return "" if found in MUTABLE and type(value).__module__ == OWNER else found


class Named(type):
    """The type of all named tuples, for isinstance."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, tuple) and isinstance(getattr(type(value), "_fields", None), tuple)


class NamedTuple(metaclass=Named):
    """The type in ``KINDS`` of all tuples that ``namedtuple`` makes."""


# Name and names of places -> class, so that one that came back is of the class that it had.
_named: dict[tuple[str, ...], Any] = {}


def _named_parts(value: Any) -> list[Any]:
    kind = type(value)
    _named.setdefault((kind.__name__, *kind._fields), kind)
    return [kind.__name__, list(kind._fields), *tuple.__iter__(value)]


def _named_tuple(parts: list[Any]) -> Any:
    name, fields, *values = parts
    key = (name, *fields)
    if key not in _named:
        _named[key] = namedtuple(name, fields)
    return tuple.__new__(_named[key], values)


def _pairs(value: Any) -> list[Any]:
    return [part for pair in dict.items(value) for part in pair]


def _dict(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _counter(parts: list[Any]) -> Any:
    made: Any = Counter()
    dict.update(made, _dict(parts))
    return made


# What a ``defaultdict`` may make on the other side.
FACTORIES = {kind.__name__: kind for kind in (int, float, str, bool, list, tuple, dict, set)}


def _default_parts(value: Any) -> list[Any]:
    name = getattr(value.default_factory, "__name__", "")
    return [name if FACTORIES.get(name) is value.default_factory else "", *_pairs(value)]


def _interval(value: datetime.timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


# Kind -> type, its parts (a list of values, or a text), the value of parts. Types before those they are built on.
KINDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "list": (list, lambda value: list(list.__iter__(value)), list),
    "namedtuple": (NamedTuple, _named_parts, _named_tuple),
    "tuple": (tuple, lambda value: list(tuple.__iter__(value)), tuple),
    "counter": (Counter, _pairs, _counter),
    "ordered": (
        OrderedDict,
        lambda value: [part for pair in value.items() for part in pair],
        lambda parts: OrderedDict(_dict(parts)),
    ),
    "default": (defaultdict, _default_parts, lambda parts: defaultdict(FACTORIES.get(parts[0]), _dict(parts[1:]))),
    "dict": (dict, _pairs, _dict),
    "set": (set, lambda value: list(set.__iter__(value)), set),
    "frozenset": (frozenset, lambda value: list(frozenset.__iter__(value)), frozenset),
    "deque": (deque, lambda value: list(deque.__iter__(value)), deque),
    "str": (str, lambda value: str.__str__(value), str),
    "float": (float, lambda value: float.hex(value), float.fromhex),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "bytes": (bytes, lambda value: bytes.hex(value), bytes.fromhex),
    "bytearray": (bytearray, lambda value: bytearray.hex(value), bytearray.fromhex),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    "decimal": (Decimal, lambda value: Decimal.__str__(value), Decimal),
    "fraction": (
        fractions.Fraction,
        lambda value: [value.numerator, value.denominator],
        lambda parts: fractions.Fraction(*parts),
    ),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "timedelta": (datetime.timedelta, _interval, lambda parts: datetime.timedelta(*parts)),
    "timezone": (
        datetime.timezone,
        lambda value: _interval(value.utcoffset(None)),
        lambda parts: datetime.timezone(datetime.timedelta(*parts)),
    ),
}


def line(message: Any) -> bytes:
    """Return one line of JSON."""
    return json.dumps(message).encode() + b"\n"
