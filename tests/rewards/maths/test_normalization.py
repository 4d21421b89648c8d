import pytest

from openrlhf_cov.rewards.maths.normalization import clean, compact, without_end_mark

CLEAN = [
    ("−5", "-5"),
    ("５６", "56"),
    ("٣", "3"),  # an Arabic-Indic digit
    ("2×3", r"2\times 3"),
    ("½", r"\frac{1}{2}"),
    ("x²", "x^{2}"),
    ("x⁻¹⁰", "x^{-10}"),
    ("x₁₂", "x_{12}"),
    ("5\u200b\u202e\u2060", "5"),  # zero width and direction marks
    ("5\x00", "5\x00"),
    ("5\ufe0f", "5"),  # variation selector
    ("5\u0336", "5\u0336"),  # struck out: not the same as 5
    ("a\u00a0\u2009b", "a b"),
    (r"\dfrac{1}{2}", r"\frac{1}{2}"),
    (r"\tfrac12", r"\frac12"),
    ("\frac12", r"\frac12"),  # "\f" of a careless Python string
    (r"{3 \over 4}", r"\frac{3}{4}"),
    (r"{5 \choose 2}", r"\binom{5}{2}"),
    (r"\\frac{1}{2}", r"\frac{1}{2}"),  # escaped twice
    (r"\left( 5 \right)", "( 5 )"),
    (r"\Bigl[5\Bigr]", "[5 ]"),
    (r"\displaystyle 5", "5"),
    (r"\[ 5 \]", "5"),
    (r"\(5\)", "5"),
    ("$$5$$", "5"),
    (r"\$5", r"\$5"),
    (r"\{1\}", r"\lbrace 1\rbrace"),
    (r"x \leq 5", r"x \le 5"),
    (r"x \lt 5", "x <5"),
    (r"\mathrm{cm}", r"\text{cm}"),
    (r"\textbf{ A }", r"\text{ A }"),
    (r"1\,000", "1000"),
    (r"1{,}000", "1000"),
    (r"1,\!000", "1,000"),
    (r"5\,6", "5 6"),
    (r"\7-2", r"\7-2"),  # no space command: the digit stays
    (r"6\.2", r"6\.2"),
    (r"90^\degree", r"90^^\circ"),  # nonsense in, nonsense out
    (r"90\degree", r"90^\circ"),
    (r"x^{\prime}", "x'"),
    ("a \t\n b", "a b"),
    ("  5  ", "5"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "expected"), CLEAN)
def test_clean(text, expected):
    assert clean(text).rstrip() == expected


@pytest.mark.parametrize(("text", "expected"), CLEAN)
def test_a_clean_text_stays_as_it_is(text, expected):
    assert compact(clean(clean(text))) == compact(clean(text))


def test_rows_of_a_matrix_keep_their_separator():
    assert r"\\" in clean(r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("x + 1", "x+1"), (" 5 ", "5"), ("2 x", "2x"), ("x 2", "x2"), ("5 6", "5 6"), ("a, b", "a,b")],
)
def test_compact_keeps_numbers_apart(text, expected):
    assert compact(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5.", "5"), ("5 ,", "5 ,"), ("5\\\\", "5"), ("5...", "5..."), ("5, ...", "5, ..."), ("0.5", "0.5"), ("", "")],
)
def test_without_end_mark(text, expected):
    assert without_end_mark(text) == expected
