r"""Honest forms that differ from the label in names and order, each beside forms that look like it and say less.

Sums of named parts, constants of integration, families of values, and remarks behind the box.
"""

import pytest

from openrlhf_cov.rewards.maths.extraction import last_boxed
from openrlhf_cov.rewards.maths.grading import grade

SUM = r"The ratio is $\frac{p}{q}$, where $p$ and $q$ are coprime. Find $p+q$."
OSCILLATOR = "Find the general solution of $y''+y=0$."
COSINE = r"Solve $\cos x=0$."
ODD = "Describe all odd integers."


def is_correct(problem, label, answer):
    return grade(f"so $\\boxed{{{answer}}}$.", label, prompt=problem).correct


# 50 + 21 = 71 is what the problem asks for.
SUMS = ["p=50, q=21, p+q=71", r"p = 50 \text{ and } q = 21, p + q = 71", r"p=50, q=21 \implies p+q=71",
        "p=50, q=21, so p+q=50+21=71", r"p=1,000, q=-929, p+q=71"]  # fmt: skip
NO_SUMS = [
    "p=50, q=20, p+q=71",  # 70
    "p=50, q=21, p+q=72",
    "p=50, q=21, p-q=71",  # 29, and not asked for
    "p=92, q=21, p-q=71",  # true, but not asked for
    "a=50, b=21, a+b=71",
    "p=50, q=21, r=3, p+q=71",  # an idle part
    "p=50, p=21, p+q=71",
    "p=50, q=21, 71", "p=50, q=21", "50, 21, 71", "p+q=71, p=50, q=21",
]  # fmt: skip


@pytest.mark.parametrize("answer", SUMS)
def test_a_sum_may_stand_behind_its_parts(answer):
    assert is_correct(SUM, "71", answer)


@pytest.mark.parametrize("answer", NO_SUMS)
def test_parts_that_do_not_agree_with_their_sum_are_wrong(answer):
    assert not is_correct(SUM, "71", answer)


def test_a_sum_that_the_problem_does_not_ask_for_is_wrong():
    assert not is_correct("How many?", "71", "p=50, q=21, p+q=71")
    assert not is_correct("", "71", "p=50, q=21, p+q=71")


# Arbitrary constants may change places; one constant for both leaves solutions out.
CONSTANTS = [r"C_2\cos x+C_1\sin x", r"A\cos x+B\sin x", r"B\cos x+A\sin x", r"c_1\sin x+c_2\cos x",
             r"y=C_2\cos x+C_1\sin x", r"y(x)=K_1\sin x+K_2\cos x", r"C_1\cos x+A\sin x"]  # fmt: skip
NO_CONSTANTS = [r"C_1\cos x+C_1\sin x", r"A\cos x+A\sin x", r"C\cos x+C\sin x", r"C_1\cos x", r"C_1\sin x+C_2\sin x",
                r"C_1\cos x+C_2\sin x+C_3", r"C_1\cos x+C_2\sin 2x", r"x\cos x+C_1\sin x",
                r"C_1\cos x+y\sin x"]  # fmt: skip


@pytest.mark.parametrize("answer", CONSTANTS)
def test_constants_of_integration_have_any_name(answer):
    assert is_correct(OSCILLATOR, r"C_1\cos x+C_2\sin x", answer)


@pytest.mark.parametrize("answer", NO_CONSTANTS)
def test_other_solutions_are_wrong(answer):
    assert not is_correct(OSCILLATOR, r"C_1\cos x+C_2\sin x", answer)


def test_names_of_the_problem_do_not_change_places():
    assert not is_correct(r"Let $A=3$ and $B=4$. Write $f$ in $x$, $A$ and $B$.", "A+2Bx", "B+2Ax")


FAMILIES = [
    (COSINE, r"\frac{\pi}{2}+n\pi, n \in \mathbb{Z}", [
        r"\frac{\pi}{2}+k\pi, k \in \mathbb{Z}", r"x=\frac{\pi}{2}+k\pi \quad (k \in \mathbb{Z})",
        r"k\pi+\frac{\pi}{2} \text{ where } k \text{ is an integer}",
        r"x=\frac{\pi}{2}+k\pi \text{ for any integer } k",
        r"-\frac{\pi}{2}+k\pi, k\in\mathbb{Z}",  # the values for k = 1, 2, ... are those for n = 0, 1, ...
        r"\frac{(2k+1)\pi}{2}, k \in \mathbb{Z}", r"\frac{\pi}{2}+\pi k"]),
    (ODD, r"2n+1, n \in \mathbb{Z}", ["2k+1", r"2k+1, k \in \mathbb{Z}", r"2k+1 \text{ (} k \text{ an integer)}",
                                      r"2k-1, k \in \mathbb{Z}", r"1+2m \text{ for integer } m"]),
    (ODD, r"2n+1, n \in \mathbb{N}", [r"2k+1, k\in\mathbb{N}"]),
]  # fmt: skip
NO_FAMILIES = [
    (COSINE, r"\frac{\pi}{2}+n\pi, n \in \mathbb{Z}", [
        r"\frac{\pi}{2}+2k\pi, k \in \mathbb{Z}",  # every second value
        r"\frac{\pi}{2}+\frac{k\pi}{2}, k \in \mathbb{Z}", r"k\pi, k \in \mathbb{Z}",
        r"\frac{\pi}{3}+k\pi, k\in\mathbb{Z}",
        r"\frac{\pi}{2}+k\pi, n\in\mathbb{Z}",  # the condition is about another name
        r"\frac{\pi}{2}+k\pi, k\in\mathbb{R}", r"\frac{\pi}{2}+k\pi, k\in\mathbb{N}", r"\frac{\pi}{2}+x\pi",
        r"\frac{\pi}{2}", r"\frac{\pi}{2}, k \in \mathbb{Z}", r"y=\frac{\pi}{2}+x\pi, x \in \mathbb{Z}"]),
    (ODD, r"2n+1, n \in \mathbb{Z}", ["2k", r"2k, k\in\mathbb{Z}", r"4k+1, k\in\mathbb{Z}", r"k+1, k\in\mathbb{Z}",
                                      r"2k+1, k\in\mathbb{N}", "2x+1", r"2k+\frac12, k\in\mathbb{Z}", "2k+m", "2i+1",
                                      "2k+1+2", r"2(k+1)+1, k\in\mathbb{Z}"]),  # not worked out
    # From the positive integers on 2k-1 begins with 1, and 2n+1 with 3.
    (ODD, r"2n+1, n \in \mathbb{N}", [r"2k-1, k\in\mathbb{N}", r"2k+3, k\in\mathbb{N}", r"2k+1, k\in\mathbb{Z}",
                                      "2k+1"]),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "label", "answers"), FAMILIES)
def test_the_integer_of_a_family_has_any_name(problem, label, answers):
    assert [answer for answer in answers if not is_correct(problem, label, answer)] == []


@pytest.mark.parametrize(("problem", "label", "answers"), NO_FAMILIES)
def test_other_families_are_wrong(problem, label, answers):
    assert [answer for answer in answers if is_correct(problem, label, answer)] == []


REMARKS = [
    ", as required.", ", which is not divisible by 3.", " (see step 2)", ", since 5 is not even.", " is the answer.",
    " is correct.", " must be correct.", " is the final answer, not 6.", ". Note: 6 is wrong.", " because it isn't 6.",
    " rather than 6", ", so the answer is not 4.",
    ". The answer is 5.", " or 5.0", ", or 15/3", ". So the answer is $5$.", ", no 6 fits.", " or more",
    " where $x > 3$.", " $= 2+3$.", " is not too large",
    " does not depend on n", r" \checkmark", " (B)", ", i.e. five.",
    # The same answer in another form.
    " minutes, or 300 seconds.", r" \text{ hours}, or 300 minutes", " cents, or 0.05 dollars", r", or $500\%$.",
    ", or 500 percent", ", or 2^2 + 1", " or $10 / 2$", ". Since the answer is 10/2 = m/n.",
    ". **Note:** the answer is 4 + 1 = 5.", " or 0.005 thousand", r", or $15 \div 3$",
]  # fmt: skip
TAKEN_BACK = [
    " is wrong.", " is not correct", " isn't right", ", which is not the answer", ", no wait, 6", " is a wrong guess",
    " was my first guess", "? No.", " is not it", " (wrong)", ", but this is wrong", ". That is wrong.",
    ", but it's not correct", " cannot be correct", " is not.",
    # Another answer behind the box.
    ". Actually, 6.", ". Correction: 6", " or 6", "$ or $6$", ". Sorry, it is 6.", ". The answer is 6.", ". No, 6.",
    " or -5", " minutes, or 6 minutes", r"\%, or 6\%", " or 6 apples", " or 6, = x", ", or 6 - maybe.",
]  # fmt: skip


@pytest.mark.parametrize("remark", REMARKS)
def test_a_remark_behind_the_box_leaves_it_as_it_is(remark):
    assert last_boxed("so \\boxed{5}" + remark) == "5"


@pytest.mark.parametrize("remark", TAKEN_BACK)
def test_a_box_that_is_taken_back_is_no_answer(remark):
    assert last_boxed("so \\boxed{5}" + remark) is None


# A problem, a label, other spellings of it, and answers that differ from it.
SPELLINGS = [
    ("", r"25^\circ\mathrm{C}", [r"25^\circ", "25", r"25\text{ degrees Celsius}", r"25^\circ C"],
     [r"25^\circ F", r"25\text{ degrees Fahrenheit}", r"25\text{ K}", r"26^\circ C"]),
    ("What is it in degrees Fahrenheit?", "77", [r"77\text{ degrees Fahrenheit}", r"77^\circ\text{F}"],
     [r"77\text{ cm}"]),
    ("", r"5\text{ m/s}", [r"5\text{ m/s}", "5"], [r"5\text{ m}"]),
    ("", r"\frac{990}{7}^\circ", [r"\frac{990^\circ}{7}", r"\frac{990}{7}", r"990^\circ/7"],
     [r"\frac{990}{7^\circ}", r"\frac{991^\circ}{7}", r"\frac{990^\circ}{7^\circ}"]),
    ("", r"\frac{990^{\circ}}{7}", [r"\frac{990}{7}^\circ", r"\frac{990}{7}"], [r"\frac{990\pi}{1260}", "990"]),
    ("", r"\lambda_{\text{red}}", [r"\lambda_{red}", r"\lambda_{\mathrm{red}}"],
     [r"\lambda_{blue}", r"\lambda", r"\lambda_{r}", r"\lambda_{red}\lambda_{red}"]),
    ("", r"\text{A5}_{11}", ["A5_{11}", "(A5)_{11}", r"\text{A}5_{11}"], ["A5_{12}", "A6_{11}", "A5", "5A_{11}"]),
    (r"Find $\frac{TM}{MK}$.", r"\frac{TM}{MK}=2", ["TM/MK = 2", r"\frac{MT}{KM}=2", "2"],
     ["MK/TM=2", "TM/MK=3", "TM/MK=2, 3", "TM/TM=2"]),
    ("", "5", [r"\text{Final Answer: }5", "Final Answer: 5", r"\text{Correct answer: }5"],
     [r"\text{Final Answer: }6", r"\text{Final Answer: }5, 6", r"\text{Wrong answer: }5"]),
    ("", r"\min\{BW, 2WR, 3RB\}", [r"\min\{BW,2WR,3RB\}", r"\min(2RW,WB,3RB)", r"\min\left\{3RB,BW,2WR\right\}"],
     [r"\max\{BW,2WR,3RB\}", r"\min\{BW,2WR\}", "BW", "BW, 2WR, 3RB", r"\{BW,2WR,3RB\}"]),
    ("", r"\max\{a,b\}", [r"\max\{b,a\}", r"\max(a,b)"], [r"\max\{a,a\}", "a", "a, b", r"a\text{ or }b"]),
    ("", r"(-\infty,-1)\cup(1,\infty)", [r"x\in(-\infty,-1)\text{ or }x\in(1,\infty)", r"x<-1\text{ or }x>1"],
     [r"x\in(-\infty,-1)\text{ or }y\in(1,\infty)", r"x\in(-\infty,-1)\text{ and }x\in(1,\infty)",
      r"x\in(-\infty,-1)\text{ or }x\in[1,\infty)", r"x\in(1,\infty)"]),
    ("", r"\lambda \ge \frac{1}{n-1}", [r"[\frac1{n-1},\infty)", r"\lambda\in[\frac1{n-1},\infty)"],
     [r"(\frac1{n-1},\infty)", r"[\frac1n,\infty)", r"(-\infty,\frac1{n-1}]", r"\mu\in[\frac1{n-1},\infty)",
      r"[\frac1{n-1},\infty)\text{ or }[\frac1n,\infty)"]),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "label", "own", "others"), SPELLINGS)
def test_a_label_has_several_spellings(problem, label, own, others):
    correct = [each for each in own + others if grade(rf"\boxed{{{each}}}", label, prompt=problem).correct]
    assert correct == own
