import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.rewards.addition import extract_answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("91", "91"),
        ("91<eos>", "91"),
        ("57+34;91<eos>", "91"),
        ("91;92", "92"),
        (";091", "91"),
        ("000", "0"),
        ("", None),
        ("<eos>", None),
        ("91;", None),
        ("34+57", None),
        ("-91", None),
        (" 91", None),
        ("91\n", None),
        ("91<pad><eos>", None),
        ("91<eos><eos>", None),
        ("٩١", None),
        ("9²", None),
    ],
)
def test_extract_answer(response, answer):
    assert extract_answer(response) == answer


@given(st.text() | st.text("0123456789+=;<eos>"))
def test_extract_answer_of_any_text_is_none_or_plain_digits(response):
    answer = extract_answer(response)
    assert answer is None or (answer.isascii() and answer.isdigit() and (answer == "0" or answer[0] != "0"))


@given(st.text(), st.integers(min_value=0))
def test_extract_answer_finds_the_number_after_the_last_semicolon(before, number):
    assert extract_answer(f"{before};{number}<eos>") == str(number)


def test_extract_answer_takes_a_number_longer_than_int_accepts():
    assert extract_answer("0" + "9" * 10_000) == "9" * 10_000
