"""Formulas without regard to order, brackets and signs: what two formulas have in common, and how large they are."""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from openrlhf_cov.rewards.maths.latex import Node

# Nodes of a formula that is computed. The longest label of the usual sets has 65.
MAX_NODES = 200
COMMUTATIVE = frozenset({"add", "mul"})


@dataclass(frozen=True)
class TreePart:
    """A sum, product or other operation: its ``kind``, and the keys of its operands with their counts."""

    kind: str
    operands: tuple[tuple[str, int], ...]
    leaves: int
    operations: int

    def contains(self, other: "TreePart") -> bool:
        """Return True if every operand of ``other`` is one of this part, or if both are the same operation."""
        if self.kind != other.kind:
            return False
        if self.kind not in COMMUTATIVE:
            return self.operands == other.operands
        counts = dict(self.operands)
        return all(counts.get(key, 0) >= count for key, count in other.operands)


def size(node: Node) -> int:
    """Return the number of nodes, counted up to a little more than ``MAX_NODES``."""
    count = 0
    stack = [node]
    while stack and count <= MAX_NODES:
        count += 1
        stack.extend(stack.pop().args)
    return count


def literal(node: Node) -> Fraction | None:
    """Return the value of a written number: an integer, a decimal, or a fraction of two integers, with a sign."""
    if node.kind in ("num", "decimal"):
        return node.value
    if node.kind == "neg":
        value = literal(node.args[0])
        return None if value is None else -value
    if node.kind == "div" and all(_is_signed_integer(arg) for arg in node.args):
        top, bottom = (literal(arg) or Fraction(0) for arg in node.args)
        return top / bottom if bottom else None
    return None


def _is_signed_integer(node: Node) -> bool:
    if node.kind == "neg":
        node = node.args[0]
    return node.kind == "num" and node.value.denominator == 1


def terms(node: Node) -> list[tuple[int, Node]]:
    """Return the terms of a sum with their signs."""
    if node.kind == "add":
        return [term for arg in node.args for term in terms(arg)]
    if node.kind == "neg":
        return [(-sign, term) for sign, term in terms(node.args[0])]
    return [(1, node)]


def factors(node: Node) -> tuple[int, list[Node], list[Node]]:
    """Return the sign of a product and its factors above and below the fraction bar."""
    value = literal(node)
    if value is not None:
        return (-1, [Node("num", value=-value)], []) if value < 0 else (1, [node], [])
    if node.kind == "neg":
        sign, above, below = factors(node.args[0])
        return -sign, above, below
    exponent = literal(node.args[1]) if node.kind == "pow" else None
    if exponent is not None and exponent < 0:
        positive = Node("num", value=-exponent)
        return 1, [], [node.args[0] if exponent == -1 else Node("pow", (node.args[0], positive))]
    if node.kind == "mul":
        first = factors(node.args[0])
        second = factors(node.args[1])
        return first[0] * second[0], first[1] + second[1], first[2] + second[2]
    if node.kind == "div":
        first = factors(node.args[0])
        second = factors(node.args[1])
        return first[0] * second[0], first[1] + second[2], first[2] + second[1]
    return 1, [node], []


class FormulaKeys:
    """Keys of a formula and of all of its parts. Parts with one key differ in order, brackets and signs at most."""

    def __init__(self, node: Node) -> None:
        self.parts: list[TreePart] = []
        self.key, _, _ = self._read(node)

    def _read(self, node: Node) -> tuple[str, int, int]:
        """Return the key of a node, its leaves and its operations, and keep it as a part."""
        value = literal(node)
        if value is not None:
            return str(value), 1, 0
        if not node.args:
            return node.name or node.kind, 1, 0
        if node.kind == "root" and (index := literal(node.args[1])):
            node = Node("pow", (node.args[0], Node("num", value=1 / index)))
        if node.kind in ("add", "neg"):
            found = [(sign, self._read(term)) for sign, term in terms(node)]
            if len(found) == 1:
                sign, (key, leaves, operations) = found[0]
                return (f"-{key}" if sign < 0 else key), leaves, operations
            kind = "add"
            operands = [_signed(sign, read[0]) for sign, read in found]
            reads = [read for _, read in found]
        elif node.kind in ("mul", "div") or _is_inverse(node):
            kind = "mul"
            sign, above, below = factors(node)
            tops = [self._read(factor) for factor in above]
            bottoms = [self._read(factor) for factor in below]
            reads = tops + bottoms
            operands = [read[0] for read in tops] + [f"1/{read[0]}" for read in bottoms]
            if sign < 0:
                operands.append("-1")
        else:
            kind = node.kind
            reads = [self._read(arg) for arg in node.args]
            operands = [f"{place}:{read[0]}" for place, read in enumerate(reads)]
        leaves = sum(read[1] for read in reads)
        operations = 1 + sum(read[2] for read in reads)
        counts = tuple(sorted(Counter(operands).items()))
        self.parts.append(TreePart(kind, counts, leaves, operations))
        return f"({kind} {' '.join(sorted(operands))})", leaves, operations

    def contains(self, part: TreePart) -> bool:
        """Return True if one of the parts contains ``part``."""
        return any(own.contains(part) for own in self.parts)


def _is_inverse(node: Node) -> bool:
    return node.kind == "pow" and (literal(node.args[1]) or 0) < 0


def _signed(sign: int, key: str) -> str:
    if sign > 0:
        return key
    return key[1:] if key.startswith("-") else f"-{key}"
