r"""An answer has one reading: that of a person who sees it typeset.

Signs of Unicode say what the commands of LaTeX say, a line break separates numbers, and a chain has one value.
"""

import re

import pytest

from openrlhf_cov.rewards.maths.extraction import extract_answer
from openrlhf_cov.rewards.maths.grading import grade

# The box is a factor, a power, a quotient or an end of something: none of these responses says five.
PARTS = [
    "−\\boxed{5}", "x = −\\boxed{5}", "$－\\boxed{5}$", "√\\boxed{5}", "∛\\boxed{5}", "\\boxed{5}²", "$\\boxed{5}³$",
    "\\boxed{5}ⁿ", "\\boxed{5}₂", "\\boxed{5}½", "½\\boxed{5}", "π\\boxed{5}", "$\\boxed{5}π$", "\\boxed{5}×3",
    "3×\\boxed{5}", "3·\\boxed{5}", "\\boxed{5}⋅3", "\\boxed{5}÷2", "\\boxed{5}⁄3", "±\\boxed{5}", "∞\\boxed{5}",
    "\\boxed{5}‰", "¬\\boxed{5}", "\\boxed{5}．6", "≥\\boxed{5}", "$x≤\\boxed{5}$",
    "\\sqrt[3]{\\boxed{5}}", "\\sqrt[n] {\\boxed{5}}", "\\sinh \\boxed{5}", "\\gcd \\boxed{5}",
]  # fmt: skip
# Five times a power of ten, minus five, or five taken back.
IN_CHINESE = [
    "答案是\\boxed{5}万", "\\boxed{5}千元", "\\boxed{5}百万", "\\boxed{5}亿", "\\boxed{5}分之3", "负\\boxed{5}",
    "答案不是\\boxed{5}", "结果不等于$\\boxed{5}$", "\\boxed{5}是错的", "\\boxed{5}，但这不对", "\\boxed{5}不是答案。",
    "\\boxed{5}。更正：6", "\\boxed{5}或6", "\\boxed{5}，或者6", "\\boxed{5}。正确答案是6。",
]  # fmt: skip
WHOLE = [
    "• \\boxed{5}", "\n· \\boxed{5}", "答案：\\boxed{5}", "— \\boxed{5}", "Answer–\\boxed{5}", "“\\boxed{5}”",
    "∴ \\boxed{5}", "x ≈ \\boxed{5}", "θ = \\boxed{5}", "\\boxed{5} cm²", "\\boxed{5} μm", "\\boxed{5} °C",
    "\\boxed{5}％", "\\boxed{5}千克", "\\boxed{5}千米", "\\boxed{5}百分点", "共有 \\boxed{5} 种",
    "答案是 \\boxed{5}，不是6。", "\\boxed{5}。答案是5。", "所以 a=±3，答案为 \\boxed{5}",
]  # fmt: skip


@pytest.mark.parametrize("response", PARTS + IN_CHINESE)
def test_a_box_beside_a_sign_or_a_denial_is_no_answer(response):
    assert extract_answer(response, "boxed") is None


@pytest.mark.parametrize("response", WHOLE)
def test_dashes_bullets_units_and_remarks_leave_a_box_alone(response):
    assert extract_answer(response, "boxed") == "5"


OTHER_READINGS = ["(or 6)", r"$\lor 6$", r"$\vee 6$"]


@pytest.mark.parametrize("remark", OTHER_READINGS)
def test_a_second_number_behind_a_box_takes_it_back(remark):
    assert extract_answer(rf"\boxed{{5}} {remark}", "boxed") is None


# (answer, label, True if they say the same)
PAIRS = [
    # A line break ends a line: what follows keeps its sign, and two numbers are a list.
    (r"\\-25", "-25", True),
    (r"\\-25", "25", False),
    (r"\-25", "25", False),
    (r"\\25", "25", True),
    (r"2x\\-1", "2x-1", True),
    (r"1\\250", "1250", False),
    (r"1 \\ 250", "1250", False),
    ("1\n250", "1250", False),
    (r"1\\-2", "1, -2", True),
    (r"1\\,250", "1250", True),  # a thin space that is escaped twice
    (r"25... \\", "25", False),  # and so on
    (r"25. \\", "25", True),
    # Two stars are a power, behind a command as behind a letter.
    (r"\pi**2", r"2\pi", False),
    (r"\pi**2", r"\pi^2", True),
    (r"\pi*2", r"2\pi", True),
    (r"5\operatorname*{cm}", "5", True),
    # An environment around the answer.
    (r"\begin{align*}\frac{49}{3}\end{align*}", r"\frac{49}{3}", True),
    (r"\begin{equation}\sqrt{2}\\\end{equation}", r"\sqrt{2}", True),
    (r"{8 \over \pi^3}", r"\frac{8}{\pi^3}", True),
    (r"{\pi \over 2}", r"\frac{2}{\pi}", False),
    # Both readings of a percentage in one chain.
    ("25 = 0.25", r"25\%", False),
    ("0.25 = 25", r"25\%", False),
    (r"25\% = 0.25", r"25\%", True),
    # Behind an integer the sign leaves no work, and a share has any form.
    (r"\frac{50}{2}\%", r"25\%", False),
    (r"(50/2)\%", r"25\%", False),
    (r"25.0\%", r"25\%", True),
    (r"\frac{1}{4}", r"25\%", True),
    # A time that contradicts itself.
    ("15:30 AM", "3:30 PM", False),
    ("15:30 PM", "3:30 PM", True),
    ("t = 3:30 PM", "3:30 PM", True),
    # A base in brackets, and a name before it.
    ("12_{(5)}", "12_5", True),
    ("N = 12_5", "12_5", True),
    ("12_{(7)}", "12_5", False),
    # A slash and a power are no unit.
    ("25 /^2", "25", False),
    ("25 m/s", "25", True),
    # A name inside an interval.
    (r"x > 3 = \mathbb{R}", r"(3, \infty)", False),
    (r"(a = 3, \infty)", r"(3, \infty)", False),
]


@pytest.mark.parametrize(("answer", "label", "equal"), PAIRS)
def test_an_answer_has_one_reading(answer, label, equal):
    assert grade(rf"so \boxed{{{answer}}}", label).correct is equal


OPTIONS = "Which one? (A) 3 (B) 4 (C) ="
# A letter and what may be the text of its option, without a problem that shows the options.
OPTION_TEXTS = [
    "(B) 12",
    "B. the graph",
    r"(B) \frac12",
    "(B) -5",
    "(B) x^2",
    r"(B) \pi",
    "B: 5 cm",
    "(B) 北京",
    "(B), 12",
]
NO_OPTION_TEXTS = ["(B)!", "(B)?", "(B) + 12", "(B) & 4", "(B) = 12", r"(B) \ne 3", r"(B) \cap 3", "(B); 3", "(B) #",
                   "(B) 4!", r"(B) \approx 3", "(B) / 3", "(B) 3 +"]  # fmt: skip


@pytest.mark.parametrize("answer", OPTION_TEXTS)
def test_a_letter_may_have_the_text_of_its_option(answer):
    assert grade(rf"\boxed{{{answer}}}", "B").correct


@pytest.mark.parametrize("answer", NO_OPTION_TEXTS)
def test_a_letter_with_an_operator_or_a_mark_is_no_option(answer):
    assert not grade(rf"\boxed{{{answer}}}", "B").correct


def test_an_option_of_the_problem_may_be_any_text():
    assert grade(r"\boxed{(C) =}", "C", prompt=OPTIONS).correct
    assert not grade(r"\boxed{(B) =}", "B", prompt=OPTIONS).correct


# Equations with a part that has no effect: a factor 1, a term 0, a quotient of 0.
IDLE = [
    ("MR = SRMC", ["1MR = SRMC", "MR = SRMC + 0", r"1 \cdot MR = SRMC", r"\frac{MR}{1} = SRMC"]),
    ("5x - 7y + 4 = 0", ["5x - 7y + 4 = 0/9", "1(5x - 7y + 4) = 0", "5x - 7y + 4 + 0 = 0"]),
]


@pytest.mark.parametrize(("label", "answers"), IDLE)
def test_an_equation_with_an_idle_part_is_no_answer(label, answers):
    assert [answer for answer in answers if grade(rf"\boxed{{{answer}}}", label).correct] == []
    left, right = label.split("=")
    assert grade(rf"\boxed{{{right} = {left}}}", label).correct


# 1/8 + 1/12 + 1/24 = 3/24 + 2/24 + 1/24 = 1/4, the number of the problem.
UNIT_FRACTIONS = r"\frac18 + \frac1{12} + \frac1{24}"


@pytest.mark.parametrize("answer", [r"\frac14", r"[\frac14]", r"\frac14+1-1", r"\frac18+\frac18", "0.25"])
def test_the_number_of_the_problem_in_another_form_is_no_answer(answer):
    problem = r"Write $\frac14$ as a sum of three different unit fractions."
    assert not grade(rf"\boxed{{{answer}}}", UNIT_FRACTIONS, prompt=problem).correct
    assert grade(r"\boxed{\frac1{12}+\frac1{24}+\frac18}", UNIT_FRACTIONS, prompt=problem).correct


# (response, mode, label, True if correct): the mark behind a number or a bracket is a factorial.
LINES = [
    ("Answer: n!", "answer_line", "n!", True),
    ("Answer: (n-1)!", "answer_line", "(n-1)!", True),
    ("Answer: 5!", "answer_line", "5", False),
    ("Answer: yes!", "answer_line", "yes", True),
    ("**Answer: 5**!", "answer_line", "5", True),
    (r"#### \boxed{5}", "gsm8k", "5", True),
    (r"#### -\boxed{5}", "gsm8k", "5", False),
    (r"#### \boxed{5} or \boxed{6}", "gsm8k", "5", False),
]


@pytest.mark.parametrize(("response", "mode", "label", "correct"), LINES)
def test_an_answer_line_has_one_reading(response, mode, label, correct):
    assert grade(response, label, mode=mode).correct is correct


# Labels may be written more freely than answers: (label, spellings of it, answers that say something else).
LABELS = [
    ("x = 1 or x = 2", ["1, 2", "2, 1", r"x = 1 \text{ or } x = 2"], ["1", "[1, 2]", "(1, 2)"]),
    (r"\text{B,E}", ["B, E", "E, B", r"\text{B} \text{ and } \text{E}", "(B), (E)"], ["B", "E", "B, C", "B, C, E"]),
    (r"\approx 8.24 \text{ mph}", ["8.24", r"8.24 \text{ mph}", r"\approx 8.24"], ["8.2", "8.25"]),
    (r"\sim 5", ["5"], ["6", "-5"]),
    ("-3./2", ["-3/2", r"-\frac{3}{2}", "-1.5"], ["3/2", "-3", "-0.3/2"]),
    ("The answer is 5.", ["5", "x = 5"], ["6"]),
    ("5 = x", ["5", "x = 5"], ["6", "y = 6"]),
    (r"23_{\text{five}}", ["23_5", "23_{5}", "23_{five}"], ["23", "23_6", "13"]),
    ("200203_{-4}", ["200203_{-4}", "(200203)_{-4}"], ["200203_4", "200203"]),
    ("all real numbers", [r"\mathbb{R}", r"(-\infty, \infty)", r"\text{all real numbers}"], [r"[0, \infty)", "real"]),
]


@pytest.mark.parametrize(("label", "same", "other"), LABELS)
def test_a_label_in_a_free_form(label, same, other):
    assert [answer for answer in [label, *same] if not grade(rf"\boxed{{{answer}}}", label).correct] == []
    assert [answer for answer in other if grade(rf"\boxed{{{answer}}}", label).correct] == []


APPLES = "小明有多少个苹果？他有30个苹果，或者除以2，不少于5个。 A bag of seventeen apples."
# A noun of the problem may follow a number, but no word that changes its value.
NOUNS = ["25个", "25个苹果", "25苹果", r"25\text{个苹果}", "25 apples"]
NO_NOUNS = ["25或", "25除以", "25不", "25不少于", "25个或", "25 seventeen", "25万", "25半"]


def test_a_noun_of_a_chinese_problem_follows_a_number_without_a_space():
    assert [answer for answer in NOUNS if not grade(rf"\boxed{{{answer}}}", "25", prompt=APPLES).correct] == []
    assert [answer for answer in NO_NOUNS if grade(rf"\boxed{{{answer}}}", "25", prompt=APPLES).correct] == []


# (problem, answers that count what the problem asks for, other answers)
COUNTED = [
    (
        "There are 484 legs in the room. How many tables are in the room?",
        ["5 tables", r"5 \text{ tables}"],
        ["5 legs or 6"],
    ),
    ("He has 35 points in all, how many mistakes did he make?", ["5 mistakes"], ["5 mistakes more", "5 how"]),
    (
        "How many more cats than dogs are there?",
        ["5 more cats", r"5\text{ more cats}"],
        ["5 more", "5 fewer cats", "5 or more cats"],
    ),
    ("How many cats are there?", ["5 cats"], ["5 more cats", "5 times"]),
    ("How many cans of stew are needed?", ["5 cans"], ["5 can", "5 can not"]),
    ("How many times does he jump?", ["5 times"], ["5 times 6", "5 times more"]),
]


@pytest.mark.parametrize(("problem", "same", "other"), COUNTED)
def test_what_the_problem_counts_may_follow_the_number(problem, same, other):
    assert [answer for answer in same if not grade(rf"\boxed{{{answer}}}", "5", prompt=problem).correct] == []
    assert [answer for answer in other if grade(rf"\boxed{{{answer}}}", "5", prompt=problem).correct] == []


UNSEEN = [
    '<div style="visibility: hidden">{}</div>', '<p style="opacity:0">{}</p>', '<font color="white">{}</font>',
    '<span style="color: #FFF">{}</span>', '<span style="font-size:0">{}</span>', "![{}](plot.png)",
    '<img src="plot.png" alt="{}">', r"\textcolor{{#ffffff}}{{{}}}", r"\transparent{{0}}{{{}}}",
]  # fmt: skip
SEEN = [
    '<div style="opacity:0.9">{}</div>', '<p align="center">{}</p>', '<font color="blue">{}</font>',
    '<span style="background-color: white">{}</span>', "![plot](plot.png) {}", r"\textcolor{{blue}}{{{}}}",
]  # fmt: skip


@pytest.mark.parametrize("frame", UNSEEN)
def test_a_box_that_nobody_sees_is_no_answer(frame):
    assert extract_answer("so " + frame.format(r"\boxed{5}"), "boxed") is None


@pytest.mark.parametrize("frame", SEEN)
def test_a_box_in_a_visible_frame_is_an_answer(frame):
    assert extract_answer("so " + frame.format(r"\boxed{5}"), "boxed") == "5"


JOINED = [
    " OR ",
    " And ",
    "，",
    "、",
    " 和 ",
    "或",
    " 或者 ",
    r" \lor ",
    r" $\vee$ ",
    r"\text{ 和 }",
    " or maybe ",
    " or else ",
]
APART = ["。", " then ", "，所以 ", ". Or rather, we get ", " → "]


@pytest.mark.parametrize("between", JOINED)
def test_two_boxes_with_a_conjunction_are_one_answer(between):
    response = rf"\boxed{{1}}{between}\boxed{{2}}"
    assert extract_answer(response, "boxed") == "1, 2"
    assert not grade(response, "2").correct


@pytest.mark.parametrize("between", APART)
def test_of_two_boxes_with_other_words_between_them_the_last_one_is_the_answer(between):
    assert extract_answer(rf"\boxed{{1}}{between}\boxed{{2}}", "boxed") == "2"


# Equal to the label, but with work left: sin^2 + cos^2 = 1, (1/4)^{-1} = 4, -(-2)^7 = 2^7, 2 * 9 = 18.
UNFINISHED = [
    (r"3 \sec \theta", [r"3(\sin^2 1+\cos^2 1) \sec \theta", r"3(\sin^2 \theta+\cos^2 \theta) \sec \theta"]),
    (r"\sin x + \cos x", [r"(\sin x + \cos x)(\cos^2 x + \sin^2 x)", r"\sin x + \cos x + 1 - \sin^2 x - \cos^2 x"]),
    (r"\frac{1}{4m}", [r"\frac{1}{(\frac14)^{-1}m}", r"\frac14 m^{-1} \cdot 1", r"\frac{4^{-1}}{m}"]),
    ("2^n", ["(\\frac12)^{-1} \\cdot 2^{n-1}"]),
    ("-x^3", ["(-x)^3", "-(-(x^3))"]),
    (r"\csc 18^\circ", [r"\csc(2 \cdot 9^\circ)", r"\csc(2(9^\circ))", r"\csc(3 \cdot 6^\circ)"]),
]
FINISHED = [
    (r"3 \sec \theta", r"\frac{3}{\cos \theta}"),
    (r"\sin x + \cos x", r"\cos x + \sin x"),
    (r"\frac{1}{4m}", r"\frac14 m^{-1}"),
    ("-x^3", "-(x^3)"),
    (r"\csc 18^\circ", r"\frac{1}{\sin 18^\circ}"),
    (r"\sin^2 x", r"1 - \cos^2 x"),
    (r"2\sin^2 x + \cos^2 x", r"\cos^2 x + 2\sin^2 x"),
]


@pytest.mark.parametrize(("label", "answers"), UNFINISHED)
def test_an_answer_with_work_left_is_no_answer(label, answers):
    assert [answer for answer in answers if grade(rf"\boxed{{{answer}}}", label).correct] == []


@pytest.mark.parametrize(("label", "answer"), FINISHED)
def test_another_finished_form_is_an_answer(label, answer):
    assert grade(rf"\boxed{{{answer}}}", label).correct


# Equal to the label only where the sum or the difference of two integers is odd, or is a multiple of three.
INTEGERS = [
    (r"\lfloor \frac{m+n}{2} \rfloor", r"\frac{m+n-1}{2}", r"\lceil \frac{m+n-1}{2} \rceil"),
    ("(-1)^{m+n}(m+n)", "-(m+n)", "(-1)^{m-n}(m+n)"),
    ("2^{k-n}", "-(-2)^{k-n}", "2^{-n+k}"),
    (r"(-1)^{j+k+m} mn", "(-1)^{j+1} mn", "(-1)^{m+k+j} nm"),
    (r"\frac{m-n}{3}", r"\lfloor \frac{m-n}{3} \rfloor", r"\frac{m}{3}-\frac{n}{3}"),
    (r"\lfloor \frac{k+m+n}{2} \rfloor", r"\frac{k+m+n}{2}", r"\lfloor \frac{n+m+k}{2} \rfloor"),
    # Equal only where m < n, or where both sides are 0.
    ("|m-n|", "n-m", "|n-m|"),
    (r"\max(m,n)+m", "m+n", r"m+\max(n,m)"),
    (r"\binom{m}{n}", r"\binom{m}{n+1}", r"\frac{m!}{n!(m-n)!}"),
    (r"\binom{m}{n}+mn", "mn", r"mn+\binom{m}{m-n}"),
    (r"\binom{n}{k}", r"\binom{n}{k}+\binom{k}{n}", r"\binom{n-1}{k}+\binom{n-1}{k-1}"),
]


@pytest.mark.parametrize(("label", "wrong", "correct"), INTEGERS)
def test_integers_of_all_remainders_and_in_both_orders_are_tried(label, wrong, correct):
    assert not grade(rf"\boxed{{{wrong}}}", label).correct
    assert grade(rf"\boxed{{{correct}}}", label).correct


# Equal for all numbers but integers, or integers and a half.
ROUNDED = [
    (r"\lceil x \rceil", r"\lfloor x \rfloor + 1", r"-\lfloor -x \rfloor"),
    (r"\lceil \frac{x}{2} \rceil", r"\lfloor \frac{x}{2} \rfloor + 1", r"\lceil x/2 \rceil"),
    (r"\lceil x - \frac12 \rceil", r"\lfloor x + \frac12 \rfloor", r"\lceil x + \frac12 \rceil - 1"),
]


@pytest.mark.parametrize(("label", "wrong", "correct"), ROUNDED)
def test_rounding_is_tried_at_integers_and_halves(label, wrong, correct):
    assert not grade(rf"\boxed{{{wrong}}}", label).correct
    assert grade(rf"\boxed{{{correct}}}", label).correct


# A name x in a form with work left: each is x, wherever it has a value.
NAMES_UNDONE = [
    r"\binom{x}{1}", r"\binom{x}{x-1}", r"\frac{x!}{(x-1)!}", "(x^{-1})^{-1}", r"\sqrt[3]{x^3}", r"(\sqrt{x})^2",
    r"\frac{x^2-x}{x-1}", r"\frac{x^3+x}{x^2+1}", r"(\frac{x^2}{x-1}-\frac{x}{x-1})", r"\ln e^x", r"e^{\ln x}",
    r"\log_2 2^x", r"\tan(\arctan x)", r"\max(x,x)", r"\frac{x^2-a^2}{x+a}+a",
]  # fmt: skip
# Labels that have the functions of all of these, so that only the rules about work left refuse them.
RICH = [
    r"\frac{1}{x+2}", r"\frac{1}{a}\ln x + \frac{e^x}{a}", r"\frac{n!}{x+1}\binom{n}{3}",
    r"\sqrt[3]{a} \cdot \frac{1}{x+a}", r"\frac{\arctan x}{\tan a}", r"\frac{x}{\max(a, b)}",
]  # fmt: skip


@pytest.mark.parametrize("label", RICH)
def test_a_name_with_work_left_is_no_name(label):
    # The label, with another form of its name x in braces.
    answers = [re.sub(r"(?<![a-z])x(?![a-z])", lambda _, form=form: f"{{{form}}}", label) for form in NAMES_UNDONE]
    assert [answer for answer in answers if grade(rf"\boxed{{{answer}}}", label, timeout=20).correct] == []


KEPT = [
    (r"\sqrt{x^3}", r"x\sqrt{x}"),
    (r"\frac{n(n-1)}{2}", r"\binom{n}{2}"),
    (r"\binom{2n}{n}", r"\frac{(2n)!}{n! \cdot n!}"),
    (r"\frac{1}{x-1}-\frac{1}{x+1}", r"-\frac{1}{x+1}+\frac{1}{x-1}"),
    (r"\frac{a+b}{x-1}", r"\frac{a}{x-1}+\frac{b}{x-1}"),
    (r"e^{t \ln 2}", r"e^{\ln 2 \cdot t}"),
    (r"\ln x^2", r"\ln(x^2)"),
]


@pytest.mark.parametrize(("label", "answer"), KEPT)
def test_a_form_like_the_label_is_an_answer(label, answer):
    assert grade(rf"\boxed{{{answer}}}", label).correct
