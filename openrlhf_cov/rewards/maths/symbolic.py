r"""Equality of answers that have to be computed. Runs in a killable child process, see ``pool``."""

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
from openrlhf_cov.rewards.maths.prompt import ProblemText, read_problem
from openrlhf_cov.rewards.maths.rules import (
    breaks_form,
    families,
    has_idle_part,
    has_root_to_simplify,
    has_term_to_expand,
    sums_multiplied,
)
from openrlhf_cov.rewards.maths.shapes import EQUALS, RELATION, split
from openrlhf_cov.rewards.maths.trees import MAX_NODES, FormulaKeys, literal, size, terms
from openrlhf_cov.rewards.maths.values import (
    POINTS,
    NoValue,
    Point,
    Undecided,
    difference,
    exact_value,
    names_in,
    numeric_value,
    points,
    points_of,
    whole_names,
)

MAX_DENOMINATORS = 4
ALL_BUT_ZERO = Fraction(1, 10**40)
FAR_APART = 1e-6
MAX_ROUGH = 1e300
ROUGH = frozenset({"root", "pi", "i", "exp", "trigonometric", "log"})
"""Families of constants whose values are quick to find."""
ENOUGH = 3
"""Points at which two formulas with names have to have a value, and the same one."""
MAX_ROUNDED_SIZE = 15
MAX_ROUNDED_NUMBER = 10_000
"""Limits for a formula whose label is a decimal."""
MAX_RENAMED = 2
"""Constants of integration and parameters that may have other names than in the label."""
CONSTANTS_OF_DECIMALS = parse_formula(r"\sqrt{2}+\pi+e+\ln 2")
"""A formula with all that an answer may use whose label is a decimal."""
PLAIN_NAME = re.compile(r"\\?[A-Za-z]+(?:_\w+)?")
DOUBLE_SIGN = re.compile(r"[-+]\s*[-+]")


def compare_texts(answer: str, gold: str, prompt: str = "") -> bool | None:
    """Return the verdict on a bare answer; None if the answer has not the form that its label asks for."""
    return accepts(answer, read_label(gold), read_problem(prompt), computed)


def computed(text: str, label: Label, problem: ProblemText) -> Verdict:
    """Compare a formula, an equation or an inequality with its label."""
    try:
        if label.kind in ("equation", "inequality"):
            return _relations_equal(text, label, problem)
        answer = _formula(text)
        gold = _label_formula(label.text)
        if label.kind == "decimal":
            return not breaks_form(answer, CONSTANTS_OF_DECIMALS) and _rounds(answer, label)
        if _differs_roughly(text, label.text):
            return False
        if FormulaKeys(answer).key == FormulaKeys(gold).key and has_idle_part(answer) <= has_idle_part(gold):
            return True
        if _is_unfit([answer], [gold], problem):
            return False
        return formulas_equal(_renamed(answer, gold, problem), gold)
    except (Refused, RecursionError):
        return None


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


def _differs_roughly(text: str, own: str) -> bool:
    """Return True for two constants that are far apart, which needs no other rule. Both values are remembered."""
    values = _rough_value(text), _rough_value(own)
    if values[0] is None or values[1] is None:
        return False
    return abs(values[0] - values[1]) > FAR_APART * max(abs(values[0]), abs(values[1]))


@lru_cache(maxsize=512)
def _rough_value(text: str) -> complex | None:
    node = parse_formula(text)
    if names_in(node) or not families(node) <= ROUGH or size(node) > MAX_NODES:
        return None
    try:
        number = numeric_value(node).number
    except (NoValue, Undecided):
        return None
    return complex(number) if abs(number) < MAX_ROUGH else None


def _is_unfit(answer: list[Node], gold: list[Node], problem: ProblemText) -> bool:
    """Return True if the sides of an answer break a rule of form, or repeat the problem."""
    if len(answer) > 1 and sorted(FormulaKeys(side).key for side in answer) == sorted(
        FormulaKeys(side).key for side in gold
    ):
        return False
    if len(answer) == 1:
        is_sum = [len(terms(side)) > 1 for side in (answer[0], gold[0])]
        if problem.asks_factors and (sums_multiplied(answer[0]) < sums_multiplied(gold[0]) or is_sum[0] != is_sum[1]):
            return True
        if problem.asks_terms and has_term_to_expand(answer[0]) and not has_term_to_expand(gold[0]):
            return True
        if problem.asks_simple_roots and has_root_to_simplify(answer[0]) and not has_root_to_simplify(gold[0]):
            return True
        return breaks_form(answer[0], gold[0]) or problem.is_repeated_in(answer[0], gold[0])
    whole = Node("list", tuple(gold))
    keys = problem.forms[0] if problem.text else frozenset()
    return any(breaks_form(side, whole, in_equation=True) for side in answer if side.args) or all(
        FormulaKeys(side).key in keys or literal(side) is not None for side in answer
    )


def _renamed(answer: Node, gold: Node, problem: ProblemText) -> Node:
    """Give constants that the problem does not have the names that they have in the label."""
    own = sorted(names_in(answer) - names_in(gold))
    missing = sorted(names_in(gold) - names_in(answer))
    known = problem.names
    if not (problem.text and 0 < len(own) == len(missing) <= MAX_RENAMED):
        return answer
    if any(name.partition("_")[0] in known or not PLAIN_NAME.fullmatch(name) for name in own + missing):
        return answer
    return _replaced(answer, dict(zip(own, missing, strict=True)))


def _replaced(node: Node, names: dict[str, str]) -> Node:
    if node.kind == "sym":
        return Node("sym", name=names.get(node.name, node.name))
    return Node(node.kind, tuple(_replaced(arg, names) for arg in node.args), node.value, node.name, node.digits)


def _rounds(answer: Node, label: Label) -> bool:
    """Return True if a decimal of six digits and more is the value of a formula, rounded to its last digit."""
    if names_in(answer) or label.number is None or exact_value(answer) is not None:
        return False
    if size(answer) > MAX_ROUNDED_SIZE or any(abs(part.value) >= MAX_ROUNDED_NUMBER for part in answer.walk()):
        return False  # long numbers come as near to any value as need be
    try:
        number = numeric_value(answer).number
    except (NoValue, Undecided):
        return False
    gold = label.number
    value = mpmath.mpf(gold.value.numerator) / gold.value.denominator
    unit = mpmath.mpf(gold.unit.numerator) / gold.unit.denominator
    return isinstance(number, mpmath.mpf) and bool(abs(number - value) <= unit / 2)


def _relations_equal(text: str, label: Label, problem: ProblemText) -> Verdict:
    """Return True for equations or inequalities that are the same up to a constant, or a denominator of the label."""
    text, own = same_derivatives(text, label.text)
    separator = EQUALS if label.kind == "equation" else RELATION
    parts = [[part.strip() for part in split(side, separator)] for side in (text, own)]
    signs = (
        ["=", "="]
        if label.kind == "equation"
        else [_sign(side, part) for side, part in zip((text, own), parts, strict=True)]
    )
    answer = [_formula(part) for part in parts[0]]
    gold = [_label_formula(part) for part in parts[1]]
    if len(answer) != 2 or len(gold) != 2 or signs[0] != signs[1] or _is_unfit(answer, gold, problem):
        return False
    first, second = (Node("add", (left, Node("neg", (right,)))) for left, right in (answer, gold))
    if not names_in(first) or names_in(first) != names_in(second):
        return False
    ratio = _ratio(first, second)
    if ratio is not None:
        return label.kind == "equation" or (isinstance(ratio, mpmath.mpf) and ratio > 0)
    return label.kind == "equation" and bool(_denominators(second)) and _same_without_denominators(first, second)


def _sign(text: str, parts: list[str]) -> str:
    """Return ``<`` or ``<=``; the sides of an inequality with another sign change places."""
    found = RELATION.search(text)
    sign = found[0].strip() if found else ""
    if sign in (">", ">=", r"\ge"):
        parts.reverse()
    return "<" if sign in ("<", ">") else "<="


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
    """Return True if two formulas have the same value. Symmetric.

    Formulas without names: exactly where both are rational, else to ``precision.RESOLUTION`` bits below their smallest
    term. Formulas with names: the same names, and the same values wherever one of them has one.
    """
    if names_in(a) != names_in(b):
        return False
    return _same_function(a, b) if names_in(a) else _same_constant(a, b)


def _same_constant(a: Node, b: Node) -> bool:
    exact = [exact_value(side) for side in (a, b)]
    if exact != [None, None]:  # a rational number never equals one that is not, however near
        return exact[0] == exact[1]
    try:
        return difference(a, b).number == 0
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
    """Return True if both have the same value at a point; None where neither has one that can be computed."""
    exact = exact_value(a, point), exact_value(b, point)
    if None not in exact:
        return exact[0] == exact[1]
    try:
        rest = difference(a, b, point)
        if not rest.real and not any(_has_value(side, point, complex_values) for side in (a, b)):
            return None
        return rest.number == 0
    except Undecided:  # nobody may choose where: that is no value; far away even plain formulas may be too long
        return False if near and any(_has_value(side, point, complex_values) for side in (a, b)) else None
    except NoValue:  # of one of them: it is wrong where the other one has a value
        return False if any(_has_value(side, point, complex_values) for side in (a, b)) else None


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
