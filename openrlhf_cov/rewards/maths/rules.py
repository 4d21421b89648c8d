r"""Rules of form for answers that are formulas.

A formula is an answer only if it is worked out as far as its label is, and uses no functions that the label does not
use. So ``4\sin 60^\circ`` and ``\sqrt{3^2+3}`` are no answers to the label ``2\sqrt3``. Every rule compares the answer
with the label: what the label itself has is allowed. ``breaks_form`` lists the rules.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import reduce

import mpmath

from openrlhf_cov.rewards.maths.latex import (
    EVEN_FUNCTIONS,
    FormulaKeys,
    Node,
    common_divisor,
    factors,
    literal,
    size,
    terms,
)
from openrlhf_cov.rewards.maths.polynomials import have_common_factor
from openrlhf_cov.rewards.maths.prompt import FACTORS, SIMPLE_ROOTS, SQUARES, TERMS, ProblemText
from openrlhf_cov.rewards.maths.values import (
    FUNCTIONS,
    WHOLE_NAMES,
    NoValue,
    Undecided,
    exact_root,
    exact_value,
    names_in,
    numeric_value,
)

# Family of functions or constants -> kinds of nodes.
FAMILIES = {
    "trigonometric": "sin cos tan cot sec csc degrees", "inverse": "asin acos atan acot asec acsc",
    "hyperbolic": "sinh cosh tanh sech csch coth", "area": "asinh acosh atanh acoth", "log": "log", "exp": "e exp",
    "pi": "pi", "i": "i", "abs": "abs", "rounding": "floor ceil", "factorial": "factorial", "binomial": "binom",
    "whole": "gcd lcm", "extreme": "min max", "sum": "sum prod", "calculus": "int lim",
}  # fmt: skip
FAMILY = {kind: family for family, kinds in FAMILIES.items() for kind in kinds.split()}
# Families of a label -> families that its answers may use as well, because either can be written with the other.
SYNONYMS = (
    ({"hyperbolic"}, {"exp"}), ({"exp"}, {"hyperbolic", "quotient"}), ({"area"}, {"log"}), ({"log"}, {"quotient"}),
    ({"factorial"}, {"quotient", "binomial"}), ({"binomial"}, {"quotient", "factorial"}),
    ({"i", "exp"}, {"trigonometric"}), ({"i", "trigonometric"}, {"exp"}), ({"trigonometric"}, {"pi", "quotient"}),
    ({"inverse"}, {"pi"}),
)  # fmt: skip
# The two sides of an equation, and the coefficients of the terms of a side by their keys.
Sides = list[Node] | tuple[Node, Node]
Terms = dict[str, Fraction]
ONE = Node("num", value=Fraction(1))
COMPUTABLE = frozenset("num decimal neg add mul div pow factorial binom abs floor ceil gcd lcm min max".split())
COMPUTED_NUMBERS = frozenset({"pow", "factorial", "binom"})
EXTREME_OR_WHOLE = frozenset("gcd lcm min max".split())
PERIODIC = frozenset("sin cos tan cot sec csc".split())
# Largest number below a root of which power factors are looked for, and largest power that is written as a number.
MAX_RADICAND = 10**6
# A function value is a simple fraction if this multiple of it is an integer, to this precision.
COMMON_DENOMINATOR = 720_720
ALL_BUT_WHOLE = 1e-30
# Nodes that an answer may have however small its label is.
FREE_SIZE = 40


def breaks_form(answer: Node, label: Node, *, in_equation: bool = False) -> bool:
    """Return True if an answer is less worked out than its label, or uses other functions.

    Args:
        answer: The formula of the answer.
        label: The formula of the label. For an equation, a node with both of its sides.
        in_equation: True for a side of an equation, which may have products of sums that the label does not have, as
            ``(x-1)^2 = 9`` beside an expanded equation.
    """
    # An answer may also have the form of the label with a power of a quotient as a quotient of powers.
    forms = dict.fromkeys((label, _with_powers_distributed(label)))
    return all(_breaks_one_form(answer, form, in_equation=in_equation) for form in forms)


def _breaks_one_form(answer: Node, label: Node, *, in_equation: bool) -> bool:
    left_undone = arithmetic(label)
    max_size = 1.5 * size(label) + 3 if left_undone else max(FREE_SIZE, 3 * size(label))
    return (
        size(answer) > max_size
        or bool(families(answer) - _allowed_families(label))
        or (answer.has("decimal") and not label.has("decimal"))
        or (not in_equation and sums_multiplied(answer) > max(1, sums_multiplied(label)))
        or bool(arithmetic(answer, distinct=True) - left_undone)
        or (has_idle_part(answer) and not has_idle_part(label))
        or _root_depth(answer) > max(1, _root_depth(label))
        or (_has_sum_to_simplify(answer) and not _has_sum_to_simplify(label))
        or 0 < _denominator_degree(label, total=True) < _denominator_degree(answer)
        or (not answer.has("sym") and _count_functions(answer) > _count_functions(label))
        or _has_more_trigonometry(answer, label)
    )


def misses_request(answer: Node, label: Node, problem: ProblemText) -> bool:
    """Return True if the problem asks for factors, expanded terms or simple roots, which only the label has.

    Args:
        answer: Formula of the answer.
        label: Formula of the label.
        problem: The problem, whose words say what it asks for.
    """
    has_fewer_factors = sums_multiplied(answer) < sums_multiplied(label)
    if problem.asks(FACTORS) and (has_fewer_factors or (len(terms(answer)) > 1) != (len(terms(label)) > 1)):
        return True
    if problem.asks(FACTORS) and _has_sum_to_factor(answer) and not _has_sum_to_factor(label):
        return True
    if problem.asks(SQUARES) and _has_power_of_sum(label) and not _has_power_of_sum(answer):
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
        allowed.add("binomial")  # a binomial coefficient for n(n-1)/2; one of numbers is arithmetic
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


def _count_functions(node: Node) -> int:
    return sum(part.kind in FUNCTIONS and part.kind != "exp" for part in node.walk())


def _has_more_trigonometry(answer: Node, label: Node) -> bool:
    r"""Return True for an answer with more trigonometric functions of names than its label can be written with.

    Each function of the label counts as two for every name in it: ``\tan x`` is a quotient of two functions, and
    ``\sin(a+b)`` has the sines and cosines of ``a`` and ``b``. A function that occurs again does not count.
    """
    allowed = sum(2 * len(names_in(part)) for part in _trigonometric_parts(label).values())
    return 0 < allowed < len(_trigonometric_parts(answer))


def _trigonometric_parts(node: Node) -> dict[str, Node]:
    """Return the trigonometric functions of names in a formula, by their keys."""
    return {FormulaKeys(part).key: part for part in node.walk() if part.kind in PERIODIC and part.has("sym")}


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


def _has_sum_to_factor(node: Node) -> bool:
    """Return True if the terms of a sum with names have a common factor, as in ``5(x^2+2x)``."""
    for part in _whole_sums(node):
        if not part.has("sym"):
            continue
        if _numeric_factor(part).numerator > 1:
            return True
        found = [term for _, term in terms(part) if literal(term) != 0]
        bases = [{FormulaKeys(_base(factor)).key for factor in factors(term)[1]} for term in found]
        if set.intersection(*bases) - {"1"}:
            return True
    return False


def _whole_sums(node: Node) -> Iterator[Node]:
    """Yield every sum with all of its terms. ``Node.walk`` also yields the sum of the first terms."""
    if node.kind == "add":
        yield node
    for part in [term for _, term in terms(node)] if node.kind == "add" else [node]:
        for arg in part.args:
            yield from _whole_sums(arg)


def _has_power_of_sum(node: Node) -> bool:
    return any(part.kind == "pow" and _sum_power(part) for part in node.walk())


def _has_term_to_expand(node: Node) -> bool:
    """Return True if a term of a sum is a product with a sum, as in ``2(x+1)+3``."""
    found = [term for part in node.walk() if part.kind == "add" for _, term in terms(part)]
    return any(term.kind == "mul" and any(part.kind == "add" for part in factors(term)[1]) for term in found)


def _has_sum_to_simplify(node: Node) -> bool:
    r"""Return True for a sum of constants that is a denominator, a base of a power, or has a term to expand.

    A power of a complex number or a division by one counts as well. So ``\frac{1}{\sqrt2-1}`` is no answer to
    ``1+\sqrt2``.
    """
    for part in node.walk():
        if part.kind == "add" and not part.has("sym") and _has_term_to_expand(part):
            return True
        bottom = part.args[1] if part.kind == "div" else None
        if bottom and not bottom.has("sym") and (bottom.kind == "add" or bottom.has("i")):
            return True
        if part.kind == "pow":
            base = part.args[0]
            has_sum = any(factor.kind == "add" for factor in factors(base)[1])
            if (has_sum and not base.has("sym")) or (base.kind != "e" and base.has("i")):
                return True
    return False


# Arithmetic


def _with_powers_distributed(node: Node) -> Node:
    r"""Return a formula with the power of each quotient as a quotient: ``\frac{a^n}{b^n}`` for ``(\frac{a}{b})^n``."""
    node = replace(node, args=tuple(map(_with_powers_distributed, node.args)))
    if node.kind != "pow" or node.args[0].kind != "div" or _is_root(node):
        return node
    top, bottom = (_power(arg, node.args[1]) for arg in node.args[0].args)
    return Node("div", (top, bottom))


def _power(base: Node, exponent: Node) -> Node:
    """Return a power, as a number if it has few digits."""
    power = base if literal(base) == 1 else Node("pow", (base, exponent))
    value = exact_value(power)
    return power if value is None or abs(value) > MAX_RADICAND else Node("num", value=value)


def arithmetic(node: Node, *, distinct: bool = False) -> Counter[str]:
    r"""Count the parts of a formula that can be computed, by kind: joined numbers, like terms and like factors.

    Examples are ``37 \cdot 43``, ``2x + 3x``, ``\sqrt{16}``, ``\frac{2x}{x}``, ``\sqrt2\sqrt3`` and ``\log_2 8``. A
    fraction of two integers is a number, reduced or not. A product may have one number above and one below its bar.

    Args:
        node: The formula.
        distinct: True to count a power, factorial or binomial coefficient of numbers that occurs again once.
    """
    found = [part for part in node.walk() if _is_arithmetic(part)]
    if not distinct:
        return Counter(part.kind for part in found)
    numbers = {FormulaKeys(part).key: part for part in found if _is_computed_number(part)}
    others = [part for part in found if not _is_computed_number(part)]
    return Counter(part.kind for part in [*numbers.values(), *others])


def _is_computed_number(node: Node) -> bool:
    """Return True for a power, factorial or binomial coefficient of numbers, as in ``3^{100}-1``."""
    return node.kind in COMPUTED_NUMBERS and all(literal(arg) is not None for arg in node.args)


def _is_arithmetic(node: Node) -> bool:
    if literal(node) is not None or not node.args:
        return False
    if all(literal(arg) is not None for arg in node.args) and node.kind in COMPUTABLE:
        return not _is_root(node) or _is_rational_root(node)
    if _is_power_of_power(node) or _undoes(node):
        return True
    if node.kind == "pow" and (literal(node.args[1]) or 0) > 1:
        base = node.args[0]
        has_number = any(literal(part) not in (None, 1) for part in factors(base)[1])  # (2n)^2
        is_constant_root = _is_root(base) and not base.has("sym")
        is_power = base.kind == "pow" and (literal(base.args[1]) or 0) > 1
        return has_number or is_constant_root or is_power or base.kind in ("i", "exp")
    if node.kind == "add":
        found = [term for _, factor in terms(node) for term in _expanded(factor)]
        keys = [_key_without_number(term) for term in found if not _is_number(term)]
        if len(found) - len(keys) > 1 or len(set(keys)) < len(keys) or _has_squares_to_join(node):
            return True
        if _has_fractions_to_join(node):
            return True
        return any(part.kind in FUNCTIONS for part in node.walk()) and _is_simple_fraction(node)
    if node.kind in ("mul", "div"):
        _, above, below = factors(node)
        bottom = node.args[1]
        has_fraction_below = node.kind == "div" and (bottom.kind == "div" or (literal(bottom) or 1).denominator > 1)
        return (
            has_fraction_below
            or _has_common_factor(above, below)
            or _has_numbers_to_join(above, below)
            or _has_powers_to_cancel(above, below)
            or _has_bases_to_join(above, below)
            or _has_degrees_to_multiply(above + below)
            or _has_factorials_to_cancel(above, below)
            or any(have_common_factor(top, bottom) for top in above for bottom in below if bottom.kind == "add")
            or (all(arg.kind == "log" for arg in node.args) and _is_simple_fraction(node))
        )
    if node.kind == "root" and literal(node.args[0]) is not None:
        return _is_rational_root(node)
    if node.kind in PERIODIC and node.args[0].kind == "add":
        return any(_is_quarter_turn(part) for _, part in terms(node.args[0]))
    return (node.kind in FUNCTIONS or node.kind == "root") and _is_simple_fraction(node)


def _expanded(term: Node) -> list[Node]:
    """Return the terms of a product with one sum, as ``2n`` and ``2`` for ``2(n-1)``, or of a sum above a number."""
    _, above, below = factors(term)
    sums = [part for part in above if part.kind == "add"]
    if len(sums) != 1 or any(literal(part) is None for part in below):
        return [term]
    rest = [part for part in above if part is not sums[0]] + [Node("div", (ONE, part)) for part in below]
    return [reduce(lambda a, b: Node("mul", (a, b)), rest, inner) for _, inner in terms(sums[0])]


def _is_number(term: Node) -> bool:
    """Return True for a number, or a product of numbers."""
    _, above, below = factors(term)
    return all(literal(part) is not None for part in above + below)


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


def _has_squares_to_join(node: Node) -> bool:
    r"""Return True for a sum with ``\sin^2 x`` and ``\cos^2 x``, which are 1."""
    squares = set()
    for sign, term in terms(node):
        _, above, below = factors(term)
        for place, part in enumerate(above):
            if part.kind == "pow" and literal(part.args[1]) == 2 and part.args[0].kind in ("sin", "cos"):
                rest = above[:place] + above[place + 1 :] + [Node("div", (ONE, other)) for other in below]
                keys = (sign, FormulaKeys(part.args[0].args[0]).key, *sorted(FormulaKeys(other).key for other in rest))
                squares.add((part.args[0].kind, keys))
    return any(("cos", keys) in squares for kind, keys in squares if kind == "sin")


def _has_degrees_to_multiply(parts: list[Node]) -> bool:
    r"""Return True for a number beside an angle, as in ``2 \cdot 9^\circ``."""
    has_angle = any(part.kind == "degrees" and literal(part.args[0]) is not None for part in parts)
    return has_angle and any(literal(part) not in (None, 1) for part in parts)


def _has_fractions_to_join(node: Node) -> bool:
    r"""Return True if fractions with one denominator can be cancelled together: ``\frac{x^2}{x-1}-\frac{x}{x-1}``."""
    fractions: dict[str, list[Node]] = {}
    bottoms: dict[str, Node] = {}
    for sign, term in terms(node):
        _, above, below = factors(term)
        sums = [part for part in below if part.kind == "add" and part.has("sym")]
        if len(sums) == len(below) == 1:
            top = reduce(lambda a, b: Node("mul", (a, b)), above, ONE)
            key = FormulaKeys(sums[0]).key
            bottoms[key] = sums[0]
            fractions.setdefault(key, []).append(top if sign > 0 else Node("neg", (top,)))
    return any(
        len(tops) > 1 and have_common_factor(reduce(lambda a, b: Node("add", (a, b)), tops), bottoms[key])
        for key, tops in fractions.items()
    )


def _has_factorials_to_cancel(above: list[Node], below: list[Node]) -> bool:
    """Return True for a quotient of factorials of neighbouring formulas, as ``n!/(n-1)!``."""
    sides = [
        [part.args[0] for part in side if part.kind == "factorial" and part.has("sym")] for side in (above, below)
    ]
    return any(_difference(top, bottom) is not None for top in sides[0] for bottom in sides[1])


def _difference(a: Node, b: Node) -> Fraction | None:
    """Return the number by which two sums differ; None if they differ by more than a number."""
    numbers = []
    keys = []
    for side in (a, b):
        found = terms(side)
        numbers.append(sum((sign * (literal(term) or 0) for sign, term in found), Fraction(0)))
        keys.append(sorted((sign, FormulaKeys(term).key) for sign, term in found if literal(term) is None))
    return numbers[0] - numbers[1] if keys[0] == keys[1] else None


def _is_power_of_power(node: Node) -> bool:
    r"""Return True for a power or a root of a power that is an integer power: ``\sqrt{x^2}``, ``(x^{-1})^{-1}``."""
    outer = _exponent(node)
    inner = _exponent(node.args[0]) if outer is not None else None
    return inner is not None and outer is not None and (outer * inner).denominator == 1 and node.args[0].has("sym")


def _exponent(node: Node) -> Fraction | None:
    if node.kind == "pow":
        return literal(node.args[1])
    index = literal(node.args[1]) if node.kind == "root" else None
    return 1 / index if index else None


def _undoes(node: Node) -> bool:
    r"""Return True for a function of its own inverse, as ``\tan(\arctan x)``, ``\ln e^x`` and ``e^{2\ln x}``."""
    inside = node.args[0]
    if {node.kind, inside.kind} in ({kind, f"a{kind}"} for kind in (node.kind, inside.kind)):
        return True
    if node.kind == "log" and (inside.kind == "exp" or (inside.kind == "pow" and inside.args[0].kind == "e")):
        return True
    if node.kind == "div" and node.args[1].kind == "log" and inside.kind == "log" and inside.args[0].kind == "pow":
        return FormulaKeys(inside.args[0].args[0]).key == FormulaKeys(node.args[1].args[0]).key  # \log_2 2^n
    if node.kind == "exp" or (node.kind == "pow" and inside.kind == "e"):
        for _, term in terms(node.args[-1]):
            _, above, below = factors(term)
            rest = [part for part in above if literal(part) is None]
            if not below and len(rest) == 1 and rest[0].kind == "log":
                return True
    return False


def _has_common_factor(above: list[Node], below: list[Node]) -> bool:
    r"""Return True if a number can be cancelled, as in ``\frac{2x+4}{2}``, ``\frac{2}{2x+4}`` or ``2(\frac x2+1)``."""
    if not any(_base(part).kind == "add" for part in above + below):
        return False
    sides = [[_numeric_factor(part) for part in side] for side in (above, below)]
    top = math.prod(f.numerator for f in sides[0]) * math.prod(f.denominator for f in sides[1])
    bottom = math.prod(f.numerator for f in sides[1]) * math.prod(f.denominator for f in sides[0])
    return math.gcd(top, bottom) > 1


def _numeric_factor(node: Node) -> Fraction:
    """Return a number itself, the common factor of a sum or of a power of one, and 1 for anything else."""
    power = _sum_power(node) if node.kind == "pow" else 0
    if power:
        return _numeric_factor(node.args[0]) ** power
    if node.kind == "add":
        return common_divisor([_coefficient(term) for _, term in terms(node) if literal(term) != 0])
    return literal(node) or Fraction(1)


def _coefficient(term: Node) -> Fraction:
    _, above, below = factors(term)
    top, bottom = (
        math.prod((literal(part) or Fraction(1) for part in side), start=Fraction(1)) for side in (above, below)
    )
    return top / bottom


def _has_powers_to_cancel(above: list[Node], below: list[Node]) -> bool:
    r"""Return True for powers of numbers with one exponent and a common factor: ``\frac{3^n}{6^n}``.

    Each term of a sum above has such a factor, as in ``\frac{4^n-2^n}{4^n}``.
    """
    for bottom in below:
        base = _base_of_power(bottom, "")
        if base is None:
            continue
        exponent = FormulaKeys(bottom.args[1]).key
        for top in above:
            products = [factors(term)[1] for _, term in terms(top)]
            bases = [math.prod(_base_of_power(part, exponent) or 1 for part in product) for product in products]
            if math.gcd(base, *bases) > 1:
                return True
    return False


def _base_of_power(node: Node, exponent: str) -> int | None:
    """Return the integer base of a power; None for another formula, or an exponent without this key ("" for any)."""
    base = literal(node.args[0]) if node.kind == "pow" else None
    if base is None or base.denominator != 1 or (exponent and FormulaKeys(node.args[1]).key != exponent):
        return None
    return int(base)


def _has_bases_to_join(above: list[Node], below: list[Node]) -> bool:
    """Return True if a factor that is no number occurs twice, or if two factors are roots of integers.

    A product of factorials may repeat one. A factor of a sum of constants counts with the terms of the sum:
    ``i(2+3i)`` is a product to be computed.
    """
    sides = [[_base(part) for part in side if literal(part) is None] for side in (above, below)]
    keys = [{FormulaKeys(base).key for base in side} for side in sides]
    # Powers to an exponent with a number among its terms.
    powers = [
        part
        for part in above
        if part.kind == "pow" and any(literal(term) is not None for _, term in terms(part.args[1]))
    ]
    if any(literal(power.args[0]) == literal(part) for power in powers for part in above if literal(part)):
        return True  # 2 \cdot 2^{99}, 3 \cdot 3^{n-1}
    repeated = [base for side in sides for base in side if base.kind == "sym" or not base.has("sym")]
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


def _factor_key(node: Node) -> str:
    r"""Return the key of a factor. A root of an integer has no power factors in it: ``\sqrt{12}`` is ``\sqrt3``."""
    base, index = map(literal, node.args) if node.kind == "root" else (None, None)
    if not base or not index or base.denominator > 1 or index not in (2, 3, 4) or not 0 < base < MAX_RADICAND:
        return FormulaKeys(node).key
    radicand = int(base)
    for factor in range(2, math.isqrt(radicand) + 1):
        while radicand % factor ** int(index) == 0:
            radicand //= factor ** int(index)
    return f"root {index} {radicand}"


def _root_depth(node: Node) -> int:
    """Return how deep roots of constants are nested."""
    inner = max(map(_root_depth, node.args), default=0)
    return inner + (_is_root(node) and not node.has("sym"))


def _integer_below_root(node: Node) -> int | None:
    base = literal(node.args[0]) if node.kind == "root" else None
    return int(base) if base is not None and base > 0 and base.denominator == 1 else None


def _is_rational_root(node: Node) -> bool:
    base, index = (literal(arg) for arg in node.args)
    if not base or not index:
        return True
    return _has_exact_root(base, Fraction(index.denominator) if node.kind == "pow" else index)


def _has_exact_root(base: Fraction, index: Fraction) -> bool:
    try:
        exact_root(base, index)
    except NoValue:
        return False
    return True


def _has_root_to_simplify(node: Node) -> bool:
    """Return True for a root of a fraction or of an integer with a power in it, or a root below a fraction bar."""
    for part in node.walk():
        if part.kind == "div" and any(map(_is_root, factors(part)[2])):
            return True
        if part.kind == "pow" and _is_root(part) and abs((literal(part.args[1]) or Fraction(1)).numerator) > 1:
            return True
        base = literal(part.args[0]) if part.kind == "root" else None
        if base is None:
            continue
        index = literal(part.args[1])
        if index == 4 and _has_exact_root(base, Fraction(2)):
            return True
        if not _integer_below_root(part) or _factor_key(part) != f"root {index} {base}":
            return True
    return False


def _is_quarter_turn(node: Node) -> bool:
    r"""Return True for a multiple of ``\frac{\pi}{2}``, which a function need not have in its argument."""
    if node.kind == "degrees":
        angle = literal(node.args[0])
        return angle is not None and (angle / 90).denominator == 1
    _, above, below = factors(node)
    numbers = [part for part in above + below if part.kind != "pi"]
    is_multiple = (2 * _coefficient(node)).denominator == 1 and all(literal(part) is not None for part in numbers)
    return is_multiple and len(above + below) - len(numbers) == 1 and below.count(Node("pi")) == 0


def _is_simple_fraction(node: Node) -> bool:
    """Return True if a function without names has a rational value with a small denominator."""
    if node.has("sym"):
        return False
    try:
        scaled = numeric_value(node).number * COMMON_DENOMINATOR
    except (NoValue, Undecided):
        return False
    return bool(abs(scaled - mpmath.nint(scaled)) < ALL_BUT_WHOLE)


# Equations that are only rearranged


def is_rearranged(answer: Sides, label: Sides, relation: Sides) -> bool:
    """Return True if an equation is one of the problem with other factors or sides of its terms, and not the label.

    So ``2x^2 = 8 - 2y^2`` is no answer where the problem has ``x^2+y^2 = 4``. If the label itself is a rearranged
    equation of the problem, the answer has the same terms on each side as the label.

    Args:
        answer: Both sides of the equation or inequality of the answer.
        label: Both sides of the label.
        relation: Both sides of an equation or inequality of the problem.
    """
    own, gold, given = (tuple(map(_coefficients_by_key, sides)) for sides in (answer, label, relation))
    from_given = _factor_between(own, given)
    if _same_sides(gold, given) or from_given is None:
        return False
    from_label = _factor_between(own, gold)
    if from_label is None:
        return True
    if _same_sides(own, gold):
        return False
    if any(side.kind == "sym" for side in label):
        return True  # the label is solved for a name, and the answer is not
    # The label differs from the equation of the problem by a factor, by its sides or by both.
    if abs(from_given) == 1 or abs(from_label) == 1:
        return abs(from_given) == 1
    has_sides_of_label = _same_sides(own, _scaled(gold, from_label))
    return not has_sides_of_label or _same_sides(own, _scaled(given, from_given))


def _same_sides(a: tuple[Terms, ...], b: tuple[Terms, ...]) -> bool:
    """Return True if two equations have the same terms on their sides, in any order and with any common sign."""
    return any(sides in (b, b[::-1]) for sides in (a, _scaled(a, Fraction(-1))))


def _scaled(sides: tuple[Terms, ...], factor: Fraction) -> tuple[Terms, ...]:
    return tuple({key: value * factor for key, value in side.items()} for side in sides)


def _factor_between(a: tuple[Terms, ...], b: tuple[Terms, ...]) -> Fraction | None:
    """Return the factor from the terms of one equation to those of another one; None if they differ by more."""
    first, second = (_sum_of_terms((left, 1), (right, -1)) for left, right in (a, b))
    if not first or first.keys() != second.keys():
        return None
    ratios = {value / second[key] for key, value in first.items()}
    return ratios.pop() if len(ratios) == 1 else None


def _coefficients_by_key(node: Node) -> Terms:
    """Return the coefficient of each term of a sum, in which products with one sum are expanded."""
    found: list[tuple[Terms, int]] = []
    for outer_sign, term in terms(node):
        if literal(term) == 0:
            continue
        inner_sign, above, below = factors(term)
        sign = outer_sign * inner_sign
        parts = above + [Node("div", (ONE, part)) for part in below]
        sums = [part for part in above if part.kind == "add"]
        if len(sums) == 1:
            rest = [part for part in parts if part is not sums[0]]
            found += [(_coefficients_by_key(_product([each, *rest])), sign * of) for of, each in terms(sums[0])]
        else:
            names = [part for part in parts if literal(part) is None]
            key = FormulaKeys(_product(names), reduced=True).key
            found.append(({key: _coefficient(_product(parts))}, sign))
    return _sum_of_terms(*found)


def _product(parts: list[Node]) -> Node:
    return reduce(lambda a, b: Node("mul", (a, b)), parts, ONE)


def _sum_of_terms(*sums: tuple[Terms, int]) -> Terms:
    total: Terms = {}
    for side, sign in sums:
        for key, value in side.items():
            total[key] = total.get(key, Fraction(0)) + sign * value
    return {key: value for key, value in total.items() if value}


# Parts without effect


def has_idle_part(node: Node) -> bool:
    """Return True for a part without effect: a factor 1 or 0, a term 0, a power of or to 1 or 0, (-1)^(2n), two signs,
    an integer as a fraction, or a sign that can stand before a function or a power.
    """
    for part in node.walk():
        values = [literal(arg) for arg in part.args]
        if part.kind == "mul" and any(value in (0, 1, -1) for value in values if value is not None):
            return True
        if part.kind in ("mul", "div") and literal(part) is None and all(map(_is_negative, part.args)):
            return True
        if part.kind == "add" and 0 in values:
            return True
        if part.kind == "div" and part.args[1].kind == "add" and _is_negative(part.args[1]):
            return True
        if part.kind == "div" and (values[1] in (1, -1) or values[0] == 0):
            return True
        if part.kind == "div" and values[0] and values[1] and (values[0] / values[1]).denominator == 1:
            return True
        if part.kind in ("pow", "root") and (values[1] in (0, 1) or values[0] in (0, 1)):
            return True
        if part.kind == "pow" and values[1] == -1 and values[0] is not None:
            return True  # (1/4)^{-1}
        if part.kind == "pow" and part.args[0].kind == "neg" and (values[1] or Fraction(1, 2)).denominator == 1:
            return True
        if part.kind == "pow" and values[0] == -1 and any(map(_is_even_number, factors(part.args[1])[1])):
            return True
        if part.kind == "neg" and (_is_negative(part.args[0]) or values[0] == 0):
            return True
        if part.kind in EVEN_FUNCTIONS | PERIODIC and _is_negative(part.args[0]):
            return True
        if part.kind == "binom" and (values[1] in (0, 1) or _difference(*part.args) in (0, 1)):
            return True
        if (part.kind in ("floor", "ceil") and _is_whole(part.args[0])) or (
            part.kind == "abs" and part.args[0].kind == "abs"
        ):
            return True
        if part.kind in EXTREME_OR_WHOLE and len({FormulaKeys(arg).key for arg in part.args}) < len(part.args):
            return True
    return False


def _is_even_number(node: Node) -> bool:
    value = literal(node)
    return value is not None and value.denominator == 1 and value.numerator % 2 == 0


def has_decimal_power(node: Node) -> bool:
    """Return True for a power such as ``3^{0.5}``."""
    return any(part.kind == "pow" and part.args[1].has("decimal") for part in node.walk())


def _is_whole(node: Node) -> bool:
    """Return True for a formula that is an integer if names such as n are integers."""
    if node.kind == "sym":
        return node.name.startswith(WHOLE_NAMES)
    if node.kind == "num":
        return node.value.denominator == 1
    if node.kind == "pow" and (literal(node.args[1]) or 0) < 0:
        return False
    return node.kind in ("add", "neg", "mul", "pow", "factorial", "binom", "floor", "ceil") and all(
        map(_is_whole, node.args)
    )


def _is_negative(node: Node) -> bool:
    """Return True if a minus can stand before all of a formula."""
    if node.kind == "div":
        return _is_negative(node.args[0]) != _is_negative(node.args[1])
    if node.kind == "add":
        return all((sign < 0) != _is_negative(term) for sign, term in terms(node))
    return node.kind == "neg" or (node.kind == "mul" and _is_negative(node.args[0]))


# Degrees


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
        if exponent is None or exponent <= 0 or exponent.denominator > 1:
            return 0
        return _degree(node.args[0]) * int(exponent)
    degrees = list(map(_degree, node.args))
    if node.kind == "mul":
        return sum(degrees)
    return max(degrees, default=0) if node.kind in ("add", "neg", "div") else 0
