"""Exact values of formulas as fractions, and points for names. Needs no mpmath, which only child processes load."""

import math
from collections.abc import Collection, Iterator
from fractions import Fraction

from openrlhf_cov.rewards.maths.latex import Node

MAX_EXACT_BITS = 200_000
# Bits of a number of which an exact root is looked for.
MAX_ROOT_BITS = 20_000


class NoValue(ArithmeticError):
    """Raised if a formula has no value at a point."""


def exact_value(node: Node, names: dict[str, Fraction] | None = None) -> Fraction | None:
    """Return the value with ``names`` set, as a fraction; None if it is irrational, undefined or very long."""
    try:
        return _exact(node, names or {})
    except (NoValue, ZeroDivisionError):
        return None


def _exact(node: Node, names: dict[str, Fraction]) -> Fraction:
    if node.kind in ("num", "decimal"):
        return node.value
    if node.name in names:
        return names[node.name]
    if node.kind not in EXACT:
        raise NoValue(node.kind)
    value = EXACT[node.kind](*(_exact(arg, names) for arg in node.args))
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_EXACT_BITS:
        raise NoValue("too long")
    return value


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise NoValue("root")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    size = abs(exponent.numerator)
    if size > 10**9 or (bits > 1 and bits * size > MAX_EXACT_BITS):
        raise NoValue("too long")
    return base**exponent.numerator


def exact_root(base: Fraction, index: Fraction) -> Fraction:
    """Return the rational root of a number. Raises NoValue if it has none, or is too long to look for one."""
    if index.denominator != 1 or not 2 <= index <= 64 or (base < 0 and index % 2 == 0):
        raise NoValue("root")
    roots = [_integer_root(abs(part), int(index)) for part in (base.numerator, base.denominator)]
    return Fraction(*roots) if base >= 0 else -Fraction(*roots)


def _integer_root(number: int, index: int) -> int:
    if number.bit_length() > MAX_ROOT_BITS:
        raise NoValue("too long")
    if number < 2:
        return number
    if index == 2:
        root = math.isqrt(number)
    else:  # Newton's method from above
        root = 1 << (number.bit_length() // index + 1)
        while (smaller := ((index - 1) * root + number // root ** (index - 1)) // index) < root:
            root = smaller
    if root**index != number:
        raise NoValue("irrational")
    return root


def _exact_factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or not 0 <= value <= 5_000:
        raise NoValue("factorial")
    return Fraction(math.factorial(value.numerator))


def _exact_binomial(n: Fraction, k: Fraction) -> Fraction:
    if n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n <= 5_000:
        raise NoValue("binomial")
    return Fraction(math.comb(n.numerator, k.numerator))


def _of_integers(function):
    def of_integers(*values: Fraction) -> Fraction:
        if any(value.denominator != 1 for value in values):
            raise NoValue("not whole")
        return Fraction(function(*(value.numerator for value in values)))

    return of_integers


EXACT = {
    "neg": lambda a: -a,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": _exact_power,
    "root": exact_root,
    "factorial": _exact_factorial,
    "binom": _exact_binomial,
    "abs": abs,
    "floor": lambda a: Fraction(a.__floor__()),
    "ceil": lambda a: Fraction(a.__ceil__()),
    "gcd": _of_integers(math.gcd),
    "lcm": _of_integers(math.lcm),
    "min": min,
    "max": max,
}


POINTS = 14
POSITIVE = 8
FAR = (150, 300, 450, 600, 10**6, 10**6, 10**12, 10**12)
WHOLE_NAMES = tuple("ijklmnpqKMN")
ROUNDING = frozenset({"floor", "ceil"})
INTEGER_ONLY = frozenset({"gcd", "lcm"})
CIRCULAR = frozenset({"sin", "cos", "tan", "exp", "pow"})

Point = dict[str, Fraction]


def names_in(node: Node) -> frozenset[str]:
    return frozenset(part.name for part in node.walk() if part.kind == "sym")


def points(a: Node, b: Node) -> Iterator[Point]:
    """Return fixed irregular points. A name is whole only if it is whole in both formulas: no side can choose."""
    return points_of(sorted(names_in(a)), whole_names(a) & whole_names(b))


def points_of(names: list[str], whole: Collection[str]) -> Iterator[Point]:
    for point in range(POINTS + len(FAR)):
        yield {name: _coordinate(place, len(names), point, name in whole) for place, name in enumerate(names)}


def whole_names(node: Node) -> set[str]:
    r"""Return the names of whole numbers: all in a gcd, and letters such as n in a rounding, (-1)^n or \cos n\pi."""
    found: set[str] = set()
    for part in node.walk():
        names = names_in(part)
        usual = {name for name in names if name.startswith(WHOLE_NAMES)}
        if part.kind in INTEGER_ONLY:
            found |= names
        elif part.kind in ROUNDING or _is_alternating(part):
            found |= usual
    return found


def _is_alternating(node: Node) -> bool:
    if node.kind not in CIRCULAR:
        return False
    base = exact_value(node.args[0]) if node.kind == "pow" else None
    return (base is not None and base < 0) or any(part.kind == "pi" for part in node.args[-1].walk())


def _coordinate(place: int, count: int, point: int, whole: bool) -> Fraction:
    """Return a fixed coordinate of one of ``count`` names at a near point or, from ``POINTS`` on, at a far one.

    The first eight points are positive: four of medium size, two below 1, two larger. Then one name at a time (with
    more than six names one of six) is negative: names are lengths and the like more often than not, and where two are
    negative, ``\\sqrt{a}\\sqrt{b}`` differs from ``\\sqrt{ab}``. Every second far point is positive.
    """
    mixed = (place * 7919 + point * 104729 + 12345) * 2654435761 % 2**32
    far = FAR[point - POINTS] if point >= POINTS else 0
    if whole:
        low = point + place if point in (1, 2) else 3 + mixed % 11 + 2 * place
        return Fraction(low + far)
    medium = Fraction(mixed % 99991, 37321) + Fraction(1, 3)
    small = Fraction(mixed % 99991 + 1, 100_003)
    large = 3 * medium + 1
    cycle = min(count, 6)
    negative = point >= POSITIVE and place % cycle == point % cycle and not (far and point % 2)
    size = medium + far if far else (medium, medium, medium, medium, small, small, large, large)[point % POSITIVE]
    return -size if negative else size
