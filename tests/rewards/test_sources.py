import time

import pytest

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards.sources import SOURCES, check_label, grade_label, same_choice, source_of, split_label

ROW = RewardConfig(reward_source="row")
# The rules that read an answer in the form of ``--reward_format``.
OF_FORMATS = sorted(SOURCES.keys() - {"tiny_addition", "code"})  # the others find their answers in their own way


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("5", ("5", None)),
        (" 5 ", ("5", None)),
        (5, ("5", None)),
        (0, ("0", None)),
        (2.5, ("2.5", None)),
        ({"answer": "5", "source": "gsm8k"}, ("5", "gsm8k")),
        ({"answer": 5}, ("5", None)),
    ],
)
def test_split_label(label, expected):
    assert split_label(label) == expected


@pytest.mark.parametrize("label", [None, "", "  ", True, [], ["5"], {}, {"source": "math"}, {"answer": None}, b"5"])
def test_what_is_no_label(label):
    with pytest.raises(ValueError, match="a label is a string that is not empty, got "):
        split_label(label)


@pytest.mark.parametrize(
    ("flag", "source", "rule"),
    [
        ("math", "gsm8k", "math"),
        ("gsm8k", None, "gsm8k"),
        ("choice", "math", "choice"),
        ("row", "gsm8k", "gsm8k"),
        ("row", "GSM8K/train", "gsm8k"),  # up to the first slash
        ("row", "choice", "choice"),
        ("row", None, "math"),
    ],
)
def test_the_rule_of_a_row(flag, source, rule):
    assert source_of(source, RewardConfig(reward_source=flag)) is SOURCES[rule]


@pytest.mark.parametrize("source", ["taco", "unknown/math", "DAPO-Math-17k"])
def test_a_source_that_names_no_rule_is_refused(source):
    for work in (source_of, lambda source, config: check_label({"answer": "5", "source": source}, config)):
        with pytest.raises(ValueError, match=f"its source '{source}' names no rule; begin it with one, math, gsm8k"):
            work(source, ROW)
    assert source_of(source, RewardConfig(reward_source="math")) is SOURCES["math"]


def test_the_flag_knows_every_rule():
    for name in SOURCES:
        assert RewardConfig(reward_source=name).reward_source == name


@pytest.mark.parametrize(
    ("source", "answer", "gold", "correct", "status"),
    [
        ("math", r"\frac{2}{4}", "0.5", True, "graded"),
        ("math", "6", "5", False, "graded"),
        ("math", r"\foo", "5", False, "unparsable"),
        ("gsm8k", "1,200", "1200", True, "graded"),
        ("gsm8k", r"\$1200.00", "a long solution\n#### 1,200", True, "graded"),
        ("gsm8k", "5 dollars", "5", True, "graded"),
        ("gsm8k", "x = 5", "5", True, "graded"),
        ("gsm8k", "5, 6", "5", False, "unparsable"),
        ("choice", "(B)", "b", True, "graded"),
        ("choice", "B. 12", "B", True, "graded"),
        ("choice", "C", "B", False, "graded"),
        ("choice", "A or B", "B", False, "unparsable"),
        ("choice", "B.C", "B", False, "unparsable"),
        ("choice", "B) 12 cm", "B", True, "graded"),
        ("choice", "12", "B", False, "unparsable"),
    ],
)
def test_grades_by_source(source, answer, gold, correct, status):
    grade = grade_label(f"so \\boxed{{{answer}}}", {"answer": gold, "source": source}, ROW)
    assert (grade.correct, grade.status, grade.answer) == (correct, status, answer)


@pytest.mark.parametrize("source", OF_FORMATS)
@pytest.mark.parametrize("piece", ["-", "½", r"\text{ cm}", r"\%", "1:", "A. ", "5 "])
def test_a_long_answer_is_not_read(source, piece):
    # reading takes time that grows with the square of the length, and the numeric rules run in no pool
    started = time.perf_counter()
    response = f"\\boxed{{{piece * (300_000 // len(piece))}}}"
    grade = grade_label(response, {"answer": "B", "source": source}, ROW)
    assert (grade.correct, grade.status) == (False, "unparsable")
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("source", OF_FORMATS)
@pytest.mark.parametrize("response", ["", "B 5", r"\boxed{", r"\boxed{}"])
def test_no_answer(source, response):
    grade = grade_label(response, {"answer": "5", "source": source}, ROW)
    assert (grade.correct, grade.status, grade.answer) == (False, "no_answer", None)


@pytest.mark.parametrize(
    ("response", "correct", "status"),
    [
        ("4+7=11;91<eos>", True, "graded"),
        ("4+7=11;91", False, "graded"),  # not finished
        ("4+7=11;92<eos>", False, "graded"),
        ("4+7=<eos>", False, "no_answer"),
    ],
)
def test_the_embedded_task_has_a_rule_of_its_own(response, correct, status):
    grade = grade_label(response, {"answer": "91", "source": "tiny_addition"}, ROW)
    assert (grade.correct, grade.status) == (correct, status)
    with pytest.raises(ValueError, match="digits"):
        check_label({"answer": "B", "source": "tiny_addition"}, ROW)


def test_the_format_of_the_config_is_used():
    assert not grade_label("#### 5", "5", RewardConfig()).correct
    for source in ("math", "gsm8k"):
        assert grade_label("#### 5", "5", RewardConfig(reward_format="gsm8k", reward_source=source)).correct
    assert grade_label("Answer: B", "B", RewardConfig(reward_format="answer_line", reward_source="choice")).correct


@pytest.mark.parametrize(
    ("source", "label"),
    [("math", r"\frac{1}{2}"), ("math", "no solution"), ("gsm8k", "so\n#### 5"), ("gsm8k", "5.5"), ("choice", "(C)")],
)
def test_good_labels(source, label):
    check_label({"answer": label, "source": source}, ROW)


@pytest.mark.parametrize(
    ("source", "label", "message"),
    [
        ("math", "nan", "does not even equal itself"),
        ("math", r"\frac{1}{2", "does not even equal itself"),
        ("math", r"\text{}", "does not even equal itself"),
        ("gsm8k", "x", "neither a number nor a solution that ends with ####"),
        ("choice", "12", "no letter"),
        ("choice", "AB", "no letter"),
    ],
)
def test_bad_labels(source, label, message):
    with pytest.raises(ValueError, match=message):
        check_label({"answer": label, "source": source}, ROW)


SPELLINGS_OF_B = [
    *("B", "(B)", "B.", "B)", "B: 12", "(B) 12", "(B)12", r"\text{B}: 12", r"\textbf{(B)}\ 12", r"\text{(B) 12}"),
    *("option B", "Option (B)", "choice B", r"\text{Option B}"),
    *("**B**", "**(B)**", "`B`"),
    *('"B"', "$B$", "{B}", r"(\text{B})", r"(\mathbf{B})", r"\left(B\right)", r"\bf{B}", r"\boxed{B}", "（B）", "Ｂ"),
    *("b", "(b)", "b. 12", "(b) 12", "b) cat", r"\text{(b) cat}"),
]


@pytest.mark.parametrize("answer", SPELLINGS_OF_B)
def test_a_choice_takes_the_spellings_that_math_takes(answer):
    for label in ("B", "(B)", r"\text{(B)}"):
        response = f"so \\boxed{{{answer}}}"
        assert grade_label(response, {"answer": label, "source": "choice"}, ROW).correct
        assert not grade_label(response, {"answer": "C", "source": "choice"}, ROW).correct


@pytest.mark.parametrize("letter", "IJTZ")
def test_sets_with_more_than_eight_options_have_further_letters(letter):
    label = {"answer": letter, "source": "choice"}
    for answer in (letter, f"({letter})", f"({letter}) 12", f"{letter}. cat", f"({letter.lower()}) cat"):
        assert grade_label(f"\\boxed{{{answer}}}", label, ROW).correct
    for answer in (
        f"({letter}) (A)",
        f"(A) ({letter})",
        f"{letter}. cat {letter}. dog",
        f"(A) or {letter}.",
        "(H) 12",
    ):
        assert not grade_label(f"\\boxed{{{answer}}}", label, ROW).correct
    prompt = f"Which animal barks?\n({letter}) dog\n(A) cat"
    assert grade_label(f"\\boxed{{({letter}) dog}}", label, ROW, prompt=prompt).correct
    assert not grade_label(f"\\boxed{{({letter}) cat}}", label, ROW, prompt=prompt).correct


@pytest.mark.parametrize(
    ("answer", "other", "same"),
    [
        ("(b)", "B", True),
        ("J. cat", "J", True),
        ("J) cat", "(j)", True),
        ("A", "B", False),
        ("A or B", "A or B", False),
    ],
)
def test_votes_for_the_same_option(answer, other, same):
    assert same_choice(answer, other) is same


@pytest.mark.parametrize(
    "answer",
    ["A or B", "B or C", "A, B", "(A)(B)", "A. 3 B. 4", "option B or C", "A is B", "The answer is A or B", "not B",
     "The answer is not B", "Both B", "AB", "BB", "B12", "B = 12", "A. B", "(A) B", r"\text{A} \text{B}", "{A}{B}",
     "A is wrong, the answer is B", "(b) (c)", "B. or c", "b: or c", "(a) and (b)", "b. not (c)"],
)  # fmt: skip
def test_an_answer_that_names_several_letters_is_no_choice(answer):
    for label in "ABC":
        assert not grade_label(f"\\boxed{{{answer}}}", {"answer": label, "source": "choice"}, ROW).correct


@pytest.mark.parametrize(
    "label",
    ["so\n#### 5", "#### Step 1\nHm.\n#### Step 2\nSo \\boxed{5}.", "#### Step 1\nSo \\boxed{5}.", "so \\boxed{5}."],
)
def test_a_label_that_is_a_solution_is_its_answer(label):
    check_label({"answer": label, "source": "math"}, ROW)
    assert grade_label(r"\boxed{5}", {"answer": label, "source": "math"}, ROW).correct
    assert not grade_label(r"\boxed{\text{Step 2}}", {"answer": label, "source": "math"}, ROW).correct


def test_a_label_of_headings_without_an_answer_is_refused():
    with pytest.raises(ValueError, match="does not even equal itself"):
        check_label({"answer": "#### Step 1\nIt is five.", "source": "math"}, ROW)


ALL_RULES = [("math", "13", "14"), ("gsm8k", "13", "14"), ("choice", "B", "C")]


@pytest.mark.parametrize(("source", "label", "other"), ALL_RULES)
def test_one_reader_finds_the_answer_for_every_rule(source, label, other):
    config = RewardConfig(reward_format="answer_line", reward_source=source)
    for response in (
        f"Answer:\n$$\n{label}\n$$", f"\\textbf{{Answer: }} {label}", f"**Answer:** {label}", f"Answer：{label}",
        f"The answer is **{label}**.", f"Answer: {other}\nAnswer:\n\\[{label}\\]", f"Answer: \\boxed{{{label}}}",
    ):  # fmt: skip
        assert grade_label(response, label, config).correct, response
    for response in (
        f"Answer: {label} or {other}", f"Answer:\n$$\n{label}\n$$ or {other}", f"Answer: {label}\nAnswer: {other}",
        f"Answer:\n$${label}$$ $${other}$$", f"Answer:\n\\[{label}\\], \\[{other}\\]", f"Answer: not {label}",
        f"Answer: {label}\nAnswer:",
    ):  # fmt: skip
        assert not grade_label(response, label, config).correct, response


@pytest.mark.parametrize("grader", ["strict", "published"])
@pytest.mark.slow
def test_the_label_may_be_a_solution_of_gsm8k_or_with_a_box(grader):
    config = RewardConfig(reward_grader=grader)
    labels = {
        "He has 3 * 24 = <<3*24=72>>72.\n#### 72": r"\boxed{72}",
        r"So $x = \boxed{\frac{1}{2}}$.": r"\boxed{0.5}",
    }
    for label, response in labels.items():
        check_label(label, config)
        assert grade_label(response, label, config).correct
        assert not grade_label(r"\boxed{3}", label, config).correct
    with pytest.raises(ValueError, match="it does not even equal itself"):
        check_label("He does not know.\n####", config)
