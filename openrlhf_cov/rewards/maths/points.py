"""Fixed irregular points at which formulas with names are compared, and which names stand for whole numbers."""

from collections.abc import Collection, Iterator
from fractions import Fraction

from openrlhf_cov.rewards.maths.formula_value import exact_value
from openrlhf_cov.rewards.maths.latex import Node

POINTS = 14
POSITIVE = 8
FAR = (150, 300, 450, 600, 10**6, 10**6, 10**12, 10**12)
WHOLE_NAMES = tuple("ijklmnpqKMN")
ROUNDING = frozenset({"floor", "ceil"})
INTEGER_ONLY = frozenset({"gcd", "lcm"})
CIRCULAR = frozenset({"sin", "cos", "tan", "exp", "pow"})

Point = dict[str, Fraction]


def names_in(node: Node) -> frozenset[str]:
    return frozenset(part.name for part in node.walk() if part.kind == "sym")


def points(a: Node, b: Node) -> Iterator[Point]:
    """Fixed irregular points. A name is whole where both formulas say so: no side can choose points for the other."""
    return points_of(sorted(names_in(a)), whole_names(a) & whole_names(b))


def points_of(names: list[str], whole: Collection[str]) -> Iterator[Point]:
    for point in range(POINTS + len(FAR)):
        yield {name: _coordinate(place, len(names), point, name in whole) for place, name in enumerate(names)}


def whole_names(node: Node) -> set[str]:
    r"""Names that stand for whole numbers: in a gcd, and by their letter in a rounding, (-1)^n or \cos n\pi."""
    found: set[str] = set()
    for part in node.walk():
        names = names_in(part)
        usual = {name for name in names if name.startswith(WHOLE_NAMES)}
        if part.kind in INTEGER_ONLY:
            found |= names
        elif part.kind in ROUNDING or _is_alternating(part):
            found |= usual
    return found


def _is_alternating(node: Node) -> bool:
    if node.kind not in CIRCULAR:
        return False
    base = exact_value(node.args[0]) if node.kind == "pow" else None
    return (base is not None and base < 0) or any(part.kind == "pi" for part in node.args[-1].walk())


def _coordinate(place: int, count: int, point: int, whole: bool) -> Fraction:
    """A fixed, irregular coordinate of one of ``count`` names at one of the near points or, above 100, the far ones.

    The first eight points are positive: four of medium size, two below 1, two larger. Then one name at a time (with
    more than six names one of six) is negative: names are lengths and the like more often than not, and where two are
    negative, ``\\sqrt{a}\\sqrt{b}`` differs from ``\\sqrt{ab}``. Every second far point is positive.
    """
    mixed = (place * 7919 + point * 104729 + 12345) * 2654435761 % 2**32
    far = FAR[point - POINTS] if point >= POINTS else 0
    if whole:
        low = point + place if point in (1, 2) else 3 + mixed % 11 + 2 * place
        return Fraction(low + far)
    medium = Fraction(mixed % 99991, 37321) + Fraction(1, 3)
    small, large = Fraction(mixed % 99991 + 1, 100_003), 3 * medium + 1
    cycle = min(count, 6)
    negative = point >= POSITIVE and place % cycle == point % cycle and not (far and point % 2)
    size = medium + far if far else (medium, medium, medium, medium, small, small, large, large)[point % POSITIVE]
    return -size if negative else size
