"""Generated pairs of answers and pairs of labels: 1,400 here, 40,000 more with ``make test-long``.

``grade(x, y)`` never raises and keeps its time; every answer equals itself; two different rational numbers are never
equal, however they are spelt; and no answer is accepted for two labels that differ.
"""

import itertools
import json
import re
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
    for first, second in (pair, pair[::-1]):
        started = time.perf_counter()
        result = grade(f"so \\boxed{{{first}}}", second, timeout=TIMEOUT)
        assert time.perf_counter() - started < TIMEOUT + MARGIN
        assert result.status in ("graded", "no_answer", "unparsable", "timeout")
        assert not result.correct or result.status == "graded"


def spellings(value: Fraction) -> st.SearchStrategy[str]:
    """Exact ways to write a rational number; a decimal says that it has 6 digits only, and is none."""
    top, bottom, sign = abs(value.numerator), value.denominator, "-" if value < 0 else ""
    ways = [
        f"{sign}\\frac{{{top}}}{{{bottom}}}", f"{value.numerator}/{bottom}",
        f"{sign}\\frac{{{7 * top}}}{{{7 * bottom}}}",
        f"({value.numerator})/({bottom})", f"\\frac{{{-value.numerator}}}{{{-bottom}}}", f"$x = {value}$",
        f"{value}\\text{{ cm}}",
        f"{sign}\\dfrac{{{top:,}}}{{{bottom:,}}}", f"\\left({value}\\right)", f"\\text{{{value}}}",
    ]  # fmt: skip
    whole, rest = divmod(top, bottom)
    if bottom == 1:  # an integer is written in digits
        ways = [f"{value}", f"{sign}0{top}", f"{sign}{top:,}", f"{value}.", f"{sign}{top:,}".replace(",", r"\,")]
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
@settings(max_examples=500, **MANY)
@given(PAIRS)
def test_a_pair_is_graded_in_time_and_both_ways_alike(pair):
    check_pair(pair)


@pytest.mark.slow
@settings(max_examples=2 * settings().max_examples, **MANY)
@given(st.data())
def test_different_rationals_are_different(data):
    check_rationals(data)


@pytest.mark.slow
@settings(max_examples=100, **MANY)
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


# Shapes of the labels of the usual sets.
LABELS_BY_SHAPE = [
    "0", "1", "7", "12", "-3", "025", "27.0", "2,125", "1234567", "204", r"\frac{1}{2}", r"\frac{3}{4}",
    r"-\frac{7}{3}",
    "5/6", r"1\frac{1}{2}", "0.5", "0.75", "3.14", "4.5e33", "1.77e-6", r"50\%", r"12.5\%", r"60^\circ", r"120^\circ",
    r"5\text{ cm}", r"\$12.50", r"\sqrt{2}", r"2\sqrt{3}", r"\sqrt[3]{4}", r"\frac{\sqrt{3}}{2}", r"1+\sqrt{5}",
    r"\frac{1+\sqrt{5}}{2}", r"\pi", r"12\pi", r"\frac{2\pi}{3}", r"4\pi-3\sqrt{3}", "e^2", r"\ln 2", r"\log_2 3",
    "3-4i",
    r"\frac{1}{2}+\frac{\sqrt{3}}{2}i", "2^{10}", "5^{80}-1", r"\binom{20}{10}", "x+1", "x^2+3x+2", "(x+1)^2", "2x",
    r"\frac{x}{2}",
    r"\frac{1}{x+1}", r"\frac{n(n+1)}{2}", "2^{n}-1", "(-1)^n", r"e^{-2t}", r"\sin x", r"\cos 2x", r"\sqrt{1-x^2}",
    "|x|", "x", "y",
    "y=2x+1", "y=2x-1", "x^2+y^2=1", "x^2+y^2=4", "x=5", "f(x)=x^2", "x>3", r"x\ge 3", "(3,\\infty)", "[1,2)",
    "(1,2)", "[1,2]",
    "(2,1)", r"(-\infty,1)\cup(3,\infty)", r"x\ne 2", "1,2", "1,2,3", "2,3", r"\{1,2\}", r"3\pm\sqrt{2}", "x=1,y=2",
    "(1,2,3)",
    "(1,2),(3,4)", r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "12_5", "12_7",
    "3:4", "4:3",
    "75", r"75\%", r"7500\%", "0.7500", r"5\text{ m}", "5", r"500\text{ cm}", r"\frac{1}{7}", "0.142857", "0.1428571",
    "0.1428568", "0.333333", "0.33", r"\frac{1}{3}",
    "3:30 PM", "3:30 AM", "A", "B", r"\text{(C)}", "yes", "no", r"\text{Evelyn}", r"\text{even}", r"\emptyset",
    r"\infty",
]  # fmt: skip


def spelt_differently(label: str) -> list[str]:
    """Return ways to write a label, of which its type may or may not allow each."""
    return [
        label, f"${label}$", f"x = {label}", f"({label})", f"{label}\\text{{ cm}}", f"{label}\\%", f"{label}.",
        f"\\text{{{label}}}", f"-({label})", f"1{label}", f"{label}, {label}", f"\\{{{label}\\}}", f"[{label}]",
        f"{label}+0",
        f"{label} \\text{{ pm}}", label.replace(",", ", "), label.replace("(", "[").replace(")", "]"),
        label.replace(r"\frac", r"\dfrac"),
    ]  # fmt: skip


def real_labels() -> list[str]:
    """Return the labels of the usual sets, each once and sorted, so that neighbours are alike."""
    lines = [line for path in sorted(DATA.glob("*/*.jsonl")) for line in path.read_text(encoding="utf-8").split("\n")]
    return sorted({json.loads(line)["answer"] for line in lines if line})


REAL_LABELS = real_labels() or LABELS_BY_SHAPE
NEIGHBOURING_LABELS = st.builds(
    lambda place, step: (REAL_LABELS[place], REAL_LABELS[(place + step) % len(REAL_LABELS)]),
    st.integers(0, len(REAL_LABELS) - 1),
    st.integers(1, 20),
)
PAIRS_OF_LABELS = st.one_of(
    st.tuples(st.sampled_from(LABELS_BY_SHAPE), st.sampled_from(LABELS_BY_SHAPE)),
    st.tuples(st.sampled_from(REAL_LABELS), st.sampled_from(REAL_LABELS)),
    NEIGHBOURING_LABELS,
)


# A unit in a label or an answer.
PERCENT_SIGN = re.compile(r"%|\bpercent")
UNIT = re.compile(r"\\text\{ ?[a-z].*|\^\\circ|\\\$")


def differ_by_unit(answer, first, second):
    """Return True for two labels that only the problem tells apart.

    These are labels with units of an amount without one, and labels without a percent sign of an amount with one.
    """
    has_percent, *of_labels = (bool(PERCENT_SIGN.search(text)) for text in (answer, first, second))
    if has_percent and not all(of_labels):
        return True
    return not UNIT.search(answer) and UNIT.sub("", first) == UNIT.sub("", second)


def check_labels(pair, data):
    """No answer, made of either label or generated, is accepted for two labels of which neither answers the other."""
    first, second = pair
    assume(not answers_equal(first, second))
    written = [*spelt_differently(first), *spelt_differently(second)]
    answer = data.draw(st.one_of(st.sampled_from(written), ANSWERS))
    assume(not differ_by_unit(answer, first, second))
    response = f"\\boxed{{{answer}}}"
    assert not (grade(response, first).correct and grade(response, second).correct), answer


@pytest.mark.slow
@settings(max_examples=600, **MANY)
@given(PAIRS_OF_LABELS, st.data())
def test_no_answer_is_accepted_for_two_labels(pair, data):
    check_labels(pair, data)


@pytest.mark.e2e
@pytest.mark.long
@settings(max_examples=20_000, **MANY)
@given(PAIRS_OF_LABELS, st.data())
def test_no_answer_is_accepted_for_two_labels_of_many(pair, data):
    check_labels(pair, data)


def check_real_labels(most: int) -> None:
    """The labels of one set, each beside the next 3 of other spelling: what answers both makes them equal."""
    for path in sorted(DATA.glob("*/*.jsonl")):
        rows = [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").split("\n") if line]
        labels = [label for label in dict.fromkeys(rows) if not label.strip().lstrip("-").isdigit()]
        for place, label in enumerate(labels[:most]):
            responses = [f"\\boxed{{{answer}}}" for answer in dict.fromkeys(spelt_differently(label))]
            accepted = [response for response in responses if grade(response, label).correct]
            for other in labels[place + 1 : place + 4]:
                if not answers_equal(label, other):
                    assert [response for response in accepted if grade(response, other).correct] == [], (label, other)


needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the data sets are not at {DATA}")


@pytest.mark.slow
@needs_data
def test_no_real_label_answers_another_one():
    check_real_labels(most=25)


@pytest.mark.e2e
@pytest.mark.long
@needs_data
def test_no_real_label_of_many_answers_another_one():
    check_real_labels(most=400)


# Labels that one amount may be mistaken for: percentages, units, and decimals of few digits.
AMOUNTS = [
    "75", r"75\%", "0.75", r"7500\%", r"0.75\%", "0.0075", "1", r"1\%", r"100\%", r"\frac{3}{4}",
    r"5\text{ cm}", r"5\text{ m}", "5", r"5\text{ cm}^2", r"\$5", r"5^\circ",
    r"\frac{1}{7}", "0.142857", "0.14286", "0.1428571", "0.1428568", "0.1428572", r"\frac{1}{3}", "0.333333", "0.33",
    "0.3333334",
]  # fmt: skip


@pytest.mark.slow
def test_no_amount_is_accepted_for_two_labels():
    answers = {answer for label in AMOUNTS for answer in spelt_differently(label)}
    answers |= {f"{label}\\text{{{unit}}}" for label in AMOUNTS for unit in (" percent", " m", " hours")}
    for answer in sorted(answers):
        fitting = [label for label in AMOUNTS if grade(f"\\boxed{{{answer}}}", label).correct]
        for first, second in itertools.combinations(fitting, 2):
            is_limit = differ_by_unit(answer, first, second)
            assert is_limit or answers_equal(first, second), (answer, first, second)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"the data sets are not at {DATA}")
def test_every_label_equals_itself():
    files = sorted(DATA.glob("*/*.jsonl"))
    lines = [line for path in files for line in path.read_text(encoding="utf-8").split("\n") if line]
    labels = [json.loads(line)["answer"] for line in lines]
    assert len(labels) == LABELS
    assert [label for label in dict.fromkeys(labels) if not answers_equal(label, label)] == []
