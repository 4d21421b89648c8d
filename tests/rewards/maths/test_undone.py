import pytest

from openrlhf_cov.rewards.maths.latex import parse_formula
from openrlhf_cov.rewards.maths.normalization import clean
from openrlhf_cov.rewards.maths.undone import has_arithmetic, is_literal, is_undone


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("5", True), ("-5.2", True), (r"\frac{-3}{4}", True), (r"\frac{\frac12}{3}", True), ("1.5/2", True),
        (r"\frac{6}{1/7}", False), ("6/-(1/7)", False), ("252/3/2", False), ("253/3/2", True),
        (r"\frac{37}{0.025}", False), ("1/0", False),
        ("2+3", False), ("2^3", False), (r"\pi", False),
    ],
)  # fmt: skip
def test_literals(text, literal):
    assert is_literal(parse_formula(clean(text))) is literal


NOTATIONS = [
    "2^{10}", "-2^{10}", "12^2", "5!", r"\binom{5}{2}", "2^{-2}", r"(\frac12)^{10}",
    r"3\cdot 2^{10}",  # 4 digits for 4
    r"3\cdot 2^{10}-5",  # 5 for 4
    "2^{10}-1", r"1-\frac{1}{2^{10}}", r"\frac{1}{7!}", r"\frac{5055}{2^{15}}", r"1-(\frac{13}{16})^5",
    r"\frac{\pi}{3}", r"12\pi", r"2+\pi", r"\frac{25\pi}{2}", r"(2+\sqrt3)\pi", r"3.5\pi",
]  # fmt: skip
UNDONE = [
    "2+3", r"37\cdot 43", r"\frac{6}{1/7}", r"10\div 2", "5+0", r"5\cdot 1", r"\frac{3\cdot 4}{2}", "(2+3)^2",
    r"\sqrt{16}", r"\max(3,5)", "|-5|",
    "0!+24", "12^1+30", r"12\cdot 10^0+30",  # the power is no shorter than its value
    "5^2+144", r"2^2\cdot 3+30", r"\frac{12^2}{12}", r"\binom{12}{1}+30",
    "5^2+12^2", "8!-7!", r"\frac{7!}{5!}", r"\frac{12^2}{12}+\frac{30^2}{30}", r"37^2\cdot 37^{-1}+43",  # two of them
    "(3!)^2", "2^{5+5}", r"(2\cdot 3)^{10}",
    r"\frac{42\cdot 10^9}{1000000000}",  # 15 digits for 2
    r"(\frac{2}{84})^{-1}", "0.025^{-1}", r"\frac{37}{0.025}", "252/3/2",
    r"17.5+3.25+\pi\cdot 10^{-12}", r"2\pi\cdot 3", r"19.75+\sin^2 1", r"\frac12+\frac13+\pi", r"\sqrt{4}+3+\pi",
]  # fmt: skip


@pytest.mark.parametrize(("text", "undone"), [*((t, False) for t in NOTATIONS), *((t, True) for t in UNDONE)])
def test_undone(text, undone):
    assert is_undone(parse_formula(clean(text))) is undone


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (r"37\cdot 43\pi", True), (r"37\cdot 43x", True), (r"\frac{\pi}{37\cdot 43}", True), (r"x+37+43", True),
        ("(2+3i)(4+5i)", True), ("(1+i)^4", True), (r"37\sqrt2\cdot 43", True),
        ("2+3i", False), ("3(2+i)", False), (r"\frac{1}{1+i}", False), (r"2x\cdot 4", False),
        (r"16\sqrt2-8(2)", False),
        (r"3\cdot 10^8\pi", False), (r"\frac{25\pi}{12}", False), (r"12x+25", False), ("(2+x)(4+x)", False),
    ],
)  # fmt: skip
def test_arithmetic_beside_names_and_surds(text, left):
    assert has_arithmetic(parse_formula(clean(text))) is left
