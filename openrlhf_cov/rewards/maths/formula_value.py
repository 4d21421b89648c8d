"""Exact values of formulas, as fractions, where they are rational and not too long."""

import math
from fractions import Fraction

from openrlhf_cov.rewards.maths.latex import Node

MAX_EXACT_BITS = 200_000
MAX_ROOT_BITS = 20_000
"""Bits of a number of which an exact root is looked for."""


class NoValue(ArithmeticError):
    """The formula has no value at this point."""


def exact_value(node: Node, names: dict[str, Fraction] | None = None) -> Fraction | None:
    """The value with ``names`` set as a fraction; None if it is irrational, undefined or very long."""
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
