import pytest

from openrlhf_cov.rewards.verdicts import MAX_END_TOKENS, without_end_tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5<|im_end|>", "5"),
        ("5</s>\n<|endoftext|> ", "5"),
        ("5<｜end▁of▁sentence｜>", "5"),
        ("5 [/INST]", "5"),
        ("5 <|im_start|>user", "5"),
        ("<|im_end|>5", "<|im_end|>5"),
        ("5<|im_end|>6", "5<|im_end|>6"),
        ("x>", "x>"),
        ("[1]", "[1]"),
        ("5" + "</s>" * (MAX_END_TOKENS + 1), "5</s>"),
        ("", ""),
    ],
)
def test_end_tokens(text, expected):
    assert without_end_tokens(text) == expected
