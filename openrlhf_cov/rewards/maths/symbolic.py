r"""Equality of formulas, equations and inequalities. Runs in a child process that can be killed, see ``pool``."""

import itertools
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import mpmath

from openrlhf_cov.rewards.maths.derivatives import same_derivatives
from openrlhf_cov.rewards.maths.forms import Verdict, accepts
from openrlhf_cov.rewards.maths.labels import Label, read_label
from openrlhf_cov.rewards.maths.latex import Node, Refused, parse_formula
from openrlhf_cov.rewards.maths.precision import Undecided, difference, numeric_value
from openrlhf_cov.rewards.maths.prompt import ProblemText, read_problem
from openrlhf_cov.rewards.maths.rules import breaks_form, has_idle_part, misses_request
from openrlhf_cov.rewards.maths.shapes import EQUALS, RELATION, split
from openrlhf_cov.rewards.maths.trees import MAX_NODES, FormulaKeys, literal, size
from openrlhf_cov.rewards.maths.values import (
    POINTS,
    NoValue,
    Point,
    exact_value,
    names_in,
    points,
    points_of,
    whole_names,
)

MAX_DENOMINATORS = 4
ALL_BUT_ZERO = Fraction(1, 10**40)
# Points at which two formulas with names must both have a value.
ENOUGH = 3
# Limits for a formula whose label is a decimal: long numbers come as near to any decimal as need be.
MAX_ROUNDED_SIZE = 15
MAX_ROUNDED_NUMBER = 10_000
# Constants of integration and parameters that may have other names than in the label.
MAX_RENAMED = 2
# A formula with all functions that an answer may use whose label is a decimal.
CONSTANTS_OF_DECIMALS = parse_formula(r"\sqrt{2}+\pi+e+\ln 2")
PLAIN_NAME = re.compile(r"\\?[A-Za-z]+(?:_\w+)?")
DOUBLE_SIGN = re.compile(r"[-+]\s*[-+]")


def compare_texts(answer: str, gold: str, prompt: str = "") -> bool | None:
    """Return the verdict on a bare answer; None if it does not have the form that its label asks for."""
    return accepts(answer, read_label(gold), read_problem(prompt), computed)


def computed(text: str, label: Label, problem: ProblemText) -> Verdict:
    """Compare a formula, an equation or an inequality with its label."""
    try:
        if label.kind in ("equation", "inequality"):
            return _relations_equal(text, label, problem)
        answer = _formula(text)
        gold = _label_formula(label.text)
    except (Refused, RecursionError):
        return None
    if label.kind == "decimal":
        return not breaks_form(answer, CONSTANTS_OF_DECIMALS) and _rounds_to(answer, label)
    if FormulaKeys(answer).key == FormulaKeys(gold).key and has_idle_part(answer) <= has_idle_part(gold):
        return True
    if misses_request(answer, gold, problem) or breaks_form(answer, gold) or problem.is_repeated_in(answer, gold):
        return False
    return formulas_equal(_renamed(answer, gold, problem), gold)


@lru_cache(maxsize=256)
def _formula(text: str) -> Node:
    """Parse a formula of an answer. Raises Refused for one that is too large or has two signs in a row."""
    if DOUBLE_SIGN.search(text):
        raise Refused("two signs in a row")
    node = parse_formula(text)
    if size(node) > MAX_NODES:
        raise Refused(f"more than {MAX_NODES} parts")
    return node


@lru_cache(maxsize=512)
def _label_formula(text: str) -> Node:
    return parse_formula(text)


def _renamed(answer: Node, gold: Node, problem: ProblemText) -> Node:
    """Give constants that the problem does not have the names that they have in the label."""
    own = sorted(names_in(answer) - names_in(gold))
    missing = sorted(names_in(gold) - names_in(answer))
    if not (problem.text and 0 < len(own) == len(missing) <= MAX_RENAMED):
        return answer
    if any(name.partition("_")[0] in problem.names or not PLAIN_NAME.fullmatch(name) for name in own + missing):
        return answer
    names = dict(zip(own, missing, strict=True))
    return answer.replaced(lambda name: Node("sym", name=names.get(name, name)))


def _rounds_to(answer: Node, label: Label) -> bool:
    """Return True if the value of a formula, rounded to the last digit of a decimal label, is the label."""
    if names_in(answer) or label.number is None or exact_value(answer) is not None:
        return False
    if size(answer) > MAX_ROUNDED_SIZE or any(abs(part.value) >= MAX_ROUNDED_NUMBER for part in answer.walk()):
        return False
    try:
        number = numeric_value(answer).number
    except (NoValue, Undecided):
        return False
    value, unit = (mpmath.mpf(part.numerator) / part.denominator for part in (label.number.value, label.number.unit))
    return isinstance(number, mpmath.mpf) and bool(abs(number - value) <= unit / 2)


# Equations and inequalities


def _relations_equal(text: str, label: Label, problem: ProblemText) -> Verdict:
    """Return True if one relation is the other times a constant, or for equations times denominators of the label."""
    text, own = same_derivatives(text, label.text)
    is_equation = label.kind == "equation"
    parts = [[part.strip() for part in split(side, EQUALS if is_equation else RELATION)] for side in (text, own)]
    signs = [_sign(side, part) for side, part in zip((text, own), parts, strict=True)]
    answer = [_formula(part) for part in parts[0]]
    gold = [_label_formula(part) for part in parts[1]]
    if len(answer) != 2 or len(gold) != 2 or signs[0] != signs[1] or _is_unfit_relation(answer, gold, problem):
        return False
    first, second = (Node("add", (left, Node("neg", (right,)))) for left, right in (answer, gold))
    if not names_in(first) or names_in(first) != names_in(second):
        return False
    ratio = _ratio(first, second)
    if ratio is not None:
        return is_equation or (isinstance(ratio, mpmath.mpf) and ratio > 0)
    return is_equation and bool(_denominators(second)) and _same_without_denominators(first, second)


def _sign(text: str, parts: list[str]) -> str:
    """Return ``<``, ``<=`` or ``=``. The sides of an inequality with another sign change places."""
    found = RELATION.search(text)
    if found is None:
        return "="
    sign = found[0].strip()
    if sign in (">", ">=", r"\ge"):
        parts.reverse()
    return "<" if sign in ("<", ">") else "<="


def _is_unfit_relation(answer: list[Node], gold: list[Node], problem: ProblemText) -> bool:
    """Return True if a side of an answer breaks a rule of form, or if both sides stand in the problem."""
    keys = [FormulaKeys(side).key for side in answer]
    if sorted(keys) == sorted(FormulaKeys(side).key for side in gold):
        return False
    whole = Node("list", tuple(gold))
    if any(breaks_form(side, whole, in_equation=True) for side in answer if side.args):
        return True
    return all(key in problem.forms[0] or literal(side) is not None for key, side in zip(keys, answer, strict=True))


def _ratio(a: Node, b: Node) -> mpmath.mpf | mpmath.mpc | None:
    """Return the constant by which the formulas differ as factors; None if they differ by more."""
    for point in points(a, b):
        scales = [side.replaced(lambda name, at=point: Node("num", value=at[name])) for side in (a, b)]
        if all(map(_is_not_zero, scales)):  # f / f(p) = g / g(p), without a division
            same = _same_function(Node("mul", (a, scales[1])), Node("mul", (b, scales[0])))
            return numeric_value(Node("div", tuple(scales))).number if same else None
    return None


def _same_without_denominators(a: Node, b: Node) -> bool:
    """Return True if two equations are the same but for a constant and denominators, as ``xy = 1`` and ``y = 1/x``.

    An equation holds nowhere where one of its denominators is zero. The equation without this denominator must not
    hold there either: ``x(y - 2x) = 0`` is not ``y = 2x``, and ``1/x = 0`` is not ``x = 0``.
    """
    own = [denominator for denominator in _denominators(a) if denominator not in _denominators(b)]
    others = [denominator for denominator in _denominators(b) if denominator not in _denominators(a)]
    if not 0 < len(own) + len(others) <= MAX_DENOMINATORS:
        return False
    for powers in itertools.product(range(3), repeat=len(own) + len(others)):
        left = _times(a, own, powers[: len(own)])
        right = _times(b, others, powers[len(own) :])
        if _ratio(left, right) is not None:
            places = [_near_zero_of(denominator, left, right) for denominator in own + others]
            return all(place and not (_vanishes(left, place) or _vanishes(right, place)) for place in places)
    return False


def _near_zero_of(denominator: Node, a: Node, b: Node) -> tuple[Point, Point] | None:
    """Return points near and nearer to a zero of a denominator; None if it is linear in none of its names."""
    point = next(iter(points(a, b)))
    for name in sorted(names_in(denominator)):
        low, high = (exact_value(denominator, point | {name: Fraction(x)}) for x in (0, 1))
        if _degree(denominator, name) == 1 and low is not None and high is not None and low != high:
            zero = -low / (high - low)
            return point | {name: zero + ALL_BUT_ZERO}, point | {name: zero + ALL_BUT_ZERO**2}
    return None


def _degree(node: Node, name: str) -> int:
    """Return the degree of a sum of products in a name, as it is written; 2 for any other formula with the name."""
    if name not in names_in(node):
        return 0
    degrees = [_degree(arg, name) for arg in node.args]
    if node.kind in ("neg", "add") or (node.kind == "div" and degrees[1] == 0):
        return max(degrees)
    if node.kind == "mul":
        return sum(degrees)
    return 1 if node.kind == "sym" else 2


def _vanishes(node: Node, places: tuple[Point, Point]) -> bool:
    """Return True if a value shrinks, or is unknown, where its names come nearer to a zero of a denominator."""
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
    """Return the factors with names by which a formula divides, each once."""
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


# Formulas


def formulas_equal(a: Node, b: Node) -> bool:
    """Return True if two formulas have the same value. Symmetric.

    Formulas without names are compared exactly where both are rational, and else to ``values.RESOLUTION`` bits below
    their smallest term. Formulas with names must have the same names and the same values wherever one has a value.
    """
    if names_in(a) != names_in(b):
        return False
    return _same_function(a, b) if names_in(a) else _same_constant(a, b)


def _same_constant(a: Node, b: Node) -> bool:
    exact = [exact_value(side) for side in (a, b)]
    if exact != [None, None]:  # a rational number never equals an irrational one, however near
        return exact[0] == exact[1]
    try:
        return difference(a, b).number == 0
    except (NoValue, Undecided):
        return False


def _same_function(a: Node, b: Node) -> bool:
    """Return True if two formulas agree wherever one of them has a real value.

    Complex values count, too, if ``i`` is in a formula or if real values are few. A name that only one formula takes
    for a whole number is set to whole numbers as well, so that everything that the formula equals agrees there.
    """
    with_i = any(part.kind == "i" for side in (a, b) for part in side.walk())
    verdict = _agree_at_points(a, b, points(a, b), with_i)
    if verdict is None and not with_i:
        verdict = _agree_at_points(a, b, points(a, b), complex_values=True)
    said = whole_names(a) ^ whole_names(b)
    if verdict and said:
        return _agree_at_points(a, b, points_of(sorted(names_in(a)), said), with_i) is not False
    return bool(verdict)


def _agree_at_points(a: Node, b: Node, points: Iterator[Point], complex_values: bool) -> bool | None:
    """Return False if the formulas differ at a point, and None if too few points have a value."""
    agreements = 0
    for place, point in enumerate(points):
        verdict = _agree_at(a, b, point, complex_values, is_near=place < POINTS)
        if verdict is False:
            return False
        agreements += bool(verdict)
    return True if agreements >= ENOUGH else None


def _agree_at(a: Node, b: Node, point: Point, complex_values: bool, *, is_near: bool) -> bool | None:
    """Return True if both have the same value at a point; None where neither has one that can be computed."""
    exact = exact_value(a, point), exact_value(b, point)
    if None not in exact:
        return exact[0] == exact[1]
    try:
        rest = difference(a, b, point)
        if rest.real:
            return rest.number == 0
        is_known = True
    except Undecided:  # only far away may a plain formula take too many digits; near it is made to
        rest = None
        is_known = is_near
    except NoValue:  # one side has no value here, which is wrong where the other side has one
        rest = None
        is_known = True
    if not (is_known and any(_has_value(side, point, complex_values) for side in (a, b))):
        return None
    return rest is not None and rest.number == 0


def _has_value(node: Node, point: Point, complex_values: bool) -> bool:
    try:
        return numeric_value(node, point).real or complex_values
    except (NoValue, Undecided):
        return False


def _is_not_zero(node: Node) -> bool:
    try:
        return numeric_value(node).number != 0
    except (NoValue, Undecided):
        return False
