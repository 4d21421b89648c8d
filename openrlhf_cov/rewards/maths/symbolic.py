r"""Equality of formulas, equations and inequalities. Runs in a child process that can be killed, see ``pool``."""

import itertools
import re
from collections.abc import Iterator
from functools import lru_cache

import mpmath

from openrlhf_cov.rewards.maths.grammar import Verdict, accepts
from openrlhf_cov.rewards.maths.labels import Label, read_label
from openrlhf_cov.rewards.maths.latex import MAX_NODES, FormulaKeys, Node, Refused, literal, parse_formula, size
from openrlhf_cov.rewards.maths.names import same_derivatives
from openrlhf_cov.rewards.maths.normalization import compact
from openrlhf_cov.rewards.maths.prompt import ProblemText, read_problem
from openrlhf_cov.rewards.maths.rules import (
    breaks_form,
    has_decimal_power,
    has_idle_part,
    is_rearranged,
    misses_request,
)
from openrlhf_cov.rewards.maths.shapes import EQUALS, RELATION, split
from openrlhf_cov.rewards.maths.values import (
    POINTS,
    NoValue,
    OutOfRange,
    Point,
    Undecided,
    difference,
    exact_value,
    names_in,
    numeric_value,
    points,
    rounding_points,
)

MAX_DENOMINATORS = 4
# Points at which two formulas with names must both have a value.
ENOUGH = 3
# Limits for a formula whose label is a decimal: long numbers come as near to any decimal as need be.
MAX_ROUNDED_SIZE = 15
MAX_ROUNDED_NUMBER = 10_000
# Constants of integration and parameters that may have other names than in the label.
MAX_RENAMED = 4
# A constant that may change its place with another one.
CONSTANT = re.compile(r"[A-Za-z]_\d|[A-DK]")
# A formula with all functions that an answer may use whose label is a decimal.
CONSTANTS_OF_DECIMALS = parse_formula(r"\sqrt{2}+\pi+e+\ln 2")
PLAIN_NAME = re.compile(r"\\?[A-Za-z]+(?:_\w+)?")
DOUBLE_SIGN = re.compile(r"[-+]\s*[-+]")


def compare_texts(answer: str, gold: str, prompt: str = "") -> bool | None:
    """Return the verdict on a bare answer; None if it does not have the form that its label asks for.

    Args:
        answer: The answer, without a box.
        gold: The label, whose type is read here.
        prompt: The problem; without one the rules about it do not apply.
    """
    return accepts(answer, read_label(gold), read_problem(prompt), computed)


def computed(text: str, label: Label, problem: ProblemText) -> Verdict:
    """Return the verdict on a formula, an equation or an inequality by computing it.

    Args:
        text: The answer.
        label: The label with its type.
        problem: The problem, whose own formulas are no answers.

    Returns:
        True if the answer is worked out as far as its label and equal to it, else False; None if it cannot be parsed.
    """
    try:
        if label.kind in ("equation", "inequality"):
            return _relations_equal(text, label, problem)
        answer = _formula(text)
        gold = _label_formula(label.text)
        # A family that is counted from another integer is not written as its label is.
        form = _label_formula(label.family.formula) if label.family else gold
    except (Refused, RecursionError):
        return None
    if label.kind == "decimal":
        is_repeated = problem.is_repeated_in(answer, gold) or compact(text) in problem.keys
        return not (is_repeated or breaks_form(answer, CONSTANTS_OF_DECIMALS)) and _rounds_to(answer, label)
    has_unfit_part = has_idle_part(answer) > has_idle_part(form) or has_decimal_power(answer)
    if form is gold and FormulaKeys(answer).key == FormulaKeys(gold).key and not has_unfit_part:
        return True
    value = exact_value(gold) if label.rational else None
    if value is not None and problem.has_number(value):
        return False  # the problem has the number and asks for the form of the label, as "write 1/4 as a sum" does
    if misses_request(answer, form, problem) or breaks_form(answer, form) or problem.is_repeated_in(answer, form):
        return False
    return any(formulas_equal(renamed, gold) for renamed in _renamings(answer, gold, problem))


@lru_cache(maxsize=256)
def _formula(text: str) -> Node:
    """Parse a formula of an answer. Raise Refused if it is no formula, is too large or has two signs in a row."""
    if DOUBLE_SIGN.search(text):
        raise Refused("two signs in a row")
    node = parse_formula(text)
    if size(node) > MAX_NODES:
        raise Refused(f"more than {MAX_NODES} parts")
    return node


@lru_cache(maxsize=512)
def _label_formula(text: str) -> Node:
    return parse_formula(text)


def _renamings(answer: Node, gold: Node, problem: ProblemText) -> Iterator[Node]:
    """Yield the answer with the names of the label for constants that the problem does not have, in every order."""
    own = names_in(answer)
    others = names_in(gold)
    constants = [name for name in own & others if CONSTANT.fullmatch(name)] if own == others else []
    old = sorted([*(own - others), *constants])
    new = sorted([*(others - own), *constants])
    is_free = all(name.partition("_")[0] not in problem.names and PLAIN_NAME.fullmatch(name) for name in old + new)
    if not (problem.text and is_free and 0 < len(old) == len(new) <= MAX_RENAMED):
        yield answer
        return
    for order in itertools.permutations(new):
        names = dict(zip(old, order, strict=True))
        yield answer.replaced(lambda name, names=names: Node("sym", name=names.get(name, name)))


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
    keys = [[FormulaKeys(side).key for side in sides] for sides in (answer, gold)]
    if keys[0] == keys[1] or (is_equation and keys[0] == keys[1][::-1]):
        return True
    first, second = (Node("add", (left, Node("neg", (right,)))) for left, right in (answer, gold))
    if misses_request(first, second, problem):
        return False
    if not names_in(first) or names_in(first) != names_in(second):
        return False
    ratio = _ratio(first, second)
    if ratio is not None:
        return is_equation or (isinstance(ratio, mpmath.mpf) and ratio > 0)
    return is_equation and _same_without_denominators(first, second)


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
    """Return True if a side of an answer breaks a rule of form, or if the problem has the relation."""
    keys = [FormulaKeys(side).key for side in answer]
    whole = Node("list", tuple(gold))
    if any(map(has_idle_part, answer)) and not has_idle_part(whole):
        return True
    if sorted(keys) == sorted(FormulaKeys(side).key for side in gold):
        return False
    if any(breaks_form(side, whole, in_equation=True) for side in answer if side.args):
        return True
    if any(is_rearranged(answer, gold, relation) for relation in problem.relations):
        return True
    return all(key in problem.formulas or literal(side) is not None for key, side in zip(keys, answer, strict=True))


def _ratio(a: Node, b: Node) -> mpmath.mpf | mpmath.mpc | None:
    """Return the constant by which the formulas differ as factors; None if they differ by more."""
    for point in points(a, b):
        scales = [side.replaced(lambda name, at=point: Node("num", value=at[name])) for side in (a, b)]
        if all(map(_is_not_zero, scales)):  # f / f(p) = g / g(p), without a division
            same = _same_function(Node("mul", (a, scales[1])), Node("mul", (b, scales[0])))
            return numeric_value(Node("div", tuple(scales))).number if same else None
    return None


def _same_without_denominators(answer: Node, gold: Node) -> bool:
    """Return True if an answer is the label multiplied by denominators of the label, as ``xy = 1`` for ``y = 1/x``."""
    own = [part.args[1] for part in gold.walk() if part.kind == "div" and names_in(part.args[1])]
    denominators = list(dict.fromkeys(own))[:MAX_DENOMINATORS]
    for count in range(1, len(denominators) + 1):
        for chosen in itertools.combinations(denominators, count):
            product = gold
            for denominator in chosen:
                product = Node("mul", (product, denominator))
            if _ratio(answer, product) is not None:
                return True
    return False


# Formulas


def formulas_equal(a: Node, b: Node) -> bool:
    """Return True if two formulas have the same value. Symmetric.

    Formulas without names are compared exactly where both are rational, and else to
    ``openrlhf_cov.rewards.maths.values.RESOLUTION`` bits below their smallest term. Formulas with names must have the
    same names and the same values wherever one has a value.

    Args:
        a: A parsed formula.
        b: The formula that it is compared with.
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
    """Return True if two formulas agree wherever one of them has a value: a real one, or any if ``i`` is in one."""
    complex_values = a.has("i") or b.has("i")
    agreements = 0
    for place, point in enumerate(itertools.chain(points(a, b), rounding_points(a, b))):
        verdict = _agree_at(a, b, point, complex_values, is_near=place < POINTS)
        if verdict is False:
            return False
        agreements += bool(verdict)
    return agreements >= ENOUGH


def _agree_at(a: Node, b: Node, point: Point, complex_values: bool, *, is_near: bool) -> bool | None:
    """Return True if both have the same value at a point; None where neither has one that can be computed."""
    exact = exact_value(a, point), exact_value(b, point)
    if None not in exact:
        return exact[0] == exact[1]
    is_equal = False
    try:
        rest = difference(a, b, point)
        is_equal = rest.number == 0
        if rest.real:
            return is_equal
    except Undecided:  # only far away may a plain formula take too many digits; near it is made to
        if not is_near:
            return None
    except NoValue as error:  # one side has no value here, which is wrong where the other side has one
        if isinstance(error, OutOfRange) and len(point) > 1:
            return None  # such as (m-n)! for m < n, where a problem may say that m is larger
    return is_equal if any(_has_value(side, point, complex_values) for side in (a, b)) else None


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
