import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.data.normal_form import letters, statement, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Find $x^2 + 1$.", "findx21"),
        ("satisﬁes ２ｎ", "satisfies2n"),  # a ligature, full-width characters
        ("设 $x=1$，求值", "设x1求值"),
        ("x_1 ½", "x112"),  # NFKC: 1, a fraction slash, 2
    ],
)
def test_letters_and_digits(text, expected):
    assert letters(text) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("alternating 1's and 0's", "alternating $1'$s and $0'$s"),
        ("in  $ABC$ , where", "in $ABC$, where"),
        ("Let\n\\[ x \\]", "Let \\[x\\]"),
        ("$x^2 + bx + 2008b$", "$x^2+bx+2008b$"),
        ("a sum of 1,000", "a sum of {1,000}"),
    ],
)
def test_typesetting_does_not_change_a_statement(one, other):
    assert statement(one) == statement(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("$2n - 1$", "$2n + 1$"),
        ("$\\sin 60^\\circ$", "$\\sin(-60^\\circ)$"),
        ("$2.5$", "$25$"),
        ("$f(1,2)$", "$f(12)$"),
        ("$\\frac{1}{23}$", "$\\frac{12}{3}$"),
    ],
)
def test_signs_and_numbers_make_another_statement_of_the_same_letters(one, other):
    assert letters(one) == letters(other)
    assert statement(one) != statement(other)


def test_words_are_latin_runs_numbers_and_single_letters_of_other_scripts():
    assert words("Let $x_1=2.5$, 设AB∥l: 1,000.") == ["let", "x", "1", "2.5", "设", "ab", "l", "1,000"]


@given(st.text())
def test_texts_with_the_same_statement_or_words_have_the_same_letters(text):
    # neither drops a letter or digit, or changes their order
    assert "".join(filter(str.isalnum, statement(text))) == letters(text)
    assert "".join(filter(str.isalnum, "".join(words(text)))) == letters(text)


@given(st.text(), st.text(alphabet=" \n\t$\\{}.,;:!?'\"`~"))
def test_marks_of_typesetting_around_a_text_do_not_change_its_statement(text, marks):
    assert statement(f"{marks} {text} {marks}") == statement(text)
