"""Random text and random numbers; fractions.Fraction is the oracle for equality."""

import time
from fractions import Fraction

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from openrlhf_cov.rewards.maths.extraction import EXTRACTORS, extract_answer
from openrlhf_cov.rewards.maths.grading import answers_equal, grade
from openrlhf_cov.rewards.maths.normalization import clean, compact

TIMEOUT = 1.0
MARGIN = 5.0

PIECES = [
    *r"\boxed{ \boxed \frac \frac{1}{2} \sqrt{ \sqrt[3] \text{".split(),
    *r"\mathrm{cm} \left( \right) \pm \cdot \times \pi ^\circ".split(),
    *r"\% % \$ $ \{ \} { } ( ) [ ] | , ; : . = <".split(),
    *r"\le \cup \in \infty ^ _ ! ' + - * / ~ \, \\ & #### Answer: answer".split(),
    *r"0 5 12 1,000 0.5 1e5 x y n AB".split(),
    *r"pi sin \sin \log_2 \binom{5}{2} \begin{pmatrix} \end{pmatrix} or and not nan".split(),
    " ", "\n", "\u200b", "½", "²", "−", "°", "\u0336", "\x00", "is ", "\\", "",
]  # fmt: skip
SCRAPS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
TEXTS = st.one_of(st.text(max_size=60), SCRAPS)


def terms(depth: int) -> st.SearchStrategy[str]:
    """Well-formed formulas."""
    leaves = st.one_of(st.integers(1, 99).map(str), st.sampled_from(["x", "y", "n", r"\pi", "2.5", r"\frac{1}{3}"]))
    if depth == 0:
        return leaves
    inner = terms(depth - 1)
    return st.one_of(
        leaves,
        st.tuples(inner, st.sampled_from(["+", "-", r"\cdot "]), inner).map("".join),
        st.builds(r"\frac{{{}}}{{{}}}".format, inner, inner),
        st.builds(r"\sqrt{{{}}}".format, inner),
        st.builds(r"\left({}\right)^{{2}}".format, inner),
        st.builds(r"\sin({})".format, inner),
    )


ANSWERS = st.one_of(
    terms(2),
    st.lists(terms(1), min_size=2, max_size=4).map(", ".join),
    st.lists(terms(1), min_size=2, max_size=3).map(lambda parts: f"({', '.join(parts)})"),
    st.sampled_from([r"[0, \infty)", r"(1,2)\cup(3,4)", r"\text{no solution}", r"\pm 2", "x = 3", "12_5", r"50\%"]),
)


@given(TEXTS, TEXTS)
@example("\\boxed{" * 50, "5")
@example("\ud800", "\ud800")
def test_no_response_raises_or_takes_long(response, gold):
    for mode in EXTRACTORS:
        answer = extract_answer(response, mode)
        assert answer is None or answer == answer.strip() != ""
        started = time.perf_counter()
        result = grade(response, gold, mode=mode, timeout=TIMEOUT)
        assert time.perf_counter() - started < TIMEOUT + MARGIN
        assert result.answer == answer
        assert (result.status == "no_answer") == (answer is None)
        assert not result.correct or result.status == "graded"


@given(SCRAPS)
def test_cleaning_twice_changes_nothing_but_white_space(text):
    once = clean(text)
    assert compact(clean(once)) == compact(once)


@given(ANSWERS)
def test_a_well_formed_answer_equals_itself(answer):
    assert answers_equal(answer, answer)
    assert grade(f"so $\\boxed{{{answer}}}$.", answer).correct


@given(terms(2), st.integers(1, 9))
@settings(max_examples=60)
def test_a_value_moved_by_an_integer_is_another_value(term, shift):
    assert not answers_equal(f"{term}+{shift}", term)


@given(st.integers(100_000, 999_999), st.integers(-12, 12), st.integers(-3, 3))
def test_decimals_agree_to_six_digits(mantissa, exponent, shift):
    # a literal of six digits; a shift of its last digit by one or more is a difference, for a fraction and a decimal
    assume(100_000 <= mantissa + shift <= 999_999)
    assume(mantissa % 10**6 != 0)
    decimal = f"{mantissa}e{exponent}"
    value = Fraction(mantissa + shift) * Fraction(10) ** exponent
    fraction = f"{2 * value.numerator}/{2 * value.denominator}"
    near = f"{mantissa + shift}0{'4' if shift == 0 else '0'}e{exponent - 2}"
    # 1 part in mantissa is more than 1e-6, and a fifth of half the sixth digit less
    assert answers_equal(decimal, near) is (shift == 0)
    assert answers_equal(decimal, fraction) is (shift == 0)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_lists_are_sets_and_tuples_are_ordered(numbers, random):
    shuffled = list(numbers)
    random.shuffle(shuffled)
    a, b = (", ".join(map(str, part)) for part in (numbers, shuffled))
    assert answers_equal(a, b)
    assert answers_equal(f"\\{{{a}\\}}", b)
    assert answers_equal(f"({a})", f"({b})") is (numbers == shuffled)
    assert not answers_equal(a, f"({b})")
    assert not answers_equal(a, str(numbers[0]))
    assert not answers_equal(f"{a}, 99", a)


@given(st.integers(1, 200), st.integers(2, 200))
def test_surds(outer, inner):
    # a√b = √(a²b), and it is not √(a²b + 1)
    surd = rf"{outer}\sqrt{{{inner}}}"
    assume(int(inner**0.5) ** 2 != inner)
    assert answers_equal(surd, rf"\sqrt{{{outer**2 * inner}}}")
    assert not answers_equal(surd, rf"\sqrt{{{outer**2 * inner + 1}}}")
