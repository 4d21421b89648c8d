"""Generated pairs of answers: 2,000 here, 20,000 more with ``make test-long``.

``grade(x, y)`` never raises, keeps its time, and gives the same verdict with answer and label exchanged; every answer
equals itself; two different rational numbers are never equal, however they are spelt.
"""

import json
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from openrlhf_cov.rewards.maths.grading import answers_equal, grade

TIMEOUT = 3.0
MARGIN = 6.0
DATA = Path(__file__).parents[4] / "shared/data"
LABELS = 33_015

NUMBERS = st.one_of(
    st.integers(0, 99).map(str),
    st.sampled_from(
        ["0.5", "2.25", "1e3", r"\frac{1}{3}", "3/4", r"1\frac{1}{2}", r"0.\overline{3}", "1,000", "10^{50}"]
    ),
)
NAMES = st.sampled_from(["x", "y", "n", "a", "b", r"\theta", "x_1", "f'"])
CONSTANTS = st.sampled_from([r"\pi", "e", "i", r"\sqrt{2}", r"\infty"])
UNARY = [
    "-{}", "({})", r"\sqrt{{{}}}", r"\sqrt[3]{{{}}}", "|{}|", r"\sin({})", r"\cos {}", r"\ln({})", "({})^2", "{}!",
    r"\lfloor {}\rfloor", "e^{{{}}}", r"{}\%", r"{}\text{{ cm}}", r"\left({}\right)^{{-1}}", r"\text{{{}}}",
    "({})^{{1/2}}",
]  # fmt: skip
BINARY = [
    "{}+{}", "{}-{}", r"{}\cdot {}", "{}{}", r"\frac{{{}}}{{{}}}", "({})^{{{}}}", r"\binom{{{}}}{{{}}}",
    r"\log_{{{}}}({})",
    r"\gcd({},{})", r"\max({},{})", r"{}\pm {}", "{}/{}", r"{}\div {}",
]  # fmt: skip
SHAPES = [
    "{},{}", "({},{})", "[{},{})", r"\{{{},{}\}}", "{}={}", "{}<{}", "{} or {}", r"({},{})\cup(5,\infty)", "{}:{}",
    "{};{}",
    r"\begin{{pmatrix}}{}\\{}\end{{pmatrix}}", "x={},y={}",
]  # fmt: skip
FORMULAS = st.recursive(
    st.one_of(NUMBERS, NAMES, CONSTANTS),
    lambda inner: st.one_of(
        st.builds(str.format, st.sampled_from(UNARY), inner),
        st.builds(str.format, st.sampled_from(BINARY), inner, inner),
    ),
    max_leaves=8,
)
ANSWERS = st.one_of(FORMULAS, st.builds(str.format, st.sampled_from(SHAPES), FORMULAS, FORMULAS))
PIECES = [
    *r"{ } ( ) [ ] \{ \} \left( \right) | \frac \sqrt \boxed{ \text{ ^ _ ! ' + - * / = < > , ; : & % $ ~".split(),
    *r"\pm \cdot \cup \alpha \infty \le \begin{pmatrix} \end{pmatrix} \\ 0 7 12 1,000 0.5 x n or and not".split(),
    " ", "\n", "\u200b", "½", "²", "−", "°", "\x00", "\ud800", "٣",
]  # fmt: skip
HOSTILE = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from(PIECES), max_size=20).map("".join),
    st.builds(lambda piece, count, end: piece * count + end, st.sampled_from(PIECES), st.integers(1, 3_000), FORMULAS),
    st.builds(lambda a, b, count: (a + b) * count, FORMULAS, st.sampled_from(PIECES), st.integers(1, 60)),
)
PAIRS = st.one_of(
    st.tuples(ANSWERS, ANSWERS),
    st.tuples(FORMULAS, FORMULAS),
    st.tuples(HOSTILE, ANSWERS),
    st.tuples(HOSTILE, HOSTILE),
    ANSWERS.map(lambda answer: (answer, answer)),
)


def check_pair(pair):
    verdicts = []
    for first, second in (pair, pair[::-1]):
        started = time.perf_counter()
        result = grade(f"so \\boxed{{{first}}}", second, timeout=TIMEOUT)
        assert time.perf_counter() - started < TIMEOUT + MARGIN
        assert result.status in ("graded", "no_answer", "unparsable", "timeout")
        assert not result.correct or result.status == "graded"
        verdicts.append(None if result.status == "timeout" else answers_equal(first, second, timeout=TIMEOUT))
    assert None in verdicts or verdicts[0] is verdicts[1]


def spellings(value: Fraction) -> st.SearchStrategy[str]:
    """Exact ways to write a rational number; a decimal says that it has 6 digits only, and is none."""
    top, bottom, sign = abs(value.numerator), value.denominator, "-" if value < 0 else ""
    ways = [
        f"{sign}\\frac{{{top}}}{{{bottom}}}", f"{value.numerator}/{bottom}",
        f"{sign}\\frac{{{7 * top}}}{{{7 * bottom}}}",
        f"({value.numerator})/({bottom})", f"\\frac{{{-value.numerator}}}{{{-bottom}}}", f"$x = {value}$",
        f"{value}\\text{{ cm}}",
        f"{sign}\\dfrac{{{top:,}}}{{{bottom:,}}}", f"\\left({value}\\right)", f"\\text{{{value}}}",
        f"\\approx {value}",
    ]  # fmt: skip
    whole, rest = divmod(top, bottom)
    if bottom == 1:
        ways += [f"{value}", f"{sign}0{top}", f"{sign}{top:,}", f"{value}.", f"{sign}{top:,}".replace(",", r"\,")]
    elif whole:
        ways += [f"{sign}{whole}\\frac{{{rest}}}{{{bottom}}}", f"{sign}{whole} {rest}/{bottom}"]
    return st.sampled_from(ways)


SIZES = st.one_of(st.integers(-50, 50), st.integers(-(10**12), 10**12), st.integers(-(10**400), 10**400))
RATIONALS = st.builds(Fraction, SIZES, st.one_of(st.just(1), st.integers(1, 60), st.integers(1, 10**30)))
NEIGHBOURS = st.one_of(RATIONALS, st.builds(Fraction, st.sampled_from([-1, 1]), st.integers(1, 10**30)))


def check_rationals(data):
    a = data.draw(RATIONALS)
    b = data.draw(st.one_of(RATIONALS, NEIGHBOURS.map(lambda shift: a + shift)))
    assume(a != b)
    first, second, again = data.draw(spellings(a)), data.draw(spellings(b)), data.draw(spellings(a))
    assert not answers_equal(first, second)
    assert answers_equal(first, again)


def check_amounts(data):
    """Amounts with two digits behind the point are equal if they are the same."""
    cents = st.integers(-(10**12), 10**12)
    a = data.draw(cents)
    b = a + data.draw(st.one_of(st.integers(-200, 200), cents))
    first, second = (f"{n / 100:.2f}" for n in (a, b))
    assert answers_equal(first, second) is (a == b)
    assert answers_equal(first, f"{a // 100 if a % 100 == 0 else first}")


MANY = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.slow
@settings(max_examples=1_500, **MANY)
@given(PAIRS)
def test_a_pair_is_graded_in_time_and_both_ways_alike(pair):
    check_pair(pair)


@pytest.mark.slow
@settings(max_examples=500, **MANY)
@given(st.data())
def test_different_rationals_are_different(data):
    check_rationals(data)


@pytest.mark.slow
@settings(max_examples=300, **MANY)
@given(st.data())
def test_different_amounts_are_different(data):
    check_amounts(data)


@pytest.mark.e2e
@pytest.mark.long
@settings(max_examples=16_000, **MANY)
@given(PAIRS)
def test_many_pairs(pair):
    check_pair(pair)


@pytest.mark.e2e
@pytest.mark.long
@settings(max_examples=4_000, **MANY)
@given(st.data())
def test_many_rationals(data):
    check_rationals(data)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the data sets are not at {DATA}")
def test_every_label_equals_itself():
    files = sorted(DATA.glob("*/*.jsonl"))
    lines = [line for path in files for line in path.read_text(encoding="utf-8").split("\n") if line]
    labels = [json.loads(line)["answer"] for line in lines]
    assert len(labels) == LABELS
    assert [label for label in dict.fromkeys(labels) if not answers_equal(label, label)] == []
