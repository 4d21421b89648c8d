"""Two processes that call each other's functions: the tests in one, the program that is tested in the other.

The tests see the program's functions, classes and objects as ``Remote``, and what these return as plain data
(``wire``). So no class of the program is ever part of an assertion: a ``Remote`` equals nothing that is plain, has no
order beside it, is no number, and is searched by going through it. What a program says of its own objects among
themselves is believed: a test that compares two of them asks the program, as it must.

In the other direction the program reaches what tests pass to it: functions, to call them, and objects of classes that
the tests define, but for names that begin with an underscore.
"""

import builtins
import importlib
import inspect
import json
import operator
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any, BinaryIO

import wire

MOST_BYTES = 1 << 24
"""Of one message."""
PREDICATES = frozenset(
    name for kind in (str, bytes, set) for name in dir(kind) if name.startswith("is") or name.endswith("swith")
)
"""Questions to a text or a set that tests ask with the expected answer in hand: no object of a program answers."""

TOOLS = frozenset(
    "bisect cmath collections copy datetime decimal fractions heapq itertools json math random re statistics string "
    "typing".split()
)
"""Modules whose names tests may use because the program imported them. They are the tests' own, and none of them makes
an object that equals everything."""

PURE = frozenset("abs all any bin chr divmod hash hex len max min oct ord pow repr round sorted sum".split())
"""Functions of Python that a program may hand to tests, beside classes."""

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
ARITHMETIC = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor")


class Peer:
    """One side of a channel. ``trusting``: the other side may do anything here; else see the head of the file."""

    def __init__(self, channel: BinaryIO, trusting: bool, owner: str) -> None:
        self._channel, self._trusting, self._owner = channel, trusting, owner
        self._objects: list[Any] = []
        self._handles: dict[int, int] = {}

    def say(self, message: Any) -> None:
        """Send a message."""
        self._channel.write(wire.line(message))
        self._channel.flush()

    def hear(self) -> Any:
        """The next message. EOFError where the other side is gone or says too much."""
        line = self._channel.readline(MOST_BYTES)
        if not line.endswith(b"\n"):
            raise EOFError("the other side has ended")
        return json.loads(line)

    def serve(self) -> None:
        """Do what the other side asks until it has gone."""
        with suppress(EOFError, BrokenPipeError):
            while True:
                self._perform(self.hear())

    def ask(self, action: str, *operands: Any) -> Any:
        """What the other side gives for an action, or raises."""
        self.say({"do": action, "with": [wire.dump(each, self.refer) for each in operands]})
        while True:
            message = self.hear()
            if "do" in message:
                self._perform(message)
            elif "error" in message:
                raise _error(message["error"])
            else:
                for place, packed in message.get("changed", {}).items():
                    _update(operands, place, wire.load(packed, self.resolve))
                return wire.load(message["value"], self.resolve)

    def refer(self, value: Any) -> Any:
        """What stands for an object on the wire."""
        if isinstance(value, Remote):
            return {"yours": object.__getattribute__(value, "_handle")}
        name = getattr(value, "__name__", None)
        if isinstance(name, str) and vars(builtins).get(name) is value:
            return {"builtin": name}
        handle = self._handles.setdefault(id(value), len(self._objects))
        if handle == len(self._objects):
            self._objects.append(value)
        return {"mine": handle}

    def resolve(self, packed: dict[str, Any]) -> Any:
        """The object that ``refer`` of the other side stands for."""
        match packed:
            case {"mine": int(handle)}:
                return Remote(self, handle)
            case {"yours": int(handle)} if 0 <= handle < len(self._objects):
                return self._objects[handle]
            case {"builtin": str(name)} if not name.startswith("_"):
                found = getattr(builtins, name)
                if self._trusting or isinstance(found, type) or name in PURE:
                    return found
        raise ValueError("no such reference")

    def _perform(self, message: Any) -> None:
        operands: list[Any] = []
        try:
            action = ACTIONS[message["do"]]
            operands = [wire.load(each, self.resolve) for each in message["with"]]
            if not self._trusting:
                self._allow(message["do"], message["with"][0], operands)
            value = action(*operands)
            reply = {"value": wire.dump(value, self.refer), "changed": self._changed(message["with"], operands)}
        except BaseException as error:  # whatever foreign code raises is an answer
            names = [kind.__name__ for kind in type(error).__mro__]
            try:
                text = str(error)[:500]
            except Exception:
                text = ""
            reply = {"error": [names, text]}
        self.say(reply)

    def _changed(self, packed: list[Any], operands: list[Any]) -> dict[str, Any]:
        """Lists, dicts and sets among the arguments of a call that are not what they were."""
        changed = {}
        for place, before in enumerate(packed[1]) if len(packed) > 1 and isinstance(packed[1], list) else ():
            if isinstance(operands[1][place], list | dict | set):
                after = wire.dump(operands[1][place], self.refer)
                if after != before:
                    changed[str(place)] = after
        return changed

    def _allow(self, action: str, packed: Any, operands: list[Any]) -> None:
        """Raise PermissionError for what the other side may not do here. Only what was passed to it is a target."""
        target = operands[0]
        if not isinstance(packed, dict) or list(packed) != ["yours"]:
            allowed = False
        elif action == "call":
            allowed = inspect.isroutine(target) or type(target).__module__ == self._owner
        elif action in ("get", "set"):
            name = operands[1]
            allowed = isinstance(name, str) and not name.startswith("_") and type(target).__module__ == self._owner
        else:
            allowed = action in READ_ONLY and type(target).__module__ == self._owner
        if not allowed:
            raise PermissionError(f"tests do not let a program {action} this")


class Remote:
    """An object of the other side."""

    def __init__(self, peer: Peer, handle: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_handle", handle)

    def _ask(self, action: str, *operands: Any) -> Any:
        return object.__getattribute__(self, "_peer").ask(action, self, *operands)

    def __getattr__(self, name: str) -> Any:
        if name in PREDICATES:
            raise AttributeError(f"{name} is asked of plain values alone")
        return self._ask("get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("call", list(args), kwargs)

    def __iter__(self) -> Iterator[Any]:
        steps = self._ask("iterate")
        while True:
            found, value = steps._ask("next")
            if not found:
                return
            yield value

    def __next__(self) -> Any:
        found, value = self._ask("next")
        if not found:
            raise StopIteration
        return value

    def __contains__(self, item: Any) -> bool:
        return any(item is each or item == each for each in self)

    def __len__(self) -> int:
        return self._ask("length")

    def __bool__(self) -> bool:
        return self._ask("truth") is True

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("set_item", key, value)

    def __delitem__(self, key: Any) -> None:
        self._ask("delete_item", key)

    def __str__(self) -> str:
        return self._ask("text")

    def __repr__(self) -> str:
        return self._ask("shown")

    def __hash__(self) -> int:
        return self._ask("hash")

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Remote) and self._ask("is_class_of", instance) is True

    def __enter__(self) -> Any:
        return self._ask("get", "__enter__")()

    def __exit__(self, *error: Any) -> None:
        self._ask("get", "__exit__")(None, None, None)


def _comparison(name: str) -> Any:
    def compare(self: Remote, other: Any) -> Any:
        if isinstance(other, Remote):
            return self._ask(name, other) is True
        return {"eq": False, "ne": True}.get(name, NotImplemented)

    return compare


def _arithmetic(name: str, reflected: bool) -> Any:
    def compute(self: Remote, other: Any) -> Any:
        result = self._ask(f"r{name}" if reflected else name, other)
        if not isinstance(other, Remote) and not isinstance(result, Remote):
            raise TypeError("what a program's object makes of a plain value is no plain value")
        return result

    return compute


for _name in COMPARISONS:
    setattr(Remote, f"__{_name}__", _comparison(_name))
for _name in ARITHMETIC:
    setattr(Remote, f"__{_name.strip('_')}__", _arithmetic(_name, False))
    setattr(Remote, f"__r{_name.strip('_')}__", _arithmetic(_name, True))


def _next(iterator: Any) -> tuple[bool, Any]:
    for value in iterator:
        return True, value
    return False, None


def _call(target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return target(*args, **kwargs)


def _reflected(name: str) -> Any:
    compute = getattr(operator, name)
    return lambda one, other: compute(other, one)


ACTIONS: dict[str, Any] = {
    "call": _call,
    "get": getattr,
    "set": setattr,
    "iterate": iter,
    "next": _next,
    "length": len,
    "truth": bool,
    "item": operator.getitem,
    "set_item": operator.setitem,
    "delete_item": operator.delitem,
    "text": str,
    "shown": repr,
    "hash": hash,
    "is_class_of": lambda kind, instance: isinstance(instance, kind),
    **{name: getattr(operator, name) for name in (*COMPARISONS, *ARITHMETIC)},
    **{f"r{name}": _reflected(name) for name in ARITHMETIC},
}
READ_ONLY = frozenset(("iterate", "next", "length", "truth", "item", "text", "shown", "hash", *COMPARISONS))


def names_of(namespace: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """What a program's module exports, for ``imported``."""
    names = {}
    for name, value in list(namespace.items()):
        if name.startswith("__"):
            continue
        if isinstance(value, ModuleType):
            if value.__name__ in TOOLS:
                names[name] = {"module": value.__name__}
            continue
        module, called = getattr(value, "__module__", None), getattr(value, "__name__", None)
        if module in TOOLS and isinstance(called, str) and getattr(sys.modules.get(module), called, None) is value:
            names[name] = {"from": [module, called]}  # from math import sqrt
            continue
        with suppress(Exception):
            names[name] = {"value": wire.dump(value, peer.refer)}
    return names


def imported(names: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """The names of the program as the tests see them; modules and functions of Python are the tests' own.

    A module keeps its name, so that nobody else's ``math`` is taken for it.
    """
    values = {}
    for name, found in names.items():
        if not name.isidentifier() or name.startswith("__"):
            continue
        if name in sys.stdlib_module_names and found != {"module": name}:
            continue
        with suppress(Exception):
            match found:
                case {"module": str(module)} if module in TOOLS:
                    values[name] = importlib.import_module(module)
                case {"from": [str(module), str(called)]} if module in TOOLS:
                    values[name] = getattr(importlib.import_module(module), called)
                case {"value": packed}:
                    values[name] = wire.load(packed, peer.resolve)
    return values


def _update(operands: tuple[Any, ...], place: str, value: Any) -> None:
    """Bring an argument of a call to what the other side made of it."""
    mine = operands[1][int(place)]
    if isinstance(mine, list) and isinstance(value, list):
        mine[:] = value
    elif (isinstance(mine, dict) and isinstance(value, dict)) or (isinstance(mine, set) and isinstance(value, set)):
        mine.clear()
        mine.update(value)


def _error(said: Any) -> Exception:
    """The nearest exception of Python to the one that was raised on the other side."""
    names, text = said
    for name in names:
        kind = vars(builtins).get(name) if isinstance(name, str) else None
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                error = kind(text)
            except TypeError:  # UnicodeDecodeError and the like take more
                error = ValueError(text)
            break
    else:
        error = RuntimeError(text)
    vars(error)["remote_names"] = names
    return error


def without_builtins(values: dict[str, Any], wanted: str) -> dict[str, Any]:
    """The names but for those of Python's own functions: a program's ``abs`` is none of the tests'.

    ``wanted`` is kept whatever it is called: it is what the tests test.
    """
    return {name: value for name, value in values.items() if name == wanted or not hasattr(builtins, name)}
