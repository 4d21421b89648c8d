"""Answers beside the problem that they answer: cheats, and the forms in which models write correct answers.

``problems.jsonl`` has ``prompt``, ``answer``, ``gold``, ``equal`` and ``group``. A correct answer in a form that is
not read has ``"accepted": false``, an answer with work left in it that no rule refuses ``"accepted": true``.
"""

import json
from pathlib import Path

import pytest

from openrlhf_cov.rewards.maths.grading import grade

ROWS = [
    json.loads(line) for line in Path(__file__).with_name("problems.jsonl").read_text(encoding="utf-8").splitlines()
]
GROUPS = sorted({row["group"] for row in ROWS})


@pytest.mark.parametrize("group", GROUPS)
def test_answers_beside_their_problem(group):
    differing = []
    for row in ROWS:
        if row["group"] != group:
            continue
        expected = row.get("accepted", row["equal"])
        result = grade(f"\\boxed{{{row['answer']}}}", row["gold"], prompt=row["prompt"], timeout=20)
        if result.correct is not expected:
            differing.append(row)
    assert differing == []


def test_the_set_has_both_cheats_and_honest_answers():
    assert sum(not row["equal"] for row in ROWS) >= 800
    assert sum(row["equal"] for row in ROWS) >= 250


DENIED = [
    r"I doubt it is \boxed{5}", r"\boxed{5}? No.", r"~~\boxed{5}~~", r"\boxed{5} (incorrect)",
    r"\boxed{5}, which is wrong.",
    r"\cancel{\boxed{5}}", r"<del>\boxed{5}</del>", r'<span style="display:none">\boxed{5}</span>',
    r"{\color{white}\boxed{5}}",
    r"\llap{\boxed{5}}", r"\if0 \boxed{5}\fi", r"neither \boxed{5}", r"\boxed{5} would be wrong",
    r"I reject \boxed{5}.",
    r"It is false that the answer is \boxed{5}.", r"\verb|\boxed{5}|", r"[//]: # (\boxed{5})", r"\gdef\a{\boxed{5}}",
    r"\boxed{6}\end{document}\boxed{5}", r"\boxed{5} isn't right", r"\boxed{5} no wait, 6",
    r"\boxed{5} cannot be correct.",
    r"the opposite of \boxed{5}", r"\boxed{5}... no, it is 6.", r"\boxed{5} - wrong!", r"\boxed{5}? Not at all.",
    r"\boxed{5} was my first guess, but it is wrong.",
    r"\boxed{5<!-- 6 -->}", r"\boxed{5\begin{comment}6\end{comment}}", r"\boxed{6 <answer>5</answer>}",
]  # fmt: skip


@pytest.mark.parametrize("response", DENIED)
def test_an_answer_that_is_denied_crossed_out_or_hidden_is_wrong(response):
    assert not grade(response, "5").correct


PARTS_OF_FORMULAS = [
    r"$-\boxed{5}$", r"$x=-\,\boxed{5}$", r"$2\cdot\boxed{5}$", r"$\boxed{5}\times2$", r"$\boxed{5}^2$",
    r"$2^{\boxed{5}}$", r"$\boxed{5}/2$", r"$\frac{\boxed{5}}{2}$", r"$\frac{1}{\boxed{5}}$", r"$\sqrt{\boxed{5}}$",
    r"$\ln\boxed{5}$",
    r"$1\boxed{5}$", r"$\boxed{5}0$", r"$\boxed{5}.5$", r"$\boxed{5},000$", r"$\boxed{5}{,}000$", r"$\boxed{5}+1$",
    r"$\boxed{5}-1$", r"$\boxed{5}_{6}$", r"$\boxed{5}{6}$", r"$\boxed{5}!$", r"$x\ne\boxed{5}$", r"$x\not=\boxed{5}$",
    r"$\neg\boxed{5}$", r"$\pm\boxed{5}$", r"$\{\boxed{5},6\}$",
]  # fmt: skip


@pytest.mark.parametrize("response", PARTS_OF_FORMULAS)
def test_a_box_that_is_a_part_of_a_formula_is_no_answer(response):
    assert not grade(response, "5").correct


@pytest.mark.parametrize(
    "response",
    [
        r"- \boxed{5}", r"**\boxed{5}**", r"*\boxed{5}*", r"_\boxed{5}_", r"$\frac{10}{2}=\boxed{5}$", r"=> \boxed{5}",
        r"$\boxed{5}^\circ$", r"$\$\boxed{5}$", r"$\boxed{5}\text{ cm}$",
        r"The answer is \boxed{5}!",
        r"$N\equiv\boxed{5}\pmod{7}$", r"$\textbf{\boxed{5}}$", r"$\boxed{5}$, 6 is too large",
        r"Since $x$ is not zero, the answer is $\boxed{5}$.", r"This is false for 4, so \boxed{5} is correct.",
        r"\[\color{blue}\boxed{5}\]", r"I cannot find another value. **Final answer:** \boxed{5}",
        r"\boxed{5<|im_end|>}",
        r"The wrong path gives 6. $$\boxed{5}$$ is the answer", r"<!-- note --> \boxed{5}",
        r"Thus \(\boxed{5}\) not 6.",
    ],
)  # fmt: skip
def test_what_stands_beside_a_box_does_not_matter(response):
    assert grade(response, "5").correct


SUM = "What is $2+2$?"
SUMS = [
    f"{SUM}\nA. 3\nB. 4\nC. 5",
    f"{SUM}\n(A) 3\n(B) 4\n(C) 5\n(D) 6\n\nPut the answer in a box.",
    f"{SUM}\n$\\textbf{{(A)}}\\ 3\\qquad\\textbf{{(B)}}\\ 4\\qquad\\textbf{{(C)}}\\ 5$",
    f"{SUM}\n$\\mathrm{{(A) \\ }}3 \\qquad \\mathrm{{(B) \\ }}4 \\qquad \\mathrm{{(C) \\ }} 5$",
    f"{SUM}\nA) $3$\nB) $4$\nC) $5$",
    f"{SUM} $\\text{{(A) }} 3\\quad \\text{{(B) }} 4\\quad \\text{{(C) }} 5$",
]


@pytest.mark.parametrize("problem", SUMS)
def test_the_letter_of_an_option_and_its_value_stand_for_each_other(problem):
    for answer in ("B", "(B)", r"\text{B}", r"\textbf{(B)}", "4", "B. 4"):
        assert grade(f"\\boxed{{{answer}}}", "4", prompt=problem).correct, answer
        assert grade(f"\\boxed{{{answer}}}", "B", prompt=problem).correct, answer
    for answer in ("A", "(C)", "D", "5", "B. 5", "C. 4", "A, B", "E"):
        assert not grade(f"\\boxed{{{answer}}}", "4", prompt=problem).correct, answer
        assert not grade(f"\\boxed{{{answer}}}", "B", prompt=problem).correct, answer


def test_letters_that_name_no_options_stand_for_nothing():
    points = "The points are A(0,0), B(4,0) and C(0,3). (A) lies below (C). What is $AB$?"
    assert not grade(r"\boxed{B}", "4", prompt=points).correct
    assert not grade(r"\boxed{B}", "4").correct
    boxes = "Box A: 3\nBox B: 4\nBox C: 5\nWhich box has the most?"
    assert not grade(r"\boxed{5}", "C", prompt=boxes).correct
    # Two options have the value.
    assert not grade(r"\boxed{4}", "B", prompt=f"{SUM}\nA. 3\nB. 4\nC. 4").correct


def test_the_text_behind_a_letter_is_that_of_no_other_option():
    problem = "Which?\nA. $\\frac13$\nB. $\\frac12$\nC. 5"
    for answer in ("B. 1/2", "B. 0.5", r"B. \frac12"):
        assert grade(f"\\boxed{{{answer}}}", "B", prompt=problem).correct, answer
    for answer in ("B. 5", "B. 1/3", "B. C too", "B. A also"):
        assert not grade(f"\\boxed{{{answer}}}", "B", prompt=problem).correct, answer


# A label, the text of its option (B), and the texts of two other options.
OPTIONS = [
    (r"\{4,5,7\}", r"\{4,5,7\}", r"\{4,5,6\}", r"\{5,7,8\}"),
    ("1:4", "1:4", "1:3", r"\sqrt{3}:7"),
    (r"\tan \theta = 2\theta", r"\tan\theta=2\theta", r"\tan\theta=\theta", r"\tan\theta=4\theta"),
    (r"s^2 \le 8r^2", r"s^2\le8r^2", "s^2=8r^2", r"s^2\ge8r^2"),
    ("(1,2)", "(1,2)", "(2,1)", "(3,1)"),
    ("[1,2]", "[1,2]", "(1,2)", "[2,3]"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", "1", "2"),
    (r"\text{Evelyn}", "Evelyn", "Briana", "Carla"),
    (r"\frac16", r"\frac16", r"\frac{\sqrt3}{12}", r"\frac14"),
]


STYLES = [r"$\textbf{%s}\ %s$", r"$\mathrm{%s %s }$", r"$\text{%s }%s$", r"$\mathrm{\textbf{%s} \ }%s$", "**%s** $%s$"]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("label", "own", "first", "third"), OPTIONS)
def test_the_letter_of_an_option_stands_for_a_label_of_any_type(label, own, first, third, style):
    options = [style % (f"({letter})", text) for letter, text in zip("ABC", (first, own, third), strict=True)]
    problem = r" $\qquad$ ".join(["Which of these? ", *options])
    verdicts = {
        answer: grade(rf"\boxed{{{answer}}}", label, prompt=problem).correct
        for answer in ("B", "(B)", rf"\textbf{{(B)}}\ {own}", "A", "C", "D", "A, B", "A or B", rf"(A)\ {own}")
    }
    assert [answer for answer, correct in verdicts.items() if correct] == ["B", "(B)", rf"\textbf{{(B)}}\ {own}"]


def test_letters_of_several_options_are_no_list():
    problem = "Which are prime?\nA. 2\nB. 3\nC. 4"
    assert grade(r"\boxed{2, 3}", "2, 3", prompt=problem).correct
    assert not grade(r"\boxed{A, B}", "2, 3", prompt=problem).correct
