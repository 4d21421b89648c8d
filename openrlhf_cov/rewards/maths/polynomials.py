"""Common factors of two polynomials, which a fraction that is worked out does not have."""

from fractions import Fraction
from itertools import pairwise

from openrlhf_cov.rewards.maths.latex import Node, literal
from openrlhf_cov.rewards.maths.values import exact_value, names_in

# Largest degree of a polynomial, in one name, that is factored.
MAX_DEGREE = 12
# Values of the names that are not the main one. At such values only polynomials with a common factor have one.
FIRST_VALUE = Fraction(1009, 7)
NEXT_VALUE = Fraction(613, 11)


def have_common_factor(a: Node, b: Node) -> bool:
    """Return True if two polynomials have a common factor with names; False if one of them is no polynomial."""
    for name in sorted(names_in(a) & names_in(b)):
        degrees = [_degree(side, name) for side in (a, b)]
        if any(degree is None or not 0 < degree <= MAX_DEGREE for degree in degrees):
            continue
        others = sorted((names_in(a) | names_in(b)) - {name})
        values = {other: FIRST_VALUE + place * NEXT_VALUE for place, other in enumerate(others)}
        first, second = (
            _coefficients(side, name, values, degree or 0) for side, degree in zip((a, b), degrees, strict=True)
        )
        if first and second and len(_common_divisor(first, second)) > 1:
            return True
    return False


def _degree(node: Node, name: str) -> int | None:
    """Return the degree in a name, as it is written; None for anything but a polynomial."""
    if node.kind in ("num", "decimal"):
        return 0
    if node.kind == "sym":
        return int(node.name == name)
    if node.kind == "pow":
        exponent = literal(node.args[1])
        base = _degree(node.args[0], name)
        if exponent is None or base is None or exponent.denominator > 1 or not 0 <= exponent <= MAX_DEGREE:
            return None
        return base * int(exponent)
    if node.kind == "div":
        return _degree(node.args[0], name) if literal(node.args[1]) else None
    if node.kind not in ("add", "neg", "mul"):
        return None
    degrees = [_degree(arg, name) for arg in node.args]
    known = [degree for degree in degrees if degree is not None]
    if len(known) < len(degrees):
        return None
    return sum(known) if node.kind == "mul" else max(known)


def _coefficients(node: Node, name: str, values: dict[str, Fraction], degree: int) -> list[Fraction]:
    """Return the coefficients from the highest on; none if a value is too long. Newton's interpolation."""
    rows = [exact_value(node, values | {name: Fraction(place)}) for place in range(degree + 1)]
    column = [value for value in rows if value is not None]
    if len(column) < len(rows):
        return []
    differences = []
    for step in range(1, degree + 2):
        differences.append(column[0])
        column = [(right - left) / step for left, right in pairwise(column)]
    # Horner's scheme over (x - 0), (x - 1), ...
    found: list[Fraction] = []
    for place in range(degree, -1, -1):
        shifted = [*found, Fraction(0)]
        for position, coefficient in enumerate(found, start=1):
            shifted[position] -= place * coefficient
        shifted[-1] += differences[place]
        found = shifted
    return _without_zeros(found)


def _without_zeros(coefficients: list[Fraction]) -> list[Fraction]:
    while coefficients and coefficients[0] == 0:
        coefficients = coefficients[1:]
    return coefficients


def _common_divisor(a: list[Fraction], b: list[Fraction]) -> list[Fraction]:
    """Return a greatest common divisor by Euclid's algorithm."""
    while b:
        while len(a) >= len(b):
            factor = a[0] / b[0]
            a = _without_zeros(
                [left - factor * right for left, right in zip(a, [*b, *[Fraction(0)] * len(a)], strict=False)][1:]
            )
        a, b = b, a
    return a
