"""Intervals and unions of intervals: overlapping parts are joined, points taken out of the real line."""

import re
from fractions import Fraction
from itertools import pairwise

from openrlhf_cov.rewards.maths.shapes import Answer, Compound, Equation, Scalar

INTERVALS = frozenset({"()", "[]", "[)", "(]"})
LOWEST, HIGHEST = Scalar(r"-\infty"), Scalar(r"\infty")
REAL_LINE = Compound("()", (LOWEST, HIGHEST))
INFINITY = re.compile(r"(?P<minus>-)?\+?\s?\\infty")


def as_interval(answer: Answer) -> Answer:
    """The interval that an inequality says, the set of the value of a named one; any other answer as it is."""
    if not isinstance(answer, Equation) or not answer.value:
        return answer
    if answer.sign == "=":
        return Compound("set", (answer.value,)) if answer.name and isinstance(answer.value, Scalar) else answer
    return answer.value


def union(items: tuple[Answer, ...]) -> Answer:
    """The union of intervals and sets of points, joined where literal ends allow it, in no order."""
    if all(isinstance(item, Compound) and item.kind == "set" for item in items):
        return Compound("set", tuple(point for item in items for point in item.items))
    parts: list[tuple] = []
    for item in items:
        more = _parts(item)
        if more is None:
            return Compound("union", items)
        parts.extend(more)
    joined: list[list] = []
    for low, high, interval in sorted(parts, key=lambda part: part[0]):
        if joined and low <= joined[-1][1]:
            if high > joined[-1][1]:
                joined[-1][1:] = [high, _ends(joined[-1][2], interval)]
        else:
            joined.append([low, high, interval])
    groups = tuple(interval for _, _, interval in joined)
    return groups[0] if len(groups) == 1 else Compound("union", groups)


def without(interval: Answer, points: tuple[Answer, ...]) -> Answer | None:
    """The interval without ``points`` inside it; None if their order is not clear. The real line has any point."""
    if not all(isinstance(point, Scalar) and not point.unit and not point.percent for point in points):
        return None
    if interval != REAL_LINE:
        whole, inside = _parts(interval), [_position(point) for point in points]
        if whole is None or interval.kind == "set" or None in inside:
            return None
        low, high = (_position(end) for end in interval.items)
        if not all(low < point < high for point in inside):
            return None
    if len(points) > 1:
        if not all(point.number for point in points):
            return None
        points = tuple(sorted(points, key=lambda point: point.number.value))
    pieces = list(pairwise((interval.items[0], *points, interval.items[1])))
    kinds = [["(", ")"] for _ in pieces]
    kinds[0][0], kinds[-1][1] = interval.kind
    return Compound("union", tuple(Compound("".join(kind), pair) for kind, pair in zip(kinds, pieces, strict=True)))


def _parts(item: Answer) -> list[tuple] | None:
    """Every part as (low end, high end, interval); an open end lies just inside its value."""
    if not isinstance(item, Compound):
        return None
    if item.kind == "set":
        points = [_position(point) for point in item.items]
        if None in points:
            return None
        return [((p, 0), (p, 1), Compound("[]", (point, point))) for p, point in zip(points, item.items, strict=True)]
    if item.kind not in INTERVALS or len(item.items) != 2:
        return None
    low, high = map(_position, item.items)
    if low is None or high is None or low >= high:
        return None
    # low end: 0 at the value, 1 behind it; high end: 1 with the value, 0 before it; they meet where low <= high
    return [((low, 0 if item.kind[0] == "[" else 1), (high, 1 if item.kind[1] == "]" else 0), item)]


def _position(end: Answer) -> tuple[int, Fraction] | None:
    if not isinstance(end, Scalar) or end.unit or end.percent:
        return None
    if end.number:
        return (0, end.number.value)
    infinite = INFINITY.fullmatch(end.text)
    return None if infinite is None else (-1 if infinite["minus"] else 1, Fraction(0))


def _ends(first: Compound, last: Compound) -> Compound:
    return Compound(first.kind[0] + last.kind[1], (first.items[0], last.items[1]))
