import io
import unicodedata

import pytest
from texts import missing

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
        ("--learning_rate", "--actor.adam.lr"),  # what other trainers call it
        ("--preset", None),  # no flag of this command is close
        ("--nothing_of_the_kind", None),
    ],
)
def test_the_flag_that_was_meant(flag, meant):
    assert closest_flag(flag, FLAGS) == meant


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--lr", "1e-6"], "--lr 1e-6: unknown flag; did you mean --actor.adam.lr?\n"),
        (["--lr", "1", "--tsk", "x"], "--lr 1 --tsk x: unknown flags; did you mean --actor.adam.lr, --task?\n"),
        (["--qqqqqq"], "--qqqqqq: unknown flag; x --help lists all\n"),
        (["more"], "more: unexpected; x --help says what it takes\n"),
        (["--task", "comands"], "--task comands: must be one of commands, addition; did you mean commands?\n"),
        (["--estimator", "GRPO"], "--estimator GRPO: must be one of gae, group_norm; did you mean group_norm?\n"),
        (["--count", "99"], "--count 99: must be one of 1, 9\n"),  # another number is no guess
        (["--task", "7"], "--task 7: must be one of commands, addition\n"),
        (["--steps", "1.5"], "--steps 1.5: must be a whole number\n"),
        (["--actor.adam.lr", "fast"], "--actor.adam.lr fast: must be a number\n"),
        (["--steps"], "--steps: give a value\n"),
        (["--clip", "1"], "--clip: give 2 values\n"),
        (["--names"], "--names: give one value or more\n"),
        (["--figure", "1", "--table", "2"], "--table and --figure: give one of the two\n"),
        (["--s", "1"], "--s: several flags begin so; give one of --steps, --size\n"),
    ],
)
def test_a_wrong_flag_or_value_is_one_line_that_says_what_to_do(capsys, words, hint):
    parser = Parser(prog="x")
    parser.add_argument("--actor.adam.lr", type=float)
    parser.add_argument("--task", choices=("commands", "addition"))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--estimator", choices=("gae", "group_norm"))
    parser.add_argument("--count", type=int, choices=(1, 9))
    parser.add_argument("--clip", type=float, nargs=2)
    parser.add_argument("--names", nargs="+")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--figure")
    either.add_argument("--table")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error == f"x: error: {hint}"


def test_what_is_missing_is_named(capsys):
    parser = Parser(prog="x")
    parser.add_argument("--output", required=True)
    parser.add_argument("file", metavar="FILE")
    with pytest.raises(SystemExit):
        parser.parse_args([])
    assert missing(capsys.readouterr().err, "x: error: --output, FILE", "missing", "--help") == []
    with pytest.raises(SystemExit):
        parser.parse_args(["rows.jsonl", "--ouput", "runs/x"])  # the typo is named, and not what it makes missing
    assert missing(capsys.readouterr().err, "x: error: --ouput: unknown flag", "--output") == []
    parser = Parser(prog="x")
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--figure")
    either.add_argument("--table")
    with pytest.raises(SystemExit):
        parser.parse_args([])
    assert missing(capsys.readouterr().err, "x: error: --figure or --table", "missing", "--help") == []


def test_help_keeps_paragraphs_and_a_line_for_each_choice():
    parser = Parser(prog="x", about="Do it\nnow.\n\nMore about it.\n")
    parser.add_argument("--form", metavar="F", help="how it is done\na: one way\nb: another way")
    lines = [line.rstrip() for line in parser.format_help().splitlines()]
    place = lines.index("Do it now.")  # a paragraph is filled, the empty line after it is kept
    assert lines[place : place + 3] == ["Do it now.", "", "More about it."]
    place = lines.index("  --form F    how it is done")
    assert lines[place + 1 :] == ["                a: one way", "                b: another way"]


@pytest.mark.parametrize("text", ["-1", "-0.5", "-.5", "-1e-3", "-2.5E+4", "-1.e3"])
def test_a_negative_number_is_a_value(text):
    parser = Parser(prog="x")
    parser.add_argument("--clip", type=float)
    assert parser.parse_args(["--clip", text]).clip == float(text)


def test_several_methods_in_flags_of_their_own_are_noted(capsys):
    parser = Parser(prog="x")
    parser.add_argument("--method")
    assert parser.parse_args(["--method", "steer", "--method=kl_cov"]).method == "kl_cov"
    assert missing(capsys.readouterr().err, "note: --method", "2 times", "--method steer,kl_cov") == []
    for words in (["--method", "steer", "--method", "steer"], ["--method=steer"], []):
        parser.parse_args(words)
        assert capsys.readouterr().err == ""
    with pytest.raises(SystemExit):
        parser.parse_args(["--method", "steer", "--method"])  # without a value
