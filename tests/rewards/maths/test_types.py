r"""The types of labels: how each is recognised, and honest forms of its answers (table in ``docs/rewards.md``)."""

import pytest

from openrlhf_cov.rewards.maths.grading import grade
from openrlhf_cov.rewards.maths.labels import read_label

KINDS = {
    "integer": [
        r"\mathbf{2340}",
        "25",
        "025",
        "27.0",
        "1,234",
        "-3",
        r"10,\!080",
        "$5$",
        r"5\text{ cm}",
        "x = 5",
        r"60^\circ",
        r"\$5",
    ],
    "fraction": [r"\frac{3}{4}", "3/4", r"1\frac12", r"-\dfrac{7}{3}", r"\frac{3}{4}\text{ cm}"],
    "decimal": ["0.25", "4.5e33", r"1.5\times10^{3}", r"12.5\%", ".5"],
    "formula": [r"2\sqrt3", "x^2+1", "2^{10}", r"\frac{\pi}{4}", "3-4i", "y=2x+1", r"\binom{10}{5}", "f(x)=x^2"],
    "equation": ["x^2+y^2=1", r"\frac{dy}{dx}=2y", "2x+3y=6", r"\frac{TM}{MK} = 2"],
    "inequality": ["y<2x", "a^2+b^2>2ab"],
    "reals": [
        "[1,2)",
        "x>3",
        r"(-\infty,1)\cup(3,\infty)",
        r"x\ne2",
        "[1,2]",
        r"1<x\le2",
        r"\mathbb{R}\setminus\{2\}",
    ],
    "list": ["1, 2", r"\{1,2\}", r"3\pm\sqrt2", r"1\text{ or }2", "x=1,y=2", "(1,2),(3,4)"],
    "tuple": ["(1,2)", "(1,2,3)", "[2,1]", r"(x,y)=(1,2)"],
    "matrix": [r"\begin{pmatrix}1\\2\end{pmatrix}", r"\left[\begin{array}{cc}1&2\\3&4\end{array}\right]"],
    "base": ["12_5", "(12)_5", "1011_2"],
    "ratio": ["3:4", r"3 \text{ to } 4", "1:2:3"],
    "time": ["3:30 PM", "noon", r"4:40\text{ a.m.}"],
    "choice": [r"\text{(E)},", "B", "(B)", r"\text{(C)}", r"\textbf{(D)}"],
    "word": ["yes", r"\text{Evelyn}", r"\text{two lines}", r"\emptyset", "BAC"],
    "infinity": [r"\infty", r"-\infty"],
    "spelling": [r"\mathbb{Z}", r"\frac{5055}{2^{15}", "nan", ""],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_type_of_a_label(kind):
    assert {label: read_label(label).kind for label in KINDS[kind]} == dict.fromkeys(KINDS[kind], kind)


HONEST = [
    ("", "25", ["25", "025", "25.0", "+25", "$25$", "x = 25", r"25\text{ cm}", r"\$25", "25 cm^2", "(25)",
    r"\mathbf{25}", "AB = 25",
     "f(3)=25", "25 = x", "25 dollars", "**25**", r"\angle ABC = 25^\circ", "P(A)=25", "x=y=25", "=25"]),
    ("", "1234", ["1,234", "1{,}234", r"1\,234", "1 234", "1234.00"]),
    ("Find $p+q$.", "71", ["p+q=71", "71", "p + q = 71"]),
    ("How many white cats are there?", "5", ["5 cats", "5 white cats", r"5\text{ cats}", "5 cat"]),
    ("What is the area in square feet?", "5", ["5 square feet", "5 ft^2", r"5\text{ sq ft}", r"\text{area} = 5"]),
    ("", r"\frac34", ["3/4", "6/8", "0.75", ".75", r"x=\frac34", r"\frac{75}{100}", r"\frac34=0.75",
    r"\dfrac{-3}{-4}", "75\\%"]),
    ("", r"\frac23", ["0.666667", "0.666666", r"0.\overline{6}", "2/3", r"\frac46"]),
    ("", r"\frac32", [r"1\frac12", "1 1/2", "1.5", "3/2"]),
    ("", "0.25", [".250", "1/4", "2.5e-1", r"\frac14", "0.25"]),
    ("", "12.5664", [r"4\pi", "12.56637", "12.5664"]),
    ("", r"25\%", [r"25\%", "25", r"25\text{ percent}", "x = 25"]),
    ("What percent?", "25", [r"25\%", "25", r"25\text{ percent}"]),
    ("What is the probability?", r"25\%", ["1/4", "0.25", r"25\%"]),
    ("", r"5\text{ cm}", ["5 cm", "5", r"5\,\mathrm{cm}", "5 centimeters"]),
    ("", r"2\sqrt3", [r"\sqrt{12}", r"x = 2\sqrt3", r"2\sqrt3\text{ cm}", r"2\cdot\sqrt{3}", r"2*sqrt(3)",
    r"\frac{6}{\sqrt3}"]),
    ("", "2^{10}-1", ["1023", "4^5-1", "2^{10}-1", "-1+2^{10}"]),
    ("", "x^2-1", ["-1+x^2", "f(x)=x^2-1", "y=x^2-1", "x^{2}-1", "x**2-1"]),
    ("", "(x-1)^2", ["x^2-2x+1", "(1-x)^2"]),
    ("", r"\binom{n}{2}", [r"\frac{n(n-1)}{2}", "{}_nC_2", "{}_{n}C_{2}", r"\frac12n(n-1)"]),
    ("", r"\log_{10} 2", [r"\lg 2", r"\log_{10}(2)", r"\frac{\ln2}{\ln10}"]),
    ("", r"2\pi k", [r"2\pi k, k\in\mathbb{Z}", r"2k\pi", r"x=2\pi k\ (k\in\mathbb{Z})"]),
    ("", "y=2x+1", ["2x-y+1=0", "2x+1", "f(x)=2x+1", "y=1+2x", "y-1=2x"]),
    ("", r"y'=2y", [r"\frac{dy}{dx}=2y", r"\dot y=2y", "y'-2y=0"]),
    ("", r"\frac{dy}{dt}=ky", ["ky", "y'=ky", r"\dot{y}=ky"]),
    ("Solve $y'=y$.", "y=Ce^x", ["y=Ae^x", "y=C_1e^x", "Ce^x"]),
    ("", "(x-1)^2+y^2=4", ["y^2+(x-1)^2=4", "x^2-2x+y^2=3", "(1-x)^2=4-y^2"]),
    ("", r"(3,\infty)", ["x>3", "3<x", r"(3,+\infty)", r"x\in(3,\infty)", "t>3"]),
    ("", "x>3", [r"(3,\infty)", "3<x", r"x\in(3,\infty)"]),
    ("", r"x\ne2", [r"(-\infty,2)\cup(2,\infty)", r"\mathbb{R}\setminus\{2\}", r"x<2\text{ or }x>2", r"x\neq2"]),
    ("Find all values of $x$.", "(1,2)", ["1<x<2", "(1,2)", r"x\in(1,2)"]),
    ("", "1, 2", ["2, 1", "1,2", r"\{1,2\}", r"1\text{ or }2", "x=1, x=2", "1 and 2", "x = 1, 2", "1; 2", "{1,2}"]),
    ("", r"3\pm\sqrt2", [r"3+\sqrt2, 3-\sqrt2", r"3-\sqrt2\text{ and }3+\sqrt2", r"x=3\pm\sqrt2", r"3\mp\sqrt2"]),
    ("", "x=1,y=2", ["y=2, x=1", "x=1, y=2", "1, 2", "(1,2)", "(x,y)=(1,2)"]),
    ("", "300, 400", ["300, 400", "400, 300", r"300\text{ and }400"]),
    ("Find $(x,y)$.", "(1,2)", ["(1,2)", "x=1, y=2", "(x,y)=(1,2)", r"\left(1,2\right)", r"\langle1,2\rangle",
    "P=(1,2)"]),
    ("", r"\begin{pmatrix}1\\2\end{pmatrix}", [r"\begin{bmatrix}1\\2\end{bmatrix}",
    r"\left[\begin{array}{c}1\\2\end{array}\right]"]),
    ("", "12_5", ["(12)_5", "12_{5}"]),
    ("", "3:4", ["3 to 4", r"3\text{ to }4", "a:b = 3:4", "3 : 4"]),
    ("", "3:30 PM", ["3.30 p.m.", "15:30", r"3:30\text{ p.m.}", "3:30pm"]),
    ("Which? (A) 3 (B) 4", "B", ["B", "(B)", r"\text{B}", "B.", "(B) 4", r"\textbf{(B)}\ 4", "option B"]),
    ("", "yes", ["Yes", "YES", r"\text{yes}", "yes."]),
    ("", r"\text{Evelyn}", ["Evelyn", "evelyn", r"\textbf{Evelyn}", "EVELYN"]),
    ("", r"\emptyset", [r"\varnothing", r"\{\}", r"\text{no solution}", "none"]),
    ("", r"\frac{1}{x+1}", [r"(x+1)^{-1}", r"1/(x+1)", r"\frac{1}{1+x}"]),
    ("", "e^{-2t}", [r"\frac{1}{e^{2t}}", r"\exp(-2t)", "e^{-2t}"]),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "label", "answers"), HONEST)
def test_an_honest_form_is_accepted(problem, label, answers):
    refused = [answer for answer in answers if not grade(f"\\boxed{{{answer}}}", label, prompt=problem).correct]
    assert refused == []


@pytest.mark.parametrize(
    ("label", "wrong"),
    [
        ("x=1,y=2", ["2, 1", "(2,1)", "x=2, y=1", "(y,x)=(1,2)"]),  # items without names keep the order of the label
        ("12.5663", [r"4\pi"]),  # 4 pi is 12.56637, which rounds to 12.5664
        ("5", ["2+4=5", "5=2+3", "2+3=6"]),  # every side of a chain has the value, the last one is the answer
        (r"n=2k+1", [r"2k+1, k=3", r"2k+1 \text{ if } k>0"]),
        ("x^2", [r"x^2, x\in\mathbb{Z}"]),  # a restriction that the label does not have
    ],
)
def test_a_form_that_says_something_else_is_wrong(label, wrong):
    assert [answer for answer in wrong if grade(f"\\boxed{{{answer}}}", label).correct] == []


BOUNDS = [
    (r"x\ge2 \text{ and } x\le5", "[2,5]"), (r"x\ge2, x\le5", "[2,5]"), (r"2\le x, x\le5", "[2,5]"),
    (r"x\le5 \land x\ge2", "[2,5]"), (r"x\ge2, x\le5", r"2 \le x \le 5"), ("x>2 and x<5", "(2,5)"),
    (r"x>2, x\le5", "(2,5]"), (r"\frac{\pi^2}{8}\le f(x)\le\frac{5\pi^2}{4}", r"[\pi^2/8, 5\pi^2/4]"),
    (r"0\le x\le\pi", r"[0,\pi]"), (r"x\ge0, x\le\pi", r"[0,\pi]"), (r"4\ge k\ge2\sqrt2", r"[2\sqrt2,4]"),
    (r"f(x)\in[0,\pi]", r"[0,\pi]"), (r"f(x)\in(0,1]", "(0,1]"), (r"g(t) \in (3,\infty)", r"(3,\infty)"),
    (r"f(x)\in(0,1)", "(0,1)"),
]  # fmt: skip
OTHER_BOUNDS = [
    (r"x\ge5, x\le2", "[2,5]"), (r"x>2, x\le5", "[2,5]"), (r"x\ge2, y\le5", "[2,5]"),
    (r"x\ge2 \text{ or } x\le5", "[2,5]"), (r"x\ge2, x\ge5", "[2,5]"), (r"x\ge2, x\le5, x<7", "[2,5]"),
    ("x<-1, x>1", r"(-\infty,-1)\cup(1,\infty)"), ("x>2, x<5", "(5,2)"),
    (r"0<x\le\pi", r"[0,\pi]"), (r"0\le x\le\pi, x=5", r"[0,\pi]"), (r"0\le x\le\pi \text{ or } x=5", r"[0,\pi]"),
    (r"x\in(0,\pi)", r"[0,\pi]"), (r"0\le x\le2\pi", r"[0,\pi]"), (r"f(x)\in(0,1)", "(0,1]"),
    (r"f(x)\in(0,1]\text{ or }[0,1]", "(0,1]"), (r"1\le x\le3", "[1,2,3]"),
]  # fmt: skip
FAMILIES = [
    (r"x=n\pi, n\in\mathbb{Z}", r"x=k\pi, k\in\mathbb{Z}"), (r"x=k\pi, k\in\mathbb{Z}", r"k\pi, k\in\mathbb{Z}"),
    (r"k\pi, k\in\mathbb{Z}", r"x=k\pi, k\in\mathbb{Z}"), (r"n\pi, n\in\mathbb{Z}", r"k\pi, k\in\mathbb{Z}"),
    (r"x=\frac{\pi}{2}+2m\pi, m \in \mathbb{Z}", r"x=\frac{\pi}{2}+2k\pi, k\in\mathbb{Z}"),
]  # fmt: skip
OTHER_FAMILIES = [
    (r"x=n\pi, k\in\mathbb{Z}", r"x=k\pi, k\in\mathbb{Z}"), (r"x=n\pi, n\in\mathbb{N}", r"x=k\pi, k\in\mathbb{Z}"),
    (r"x=2n\pi, n\in\mathbb{Z}", r"x=k\pi, k\in\mathbb{Z}"), (r"y=n\pi, n\in\mathbb{Z}", r"x=k\pi, k\in\mathbb{Z}"),
    (r"x=k\pi+n, n\in\mathbb{Z}", r"x=k\pi+k, k\in\mathbb{Z}"), (r"x=n\pi, n\in\mathbb{R}", r"x=k\pi, k\in\mathbb{Z}"),
    (r"x=t\pi, t\in\mathbb{Z}", r"x=k\pi, k\in\mathbb{Z}"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "label"), BOUNDS + FAMILIES)
def test_bounds_and_families_have_several_spellings(answer, label):
    assert grade(f"\\boxed{{{answer}}}", label).correct


@pytest.mark.parametrize(("answer", "label"), OTHER_BOUNDS + OTHER_FAMILIES)
def test_other_bounds_and_families_are_wrong(answer, label):
    assert not grade(f"\\boxed{{{answer}}}", label).correct


# Labels, their kinds, answers with their value, and answers with another value or form.
LABELS = [
    (r"0.56 = 56\%", "integer", [r"56\%", "56", r"0.56=56\%"], ["55", r"0.56\%", r"5600\%"]),
    ("2^{10} - 1 = 1023", "integer", ["1023", "x=1023", "2^{10}-1=1023"], ["1024", "2^{10}", "1000+23"]),
    ("25 + 2 = 27", "integer", ["27", "25+2=27"], ["25", "2", "25+2", "25, 2"]),
    ("2+2=5", "equation", ["2+2=5"], ["5", "4", "2+2=4"]),
    (r"\mbox{four}", "word", ["4", "four", "Four", "4.0"], ["5", "five", "2^2", "4, 5", "-4", "4 or 5"]),
    (r"9\text{ values}", "integer", ["9", r"9\text{ values}"], ["8", r"9\text{ squares}", "9^2"]),
    (r"\mathbb{Z}", "spelling", [r"\mathbb Z", r"\mathbb{Z}", "ℤ"], [r"\mathbb R", r"\mathbb{N}", r"\mathbb{Z}^+"]),
    (r"\mathbb R", "reals", [r"\mathbb{R}", "ℝ", r"(-\infty,\infty)"], [r"\mathbb Z", r"\mathbb{Q}"]),
    (r"\{n \ge 13\}", "reals", [r"n\ge13", r"\{n\ge13\}", r"[13,\infty)"], ["n>13", r"n\ge12", "13", r"n\ge13, 12"]),
    (r"05\!:\!00", "time", ["05:00", "5:00", "5:00 PM"], ["6:00", "17:00", "5:01", "5"]),
]  # fmt: skip


@pytest.mark.parametrize(("label", "kind", "own", "others"), LABELS)
def test_a_label_in_an_unusual_form_has_a_type(label, kind, own, others):
    assert read_label(label).kind == kind
    assert [each for each in own + others if grade(rf"\boxed{{{each}}}", label).correct] == own
