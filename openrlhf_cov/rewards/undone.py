r"""Whether a formula is a way to write a number, or a computation that is left to do.

One power, factorial or binomial of plain numbers is a notation: ``2^{10}``. It may carry a plain factor and a plain
term, ``3\cdot 2^{10}-5``, where that saves writing: the power is shorter than the number that it stands for, and the
whole at most one digit longer than its value. Everything else that has a rational value can be carried out:
``37\cdot 43``, ``\frac{6}{1/7}``, ``5^2+12^2``, ``37^2\cdot 37^{-1}+43``, ``\sqrt{16}``.
"""

from fractions import Fraction

from openrlhf_cov.rewards.formula_value import exact_value
from openrlhf_cov.rewards.latex import Node

ATOMS = frozenset({"pow", "factorial", "binom"})
PLAIN = frozenset({"num", "decimal", "neg", "div"})
JOINS = frozenset({"add", "mul"})


def is_literal(node: Node) -> bool:
    """A plain number: integer, decimal, or fraction whose denominator is none, with a sign at most."""
    if node.kind == "neg":
        return is_literal(node.args[0])
    if node.kind == "div":  # half a third is one; six by a seventh is 6 · 7 left to do
        return all(map(is_literal, node.args)) and "div" not in _kinds(node.args[1])
    return node.kind in ("num", "decimal")


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


def _is_notation(node: Node, value: Fraction) -> bool:
    while node.kind == "neg":
        (node,) = node.args
    atoms = [part for part in node.walk() if part.kind in ATOMS]
    if len(atoms) != 1 or not _kinds(node) <= ATOMS | PLAIN | JOINS or not all(map(is_literal, atoms[0].args)):
        return False
    if node is atoms[0]:
        return True
    joins = [part for part in node.walk() if part.kind in JOINS]
    if any(sum(part.kind in PLAIN and is_literal(part) for part in operands(join)) > 1 for join in joins):
        return False
    atom = exact_value(atoms[0])
    return _written(atoms[0]) < _digits(atom) and _written(node) <= _digits(value) + 1


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
