r"""Equality of answers that have to be computed. Runs in a killable child process, see ``pool``."""

import itertools
from collections.abc import Iterator
from fractions import Fraction

import mpmath

from openrlhf_cov.rewards.maths.comparison import Rules, compare, exact_scalars, exact_steps
from openrlhf_cov.rewards.maths.formula_value import NoValue, exact_value
from openrlhf_cov.rewards.maths.latex import Node, node_of, parse_formula
from openrlhf_cov.rewards.maths.numerals import SIGNIFICANT_DIGITS, Number, numbers_equal, rounds_to
from openrlhf_cov.rewards.maths.points import POINTS, Point, names_in, points, points_of, whole_names
from openrlhf_cov.rewards.maths.precision import Undecided, Value, difference, numeric_value
from openrlhf_cov.rewards.maths.shapes import Equation, Scalar
from openrlhf_cov.rewards.maths.structure import parse_clean
from openrlhf_cov.rewards.maths.tokens import Refused
from openrlhf_cov.rewards.maths.undone import has_decimal, is_left_to_do, is_literal, is_undone

ROUNDED_DIGITS, MAX_ROUNDED = 60, 10**40
"""Decimal places that a rounding is compared with, and the largest value that is."""

MAX_DENOMINATORS = 4
ALL_BUT_ZERO = Fraction(1, 10**40)
MAX_INTEGER = 10**SIGNIFICANT_DIGITS
ENOUGH = 3
"""Points at which two formulas with names have to have a value, and the same one."""
WIDEST = 20
"""Bits between the terms of a sum beyond which six digits say nothing of the smaller one."""


def compare_texts(answer: str, gold: str) -> bool | None:
    """Whether two clean answers are equal; None if a formula that decides it cannot be read. Symmetric."""
    return compare(parse_clean(answer), parse_clean(gold), COMPUTED)


def scalars_equal(a: Scalar, b: Scalar) -> bool | None:
    """The verdict of ``exact_scalars`` or, where it has none, that on the two formulas."""
    verdict = exact_scalars(a, b)
    if verdict is not None:
        return verdict
    try:
        left, right = _formula(a), _formula(b)
    except Refused:
        return None
    if formulas_equal(left, right):
        return True
    return a.percent != b.percent and formulas_equal(_fraction_of(a), _fraction_of(b))


def steps_agree(a: Scalar, b: Scalar) -> bool | None:
    """Whether a side of a chain leads to another: the same value, however it is written, or rounded in the second."""
    verdict = exact_steps(a, b)
    if verdict is not None:
        return verdict
    try:
        left, right = (_fraction_of(side) for side in (a, b))
    except Refused:
        return None
    if names_in(left) != names_in(right):
        return False
    if names_in(left):
        return _same_function(left, right)
    if None not in (exact_value(left), exact_value(right)):
        return exact_value(left) == exact_value(right) or rounds_to(
            exact_value(left) * (100 if b.percent else 1), b.text
        )
    try:
        if difference(left, right).number == 0:
            return True
        value = numeric_value(left).number
    except (NoValue, Undecided):
        return False
    if not isinstance(value, mpmath.mpf) or abs(value) > MAX_ROUNDED:
        return False
    with mpmath.workdps(2 * ROUNDED_DIGITS):
        digits = Fraction(int(mpmath.floor(value * mpmath.mpf(10) ** ROUNDED_DIGITS)), 10**ROUNDED_DIGITS)
    return rounds_to(digits * (100 if b.percent else 1), b.text)


def _fraction_of(scalar: Scalar) -> Node:
    node = _formula(scalar)
    return Node("div", (node, Node("num", value=Fraction(100)))) if scalar.percent else node


def _formula(scalar: Scalar) -> Node:
    return parse_formula(scalar.text) if scalar.number is None else node_of(scalar.number)


def equations_equal(a: Equation, b: Equation) -> bool | None:
    """Whether two equations or inequalities are the same up to a constant, or a denominator; None: unreadable."""
    try:
        sides = [[parse_formula(text) for text in (e.left, e.right)] for e in (a, b)]
    except Refused:
        return None
    first, second = (Node("add", (left, Node("neg", (right,)))) for left, right in sides)
    if not names_in(first) or names_in(first) != names_in(second):
        return False
    if any(map(_is_undone_side, sides[0])) != any(map(_is_undone_side, sides[1])):
        return False
    ratio = _ratio(first, second)
    if ratio is None:
        return a.sign == "=" and _same_without_denominators(first, second)
    return a.sign == "=" or (isinstance(ratio, mpmath.mpf) and ratio > 0)


def _is_undone_side(side: Node) -> bool:
    return is_left_to_do(side) or (exact_value(side) is not None and not is_literal(side) and is_undone(side))


def _ratio(a: Node, b: Node) -> mpmath.mpf | mpmath.mpc | None:
    """The constant that one formula is of the other; None if it is none."""
    for point in points(a, b):
        scales = [_at(side, point) for side in (a, b)]
        if all(map(_is_not_zero, scales)):  # f / f(p) = g / g(p), without a division
            same = _same_function(Node("mul", (a, scales[1])), Node("mul", (b, scales[0])))
            return numeric_value(Node("div", tuple(scales))).number if same else None
    return None


def _same_without_denominators(a: Node, b: Node) -> bool:
    """Whether one formula is the other times a constant and denominators that it has, as in xy = 1 and y = 1/x.

    Where a denominator is zero its own equation holds nowhere, and what it leads to must not hold there either:
    x(y - 2x) = 0 is not the same as y = 2x, nor 1/x = 0 as x = 0, nor 1 + 0/(y - 2x) = 0 as y = 2x.
    """
    own = [denominator for denominator in _denominators(a) if denominator not in _denominators(b)]
    others = [denominator for denominator in _denominators(b) if denominator not in _denominators(a)]
    if not 0 < len(own) + len(others) <= MAX_DENOMINATORS:
        return False
    for powers in itertools.product(range(3), repeat=len(own) + len(others)):
        left, right = _times(a, own, powers[: len(own)]), _times(b, others, powers[len(own) :])
        if _ratio(left, right) is not None:
            places = [_near_zero_of(denominator, left, right) for denominator in own + others]
            return all(place and not (_vanishes(left, place) or _vanishes(right, place)) for place in places)
    return False


def _near_zero_of(denominator: Node, a: Node, b: Node) -> tuple[Point, Point] | None:
    """Points near and nearer to where a denominator, linear in one of its names, is zero; None if it is in none."""
    point = next(iter(points(a, b)))
    for name in sorted(names_in(denominator)):
        low, high = (exact_value(denominator, point | {name: Fraction(x)}) for x in (0, 1))
        if _degree(denominator, name) == 1 and None not in (low, high) and low != high:
            zero = -low / (high - low)
            return point | {name: zero + ALL_BUT_ZERO}, point | {name: zero + ALL_BUT_ZERO**2}
    return None


def _degree(node: Node, name: str) -> int:
    """The degree of a sum of products in a name, as it is written; 2 for what is none."""
    if name not in names_in(node):
        return 0
    degrees = [_degree(arg, name) for arg in node.args]
    if node.kind in ("neg", "add") or (node.kind == "div" and degrees[1] == 0):
        return max(degrees)
    return 1 if node.kind == "sym" else sum(degrees) if node.kind == "mul" else 2


def _vanishes(node: Node, places: tuple[Point, Point]) -> bool:
    """Whether it shrinks, or is unknown, where it comes nearer to a zero of a denominator."""
    try:
        near, nearer = (abs(numeric_value(node, place).number) for place in places)
        return nearer <= near / 2
    except (NoValue, Undecided):
        return True


def _times(node: Node, factors: list[Node], powers: tuple[int, ...]) -> Node:
    for factor, power in zip(factors, powers, strict=True):
        for _ in range(power):
            node = Node("mul", (node, factor))
    return node


def _denominators(node: Node) -> list[Node]:
    """The factors that the formula divides by, as far as they have names; each once."""
    found = [part.args[1] for part in node.walk() if part.kind == "div" and names_in(part.args[1])]
    return list(dict.fromkeys(factor for part in found for factor in _factors(part)))


def _factors(node: Node) -> Iterator[Node]:
    if node.kind == "neg" or (node.kind == "pow" and exact_value(node.args[1]) is not None):
        yield from _factors(node.args[0])
    elif node.kind == "mul":
        for arg in node.args:
            yield from _factors(arg)
    elif names_in(node):
        yield node


def formulas_equal(a: Node, b: Node) -> bool:
    """Whether two formulas have the same value. Symmetric.

    Formulas without names: exactly where both are rational, else to ``precision.RESOLUTION`` bits below their smallest
    term, or to 6 significant digits where a decimal takes part. A computation left undone does not equal the plain
    number it leads to. Formulas with names: the same names, and the same values wherever one of them has one.
    """
    if names_in(a) != names_in(b):
        return False
    if is_left_to_do(a) != is_left_to_do(b):
        return False
    return _same_function(a, b) if names_in(a) else _same_constant(a, b)


def _same_constant(a: Node, b: Node) -> bool:
    sides = (a, b)
    literal = [is_literal(side) for side in sides]
    if literal.count(True) == 1 and is_undone(sides[literal.index(False)]):
        return False
    exact = [exact_value(side) for side in sides]
    if None not in exact:
        return numbers_equal(*(Number(v, not has_decimal(side)) for v, side in zip(exact, sides, strict=True)))
    if any(value is not None and not has_decimal(side) for value, side in zip(exact, sides, strict=True)):
        return False  # a rational number never equals one that is not, however near
    try:
        same = difference(a, b).number == 0
        if same or not any(map(has_decimal, sides)):
            return same and exact == [None, None]  # else a computation that happens to be rational
        values = numeric_value(a), numeric_value(b)
        return _may_round(a, b) and _agree(*values) and _spread(*values) <= WIDEST
    except (NoValue, Undecided):
        return False


def _same_function(a: Node, b: Node) -> bool:
    """Equality wherever one side has a real value; wherever one has any, if ``i`` is in them or real ones are few.

    Where only one side says that a name is whole, they agree for whole numbers, too: so all that it equals do.
    """
    with_i = any(part.kind == "i" for side in (a, b) for part in side.walk())
    verdict = _agree_at_points(a, b, points(a, b), with_i)
    if verdict is None and not with_i:
        verdict = _agree_at_points(a, b, points(a, b), complex_values=True)
    said = whole_names(a) ^ whole_names(b)
    return bool(verdict) and not (
        said and _agree_at_points(a, b, points_of(sorted(names_in(a)), said), with_i) is False
    )


def _agree_at_points(a: Node, b: Node, points: Iterator[Point], complex_values: bool) -> bool | None:
    """False for a point at which they differ; True without one, if there are enough with values; else None."""
    agreements = 0
    for place, point in enumerate(points):
        verdict = _agree_at(a, b, point, complex_values, place < POINTS)
        if verdict is False:
            return False
        agreements += bool(verdict)
    return True if agreements >= ENOUGH else None


def _agree_at(a: Node, b: Node, point: Point, complex_values: bool, near: bool) -> bool | None:
    """Whether both have the same value at a point; None where neither has one, or none that can be computed."""
    decimal = _may_round(a, b)
    exact = exact_value(a, point), exact_value(b, point)
    if None not in exact and (not decimal or not numbers_equal(*(Number(value, exact=False) for value in exact))):
        return exact[0] == exact[1]
    try:
        rest = difference(a, b, point)
        if not rest.real and not any(_has_value(side, point, complex_values) for side in (a, b)):
            return None
        if rest.number == 0 or not decimal:
            return rest.number == 0
        values = numeric_value(a, point), numeric_value(b, point)
        return (None not in exact or _agree(*values)) and (not near or _spread(*values) <= WIDEST)
    except Undecided:  # nobody may choose where: that is no value; far away even plain formulas may be too long
        return False if near and any(_has_value(side, point, complex_values) for side in (a, b)) else None
    except NoValue:  # of one of them: it is wrong where the other one has a value
        return False if any(_has_value(side, point, complex_values) for side in (a, b)) else None


def _may_round(a: Node, b: Node) -> bool:
    """Whether the numbers of one formula may round those of the other: decimals, one with 6 digits or more.

    The other has none, no number with more digits, from which a value as near as need be can be made, and is not all
    of integers: these are exact.
    """
    if has_decimal(a) == has_decimal(b):
        return False
    rounded, other = (a, b) if has_decimal(a) else (b, a)
    return max(part.digits for part in rounded.walk()) >= SIGNIFICANT_DIGITS and not (
        _is_whole(other) or any(abs(part.value) >= MAX_INTEGER for part in other.walk())
    )


def _is_whole(node: Node) -> bool:
    """Whether all of a formula that has no names in it is an integer."""
    if not names_in(node):
        value = exact_value(node)
        return value is not None and value.denominator == 1
    return not (node.kind == "div" and not names_in(node.args[1])) and all(map(_is_whole, node.args))


def _has_value(node: Node, point: Point, complex_values: bool) -> bool:
    try:
        return numeric_value(node, point).real or complex_values
    except (NoValue, Undecided):
        return False


def _at(node: Node, point: Point) -> Node:
    """The formula with numbers for its names."""
    if node.kind == "sym":
        return Node("num", value=point[node.name])
    return Node(node.kind, tuple(_at(arg, point) for arg in node.args), node.value, node.name, node.digits)


def _is_not_zero(node: Node) -> bool:
    try:
        return numeric_value(node).number != 0
    except (NoValue, Undecided):
        return False


def _spread(x: Value, y: Value) -> int:
    return max(x.spread, y.spread)


def _agree(x: Value, y: Value) -> bool:
    """Agreement to 6 significant digits, as ``numbers_equal`` has it."""
    size = max(abs(x.number), abs(y.number))
    if size == 0:
        return True
    unit = mpmath.mpf(10) ** (mpmath.floor(mpmath.log10(size)) - 5)
    return abs(x.number - y.number) <= max(size / 10**6, unit / 2)


COMPUTED = Rules(scalars_equal, equations_equal, steps_agree)
"""The rules with all that can be computed."""
