r"""Rules of form for answers that are formulas.

A formula is an answer only if it is worked out as far as its label is, and uses no functions that the label does not
use. So ``4\sin 60^\circ`` and ``\sqrt{3^2+3}`` are no answers to the label ``2\sqrt3``. Every rule compares the answer
with the label: what the label itself has is allowed. ``breaks_form`` lists the rules.
"""

import math
from collections import Counter
from fractions import Fraction

from openrlhf_cov.rewards.maths.latex import FormulaKeys, Node, factors, literal, terms
from openrlhf_cov.rewards.maths.prompt import FACTORS, SIMPLE_ROOTS, TERMS, ProblemText

# Family of functions or constants -> kinds of nodes.
FAMILIES = {
    "trigonometric": "sin cos tan cot sec csc degrees", "inverse": "asin acos atan acot asec acsc",
    "hyperbolic": "sinh cosh tanh sech csch coth", "area": "asinh acosh atanh acoth", "log": "log", "exp": "e exp",
    "pi": "pi", "i": "i", "abs": "abs", "rounding": "floor ceil", "factorial": "factorial binom", "whole": "gcd lcm",
    "extreme": "min max", "sum": "sum prod", "calculus": "int lim",
}  # fmt: skip
FAMILY = {kind: family for family, kinds in FAMILIES.items() for kind in kinds.split()}
# Families of a label -> families that its answers may use as well, because either can be written with the other.
SYNONYMS = (
    ({"hyperbolic"}, {"exp"}), ({"exp"}, {"hyperbolic", "quotient"}), ({"area"}, {"log"}), ({"log"}, {"quotient"}),
    ({"factorial"}, {"quotient"}), ({"i", "exp"}, {"trigonometric"}), ({"i", "trigonometric"}, {"exp"}),
    ({"trigonometric"}, {"pi", "quotient"}), ({"inverse"}, {"pi"}),
)  # fmt: skip
COMPUTABLE = frozenset("num decimal neg add mul div pow factorial binom abs floor ceil gcd lcm min max".split())
# Largest number below a root of which power factors are looked for.
MAX_RADICAND = 10**6


def breaks_form(answer: Node, label: Node, *, in_equation: bool = False) -> bool:
    """Return True if an answer is less worked out than its label, or uses other functions.

    Args:
        answer: the formula of the answer.
        label: the formula of the label. For an equation, a node with both of its sides.
        in_equation: True for a side of an equation, which may have products of sums that the label does not have, as
            ``(x-1)^2 = 9`` beside an expanded equation.
    """
    return (
        bool(families(answer) - _allowed_families(label))
        or (answer.has("decimal") and not label.has("decimal"))
        or (not in_equation and sums_multiplied(answer) > max(1, sums_multiplied(label)))
        or bool(arithmetic(answer) - arithmetic(label))
        or (has_idle_part(answer) and not has_idle_part(label))
        or (_has_sum_to_simplify(answer) and not _has_sum_to_simplify(label))
    )


def misses_request(answer: Node, label: Node, problem: ProblemText) -> bool:
    """Return True if the problem asks for factors, expanded terms or simple roots, which only the label has."""
    has_fewer_factors = sums_multiplied(answer) < sums_multiplied(label)
    if problem.asks(FACTORS) and (has_fewer_factors or (len(terms(answer)) > 1) != (len(terms(label)) > 1)):
        return True
    if problem.asks(TERMS) and _has_term_to_expand(answer) and not _has_term_to_expand(label):
        return True
    return problem.asks(SIMPLE_ROOTS) and _has_root_to_simplify(answer) and not _has_root_to_simplify(label)


# Functions


def families(node: Node) -> set[str]:
    """Return the families of the functions and constants in a formula, with "root" and "quotient"."""
    found = {FAMILY[part.kind] for part in node.walk() if part.kind in FAMILY}
    if any(map(_is_root, node.walk())):
        found.add("root")
    if any(map(_divides_by_names, node.walk())):
        found.add("quotient")
    return found


def _allowed_families(label: Node) -> set[str]:
    own = families(label)
    allowed = own.union(*(others for needed, others in SYNONYMS if needed <= own))
    if label.has("sym"):
        allowed.add("factorial")  # a binomial coefficient for n(n-1)/2; one of numbers is arithmetic
    return allowed


def _divides_by_names(node: Node) -> bool:
    if node.kind == "div":
        return node.args[1].has("sym")
    if node.kind != "pow" or not node.has("sym"):
        return False
    return node.args[1].kind == "neg" or (literal(node.args[1]) or 0) < 0


def _is_root(node: Node) -> bool:
    if node.kind == "root":
        return True
    exponent = literal(node.args[1]) if node.kind == "pow" else None
    return exponent is not None and exponent.denominator > 1


# Products of sums


def sums_multiplied(node: Node) -> int:
    """Return the largest number of sums that are multiplied with each other; a square of a sum counts as two."""
    products = [factors(part)[1] for part in node.walk() if part.kind in ("mul", "div", "pow")]
    return max((sum(map(_sum_power, above)) for above in products), default=0)


def _sum_power(node: Node) -> int:
    if node.kind == "add":
        return 1
    exponent = literal(node.args[1]) if node.kind == "pow" and node.args[0].kind == "add" else None
    return int(exponent) if exponent is not None and exponent.denominator == 1 and 1 < exponent < 100 else 0


def _has_term_to_expand(node: Node) -> bool:
    """Return True if a term of a sum is a product with a sum, as in ``2(x+1)+3``."""
    found = [term for part in node.walk() if part.kind == "add" for _, term in terms(part)]
    return any(term.kind == "mul" and any(part.kind == "add" for part in factors(term)[1]) for term in found)


def _has_sum_to_simplify(node: Node) -> bool:
    r"""Return True for a sum of constants that is a denominator or a base of a power.

    A power of a complex number or a division by one counts as well. So ``\frac{1}{\sqrt2-1}`` is no answer to
    ``1+\sqrt2``.
    """
    for part in node.walk():
        bottom = part.args[1] if part.kind == "div" else None
        if bottom and not bottom.has("sym") and (bottom.kind == "add" or bottom.has("i")):
            return True
        if part.kind == "pow":
            base = part.args[0]
            if (base.kind == "add" and not base.has("sym")) or (base.kind != "e" and base.has("i")):
                return True
    return False


# Arithmetic


def arithmetic(node: Node) -> Counter[str]:
    r"""Count the parts of a formula that can be computed, by kind: joined numbers, like terms and like factors.

    Examples are ``37 \cdot 43``, ``2x + 3x``, ``\sqrt{16}``, ``\frac{2x}{x}`` and ``\sqrt2\sqrt3``. A
    fraction of two integers is a number, reduced or not. A product may have one number above and one below its bar.
    """
    return Counter(part.kind for part in node.walk() if _is_arithmetic(part))


def _is_arithmetic(node: Node) -> bool:
    if literal(node) is not None or not node.args:
        return False
    if all(literal(arg) is not None for arg in node.args) and node.kind in COMPUTABLE:
        return not _is_root(node) or _radicand(node) == 1
    if node.kind == "pow" and (literal(node.args[1]) or 0) > 1:
        has_number = any(literal(part) not in (None, 1) for part in factors(node.args[0])[1])  # (2n)^2
        is_constant_root = _is_root(node.args[0]) and not node.args[0].has("sym")
        return has_number or is_constant_root or node.args[0].kind in ("i", "exp")
    if node.kind == "add":
        found = [term for _, term in terms(node)]
        keys = [_key_without_number(term) for term in found if literal(term) is None]
        return len(found) - len(keys) > 1 or len(set(keys)) < len(keys)
    if node.kind in ("mul", "div"):
        _, above, below = factors(node)
        return _has_numbers_to_join(above, below) or _has_bases_to_join(above, below)
    return node.kind == "root" and _radicand(node) == 1


def _has_numbers_to_join(above: list[Node], below: list[Node]) -> bool:
    """Return True for two numbers above or below a fraction bar, or if the one below divides the one above.

    A fraction counts on both sides, a 1 on neither.
    """
    counts = [0, 0]
    joined = Fraction(1)
    for side, parts in enumerate((above, below)):
        for value in filter(None, map(literal, parts)):
            counts[side] += abs(value.numerator) != 1
            counts[1 - side] += value.denominator != 1
            joined = joined * value if side == 0 else joined / value
    return max(counts) > 1 or (min(counts) == 1 and joined.denominator == 1)


def _has_bases_to_join(above: list[Node], below: list[Node]) -> bool:
    """Return True if a factor that is no number occurs twice, or if two factors are roots of integers.

    A product of factorials may repeat one. A factor of a sum of constants counts with the terms of the sum:
    ``i(2+3i)`` is a product to be computed.
    """
    sides = [[_base(part) for part in side if literal(part) is None] for side in (above, below)]
    keys = [{FormulaKeys(base).key for base in side} for side in sides]
    repeated = [base for side in sides for base in side if base.kind in ("sym", "add") or not base.has("sym")]
    roots = [[base for part in side if (base := _integer_below_root(part))] for side in (above, below)]
    if keys[0] & keys[1] or len(set(repeated)) < len(repeated) or len(roots[0]) > 1:
        return True
    if any(top % bottom == 0 for top in roots[0] for bottom in roots[1]):
        return True
    sums = [part for part in above if part.kind == "add" and not part.has("sym")]
    inside = {FormulaKeys(factor).key for part in sums for _, term in terms(part) for factor in factors(term)[1]}
    irrational = {FormulaKeys(part).key for part in above if part.kind == "i" or _integer_below_root(part)}
    return bool(inside & irrational)


def _base(node: Node) -> Node:
    return node.args[0] if node.kind == "pow" and literal(node.args[1]) is not None else node


def _key_without_number(term: Node) -> str:
    _, above, below = factors(term)
    keys = [sorted(_factor_key(part) for part in side if literal(part) is None) for side in (above, below)]
    return f"{keys[0]}/{keys[1]}"


# Roots


def _radicand(node: Node) -> int | None:
    r"""Return what a root of an integer has below it without power factors, 3 for ``\sqrt{12}``; None for others."""
    base = _integer_below_root(node)
    index = literal(node.args[1]) if base else None
    if base is None or index not in (2, 3, 4) or base >= MAX_RADICAND:
        return None
    for factor in range(2, math.isqrt(base) + 1):
        while base % factor ** int(index) == 0:
            base //= factor ** int(index)
    return base


def _integer_below_root(node: Node) -> int | None:
    base = literal(node.args[0]) if node.kind == "root" else None
    return int(base) if base is not None and base > 0 and base.denominator == 1 else None


def _factor_key(node: Node) -> str:
    r"""Return the key of a factor, the same for ``\sqrt{12}`` and ``\sqrt3``."""
    radicand = _radicand(node)
    return FormulaKeys(node).key if radicand is None else f"root {literal(node.args[1])} {radicand}"


def _has_root_to_simplify(node: Node) -> bool:
    """Return True for a root of a fraction or of an integer with a power in it, or a root below a fraction bar."""
    for part in node.walk():
        if part.kind == "div" and any(map(_is_root, factors(part)[2])):
            return True
        if part.kind == "root" and literal(part.args[0]) is not None:
            base = _integer_below_root(part)
            if base is None or _radicand(part) not in (base, None):
                return True
    return False


# Parts without effect


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
        if part.kind == "div" and (values[1] in (1, -1) or values[0] == 0):
            return True
        if part.kind == "div" and (value := literal(part)) is not None and value.denominator == 1:
            return True
        if part.kind in ("pow", "root") and (values[1] in (0, 1) or values[0] in (0, 1)):
            return True
        if part.kind == "neg" and (_is_negative(part.args[0]) or values[0] == 0):
            return True
    return False


def _is_negative(node: Node) -> bool:
    return node.kind == "neg" or (node.kind in ("mul", "div") and _is_negative(node.args[0]))
