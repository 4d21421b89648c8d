r"""Whether a formula is a way to write a number, or a computation that is left to do.

One power, factorial or binomial of plain numbers is a notation: ``2^{10}``. It may carry a plain factor and a plain
term, ``3\cdot 2^{10}-5``, where that saves writing: the power is shorter than the number that it stands for, and the
whole at most one digit longer than its value. Everything else that has a rational value can be carried out:
``37\cdot 43``, ``\frac{6}{1/7}``, ``\frac{37}{0.025}``, ``5^2+12^2``, ``37^2\cdot 37^{-1}+43``, ``\sqrt{16}``,
``(\frac{2}{84})^{-1}``; also as a part of something else, as in ``37\cdot 43\pi`` or ``\frac{x}{2\cdot 3}``.
"""

import functools
from fractions import Fraction

from openrlhf_cov.rewards.formula_value import exact_value
from openrlhf_cov.rewards.latex import Node

ATOMS = frozenset({"pow", "factorial", "binom"})
PLAIN = frozenset({"num", "decimal", "neg", "div"})
JOINS = frozenset({"add", "mul"})


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


def has_arithmetic(node: Node) -> bool:
    r"""Whether a formula that is no rational number has rational arithmetic in it that is worth doing.

    Two operands of a sum or product with more than a digit each, as in ``37\cdot 43x`` or ``\frac{\pi}{37\cdot 43}``,
    or a product or power of sums with ``i`` of rational numbers, as in ``(2+3i)(4+5i)``; not ``2x\cdot 4``.
    """
    return _joins_numbers(node) or any(map(has_arithmetic, node.args))


def _joins_numbers(node: Node) -> bool:
    if node.kind == "pow":
        exponent = exact_value(node.args[1])
        return _is_gaussian(node.args[0]) and exponent is not None and exponent.denominator == 1 and abs(exponent) > 1
    if node.kind not in JOINS:
        return False
    parts = operands(node)
    if node.kind == "mul" and sum(map(_is_gaussian, parts)) > 1:
        return True
    rational = [part for part in parts if exact_value(part) is not None]
    if sum(_written(part) > 1 for part in rational) < 2:
        return False
    joined = functools.reduce(lambda a, b: Node(node.kind, (a, b)), rational)
    value = exact_value(joined)
    return value is None or not _is_notation(joined, value)


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
    return [part for arg in node.args for part in (operands(arg) if arg.kind == node.kind else [arg])]


def has_decimal(node: Node) -> bool:
    """Whether a decimal is in it, so that its value is known to 6 digits only."""
    return any(part.kind == "decimal" for part in node.walk())


def _kinds(node: Node) -> set[str]:
    return {part.kind for part in node.walk()}


def _written(node: Node) -> int:
    """The digits of all numbers in a formula."""
    return sum(_digits(part.value) for part in node.walk() if part.kind in ("num", "decimal"))


def _digits(value: Fraction) -> int:
    """The decimal digits of a fraction; a denominator of 1 is not written."""
    parts = (abs(value.numerator), value.denominator if value.denominator > 1 else 0)
    return sum(_length(part) for part in parts if part) or 1


def _length(number: int) -> int:
    """Decimal digits of a positive number, at most one too many: long ones take too long to write out."""
    return len(str(number)) if number < 10**30 else int(number.bit_length() * 0.30103) + 1
