"""Values of formulas: exact ones as fractions, others by mpmath, and the points at which formulas are compared."""

import math
import operator
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath

from openrlhf_cov.rewards.maths.latex import BIG_OPERATORS, Node

MAX_EXACT_BITS = 200_000
# Bits of a number of which an exact root is looked for.
MAX_ROOT_BITS = 20_000
# Largest number of which an exact factorial is computed, and an exact binomial coefficient.
MAX_FACTORIAL = 5_000
MAX_BINOMIAL = 20_000
# A result this many bits, plus the demand, below its terms is zero: 45 digits beyond the smallest term.
RESOLUTION = 150
# Working precision for no demand. More than twice the resolution: an arc cosine loses half of the bits next to 1.
BITS = 400
FIRST_DEMAND = 64
MAX_DEMAND = 20_000
# Bits of a number that add nothing to the demand.
FREE_BITS = 64
# Largest natural logarithm of a value, and largest argument of a function, that is computed.
MAX_MAGNITUDE = 1e9
# Largest argument of a factorial between whole numbers.
MAX_GAMMA = 1e4
# Largest index of a root that is taken as one, not as a power.
MAX_ROOT = 1_000

Point = dict[str, Fraction]


class NoValue(ArithmeticError):
    """Raised if a formula has no value at a point."""


class OutOfRange(NoValue):
    """Raised at a factorial of a negative integer, or a binomial coefficient of one.

    What these stand for depends on the formula that a person has in mind, so that such a point decides nothing.
    """


def exact_value(node: Node, names: Point | None = None) -> Fraction | None:
    """Return the value of a formula as a fraction; None if it is irrational, undefined or very long.

    Args:
        node: The formula.
        names: Value of each name in the formula; None if it has no names. A formula with another name has no value.
    """
    try:
        return _exact(node, names or {})
    except (NoValue, ZeroDivisionError):
        return None


def _exact(node: Node, names: Point) -> Fraction:
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
    """Return the rational root of a number.

    Args:
        base: The number. A negative one has a root only for an odd index.
        index: Index of the root, an integer from 2 to 64.

    Raises:
        NoValue: The number has no rational root, the index is another one, or the number has more than
            ``MAX_ROOT_BITS``.
    """
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


def _of_integers(function: Callable[..., int], largest: int | None = None) -> Callable[..., Fraction]:
    def of_integers(*values: Fraction) -> Fraction:
        if any(value.denominator != 1 for value in values):
            raise NoValue("not whole")
        if largest is not None and not (min(values) >= 0 and max(values) <= largest):
            raise NoValue("too large, or negative")
        return Fraction(function(*(value.numerator for value in values)))

    return of_integers


EXACT = {
    "neg": operator.neg,
    "add": operator.add,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": _exact_power,
    "root": exact_root,
    "factorial": _of_integers(math.factorial, MAX_FACTORIAL),
    "binom": _of_integers(math.comb, MAX_BINOMIAL),
    "abs": abs,
    "floor": lambda a: Fraction(math.floor(a)),
    "ceil": lambda a: Fraction(math.ceil(a)),
    "gcd": _of_integers(math.gcd),
    "lcm": _of_integers(math.lcm),
    "min": min,
    "max": max,
}


# Numeric values


class Undecided(ArithmeticError):
    """Raised if a value takes too many digits."""


@dataclass(frozen=True)
class Value:
    """A number of mpmath, and True if every step to it was ``real``."""

    number: Any
    real: bool


def numeric_value(node: Node, names: Point | None = None) -> Value:
    """Return the value of a formula, 0 if it is below all rounding errors.

    Args:
        node: The formula.
        names: Value of each name in the formula; None if it has no names.

    Raises:
        NoValue: The formula has no value at these names, such as a division by zero.
        Undecided: The value takes too many digits.
    """
    return _settled(lambda work: work.value(node), names or {})


def difference(a: Node, b: Node, names: Point | None = None) -> Value:
    """Return the difference of two values, 0 if it is below all rounding errors.

    Args:
        a: A formula.
        b: The formula that is subtracted.
        names: Value of each name in the formulas.

    Raises:
        NoValue: A formula has no value at these names, such as a division by zero.
        Undecided: The digits that the difference needs are too many.
    """
    return _settled(lambda work: work.rest(work.value(a), -work.value(b)), names or {})


def _settled(compute: Callable[["_Evaluation"], Any], names: Point) -> Value:
    """Compute again with more bits until the demand that shows is at most the one that was computed for."""
    demand = FIRST_DEMAND
    while demand <= MAX_DEMAND:
        work = _Evaluation(names, demand)
        try:
            with mpmath.workprec(BITS + 2 * demand):
                number = compute(work)
        except NoValue:
            if work.total_demand() <= demand:
                raise
        else:
            if work.total_demand() <= demand:
                return Value(number, work.real)
        demand = work.total_demand()
    raise Undecided("too many digits")


class _Evaluation:
    r"""Computes a formula at one precision, and adds up the bits that its steps lose: the *demand*.

    A sum of ``2^{2024}`` and ``\pi`` loses 2,024 bits of the smaller term, ``\sqrt{10^{200}+1} - 10^{100}`` loses 996
    by cancellation, ``\sin(10^9)`` loses 30 by its large argument.
    """

    def __init__(self, names: Point, demand: int) -> None:
        self.names = names
        self.resolution = RESOLUTION + demand
        self.demand = 0
        self.smallest = 0
        self.vanished: list[int] = []
        self.real = True

    def total_demand(self) -> int:
        """Return the bits that were lost. A vanished sum may hide a value as small as any other one in the formula."""
        return self.demand + sum(max(0, size - self.smallest) for size in self.vanished)

    def value(self, node: Node) -> Any:
        try:
            number = self._value(node)
        except (Undecided, NoValue):
            raise
        except (ZeroDivisionError, ValueError, TypeError, ArithmeticError) as error:
            raise NoValue(str(error)) from error
        if not mpmath.isfinite(number):
            raise NoValue("not finite")
        self.real &= _is_real(number)
        self.smallest = min([self.smallest, *_magnitudes(number)])
        return number

    def _value(self, node: Node) -> Any:
        kind = node.kind
        if kind in ("num", "decimal", "sym"):
            value = self.names[node.name] if kind == "sym" else node.value
            bits = value.numerator.bit_length() + value.denominator.bit_length()
            self.demand += max(0, bits - FREE_BITS)
            return mpmath.mpf(value.numerator) / value.denominator
        if kind in CONSTANT_VALUES:
            return CONSTANT_VALUES[kind]()
        args = [self.value(arg) for arg in node.args]
        if kind == "pow":
            return self.power(args[0], args[1], node.args[1])
        if kind in FUNCTIONS:
            return self.function(kind, args[0])
        return OPERATIONS[kind](self, *args)

    def sum(self, a: Any, b: Any) -> Any:
        result = self.rest(a, b)
        if a and not result:
            self.vanished.append(max(_magnitudes(a)))
        return result

    def rest(self, a: Any, b: Any) -> Any:
        """Return a sum, 0 if nothing is left of its terms."""
        terms = [*_magnitudes(a), *_magnitudes(b)]
        if not terms:
            return mpmath.mpf(0)
        largest = max(terms)
        result = self.rounded(a + b, largest)
        self.demand += max(largest - min(terms), largest - min(_magnitudes(result), default=largest))
        return result

    def rounded(self, number: Any, size: int) -> Any:
        """Return a number without the parts, real or imaginary, that are rounding errors of terms of ``size`` bits."""
        floor = size - self.resolution
        parts = [part if _magnitude(part) > floor else mpmath.mpf(0) for part in (number.real, number.imag)]
        return mpmath.mpc(*parts) if parts[1] else parts[0]

    def product(self, number: Any) -> Any:
        return self.rounded(number, _magnitude(number)) if number else mpmath.mpf(0)

    def power(self, base: Any, exponent: Any, written: Node) -> Any:
        with mpmath.workprec(FREE_BITS):
            size = mpmath.log(abs(base)) * exponent if base else 0
        if abs(size) > MAX_MAGNITUDE:
            raise Undecided("too large")
        self.demand += max(0, _magnitude(size))
        if _is_real(base) and base < 0 and not (_is_real(exponent) and mpmath.isint(exponent)):
            fraction = exact_value(written)
            if fraction is not None and fraction.denominator % 2:  # the real root, as of a written-out odd root
                return mpmath.power(-base, exponent) * (-1) ** fraction.numerator
        return self.product(mpmath.power(base, exponent))

    def root(self, base: Any, index: Any) -> Any:
        """Return a root, the real one of a negative number if the index is odd."""
        if not (_is_real(index) and mpmath.isint(index) and 0 < index <= MAX_ROOT):
            return self.product(mpmath.power(base, 1 / index))
        if _is_real(base) and base < 0 and int(index) % 2:
            return -mpmath.root(-base, int(index))
        return self.product(mpmath.root(base, int(index)))

    def gamma(self, function: Callable, *values: Any) -> Any:
        """Compute a factorial or binomial. Fractions are allowed only in formulas with names, if they are small."""
        whole = all(map(mpmath.isint, values))
        if not all(map(_is_real, values)) or not (whole or self.names):
            raise NoValue("factorial of a fraction or of a complex number")
        if whole and values[0] < 0:
            raise OutOfRange("factorial of a negative integer")
        if any(abs(value) > (MAX_MAGNITUDE if whole else MAX_GAMMA) for value in values):
            raise Undecided("factorial of a large number")
        self.demand += 0 if whole else max(0, *map(_magnitude, values)) + 8
        return self.product(function(*values))

    def whole_part(self, function: Callable, value: Any) -> Any:
        if not _is_real(value):
            raise NoValue("complex")
        nearest = mpmath.nint(value)
        rest = self.rounded(value - nearest, max(0, _magnitude(value)))
        self.demand += max(0, _magnitude(value)) + (max(0, -_magnitude(rest)) if rest else 0)
        return function(value) if rest else nearest

    def whole(self, function: Callable, *values: Any) -> Any:
        if not all(_is_real(value) and mpmath.isint(value) and abs(value) < MAX_MAGNITUDE for value in values):
            raise NoValue("not whole")
        return mpmath.mpf(function(*(int(value) for value in values)))

    def function(self, kind: str, argument: Any) -> Any:
        """Compute a function of one argument. Large arguments and results near zero or infinity lose bits."""
        if kind != "log" and abs(argument) > MAX_MAGNITUDE:
            raise Undecided("argument too large")
        result = FUNCTIONS[kind](argument)
        # A logarithm has the error of its argument relative to the size of the argument.
        size = 0 if kind == "log" else max(0, _magnitude(argument))
        if not mpmath.isfinite(result) or (kind in WITH_POLES and _magnitude(result) > size + self.resolution):
            raise NoValue("a pole")
        self.demand += size
        if kind in NEVER_ZERO:
            return self.product(result)
        if kind in ODD and _magnitude(argument) < 0:
            result = self.rounded(result, _magnitude(result))
        else:
            result = self.rounded(result, max(size, _magnitude(result)))
        self.demand += max(map(abs, _magnitudes(result)), default=0)
        return result


def _is_real(number: Any) -> bool:
    return isinstance(number, mpmath.mpf)


def _magnitude(number: Any) -> int:
    """Return the number of bits before the point of ``number``, negative for small numbers and very negative for 0."""
    return int(mpmath.mag(number)) if number else -(1 << 60)


def _magnitudes(number: Any) -> list[int]:
    """Return the magnitudes of the real and the imaginary part that are not 0."""
    return [_magnitude(part) for part in (number.real, number.imag) if part]


def _opaque() -> Callable:
    """Return a function that stands for sums, products, integrals or limits: equal arguments give equal values.

    The weights are drawn anew in every process, so that nobody can write down a formula with this value.
    """
    a, b, c, d, e = (secrets.randbits(200) | 1 for _ in range(5))

    def of_arguments(work: _Evaluation, low: Any, high: Any, body: Any) -> Any:
        return (a * low + b * high + c * body + d * low * body + e * high * body + 1) / mpmath.mpf(2) ** 200

    return of_arguments


CONSTANT_VALUES = {"pi": lambda: +mpmath.pi, "e": lambda: +mpmath.e, "i": lambda: mpmath.mpc(0, 1)}
WITH_POLES = frozenset("tan cot sec csc".split())
# Near 0 as small as their argument, and as exact.
ODD = frozenset("sin tan asin atan asinh atanh".split())
NEVER_ZERO = frozenset("exp sinh cosh tanh sech csch coth".split())
TRIGONOMETRIC = (
    "sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh sech csch coth asinh acosh atanh acoth"
).split()
FUNCTIONS = {"log": mpmath.log, "exp": mpmath.exp, **{name: getattr(mpmath, name) for name in TRIGONOMETRIC}}
OPERATIONS = {
    **{name: _opaque() for name in sorted(BIG_OPERATORS)},
    "neg": lambda work, a: -a,
    "add": _Evaluation.sum,
    "mul": lambda work, a, b: work.product(a * b),
    "div": lambda work, a, b: work.product(a / b),
    "root": _Evaluation.root,
    "factorial": lambda work, value: work.gamma(mpmath.factorial, value),
    "binom": lambda work, n, k: work.gamma(mpmath.binomial, n, k),
    "abs": lambda work, a: abs(a),
    "floor": lambda work, a: work.whole_part(mpmath.floor, a),
    "ceil": lambda work, a: work.whole_part(mpmath.ceil, a),
    "degrees": lambda work, a: a * mpmath.pi / 180,
    "gcd": lambda work, *values: work.whole(math.gcd, *values),
    "lcm": lambda work, *values: work.whole(math.lcm, *values),
    "min": lambda work, *values: min(values),
    "max": lambda work, *values: max(values),
}


# Points

POINTS = 14
POSITIVE = 8
FAR = (150, 300, 450, 600, 10**6, 10**6, 10**12, 10**12)
WHOLE_NAMES = tuple("ijklmnpqKMN")
INTEGER_ONLY = frozenset({"gcd", "lcm"})
ROUNDED = frozenset({"floor", "ceil"})
# Numbers of points, and what is added to an integer there.
ROUNDED_AT = {1: Fraction(0), 2: Fraction(0), 3: Fraction(1, 2), 9: Fraction(0)}


def names_in(node: Node) -> frozenset[str]:
    """Return the names in a formula."""
    return frozenset(part.name for part in node.walk() if part.kind == "sym")


def points(a: Node, b: Node) -> Iterator[Point]:
    """Yield the fixed irregular points at which two formulas are compared.

    Letters such as n, and all names beside a gcd, are integers.

    Args:
        a: A formula.
        b: The formula that it is compared with. It has the same names.
    """
    names = sorted(names_in(a))
    has_divisors = any(side.has(kind) for side in (a, b) for kind in INTEGER_ONLY)
    for point in range(POINTS + len(FAR)):
        yield {
            name: _coordinate(place, len(names), point, has_divisors or name.startswith(WHOLE_NAMES))
            for place, name in enumerate(names)
        }


def rounding_points(a: Node, b: Node) -> Iterator[Point]:
    """Yield points at which all names are integers, or integers and a half, if a formula has a floor or a ceiling.

    A floor differs from a ceiling minus 1 only at integers.

    Args:
        a: A formula.
        b: The formula that it is compared with. It has the same names.
    """
    if not any(side.has(kind) for side in (a, b) for kind in ROUNDED):
        return
    names = sorted(names_in(a))
    for point, shift in ROUNDED_AT.items():
        yield {
            name: _coordinate(place, len(names), point, True) + (0 if name.startswith(WHOLE_NAMES) else shift)
            for place, name in enumerate(names)
        }


def _coordinate(place: int, count: int, point: int, whole: bool) -> Fraction:
    """Return a fixed coordinate of one of ``count`` names at a near point or, from ``POINTS`` on, at a far one.

    The first eight points are positive: four of medium size, two below 1, two larger. Then one name at a time (with
    more than six names one of six) is negative: names are lengths and the like more often than not, and where two are
    negative, ``\\sqrt{a}\\sqrt{b}`` differs from ``\\sqrt{ab}``. Every second far point is positive.
    """
    far = FAR[point - POINTS] if point >= POINTS else 0
    if whole:
        # By these factors any two names have all pairs of remainders by 2 and by 3, and any three names all remainders
        # by 2. With the low bits of ``mixed`` the sum of two names would be odd at every point.
        drawn = (place * 141_023 + point * 628_961 + 12_345) * 2_654_435_761 % 2**32 >> 24
        # The names are in ascending order or, at the last near points, in descending order, as max(m, n) needs both.
        rank = count - 1 - place if POSITIVE <= point < POINTS else place
        low = point + place if point in (1, 2) else 3 + drawn % 8 + 8 * rank
        return Fraction(low + far)
    mixed = (place * 7919 + point * 104729 + 12345) * 2654435761 % 2**32
    medium = Fraction(mixed % 99991, 37321) + Fraction(1, 3)
    small = Fraction(mixed % 99991 + 1, 100_003)
    large = 3 * medium + 1
    cycle = min(count, 6)
    negative = point >= POSITIVE and place % cycle == point % cycle and not (far and point % 2)
    size = medium + far if far else (medium, medium, medium, medium, small, small, large, large)[point % POSITIVE]
    return -size if negative else size
