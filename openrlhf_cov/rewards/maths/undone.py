r"""Whether a formula is a way to write a number, or a computation that is left to do.

One power, factorial or binomial of plain numbers is a notation: ``2^{10}``. It may carry a plain factor and a plain
term, ``3\cdot 2^{10}-5``, where that saves writing: the power is shorter than the number that it stands for, and the
whole at most one digit longer than its value. Everything else that has a rational value can be carried out:
``37\cdot 43``, ``\frac{6}{1/7}``, ``\frac{37}{0.025}``, ``5^2+12^2``, ``37^2\cdot 37^{-1}+43``, ``\sqrt{16}``,
``(\frac{2}{84})^{-1}``; also as a part of something else, as in ``37\cdot 43\pi`` or ``\frac{x}{2\cdot 3}``.
"""

import functools
from fractions import Fraction

import mpmath

from openrlhf_cov.rewards.maths.formula_value import NoValue, exact_value
from openrlhf_cov.rewards.maths.latex import Node
from openrlhf_cov.rewards.maths.precision import FUNCTIONS, Undecided, numeric_value

ATOMS = frozenset({"pow", "factorial", "binom"})
PLAIN = frozenset({"num", "decimal", "neg", "div"})
JOINS = frozenset({"add", "mul"})
COMMON_DENOMINATOR, ALL_BUT_WHOLE = 720_720, 1e-30
"""Of simple fractions, and how near to a whole number a multiple of them has to be."""


def is_literal(node: Node) -> bool:
    """A plain number: integer, decimal, or one of them by an integer, with signs at most.

    Half a third is one, too; what comes out whole when it is divided twice, or has more than a digit in both
    denominators, is left to do.
    """
    if node.kind == "neg":
        return is_literal(node.args[0])
    if node.kind == "div":
        top, bottom = node.args
        value = exact_value(node) if is_literal(top) and _is_integer(bottom) else None
        again = [part.args[1] for part in top.walk() if part.kind == "div"]
        if value is None or not again:
            return value is not None
        return len(again) == 1 and value.denominator > 1 and 1 in (_written(bottom), _written(again[0]))
    return node.kind in ("num", "decimal")


def _is_integer(node: Node) -> bool:
    return _is_integer(node.args[0]) if node.kind == "neg" else node.kind == "num" and node.value.denominator == 1


def is_undone(node: Node) -> bool:
    """Whether a formula without names, that is no plain number, leaves rational arithmetic to be done."""
    value = exact_value(node)
    return _has_rational_joins(node) if value is None else not _is_notation(node, value)


def _has_rational_joins(node: Node) -> bool:
    r"""Whether a sum or a product has two rational operands, as ``17.5+3.25+\pi``, or a sum has a decimal in it."""
    joins = [part for part in node.walk() if part.kind in JOINS]
    return any(
        sum(exact_value(operand) is not None for operand in operands(join)) > 1
        or (join.kind == "add" and has_decimal(join))
        for join in joins
    )


def is_left_to_do(node: Node) -> bool:
    """Whether a formula has arithmetic in it that is worth doing: a rational number only in its exponents."""
    if exact_value(node) is None:
        return has_arithmetic(node)
    return any(part.kind == "pow" and has_arithmetic(part.args[1]) for part in node.walk())


def has_arithmetic(node: Node) -> bool:
    r"""Whether a formula that is no rational number has rational arithmetic in it that is worth doing.

    Two operands of a sum, a product or a denominator with more than a digit each, as in ``37\cdot 43x`` or
    ``\frac{\pi}{37\cdot 43}``, also through signs, powers of 1, zeros added and numbers divided by; a number divided
    by a quotient or a decimal; another rational value than a notation, ``\sqrt{1369}\pi`` or ``\log_2 8x``; a product,
    quotient or power of sums with ``i`` of rational numbers, as in ``(2+3i)(4+5i)``. Not ``2x\cdot 4``.
    """
    node = _bare(node)
    if _is_polar(node):
        return False
    if node.kind == "add":
        parts, found = operands(node), _is_worth_joining("add", operands(node))
    elif node.kind in ("mul", "div"):
        above, below = _factors(node)
        parts, found = [*above, *below], _has_products(above, below)
    else:
        parts, found = list(node.args), _is_gaussian_power(node) or _is_other_rational(node)
    if parts == [node]:
        parts, found = list(node.args), found or _is_rational_function(node)
    return found or any(map(has_arithmetic, parts))


def _bare(node: Node) -> Node:
    """A formula without signs, powers and roots of 1, factors of 1 and zeros around it."""
    while True:
        values = [exact_value(arg) for arg in node.args[:2]]
        if node.kind == "neg":
            (node,) = node.args
        elif node.kind in ("pow", "root") and values[1] == 1:
            node = node.args[0]
        elif (node.kind == "add" and 0 in values) or (node.kind == "mul" and (1 in values or -1 in values)):
            node = node.args[1 if values[0] in ((0,) if node.kind == "add" else (1, -1)) else 0]
        elif node.kind == "div" and values[1] in (1, -1):
            node = node.args[0]
        else:
            return node


def _factors(node: Node) -> tuple[list[Node], list[Node]]:
    """The factors of a product above and below its fraction bars, of those that have no name below."""
    node = node if node.kind == "mul" else _bare(node)
    if node.kind == "mul":
        (a, b), (c, d) = map(_factors, node.args)
        return a + c, b + d
    if node.kind == "div" and not (is_literal(node) or node.args[1].kind == "log" or "sym" in _kinds(node.args[1])):
        (a, b), (c, d) = map(_factors, node.args)
        return a + d, b + c
    return [node], []


def _has_products(above: list[Node], below: list[Node]) -> bool:
    gaussian = sum(map(_is_gaussian, above))
    if gaussian > 1 or (any(map(_is_gaussian, below)) and (gaussian or _long_numbers(above))):
        return True
    inside = [
        {kind for part in side if exact_value(part) is not None for kind in _kinds(part)} for side in (above, below)
    ]
    if (inside[0] and inside[1] & {"div", "decimal"}) or all(kinds & {"factorial", "binom"} for kinds in inside):
        return True
    return any(_is_worth_joining("mul", side) for side in (above, below))


def _long_numbers(parts: list[Node]) -> list[Node]:
    """Those with a number of more than a digit; a half has none."""
    return [part for part in parts if exact_value(part) is not None and _longest(part) > 1]


def _is_worth_joining(kind: str, parts: list[Node]) -> bool:
    """Whether two of the operands are numbers of more than a digit, and all numbers together no notation."""
    if len(_long_numbers(parts)) < 2:
        return False
    joined = functools.reduce(lambda a, b: Node(kind, (a, b)), [p for p in parts if exact_value(p) is not None])
    value = exact_value(joined)
    return value is None or not _is_notation(joined, value)


def _is_gaussian_power(node: Node) -> bool:
    exponent = exact_value(node.args[1]) if node.kind == "pow" else None
    return exponent not in (None, 0, 1) and exponent.denominator == 1 and _is_gaussian(node.args[0])


def _is_other_rational(node: Node) -> bool:
    r"""Whether it is a rational value by more than a notation, or a power or root of single digits."""
    value = None if is_literal(node) else exact_value(node)
    if value is None or _is_notation(node, value):
        return _is_rational_function(node)
    simple = _kinds(node) <= PLAIN | JOINS | {"pow", "root"}
    return not simple or any(_written(part) > 1 for part in node.walk() if not part.args)


def _is_rational_function(node: Node) -> bool:
    r"""Whether the value of a function without names, or a quotient of logarithms, is a simple fraction."""
    kinds = _kinds(node)
    if "sym" in kinds or not (node.kind in FUNCTIONS or (node.kind == "div" and "log" in kinds)):
        return False
    try:
        scaled = numeric_value(node).number * COMMON_DENOMINATOR
        return bool(abs(scaled - mpmath.nint(scaled)) < ALL_BUT_WHOLE)
    except (NoValue, Undecided):
        return False


def _is_polar(node: Node) -> bool:
    r"""Whether it is ``\cos t + i \sin t``, which is as done as ``e^{it}``."""
    angle = next((part.args for part in node.walk() if part.kind == "cos"), ()) if node.kind == "add" else ()
    i, sine = Node("i"), Node("sin", angle)
    return bool(angle) and node.args in [(Node("cos", angle), Node("mul", pair)) for pair in ((i, sine), (sine, i))]


def _is_gaussian(node: Node) -> bool:
    r"""Whether it is a sum of rational numbers and such multiples of ``i``."""
    return node.kind == "add" and "i" in _kinds(node) and _kinds(node) <= PLAIN | JOINS | {"i"}


def _is_notation(node: Node, value: Fraction) -> bool:
    while node.kind == "neg":
        (node,) = node.args
    atoms = [part for part in node.walk() if part.kind in ATOMS]
    if len(atoms) != 1 or not _kinds(node) <= ATOMS | PLAIN | JOINS or not _is_plain_atom(atoms[0]):
        return False
    if node is atoms[0]:
        return True
    joins = [part for part in node.walk() if part.kind in JOINS]
    if any(sum(part.kind in PLAIN and is_literal(part) for part in operands(join)) > 1 for join in joins):
        return False
    atom = exact_value(atoms[0])
    return _written(atoms[0]) < _digits(atom) and _written(node) <= _digits(value) + 1


def _is_plain_atom(node: Node) -> bool:
    """Whether it is of plain numbers; a power with a whole exponent, and of an integer where that is negative."""
    if node.kind != "pow":
        return all(map(is_literal, node.args))
    base, exponent = node.args
    return is_literal(base) and _is_integer(exponent) and (_is_integer(base) or exact_value(exponent) > 0)


def operands(node: Node) -> list[Node]:
    """The terms of a sum or the factors of a product."""
    inner = [(arg, arg if node.kind in ("mul", arg.kind) else _bare(arg)) for arg in node.args]
    return [part for arg, bare in inner for part in (operands(bare) if bare.kind == node.kind else [arg])]


def has_decimal(node: Node) -> bool:
    """Whether a decimal is in it, so that its value is known to 6 digits only."""
    return any(part.kind == "decimal" for part in node.walk())


def _kinds(node: Node) -> set[str]:
    return {part.kind for part in node.walk()}


def _written(node: Node) -> int:
    """The digits of all numbers in a formula."""
    return sum(_digits(part.value) for part in node.walk() if part.kind in ("num", "decimal"))


def _longest(node: Node) -> int:
    """The digits of the longest number in a formula, numerators and denominators apart."""
    values = [part.value for part in node.walk() if part.kind in ("num", "decimal")]
    return max((_length(abs(each)) for value in values for each in value.as_integer_ratio() if each), default=1)


def _digits(value: Fraction) -> int:
    """The decimal digits of a fraction; a denominator of 1 is not written."""
    parts = (abs(value.numerator), value.denominator if value.denominator > 1 else 0)
    return sum(_length(part) for part in parts if part) or 1


def _length(number: int) -> int:
    """Decimal digits of a positive number, at most one too many: long ones take too long to write out."""
    return len(str(number)) if number < 10**30 else int(number.bit_length() * 0.30103) + 1
