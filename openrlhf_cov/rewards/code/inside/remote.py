"""An object of the other side, as one side holds it: what is done to it is asked there (``peer.py``).

It equals nothing that is plain, has no order beside it, and is no number, whatever the object itself says. But an
object that a test itself makes, by calling a class, is what is tested: it ``answers`` for itself. Even such an object
is not believed if it equals, or holds, everything that it is compared with (``_is_selective``), or is both below and
above everything (``_is_everywhere``).
"""

import copy
import operator
import random
import sys
from collections.abc import Iterator
from typing import Any

# Questions to a text or a set that tests ask with the expected answer in hand: no object of a program answers.
PREDICATES = frozenset(
    name for kind in (str, bytes, set) for name in dir(kind) if name.startswith("is") or name.endswith("swith")
)
# Methods of plain data that tests call with what they expect, too; likewise.
GIVEN_EXPECTED = frozenset(
    "count index rindex rfind difference symmetric_difference intersection compare compare_total same_quantum "
    "removeprefix removesuffix strip lstrip rstrip split rsplit partition rpartition".split()
)

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
ARITHMETIC = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor")
UNARY: dict[str, Any] = {
    "abs": abs, "neg": operator.neg, "pos": operator.pos, "invert": operator.invert, "int": int, "float": float,
    "complex": complex, "index": operator.index, "round": round, "trunc": int,
}  # fmt: skip


class Remote:
    """An object of the other side."""

    def __init__(self, peer: Any, handle: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_handle", handle)
        object.__setattr__(self, "_makes", False)
        object.__setattr__(self, "_answers", False)

    def _ask(self, action: str, *operands: Any) -> Any:
        return object.__getattribute__(self, "_peer").ask(action, self, *operands)

    def __getattr__(self, name: str) -> Any:
        if name in PREDICATES and not self._answers:
            raise AttributeError(f"{name} is asked of plain values alone")
        found = self._ask("get", name)
        if name in GIVEN_EXPECTED and isinstance(found, Remote) and not (self._answers or self._makes):
            raise AttributeError(f"{name} is called of plain values alone")
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)

    def __delattr__(self, name: str) -> None:
        self._ask("delete", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = self._ask("call", args, kwargs)
        return answering(made) if self._makes else made

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
        if self._answers:
            return self._ask("contains", item) is True and self._is_selective("contains", item)
        return any(item is each or item == each for each in self)

    def _is_selective(self, name: str, other: Any) -> bool:
        """Return True if the object distinguishes what it is compared with from random values of the same kind.

        An object that equals everything, or everything small, would pass for every expected value. The questions come
        in a random order, and each one twice, so that an object does not pass that changes its answers.
        """
        near = _neighbours(other) if name in ("eq", "ne") else []  # what a container holds may be side by side
        values = [other, *near, *(_unlike(other) for _ in range(DECOYS))]
        order = [*range(len(values))] * 2
        random.SystemRandom().shuffle(order)
        equal: dict[int, bool] = {}
        for place in order:
            try:
                answer = (self._ask(name, values[place]) is True) is (name != "ne")
            except (EOFError, BrokenPipeError):
                raise
            except Exception:  # a comparison may need an object of its class, or a number that is not negative
                answer = False
            if equal.setdefault(place, answer) is not answer:
                return False
        equal_near = sum(equal[1 + number] for number in range(len(near)))
        equal_far = sum(equal.values()) - equal[0] - equal_near
        return equal[0] and 4 * equal_near <= 3 * len(near) and equal_far < DECOYS

    def _is_everywhere(self, other: Any) -> bool:
        """Return True if the object is below all values of the kind of ``other`` and above all of them, too.

        It would pass for every order that a test expects.
        """
        for kind, lowest, highest in ((bool | int, -(2**70), 2**70), (float, -1e300, 1e300), (str, "", LAST)):
            if isinstance(other, kind):
                return self._claims("lt", lowest) and self._claims("gt", highest)
        return False

    def _claims(self, name: str, other: Any) -> bool:
        try:
            return self._ask(name, other) is True
        except (EOFError, BrokenPipeError):
            raise
        except Exception:  # many classes have only one of the methods of an order
            return False

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

    def __reversed__(self) -> Any:
        return self._ask("reversed")

    def __str__(self) -> str:
        return self._ask("text")

    def __repr__(self) -> str:
        return self._ask("shown")

    def __format__(self, form: str) -> str:
        return self._ask("formatted", form)

    def __hash__(self) -> int:
        return self._ask("hash")

    def __copy__(self) -> Any:
        return self._ask("copied")

    def __deepcopy__(self, memo: Any) -> Any:
        return self._ask("deeply_copied")

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Remote) and self._ask("is_class_of", instance) is True

    def __subclasscheck__(self, kind: Any) -> bool:
        return isinstance(kind, Remote) and self._ask("is_base_of", kind) is True

    def __enter__(self) -> Any:
        return self._ask("get", "__enter__")()

    def __exit__(self, *error: Any) -> Any:
        return self._ask("leave", *error[:2])


# Random values, and values close by, that an object is compared with before it is believed to equal something. They
# are several, because an honest object, such as a number modulo another one, may equal some of them.
DECOYS = 20
NEIGHBOURS = 8
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# The last of all texts that a test may expect.
LAST = chr(sys.maxunicode) * 3


def _neighbours(value: Any) -> list[Any]:
    """Return random values that are much like ``value``; [] for kinds that have none, such as objects."""
    draw = random.SystemRandom()
    if type(value) is bool:
        return [not value]
    if type(value) in (int, float):
        # of a float far enough for a comparison that allows for rounding
        scale = 1 if type(value) is int else max(1.0, abs(value))
        return [found for shift in range(-9, 10) if (found := value + shift * scale) != value]
    if type(value) is str and value:
        places = [draw.randrange(len(value)) for _ in range(NEIGHBOURS)]
        letters = [draw.choice([each for each in LETTERS if each != value[place].lower()]) for place in places]
        return [f"{value[:place]}{letter}{value[place + 1 :]}" for place, letter in zip(places, letters, strict=True)]
    if type(value) in (list, tuple):
        for place in draw.sample(range(len(value)), len(value)):
            if found := _neighbours(value[place]):
                return [type(value)([*value[:place], each, *value[place + 1 :]]) for each in found]
    if type(value) is dict:
        for key in draw.sample([*value], len(value)):
            if found := _neighbours(value[key]):
                return [value | {key: each} for each in found]
    return []


def _unlike(value: Any) -> Any:
    """Return a random value of the kind of ``value`` that equals nothing which a test expects."""
    number = random.SystemRandom().getrandbits(60)
    if isinstance(value, bool | int):
        return number
    if isinstance(value, float):
        return number / 7.0
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)([number]) if type(value) in (list, tuple, set, frozenset) else [number]
    if isinstance(value, dict):
        return {f"{number:x}": number}
    return f"{number:x}"


def answering(value: Any) -> Any:
    """Return the same value; an object of the other side answers for itself from now on."""
    if isinstance(value, Remote):
        object.__setattr__(value, "_answers", True)
    return value


def _comparison(name: str) -> Any:
    def compare(self: Remote, other: Any) -> Any:
        if self._answers or isinstance(other, Remote):
            answer = self._ask(name, other) is True
            claims_equal = answer is (name != "ne")
            if name in ("eq", "ne") and claims_equal and not self._is_selective(name, other):
                return name == "ne"
            if name in ("lt", "le", "gt", "ge") and answer and self._is_everywhere(other):
                return False
            return answer
        if name in ("eq", "ne") and isinstance(other, list | dict | set | bytearray):
            return getattr(operator, name)(self._ask("contents"), other)
        return {"eq": False, "ne": True}.get(name, NotImplemented)

    return compare


def _arithmetic(name: str, reflected: bool) -> Any:
    def compute(self: Remote, other: Any) -> Any:
        result = self._ask(f"r{name}" if reflected else name, other)
        if self._answers:
            is_plain = not isinstance(result, Remote | bool) and not isinstance(other, Remote)
            # What differs from every value by the same number would be near every expected one.
            if name in ("sub", "xor") and is_plain:
                decoy = self._ask(f"r{name}" if reflected else name, _unlike(other))
                if decoy == result:
                    raise TypeError("what a program's object makes of a value does not depend on the value")
            return answering(result)
        if not isinstance(other, Remote) and not isinstance(result, Remote):
            raise TypeError("what a program's object makes of a plain value is no plain value")
        return result

    return compute


def _unary(name: str) -> Any:
    def compute(self: Remote, *places: Any) -> Any:
        result = self._ask(name, *places)
        if self._answers:
            return answering(result)
        if not isinstance(result, Remote):
            raise TypeError("a program's object is no number")
        return result

    return compute


for _name in COMPARISONS:
    setattr(Remote, f"__{_name}__", _comparison(_name))
for _name in ARITHMETIC:
    setattr(Remote, f"__{_name.strip('_')}__", _arithmetic(_name, False))
    setattr(Remote, f"__r{_name.strip('_')}__", _arithmetic(_name, True))
for _name in UNARY:
    setattr(Remote, f"__{_name}__", _unary(_name))


def _next(iterator: Any) -> tuple[bool, Any]:
    for value in iterator:
        return True, value
    return False, None


# Methods of these types are called with instances of classes that are derived from them.
CONTAINERS: tuple[Any, ...] = (list, dict, set, bytearray)


def _contents(value: Any) -> Any:
    """Return the items of a container of a program's own class, whatever the class says; None for other objects."""
    for kind in CONTAINERS:
        if isinstance(value, kind):
            made = kind()
            add_all = kind.extend if kind in (list, bytearray) else kind.update
            add_all(made, kind.copy(value))
            return made
    return None


def _reflected(name: str) -> Any:
    compute = getattr(operator, name)
    return lambda one, other: compute(other, one)


ACTIONS: dict[str, Any] = {
    "call": lambda target, args, kwargs: target(*args, **kwargs),
    "get": getattr,
    "set": setattr,
    "delete": delattr,
    "iterate": iter,
    "next": _next,
    "reversed": reversed,
    "length": len,
    "truth": bool,
    "contains": operator.contains,
    "contents": _contents,
    "item": operator.getitem,
    "set_item": operator.setitem,
    "delete_item": operator.delitem,
    "text": str,
    "shown": repr,
    "formatted": format,
    "hash": hash,
    "copied": copy.copy,
    "deeply_copied": copy.deepcopy,
    "leave": lambda target, kind, error: target.__exit__(kind, error, None),
    "is_class_of": lambda kind, instance: isinstance(instance, kind),
    "is_base_of": lambda kind, other: issubclass(other, kind),
    **UNARY,
    **{name: getattr(operator, name) for name in (*COMPARISONS, *ARITHMETIC)},
    **{f"r{name}": _reflected(name) for name in ARITHMETIC},
}
# What a program may do with an object of a class of the tests, beside calls of what has a public name.
READ_ONLY = frozenset("iterate next length truth item text shown hash contains".split()).union(
    COMPARISONS, ARITHMETIC, UNARY
)
