r"""Numeric values of formulas, to as many digits as it takes to distinguish them from zero.

How many bits a formula needs follows from its values. A sum of ``2^{2024}`` and ``\pi`` loses 2,024 bits of the
smaller term, ``\sqrt{10^{200}+1} - 10^{100}`` loses 996 by cancellation, ``\sin(10^9)`` loses 30 by its large
argument. The sum of these losses over all steps is the *demand*. A value is computed again with more bits until the
demand that it shows is the one that it was computed for. Then a value below all rounding errors is zero.
"""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import mpmath

from openrlhf_cov.rewards.maths.latex import BIG_OPERATORS, Node
from openrlhf_cov.rewards.maths.values import NoValue, exact_value

# A result this many bits, plus the demand, below its terms is zero: 45 digits beyond the smallest term.
RESOLUTION = 150
# Working precision for no demand. More than twice the resolution: an arc cosine loses half of the bits next to 1.
BITS = 400
FIRST_DEMAND = 64
MAX_DEMAND = 20_000
# Largest natural logarithm of a value, and largest argument of a function, that is computed.
MAX_MAGNITUDE = 1e9
# Largest argument of a factorial between whole numbers.
MAX_GAMMA = 1e4
# Largest index of a root that is taken as one, not as a power.
MAX_ROOT = 1_000

Real = mpmath.mpf
Number = mpmath.mpf | mpmath.mpc


class Undecided(ArithmeticError):
    """Raised if a value takes too many digits or too much time."""


@dataclass(frozen=True)
class Value:
    """A number, and whether every step to it was ``real``."""

    number: Number
    real: bool


def numeric_value(node: Node, names: dict[str, Fraction] | None = None) -> Value:
    """Return the value with ``names`` set, 0 if it is below all rounding errors. Raises NoValue and Undecided."""
    return _settled(lambda work: work.value(node), names or {})


def difference(a: Node, b: Node, names: dict[str, Fraction] | None = None) -> Value:
    """Return the difference of two values, 0 if it is below all rounding errors. Raises NoValue and Undecided."""
    return _settled(lambda work: work.rest(work.value(a), -work.value(b)), names or {})


def _settled(compute: Callable[["_Evaluation"], Number], names: dict[str, Fraction]) -> Value:
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
    """Computes a formula at one precision, and adds up the bits that are lost."""

    def __init__(self, names: dict[str, Fraction], demand: int) -> None:
        self.names = names
        self.resolution = RESOLUTION + demand
        self.demand = self.smallest = 0
        self.vanished: list[int] = []
        self.real = True

    def total_demand(self) -> int:
        """Return the bits that were lost. A vanished sum may hide a value as small as any other one in the formula."""
        return self.demand + sum(max(0, size - self.smallest) for size in self.vanished)

    def value(self, node: Node) -> Number:
        try:
            number = self._value(node)
        except (Undecided, NoValue):
            raise
        except (ZeroDivisionError, ValueError, TypeError, ArithmeticError) as error:
            raise NoValue(str(error)) from error
        if not mpmath.isfinite(number):
            raise NoValue("not finite")
        self.real &= isinstance(number, Real)
        self.smallest = min([self.smallest, *_magnitudes(number)])
        return number

    def _value(self, node: Node) -> Number:
        kind = node.kind
        if kind in ("num", "decimal"):
            return self.literal(node.value)
        if kind == "sym":
            return self.literal(self.names[node.name])
        if kind in LEAVES:
            return LEAVES[kind]()
        args = [self.value(arg) for arg in node.args]
        if kind == "add":
            return self.sum(*args)
        if kind in SUPPORTED:
            return SUPPORTED[kind](self, *args)
        if kind == "pow":
            return self.power(*args, node.args[1])
        return self.function(kind, args)

    def literal(self, value: Fraction) -> Real:
        bits = value.numerator.bit_length() + value.denominator.bit_length()
        self.demand += max(0, bits - FIRST_DEMAND)
        return mpmath.mpf(value.numerator) / value.denominator

    def sum(self, a: Number, b: Number) -> Number:
        result = self.rest(a, b)
        if a and not result:
            self.vanished.append(max(_magnitudes(a)))
        return result

    def rest(self, a: Number, b: Number) -> Number:
        """Return a sum, 0 if nothing is left of its terms."""
        terms = [*_magnitudes(a), *_magnitudes(b)]
        if not terms:
            return mpmath.mpf(0)
        result = self.rounded(a + b, max(terms))
        self.demand += max(max(terms) - min(terms), max(terms) - min(_magnitudes(result), default=max(terms)))
        return result

    def rounded(self, number: Number, size: int) -> Number:
        """Return a number without the parts, real or imaginary, that are rounding errors of terms of ``size`` bits."""
        floor = size - self.resolution
        if isinstance(number, mpmath.mpc):
            real, imaginary = (
                part if _magnitude(part) > floor else mpmath.mpf(0) for part in (number.real, number.imag)
            )
            return mpmath.mpc(real, imaginary) if imaginary else real
        return number if _magnitude(number) > floor else mpmath.mpf(0)

    def product(self, number: Number) -> Number:
        return self.rounded(number, _magnitude(number)) if number else mpmath.mpf(0)

    def power(self, base: Number, exponent: Number, written: Node) -> Number:
        with mpmath.workprec(FIRST_DEMAND):
            size = mpmath.log(abs(base)) * exponent if base else 0
        if abs(size) > MAX_MAGNITUDE:
            raise Undecided("too large")
        self.demand += max(0, _magnitude(size))
        if isinstance(base, Real) and base < 0 and not (isinstance(exponent, Real) and mpmath.isint(exponent)):
            fraction = exact_value(written)
            if fraction is not None and fraction.denominator % 2:  # the real root, as of a written-out odd root
                return mpmath.power(-base, exponent) * (-1) ** fraction.numerator
        return self.product(mpmath.power(base, exponent))

    def root(self, base: Number, index: Number) -> Number:
        """Return a root, the real one of a negative number if the index is odd."""
        if not (isinstance(index, Real) and mpmath.isint(index) and 0 < index <= MAX_ROOT):
            return self.product(mpmath.power(base, 1 / index))
        if isinstance(base, Real) and base < 0 and int(index) % 2:
            return -mpmath.root(-base, int(index))
        return self.product(mpmath.root(base, int(index)))

    def gamma(self, function, *values: Number) -> Number:
        """Compute a factorial or binomial. Fractions are allowed only in formulas with names, if they are small."""
        if not all(isinstance(value, Real) for value in values):
            raise NoValue("factorial of a complex number")
        whole = all(map(mpmath.isint, values))
        if not whole and not self.names:
            raise NoValue("factorial of a fraction")
        if any(abs(value) > (MAX_MAGNITUDE if whole else MAX_GAMMA) for value in values):
            raise Undecided("factorial of a large number")
        self.demand += 0 if whole else max(0, *map(_magnitude, values)) + 8
        return self.product(function(*values))

    def whole_part(self, value: Number, up: bool) -> Number:
        if not isinstance(value, Real):
            raise NoValue("complex")
        nearest = mpmath.nint(value)
        rest = self.rounded(value - nearest, max(0, _magnitude(value)))
        self.demand += max(0, _magnitude(value)) + (max(0, -_magnitude(rest)) if rest else 0)
        return nearest if not rest else (mpmath.ceil(value) if up else mpmath.floor(value))

    def whole(self, function, *values: Number) -> Number:
        if not all(isinstance(value, Real) and mpmath.isint(value) and abs(value) < MAX_MAGNITUDE for value in values):
            raise NoValue("not whole")
        return mpmath.mpf(function(*(int(value) for value in values)))

    def extreme(self, function, *values: Number) -> Number:
        if not all(isinstance(value, Real) for value in values):
            raise NoValue("complex")
        return function(values)

    def function(self, kind: str, args: list[Number]) -> Number:
        """Compute a function of one argument. Large arguments and results near zero or infinity lose bits."""
        (argument,) = args
        size = _magnitude(argument) if kind in ODD else max(0, _magnitude(argument))
        if kind == "log":  # however large what it is of, it has the error of that relative to its size
            size = 0
        if kind != "log" and abs(argument) > MAX_MAGNITUDE:
            raise Undecided("argument too large")
        result = FUNCTIONS[kind](argument)
        if not mpmath.isfinite(result) or (kind in WITH_POLES and _magnitude(result) > size + self.resolution):
            raise NoValue("a pole")
        if kind in STEEP:
            self.demand += max(0, size)
            return self.product(result)
        result = self.rounded(result, max(size, _magnitude(result)))
        self.demand += (abs(size) if argument else 0) + max(map(abs, _magnitudes(result)), default=0)
        return result


def _magnitude(number: Number) -> int:
    """Return the number of bits before the point of ``number``, negative for small numbers and very negative for 0."""
    return int(mpmath.mag(number)) if number else -(1 << 60)


def _magnitudes(number: Number) -> list[int]:
    """Return the magnitudes of the real and the imaginary part that are not 0."""
    parts = (number.real, number.imag) if isinstance(number, mpmath.mpc) else (number,)
    return [_magnitude(part) for part in parts if part]


LEAVES = {"pi": lambda: +mpmath.pi, "e": lambda: +mpmath.e, "i": lambda: mpmath.mpc(0, 1)}

TRIGONOMETRIC = (
    "sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh sech csch coth asinh acosh atanh acoth"
).split()

# Near 0 as small as their argument, and as exact.
ODD = frozenset("sin tan asin atan asinh atanh".split())
WITH_POLES = frozenset("tan cot sec csc".split())
STEEP = frozenset("exp sinh cosh tanh sech csch coth".split())

FUNCTIONS = {"log": mpmath.log, "exp": mpmath.exp, **{name: getattr(mpmath, name) for name in TRIGONOMETRIC}}


def _opaque():
    """Return a function that stands for sums, products, integrals or limits: equal arguments give equal values.

    The weights are drawn anew in every process, so that nobody can write down a formula with this value.
    """
    a, b, c, d, e = (secrets.randbits(200) | 1 for _ in range(5))

    def of_arguments(_, low, high, body):
        return (a * low + b * high + c * body + d * low * body + e * high * body + 1) / mpmath.mpf(2) ** 200

    return of_arguments


SUPPORTED = {
    **{name: _opaque() for name in sorted(BIG_OPERATORS)},
    "neg": lambda self, a: -a,
    "mul": lambda self, a, b: self.product(a * b),
    "div": lambda self, a, b: self.product(a / b),
    "root": _Evaluation.root,
    "factorial": lambda self, value: self.gamma(mpmath.factorial, value),
    "binom": lambda self, n, k: self.gamma(mpmath.binomial, n, k),
    "abs": lambda self, a: abs(a),
    "floor": lambda self, a: self.whole_part(a, up=False),
    "ceil": lambda self, a: self.whole_part(a, up=True),
    "degrees": lambda self, a: a * mpmath.pi / 180,
    "gcd": lambda self, *values: self.whole(math.gcd, *values),
    "lcm": lambda self, *values: self.whole(math.lcm, *values),
    "min": lambda self, *values: self.extreme(min, *values),
    "max": lambda self, *values: self.extreme(max, *values),
}
