import io
import unicodedata

import pytest

from openrlhf_cov.utils.terminal import Parser, closest_flag, one_line, printable, refuse, say

HOSTILE = "\x1b[31mred\x1b]0;title\x07\x9b2J\x7f\x00\r\u202eleft\u2066\u200b\ufeff\ud800\u2028end"


def raw(text):
    """Characters that a terminal may obey, or that are no text."""
    return [each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")]


def test_a_character_for_a_character():
    assert printable(HOSTILE) == "?[31mred?]0;title??2J?? ?left?????end".replace("????end", "??? end")
    assert len(printable(HOSTILE)) == len(HOSTILE)


def test_one_line():
    line = one_line(ValueError(f"two\nlines {HOSTILE} http://me:pass@host?token=top"))
    assert not raw(line)
    assert "\n" not in line
    assert "pass" not in line
    assert "top" not in line


def test_a_stream_of_another_encoding_gets_what_it_can_hold():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    say("a → b\n", stream)
    assert stream.buffer.getvalue() == b"a ? b\n"


def test_a_refusal_is_one_line_on_stderr(capsys):
    assert refuse("tool", f"bad\n{HOSTILE}") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tool: error: bad ")
    assert err.count("\n") == 1
    assert not raw(err[:-1])


def test_a_parser_refuses_in_one_line(capsys):
    parser = Parser(prog="tool")
    parser.add_argument("--count", type=int)
    for words in (["--none", HOSTILE], [f"--count={HOSTILE}"], ["--hf_token", "S3cret"]):
        with pytest.raises(SystemExit, match="2"):
            parser.parse_args(words)
        err = capsys.readouterr().err
        assert err.startswith("tool: error: ")
        assert err.count("\n") == 1
        assert not raw(err[:-1])
        assert "S3cret" not in err


FLAGS = [
    "--actor.adam.lr",
    "--critic.adam.lr",
    "--rollout.max_new_tokens",
    "--reward_source",
    "--clip_cov_ratio",
    "--steps",
]


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--lr", "--actor.adam.lr"),  # of two flags that end in it that of the policy
        ("--adam.lr", "--actor.adam.lr"),
        ("--max_new_tokens", "--rollout.max_new_tokens"),
        ("--reward-source", "--reward_source"),
        ("--clip_cov_rattio", "--clip_cov_ratio"),
        ("--nothing_of_the_kind", None),
    ],
)
def test_the_flag_that_was_meant(flag, meant):
    assert closest_flag(flag, FLAGS) == meant


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--lr", "1e-6"], "unrecognized arguments: --lr 1e-6 (did you mean --actor.adam.lr?)"),
        (["--task", "comands"], "(did you mean commands?)"),
        (["--qqqqqq"], "unrecognized arguments: --qqqqqq\n"),
    ],
)
def test_a_mistyped_flag_or_choice_has_a_hint(capsys, words, hint):
    parser = Parser(prog="x")
    parser.add_argument("--actor.adam.lr", type=float)
    parser.add_argument("--task", choices=("commands", "addition"))
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    error = capsys.readouterr().err
    assert hint in error
    assert error.count("\n") == 1
