r"""Forms of one formula or equation: those that are as far worked out as the label, and those that are not."""

import pytest

from openrlhf_cov.rewards.maths.grading import grade


def verdicts(problem, label, answers):
    """Return the verdict on each answer, by the answer."""
    responses = {answer: f"so $\\boxed{{{answer}}}$." for answer in answers}
    return {answer: grade(text, label, prompt=problem, timeout=20).correct for answer, text in responses.items()}


CIRCLE = "Write the equation $x^2+y^2-2x+4y-4=0$ in standard form of a circle."
ELLIPSE = "Write $9x^2+4y^2=36$ as an ellipse in standard form."
LINE = "Rearrange $3x+2y=6$ so that $y$ is on one side only."
INTEGERS = r"Write $y=-\frac32x+3$ with integers and 0 on one side."
HALF_PLANE = "Rearrange $4x-2y+2>0$ with $y$ alone."
HYPERBOLA = "The curve $xy=1$ is given. Write it as a function."
# Problem, label, answers with the work done, and answers that only scale or rearrange the equation of the problem.
EQUATIONS = [
    (CIRCLE, "(x-1)^2+(y+2)^2=9",
     ["(y+2)^2+(x-1)^2=9", "(x-1)^2+(y+2)^2-9=0", "(x-1)^2=9-(y+2)^2", "(1-x)^2+(y+2)^2=9"],
     ["2x^2+2y^2-4x+8y-8=0", "x^2+y^2-2x+4y=4", "x(x-2)+y(y+4)=4", "x^2-2x=4-y^2-4y", "4-x^2-y^2+2x-4y=0",
      r"\frac{x^2+y^2}{2}-x+2y-2=0", "x^2+y^2-2(x-2y+2)=0"]),
    (ELLIPSE, r"\frac{x^2}{4}+\frac{y^2}{9}=1",
     [r"\frac{y^2}{9}+\frac{x^2}{4}=1", r"\frac14x^2+\frac19y^2=1", r"1=\frac{x^2}{4}+\frac{y^2}{9}"],
     ["18x^2+8y^2=72", "9x^2+4y^2-36=0", "9x^2=36-4y^2", r"\frac{9x^2}{2}+2y^2=18"]),
    (LINE, r"y=-\frac32x+3",
     [r"y=3-\frac32x", r"y=\frac{6-3x}{2}", r"-\frac32x+3=y", r"y=-\frac32(x-2)", r"3-\frac32x"],
     ["6x+4y=12", "3x+2y-6=0", "2y=6-3x", r"x=2-\frac23y", r"\frac32x+y=3"]),
    (INTEGERS, "3x+2y-6=0",
     ["3x+2y=6", "0=3x+2y-6", "-3x-2y+6=0", "2y=6-3x", "6x+4y-12=0"],
     [r"y+\frac32x-3=0", r"y+\frac32x=3", "4y=12-6x"]),
    (HALF_PLANE, "y<2x+1", ["2x+1>y"], ["2x-y+1>0", "8x-4y+4>0"]),
    (HYPERBOLA, r"y=\frac1x", [r"\frac1x=y"], ["2xy=2", "xy-1=0"]),
    # The problem has no equation of the label, or has the label itself.
    ("Find the circle around $(1,-2)$ through $(4,-2)$.", "(x-1)^2+(y+2)^2=9", ["x^2+y^2-2x+4y-4=0"], []),
    ("Move the line $2x+3y=6$ by 2.", "2x+3y=10", [r"y=\frac{10-2x}{3}", "4x+6y=20"], []),
    ("Which of $x^2+y^2=4x$ and $x^2=4y$ is a circle?", "x^2+y^2=4x", ["(x-2)^2+y^2=4", "x^2+y^2-4x=0"], []),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "label", "answers", "cheats"), EQUATIONS)
def test_an_equation_of_the_problem_is_no_answer_in_another_arrangement(problem, label, answers, cheats):
    assert verdicts(problem, label, answers + cheats) == dict.fromkeys(answers, True) | dict.fromkeys(cheats, False)
