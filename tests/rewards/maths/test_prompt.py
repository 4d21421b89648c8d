"""The problem in a prompt: the last turn of the user, without the template around it."""

import pytest

from openrlhf_cov.rewards.maths.grading import grade
from openrlhf_cov.rewards.maths.prompt import read_problem

PROBLEM = "Let $x=2$.\nWhat is $x^3$?"
SEVERAL_PARTS = "Subproblem 0: What is $x$?\nSolution: The answer is 3.\n\nSubproblem 1: How many years is it?"
WITH_ROLES = [
    SEVERAL_PARTS,
    "Let $f(x)=x(x+2)$.\nQuestion: Which polynomial is $f$?",
    "Simplify the sum first.\nSolution: done above.\nNow write $x(x+2)$ as a polynomial.",
    "Read the text.\nAnswer: yes or no?",
    "Problem: the pump is broken.\nHow many hours does it take?",
]
TEMPLATES = [
    "{}",
    "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    "<｜User｜>{}<｜Assistant｜><think>\n",
    "Question: {}\nAnswer:",
    "Question: {}\nAnswer: Let's think step by step.",
    "A conversation between User and Assistant.\nUser: {}\nAssistant: <think>",
    "Problem:\n{}\n\nSolution:",
    # With examples before it.
    "Problem:\nWhat is $1+1$?\n\nSolution:\nIt is 2.\n\nProblem:\n{}\n\nSolution:",
    "Question: What is 3?\nAnswer: 3\n\nQuestion: What is 4?\nAnswer: 4\n\nQuestion: {}\nAnswer:",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("problem", [PROBLEM, *WITH_ROLES])
def test_the_problem_is_what_stands_in_the_template(template, problem):
    assert read_problem(template.format(problem)).text.removeprefix("Problem: ") == problem.removeprefix("Problem: ")


@pytest.mark.parametrize("template", TEMPLATES)
def test_words_of_roles_in_a_problem_change_no_verdict(template):
    """The unit that is asked for, and the formula that an answer may not repeat, stand behind such a word."""
    parts, formula, other, *_ = (template.format(each) for each in WITH_ROLES)
    assert grade(r"\boxed{5 \text{ years}}", "5", prompt=parts).correct
    assert not grade(r"\boxed{5 \text{ days}}", "5", prompt=parts).correct
    for prompt in (formula, other):
        assert not grade(r"\boxed{x(x+2)}", "x^2+2x", prompt=prompt).correct


COUNTED = [
    ("For how many values of $x$ is it zero?", r"12\text{ values}", r"12\text{ squares}"),
    ("How many possible values of $x$ exist?", r"12\text{ possible values}", r"12\text{ quarters}"),
    ("Find the number of integer values of $x$.", r"12\text{ integer values}", r"12\text{ integer cubes}"),
    ("They only have quarters. How many quarters does she get?", r"12\text{ quarters}", r"12\text{ quarter}"),
    ("How many positive perfect squares are less than 150?", r"12\text{ squares}", r"12\text{ squared}"),
    ("How many multiples of 5 are there?", r"12\text{ multiples}", r"12\text{ values}"),
    ("How many zeros has the number?", r"12\text{ zeros}", r"12\text{ zero}"),
]


@pytest.mark.parametrize(("problem", "own", "other"), COUNTED)
def test_a_noun_that_the_question_counts_may_follow_the_number(problem, own, other):
    verdicts = [grade(rf"\boxed{{{answer}}}", "12", prompt=problem).correct for answer in (own, other)]
    assert verdicts == [True, False]


@pytest.mark.parametrize(
    ("problem", "answer"),
    [
        ("How many dozens of eggs are there?", r"12\text{ dozens}"),
        ("How many thirds of the cake are left?", r"12\text{ thirds}"),
        ("How many thousands of people came?", r"12\text{ thousands}"),
        ("How many triangles have squares on their sides?", r"12\text{ squares}"),
        ("The shop gives quarters. How many dollars are left?", r"12\text{ quarters}"),
        ("Of 5 values, how many are even?", r"12\text{ values}"),
    ],
)
def test_a_scale_or_a_noun_of_the_story_may_not_follow_the_number(problem, answer):
    assert not grade(rf"\boxed{{{answer}}}", "12", prompt=problem).correct
