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


STANDARD = "Write the equation in the form $ay^2+by+cx+d=0$."
ORDERS = [
    (
        STANDARD,
        "y^2-4x-6y+9=0",
        ["y^2-6y-4x+9=0", "9-6y+y^2-4x=0", "-4x+9+y^2-6y=0", "0=y^2-6y-4x+9"],
        ["2y^2-12y-8x+18=0"],
    ),
    ("Write the plane in the form $Ax+By+Cz+D=0$.", "x+2y-2z-9=0", ["-9+2y+x-2z=0"], ["2x+4y-4z-18=0"]),
    ("Factor it.", "(x+1)(x^2+3x+1)", ["(x+1)(3x+x^2+1)", "(1+x)(1+x^2+3x)"], []),
    ("Factor $5x^2+10x$.", "5x(x+2)", ["5x(2+x)"], ["5(x^2+2x)", "5(2x+x^2)", "x(5x+10)", "x(10+5x)"]),
    ("Factor $x^3+5x^2+6x$.", "x(x+2)(x+3)", ["(x+3)(x+2)x"], ["x(x^2+5x+6)", "(x^2+2x)(x+3)", "(2x+x^2)(3+x)"]),
]


@pytest.mark.parametrize(("problem", "label", "answers", "unfactored"), ORDERS)
def test_the_order_of_terms_does_not_make_them_less_factored(problem, label, answers, unfactored):
    expected = dict.fromkeys(answers, True) | dict.fromkeys(unfactored, False)
    assert verdicts(problem, label, answers + unfactored) == expected


POWERS = [
    ("x^y=y^x", ["x^{y}=y^{x}", "y^x=x^y", "(x)^{y}=y^x"], []),
    ("x^y<y^x", ["x^{y}<y^{x}", "y^{x}>x^{y}"], []),
    (r"\binom{9891}{1989}", [r"\binom{9891}{7902}"], [r"\binom{9891}{89}"]),
    (r"\binom{10000}{5000}", [], [r"\binom{9999}{5000}", r"\binom{10000}{4999}"]),
]


@pytest.mark.parametrize(("label", "answers", "others"), POWERS)
def test_large_powers_and_binomials_are_compared_in_time(label, answers, others):
    for answer in answers + others:
        result = grade(f"so $\\boxed{{{answer}}}$.", label)
        assert (result.status, result.correct) == ("graded", answer in answers), answer


# Label, answers in other functions, and the formula of a problem with one identity applied to it.
TRIGONOMETRY = [
    (r"\cot x", [r"\frac{\cos x}{\sin x}", r"\frac{1}{\tan x}"],
     [r"\frac{\sec x}{2\sin\frac x2\cos\frac x2}-\frac{\sin x}{\cos x}"]),
    (r"\tan x", [r"\frac{\sin x}{\cos x}"],
     [r"\frac{\sin x+2\sin x\cos x}{1+\cos x+\cos 2x}", r"\frac{2\sin x\cos x}{1+\cos 2x}"]),
    (r"2\sec x", [r"\frac{2}{\cos x}"], [r"\frac{\cos x}{1+\sin x}+\sec x+\tan x"]),
    (r"\tan\frac x2", [r"\frac{1-\cos x}{\sin x}", r"\frac{\sin x}{1+\cos x}"], []),
    (r"\cos 2x", [r"2\cos^2x-1", r"1-2\sin^2x"], [r"\cos 3x\cos x+\sin 3x\sin x"]),
    (r"\sin 3x", [r"3\sin x-4\sin^3x"], [r"\sin 2x\cos x+\cos 2x\sin x"]),
    (r"\sin(a+b)", [r"\sin a\cos b+\cos a\sin b"],
     [r"2\sin\frac{a+b}2\cos\frac a2\cos\frac b2"
      r"-2\sin\frac{a+b}2\sin\frac a2\sin\frac b2"]),
    (r"2\sin 5x\cos x", [r"\sin 6x+\sin 4x"], []),
    ("1+x", [], [r"\sin^2x+\cos^2x+x"]),
]  # fmt: skip


@pytest.mark.parametrize(("label", "answers", "cheats"), TRIGONOMETRY)
def test_an_answer_has_few_more_trigonometric_functions_than_its_label(label, answers, cheats):
    assert verdicts("", label, answers + cheats) == dict.fromkeys(answers, True) | dict.fromkeys(cheats, False)


QUOTIENTS = [
    (r"\left(\frac{n+1}{2}\right)^2", [r"\frac{(n+1)^2}{4}", r"\frac14(n+1)^2", r"\frac{n^2+2n+1}{4}"],
     [r"\frac{(2n+2)^2}{16}", r"\frac{(n+1)^2}{2^2}", r"\left(\frac{2n+2}{4}\right)^2", r"\frac{(n+1)^3}{4(n+1)}"]),
    (r"\left(\frac{a}{1-a}\right)^2", [r"\frac{a^2}{(1-a)^2}"], [r"\frac{a^3}{a(1-a)^2}"]),
    (r"\left(\frac{x}{y}\right)^3", [r"\frac{x^3}{y^3}"], [r"\frac{x^4}{xy^3}", r"\frac{x^3}{y^2y}"]),
    (r"\left(\frac12\right)^n", [r"\frac{1}{2^n}", "2^{-n}"],
     [r"\frac{1^n}{2^n}", r"\frac{3^n}{6^n}", r"\frac{x^n}{(2x)^n}", r"\frac{2}{2\cdot2^n}"]),
    (r"\frac{1}{2^n}", [r"\left(\frac12\right)^n", "2^{-n}"], [r"\frac{3^n}{6^n}"]),
    (r"\left(\frac23\right)^n", [r"\frac{2^n}{3^n}", r"2^n3^{-n}"],
     [r"\frac{4^n}{6^n}", r"\frac{2\cdot2^n}{2\cdot3^n}"]),
    (r"1-\left(\frac12\right)^n", ["1-2^{-n}", r"\frac{2^n-1}{2^n}"], [r"\frac{4^n-2^n}{4^n}"]),
]  # fmt: skip
NUMBERS = [
    (r"\frac12\left[\left(\frac13\right)^{100}+1\right]",
     [r"\frac{3^{100}+1}{2\cdot3^{100}}", r"\frac12+\frac{1}{2\cdot3^{100}}"],
     [r"\frac{3^{100}+2-1}{2\cdot3^{100}}", r"\frac{3^{100}+1}{3^{100}+3^{100}}",
      r"\frac{3^{100}+2^0}{2\cdot3^{100}}"]),
    ("2^{100}-1", ["-1+2^{100}", "4^{50}-1"],
     ["2^{99}+2^{99}-1", r"2\cdot2^{99}-1", "2^{101}-2^{100}-1", r"\frac{2^{100}2^{100}-2^{100}}{2^{100}}"]),
    ("100!-1", ["-1+100!"], ["100!-100!+100!-1", "100!-0!"]),
    (r"\sqrt2", [], [r"\frac{2^3\sqrt2}{2^3}"]),
    ("x+1", [], [r"\frac{2^3x+2^3}{2^3}"]),
]  # fmt: skip


@pytest.mark.parametrize(("label", "answers", "undone"), QUOTIENTS + NUMBERS)
def test_powers_of_quotients_and_repeated_powers_have_equal_forms(label, answers, undone):
    assert verdicts("", label, answers + undone) == dict.fromkeys(answers, True) | dict.fromkeys(undone, False)
