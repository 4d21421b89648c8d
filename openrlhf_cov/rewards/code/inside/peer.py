"""Two processes that call each other's functions: the tests in one, the program that is tested in the other.

The tests see the program's functions, classes and objects as ``Remote``, and what these return as plain data
(``wire``). So no class of the program is ever part of an assertion (``remote.py``). What a program says of its own
objects among themselves is believed: a test that compares two of them asks the program, as it must.

Lists, dicts and sets that one side gets from the other are ``shared`` for a while: each message brings what has become
of them, so that both sides change one thing. The program's exceptions are classes of the same names among the tests.

In the other direction the program reaches what tests pass to it: functions, to call them, and objects of classes that
the tests define, but for names that begin with an underscore.
"""

import builtins
import importlib
import inspect
import itertools
import json
import sys
import traceback
from contextlib import suppress
from io import BufferedRWPair
from types import ModuleType
from typing import Any

import wire
from remote import ACTIONS, READ_ONLY, Remote

# Largest size of one message.
MAX_BYTES = 1 << 24
# Containers that stay shared after the message that brought them, and what each may hold; others cost too much.
MAX_SHARED = 8
MAX_ITEMS = 100
# Modules whose names tests may use because the program imported them. They are the tests' own, and none of them makes
# an object that equals everything.
TOOLS = frozenset(
    "bisect cmath collections copy datetime decimal fractions heapq itertools json math random re statistics string "
    "typing".split()
)
# Functions of Python that a program may hand to tests, beside classes.
PURE = frozenset("abs all any bin chr divmod hash hex len max min oct ord pow repr round sorted sum".split())


class Peer:
    """One side of a channel.

    If it is ``trusting``, the other side may do anything here; otherwise see the head of the file.
    """

    def __init__(self, channel: BufferedRWPair, trusting: bool, owner: str) -> None:
        self._channel = channel
        self._trusting = trusting
        self._owner = owner
        self._objects: list[Any] = []
        self._handles: dict[int, int] = {}
        self._remotes: dict[int, Remote] = {}
        self._shared: dict[str, list[Any]] = {}
        self._keys: dict[int, str] = {}
        self._errors: dict[tuple[str, ...], type[BaseException]] = {}
        self._numbers = itertools.count()
        self._depth = 0
        # True if a StopIteration of the other side becomes a RuntimeError, as in a generator. It would end a ``map``
        # or ``zip`` of the tests early, so that nothing is compared. The end of an iterator is no error here.
        self.converts_stop = False

    def say(self, message: Any) -> None:
        """Send a message."""
        self._channel.write(wire.line(message))
        self._channel.flush()

    def hear(self) -> Any:
        """Return the next message.

        Raises:
            EOFError: The other side is gone or says too much.
        """
        line = self._channel.readline(MAX_BYTES)
        if not line.endswith(b"\n"):
            raise EOFError("the other side has ended")
        return json.loads(line)

    def serve(self) -> None:
        """Do what the other side asks until it has gone."""
        with suppress(EOFError, BrokenPipeError):
            while True:
                self._perform(self.hear())

    def ask(self, action: str, *operands: Any) -> Any:
        """Return the other side's result of an action.

        Requests that the other side sends meanwhile are performed before its result is awaited again.

        Args:
            action: A key of ``openrlhf_cov.rewards.code.inside.remote.ACTIONS``.
            operands: The object of the other side, then the operands of the action. "call" has two of them: the tuple
                of positional arguments and the dict of keyword arguments.

        Raises:
            RuntimeError: The action raised StopIteration, and ``converts_stop`` is True.
            EOFError: The other side has ended.
            BaseException: The action raised it on the other side.
        """
        target, *rest = operands
        if action == "call":
            given = [self.give(each) for each in rest[0]], {name: self.give(each) for name, each in rest[1].items()}
        else:
            given = [self.give(each) for each in rest], {}
        self.say({"do": action, "to": self.refer(target), "with": given, "changed": self._changes()})
        self._depth += 1
        try:
            while True:
                message = self.hear()
                if "do" in message:
                    self._perform(message)
                    continue
                self._change(message.get("changed", {}))
                if "error" in message:
                    error = self._raised(message["error"])
                    if self.converts_stop and isinstance(error, StopIteration):
                        raise RuntimeError("the program raised StopIteration")
                    raise error
                return self.take(message["value"])
        finally:
            self._depth -= 1
            self._forget()

    def give(self, value: Any) -> Any:
        """Return the wire form of an operand or a result."""
        if wire.kind_of(value) not in wire.MUTABLE:
            return wire.dump(value, self.refer)
        key = self._keys.get(id(value)) or f"{self._owner} {next(self._numbers)}"
        packed = wire.dump(value, self.refer)
        self._share(key, value, packed)
        return {"shared": [key, packed]}

    def take(self, packed: Any) -> Any:
        """Return the operand or result that ``give`` of the other side stands for."""
        if not isinstance(packed, dict) or list(packed) != ["shared"]:
            return wire.load(packed, self.resolve)
        key, inner = packed["shared"]
        self._change({key: inner})
        if key not in self._shared:
            self._share(key, wire.load(inner, self.resolve), inner)
        return self._shared[key][0]

    def _share(self, key: str, value: Any, packed: Any) -> None:
        self._shared.pop(key, None)
        self._shared[key] = [value, packed, _size(packed) <= MAX_ITEMS]  # the last one is the newest
        self._keys[id(value)] = key

    def _changes(self, brought: Any = ()) -> dict[str, Any]:
        """Return small or ``brought`` containers that differ from what the other side knows, as they are now."""
        changes = {}
        for key, (value, before, small) in self._shared.items():
            if small or key in brought:
                after = wire.dump(value, self.refer)
                if after != before:
                    changes[key] = self._shared[key][1] = after
        return changes

    def _change(self, changes: dict[str, Any]) -> None:
        """Bring containers to what the other side made of them."""
        for key, packed in changes.items():
            if key in self._shared and self._shared[key][1] != packed:
                _replace(self._shared[key][0], wire.load(packed, self.resolve))
                self._shared[key][1] = packed

    def _forget(self) -> None:
        """Stop sharing all but the newest small containers, once no request is open."""
        if self._depth == 0:
            small = [key for key, each in self._shared.items() if each[2]]
            for key in self._shared.keys() - small[-MAX_SHARED:]:
                self._keys.pop(id(self._shared.pop(key)[0]), None)

    def refer(self, value: Any) -> Any:
        """Return the wire form of an object."""
        if isinstance(value, Remote):
            return {"yours": object.__getattribute__(value, "_handle")}
        name = getattr(value, "__name__", None)
        if isinstance(name, str) and vars(builtins).get(name) is value:
            return {"builtin": name}
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"error": self._names(value)}
        handle = self._handles.setdefault(id(value), len(self._objects))
        if handle == len(self._objects):
            self._objects.append(value)
        return {"mine": handle}

    def resolve(self, packed: dict[str, Any]) -> Any:
        """Return the object that ``refer`` of the other side packed.

        Args:
            packed: An object with one key: ``mine`` with a handle of the other side, ``yours`` with a handle of this
                side, ``error`` with the names of a class of exceptions, or ``builtin`` with the name of a function or
                class.

        Raises:
            ValueError: The reference has another form, its handle does not exist, or it names a function of Python
                that the other side may not pass.
            AttributeError: Python has no function or class of this name.
        """
        match packed:
            case {"mine": int(handle)}:
                remote = self._remotes.setdefault(handle, Remote(self, handle))
                object.__setattr__(remote, "_answers", False)  # until whoever made it says so
                return remote
            case {"yours": int(handle)} if 0 <= handle < len(self._objects):
                return self._objects[handle]
            case {"error": list(names)}:
                return self._error(names)
            case {"builtin": str(name)} if not name.startswith("_"):
                found = getattr(builtins, name)
                if self._trusting or isinstance(found, type) or name in PURE:
                    return found
        raise ValueError("no such reference")

    def _perform(self, message: Any) -> None:
        brought: list[str] = []
        self._depth += 1
        try:
            self._change(message["changed"])
            target = wire.load(message["to"], self.resolve)
            action = ACTIONS[message["do"]]
            packed, named = message["with"]
            operands = [self.take(each) for each in packed]
            keywords = {name: self.take(each) for name, each in named.items()}
            brought = [
                each["shared"][0] for each in (*packed, *named.values()) if isinstance(each, dict) and "shared" in each
            ]
            if not self._trusting:
                self._allow(message["do"], message["to"], target, operands)
            value = action(target, operands, keywords) if message["do"] == "call" else action(target, *operands)
            reply = {"value": self.give(value)}
        except BaseException as error:  # whatever foreign code raises is an answer
            reply = {"error": self._said(error)}
        with suppress(Exception):
            reply["changed"] = self._changes(brought)
        self._depth -= 1
        self._forget()
        self.say(reply)

    def _allow(self, action: str, packed: Any, target: Any, operands: list[Any]) -> None:
        """Raise PermissionError for what the other side may not do here. Only what was passed to it is a target."""
        own = type(target).__module__ == self._owner
        if not isinstance(packed, dict) or list(packed) != ["yours"]:
            allowed = False
        elif action == "call":
            allowed = inspect.isroutine(target) or own
        elif action in ("get", "set"):
            allowed = own and isinstance(operands[0], str) and not operands[0].startswith("_")
        else:
            allowed = own and action in READ_ONLY
        if not allowed:
            raise PermissionError(f"tests do not let a program {action} this")

    def _names(self, kind: type[BaseException]) -> list[str]:
        """Return the names of an exception class and of its bases, up to the first base that Python defines."""
        names: list[str] = []
        for each in kind.__mro__:
            names.append(f"{each.__module__}:{each.__name__}")
            if each.__module__.partition(".")[0] in sys.stdlib_module_names:
                break
        self._errors.setdefault(tuple(names), kind)
        return names

    def _error(self, names: list[str]) -> type[BaseException]:
        """Return the exception class of these names. A new class is made for each name that Python does not define."""
        known = self._errors.get(tuple(names))
        if known is None:
            module, _, name = names[0].partition(":")
            python = module.partition(".")[0] in sys.stdlib_module_names
            known = getattr(sys.modules.get(module), name, None) if python else None
            if not (isinstance(known, type) and issubclass(known, BaseException)):
                known = type(name, (self._error(names[1:]) if names[1:] else Exception,), {"__module__": self._owner})
            self._errors[tuple(names)] = known
        return known

    def _said(self, error: BaseException) -> dict[str, Any]:
        """Return an exception in wire form, with those of its values that are plain data."""
        said: dict[str, Any] = {"names": self._names(type(error)), "text": "", "args": [], "values": {}}
        lines = [
            each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == f"{wire.OWNER}.py"
        ]
        if lines:
            BaseException.add_note(error, f"line {lines[-1]} of the program")
        with suppress(Exception):
            said["text"] = str(error)[:500]
        with suppress(Exception):
            said["args"] = [wire.dump(each) for each in error.args]
        for name, value in list(getattr(error, "__dict__", {}).items()):
            with suppress(Exception):
                said["values"][name] = wire.dump(value)
        return said

    def _raised(self, said: dict[str, Any]) -> BaseException:
        """Return the exception that was raised on the other side."""
        kind = self._error(list(said["names"]))
        text = str(said["text"])
        args = [wire.load(each) for each in said["args"]] or ([text] if text else [])
        try:
            error = kind(*args)
            if str(error) != text:  # a text of its own class's making
                raise ValueError
        except Exception:  # a class that takes other arguments than it keeps
            shown = type(kind.__name__, (kind,), {"__str__": lambda _: text, "__init__": lambda *_: None})
            error = shown(*args)
        vars(error).update((str(name), wire.load(each)) for name, each in said["values"].items())
        return error


def names_of(namespace: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Return what a program's module exports, in the form that ``imported`` reads.

    Args:
        namespace: The variables of the module. Names that begin with two underscores are left out.
        peer: The channel to the tests, over which they refer to the exported objects.
    """
    names = {}
    # A copy, because giving a value runs code of the program, which may add names.
    for name, value in list(namespace.items()):
        if name.startswith("__"):
            continue
        if isinstance(value, ModuleType):
            if value.__name__ in TOOLS:
                names[name] = {"module": value.__name__}
            continue
        module = getattr(value, "__module__", None)
        called = getattr(value, "__name__", None)
        if module in TOOLS and isinstance(called, str) and getattr(sys.modules.get(module), called, None) is value:
            names[name] = {"from": [module, called]}  # from math import sqrt
            continue
        with suppress(Exception):
            names[name] = {"value": peer.give(value)}
    return names


def imported(names: dict[str, Any], peer: Peer, classes: set[str]) -> dict[str, Any]:
    """Return the names of the program as the tests see them; modules and functions of Python are the tests' own.

    A module keeps its name, so that another ``math`` is not taken for it.

    Args:
        names: Name -> packed value, as ``names_of`` made them on the other side. They may be anything.
        peer: The channel to the program.
        classes: Names that the tests use as classes. Objects that such a name makes answer for themselves if it begins
            with a capital.
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
                    values[name] = peer.take(packed)
        if isinstance(values.get(name), Remote) and name[0].isupper() and name in classes - {"Solution"}:
            object.__setattr__(values[name], "_makes", True)
    return values


def _size(packed: Any) -> int:
    """Count the scalars and containers in packed data; counting stops above ``MAX_ITEMS``."""
    left = [packed]
    size = 0
    while left and size <= MAX_ITEMS:
        each = left.pop()
        size += 1
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            left += each.values()
    return size


def _replace(mine: Any, value: Any) -> None:
    """Replace the content of a container.

    A dict that keeps its keys is updated in place, so that a loop over it can continue.
    """
    if isinstance(mine, list | bytearray) and type(mine) is type(value):
        mine[:] = value
    elif isinstance(mine, dict) and isinstance(value, dict):
        if list(mine) != list(value):
            mine.clear()
        mine.update(value) if type(mine) is dict else dict.update(mine, value)
    elif type(mine) is type(value):  # sets and deques
        mine.clear()
        getattr(mine, "extend" if hasattr(mine, "extend") else "update")(value)
