r"""Rules of form for answers that are formulas: an answer is as done as its label.

Each rule is about what the answer has and its label does not have. ``breaks_form`` names them all.
"""

import math
from collections import Counter
from fractions import Fraction

import mpmath

from openrlhf_cov.rewards.maths.latex import Node
from openrlhf_cov.rewards.maths.prompt import ProblemText
from openrlhf_cov.rewards.maths.trees import FormulaKeys, factors, literal, size, terms
from openrlhf_cov.rewards.maths.values import FUNCTIONS, NoValue, Undecided, exact_root, numeric_value

GROUPS = {
    "trigonometric": "sin cos tan cot sec csc degrees",
    "inverse": "asin acos atan acot asec acsc",
    "hyperbolic": "sinh cosh tanh sech csch coth",
    "area": "asinh acosh atanh acoth",
    "log": "log",
    "exp": "e exp",
    "pi": "pi",
    "i": "i",
    "abs": "abs",
    "rounding": "floor ceil",
    "factorial": "factorial binom",
    "whole": "gcd lcm",
    "extreme": "min max",
    "sum": "sum prod",
    "calculus": "int lim",
}
FAMILY = {kind: family for family, kinds in GROUPS.items() for kind in kinds.split()}
"""Kind of a node -> the family of functions or constants to which it belongs."""
SYNONYMS = (
    ({"hyperbolic"}, {"exp"}),
    ({"exp"}, {"hyperbolic", "quotient"}),
    ({"area"}, {"log"}),
    ({"log"}, {"quotient"}),
    ({"factorial"}, {"quotient"}),
    ({"i", "exp"}, {"trigonometric"}),
    ({"i", "trigonometric"}, {"exp"}),
    ({"trigonometric"}, {"pi", "quotient"}),
    ({"inverse"}, {"pi"}),
)
"""Families that a label allows beside its own, because either writes the other."""
NUMERIC = frozenset("num decimal neg add mul div pow factorial binom abs floor ceil gcd lcm min max".split())
MAX_KERNEL = 10**6
"""Numbers below a square root whose squares are looked for."""
COMMON_DENOMINATOR = 720_720
ALL_BUT_WHOLE = 1e-30
FREE_SIZE = 40
"""Nodes that an answer may have whatever the size of its label."""


def breaks_form(answer: Node, label: Node, *, in_equation: bool = False) -> bool:
    """Return True if an answer is less done than its label, or written with other means.

    An equation may have products of sums that its label does not have, as ``(x-1)^2 = 9`` for an expanded one.
    """
    undone = arithmetic(label)
    room = 1.5 * size(label) + 3 if undone else max(FREE_SIZE, 3 * size(label))
    return (
        size(answer) > room
        or bool(families(answer) - _allowed(label))
        or (has_decimal(answer) and not has_decimal(label))
        or (not in_equation and sums_multiplied(answer) > max(1, sums_multiplied(label)))
        or bool(arithmetic(answer) - undone)
        or (has_idle_part(answer) and not has_idle_part(label))
        or _is_less_simple(answer, label)
        or 0 < _denominator_degree(label, total=True) < _denominator_degree(answer)
        or (not _has_names(answer) and _functions(answer) > _functions(label))
    )


def families(node: Node) -> set[str]:
    """Return the families of the functions and constants in a formula."""
    found = {FAMILY[part.kind] for part in node.walk() if part.kind in FAMILY}
    if any(_is_root(part) for part in node.walk()):
        found.add("root")
    if any(_divides_by_names(part) for part in node.walk()):
        found.add("quotient")
    return found


def _divides_by_names(node: Node) -> bool:
    if node.kind == "div":
        return _has_names(node.args[1])
    if node.kind != "pow" or not _has_names(node):
        return False
    return node.args[1].kind == "neg" or (literal(node.args[1]) or 0) < 0


def _functions(node: Node) -> int:
    return sum(part.kind in FUNCTIONS and part.kind != "exp" for part in node.walk())


def _allowed(label: Node) -> set[str]:
    own = families(label)
    allowed = own.union(*(others for needed, others in SYNONYMS if needed <= own))
    if _has_names(label):
        allowed.add("factorial")  # a binomial coefficient for n(n-1)/2; one of numbers is arithmetic
    return allowed


def _is_root(node: Node) -> bool:
    if node.kind == "root":
        return True
    exponent = literal(node.args[1]) if node.kind == "pow" else None
    return exponent is not None and exponent.denominator > 1


def has_decimal(node: Node) -> bool:
    """Return True if a decimal with a fractional part is in a formula."""
    return any(part.kind == "decimal" for part in node.walk())


def sums_multiplied(node: Node) -> int:
    """Return the largest number of sums that are multiplied with each other; a square of a sum counts as two."""
    found = 0
    for part in node.walk():
        if part.kind in ("mul", "div", "pow"):
            _, above, _ = factors(part)
            found = max(found, sum(map(_sum_power, above)))
    return found


def _sum_power(node: Node) -> int:
    if node.kind == "add":
        return 1
    exponent = literal(node.args[1]) if node.kind == "pow" and node.args[0].kind == "add" else None
    return int(exponent) if exponent is not None and exponent.denominator == 1 and 1 < exponent < 100 else 0


def arithmetic(node: Node) -> Counter[str]:
    r"""Count the parts of a formula that can be computed, by kind: joined numbers, terms and factors that are alike.

    ``37 \cdot 43``, ``2x + 3x``, ``\sqrt{16}``, ``\frac{2x}{x}``, ``\sqrt2\sqrt3`` and ``\log_2 8`` can. A fraction of two
    integers is a number, reduced or not, and a product may have one number above and one below its fraction bar.
    """
    return Counter(part.kind for part in node.walk() if _is_arithmetic(part))


def _is_arithmetic(node: Node) -> bool:
    if literal(node) is not None or not node.args:
        return False
    if all(literal(arg) is not None for arg in node.args) and node.kind in NUMERIC:
        return not _is_root(node) or _is_rational_root(node)
    if node.kind == "pow" and (literal(node.args[1]) or 0) > 1:
        return node.args[0].kind in ("i", "exp") or any(
            literal(part) not in (None, 1) for part in factors(node.args[0])[1]
        )  # (2n)^2
    if node.kind == "add":
        found = terms(node)
        if sum(literal(term) is not None for _, term in found) > 1:
            return True
        keys = Counter(_key_without_number(term) for _, term in found if literal(term) is None)
        return max(keys.values(), default=0) > 1
    if node.kind in ("mul", "div"):
        _, above, below = factors(node)
        is_reducible = any(_has_common_factor(top, bottom) for top in above for bottom in below)
        return _has_numbers_to_join(above, below) or _has_bases_to_join(above, below) or is_reducible
    if node.kind == "root" and all(literal(arg) is not None for arg in node.args):
        return _is_rational_root(node)
    return (node.kind in FUNCTIONS or node.kind == "root") and _is_simple_fraction(node)


def _has_numbers_to_join(above: list[Node], below: list[Node]) -> bool:
    """Return True for two numbers above or below a fraction bar, or if the one below divides the one above.

    A fraction counts on both sides, a 1 on none.
    """
    counts = [0, 0]
    joined = Fraction(1)
    for side, parts in enumerate((above, below)):
        for value in filter(None, map(literal, parts)):
            counts[side] += abs(value.numerator) != 1
            counts[1 - side] += value.denominator != 1
            joined = joined * value if side == 0 else joined / value
    return max(counts) > 1 or (min(counts) == 1 and joined.denominator == 1)


def _has_common_factor(top: Node, bottom: Node) -> bool:
    """Return True for a sum above an integer that shares a factor with all of its terms, as in ``\\frac{2x+4}{2}``."""
    divisor = literal(bottom)
    if top.kind != "add" or divisor is None:
        return False
    numbers = [[literal(part) for part in factors(term)[1] if literal(part) is not None] for _, term in terms(top)]
    coefficients = [math.prod(found, start=Fraction(1)) for found in numbers]
    if any(number.denominator > 1 for number in (divisor, *coefficients)):
        return False
    return math.gcd(*(number.numerator for number in (divisor, *coefficients))) > 1


def _has_bases_to_join(above: list[Node], below: list[Node]) -> bool:
    """Return True if a factor that is no number occurs twice, or if two factors are roots of integers.

    A product of factorials may repeat one. A factor of a sum of constants counts with the terms of the sum:
    ``i(2+3i)`` is a product to be computed.
    """
    sides = [[_base(part) for part in side if literal(part) is None] for side in (above, below)]
    keys = [{FormulaKeys(base).key for base in side} for side in sides]
    repeated = [base for side in sides for base in side if base.kind in ("sym", "add") or not _has_names(base)]
    if keys[0] & keys[1] or len(set(repeated)) < len(repeated) or sum(map(_is_root_of_integer, above)) > 1:
        return True
    roots = [[literal(part.args[0]) for part in side if _is_root_of_integer(part)] for side in (above, below)]
    if any(top % bottom == 0 for top in roots[0] for bottom in roots[1]):
        return True
    sums = [part for part in above if part.kind == "add" and not _has_names(part)]
    inside = {FormulaKeys(factor).key for part in sums for _, term in terms(part) for factor in factors(term)[1]}
    irrational = {FormulaKeys(part).key for part in above if part.kind == "i" or _is_root_of_integer(part)}
    return bool(inside & irrational)


def _base(node: Node) -> Node:
    return node.args[0] if node.kind == "pow" and literal(node.args[1]) is not None else node


def _is_root_of_integer(node: Node) -> bool:
    return node.kind == "root" and (literal(node.args[0]) or 0) > 0 and literal(node.args[0]).denominator == 1


def _key_without_number(term: Node) -> str:
    _, above, below = factors(term)
    keys = [[_kernel(part) for part in side if literal(part) is None] for side in (above, below)]
    return f"{sorted(keys[0])}/{sorted(keys[1])}"


def _kernel(node: Node) -> str:
    """Return the key of a factor; a root of an integer without the powers in it, so that root 12 is root 3."""
    base, index = map(literal, node.args) if node.kind == "root" else (None, None)
    if not base or not index or base.denominator > 1 or index not in (2, 3, 4) or not 0 < base < MAX_KERNEL:
        return FormulaKeys(node).key
    number = int(base)
    for factor in range(2, math.isqrt(number) + 1):
        while number % factor ** int(index) == 0:
            number //= factor ** int(index)
    return f"root {index} {number}"


def has_root_to_simplify(node: Node) -> bool:
    """Return True for a root of a fraction or of an integer with a power in it, or a root below a fraction bar."""
    for part in node.walk():
        if part.kind == "root" and literal(part.args[0]) is not None:
            if literal(part.args[1]) == 4 and _is_rational_root(
                Node("root", (part.args[0], Node("num", value=Fraction(2))))
            ):
                return True
            if (
                not _is_root_of_integer(part)
                or _kernel(part) != f"root {literal(part.args[1])} {literal(part.args[0])}"
            ):
                return True
        if part.kind == "div" and any(map(_is_root, factors(part)[2])):
            return True
    return False


def _is_rational_root(node: Node) -> bool:
    base, index = (literal(arg) for arg in node.args)
    if not base or not index:
        return True
    index = Fraction(index.denominator) if node.kind == "pow" else index
    try:
        exact_root(base, index)
    except NoValue:
        return False
    return True


def _is_simple_fraction(node: Node) -> bool:
    """Return True if a function without names has a rational value with a small denominator."""
    if any(part.kind == "sym" for part in node.walk()):
        return False
    try:
        scaled = numeric_value(node).number * COMMON_DENOMINATOR
    except (NoValue, Undecided):
        return False
    return bool(abs(scaled - mpmath.nint(scaled)) < ALL_BUT_WHOLE)


def has_idle_part(node: Node) -> bool:
    """Return True for a factor 1 or 0, a term 0, a power of or to 1 or 0, two signs, or an integer as a fraction."""
    for part in node.walk():
        values = [literal(arg) for arg in part.args]
        if part.kind == "mul" and any(value in (0, 1, -1) for value in values if value is not None):
            return True
        if part.kind in ("mul", "div") and literal(part) is None and all(map(_is_negative, part.args)):
            return True
        if part.kind == "add" and 0 in values:
            return True
        if part.kind == "div" and (values[1] in (1, -1) or values[0] == 0 or _is_whole(values)):
            return True
        if part.kind in ("pow", "root") and (values[1] in (0, 1) or values[0] in (0, 1)):
            return True
        if part.kind == "neg" and (_is_negative(part.args[0]) or values[0] == 0):
            return True
    return False


def _is_negative(node: Node) -> bool:
    return node.kind == "neg" or (node.kind in ("mul", "div") and _is_negative(node.args[0]))


def _is_whole(values: list[Fraction | None]) -> bool:
    top, bottom = values
    return top is not None and bool(bottom) and (top / bottom).denominator == 1


def _is_less_simple(answer: Node, label: Node) -> bool:
    r"""Return True for constants with deeper roots, or with sums below a fraction bar, to a power or to be expanded.

    The label has none of these. ``\sqrt{3+2\sqrt2}`` is less simple than ``1+\sqrt2``, as is ``\frac{1}{\sqrt2-1}``.
    """
    return _root_depth(answer) > max(1, _root_depth(label)) or (
        _has_constant_sum_inside(answer) and not _has_constant_sum_inside(label)
    )


def _denominator_degree(node: Node, *, total: bool = False) -> int:
    """Return the largest degree of a denominator in its names, or the degree of all of them together."""
    degrees = [sum(map(_degree, factors(part)[2])) for part in node.walk() if part.kind in ("div", "pow")]
    return sum(degrees) if total else max(degrees, default=0)


def _degree(node: Node) -> int:
    """Return the degree of a sum of products in all of its names, as it is written."""
    if node.kind == "sym":
        return 1
    if node.kind == "pow":
        exponent = literal(node.args[1])
        return _degree(node.args[0]) * int(exponent) if exponent and exponent.denominator == 1 and exponent > 0 else 0
    degrees = list(map(_degree, node.args))
    if node.kind == "mul":
        return sum(degrees)
    return max(degrees, default=0) if node.kind in ("add", "neg", "div") else 0


def _root_depth(node: Node) -> int:
    inner = max(map(_root_depth, node.args), default=0)
    return inner + (_is_root(node) and not _has_names(node))


def _has_constant_sum_inside(node: Node) -> bool:
    for part in node.walk():
        if part.kind == "add" and not _has_names(part) and has_term_to_expand(part):
            return True
        bottom = part.args[1] if part.kind == "div" and not _has_names(part.args[1]) else None
        if bottom and (bottom.kind == "add" or any(inner.kind == "i" for inner in bottom.walk())):
            return True
        if part.kind == "pow" and part.args[0].kind == "add" and not _has_names(part.args[0]):
            return True
        if part.kind == "pow" and part.args[0].kind != "e" and any(inner.kind == "i" for inner in part.args[0].walk()):
            return True
    return False


def has_term_to_expand(node: Node) -> bool:
    """Return True if a term of a sum is a product with a sum, as in ``2(x+1)+3``."""
    found = [term for part in node.walk() if part.kind == "add" for _, term in terms(part)]
    return any(term.kind == "mul" and any(part.kind == "add" for part in factors(term)[1]) for term in found)


def _has_names(node: Node) -> bool:
    return any(part.kind == "sym" for part in node.walk())


def misses_request(answer: Node, label: Node, problem: ProblemText) -> bool:
    """Return True if the problem asks for factors, for expanded terms or for simple roots, which only the label has."""
    if problem.asks_factors:
        if sums_multiplied(answer) < sums_multiplied(label) or (len(terms(answer)) > 1) != (len(terms(label)) > 1):
            return True
    if problem.asks_terms and has_term_to_expand(answer) and not has_term_to_expand(label):
        return True
    return problem.asks_simple_roots and has_root_to_simplify(answer) and not has_root_to_simplify(label)
