r"""Answers that earn nothing, by kind: repeating the problem, leaving work undone, saying several things at once.

Every row is a problem, a label and answers. The problem is a part of the test, because some rules read it.
"""

import pytest

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards.maths.grading import grade
from openrlhf_cov.rewards.sources import grade_label

REPEATED = [
    ("Expand $(x+1)(x+2)$.", "x^2+3x+2", ["(x+1)(x+2)", "(x+2)(x+1)", "(2+x)(1+x)", "((x+1)(x+2))", "y=(x+1)(x+2)"]),
    ("Expand $(x+1)(x+2)$.", "x^2+3x+2", ["1(x+1)(x+2)", "(x+1)(x+2)+0", r"\frac{2(x+1)(x+2)}{2}", "-(-(x+1)(x+2))"]),
    ("Factor $x^2+3x+2$.", "(x+1)(x+2)", ["x^2+3x+2", "2+3x+x^2", "x(x+3)+2", r"\frac{(x^2+3x+2)x}{x}", "x^2+2x+x+2"]),
    (r"Simplify $\sqrt{12}+\sqrt{27}$.", r"5\sqrt{3}", [r"\sqrt{12}+\sqrt{27}", r"\sqrt{27}+\sqrt{12}",
     r"\sqrt{27}+2\sqrt{3}", r"2\sqrt3+3\sqrt3", r"(\sqrt{12}+\sqrt{27})^1"]),
    (r"Rationalize \(\frac{1}{\sqrt2-1}\).", r"1+\sqrt2", [r"\frac{1}{\sqrt2-1}", r"\frac{1}{-1+\sqrt2}",
     r"(\sqrt2-1)^{-1}", r"\frac{2}{2\sqrt2-2}", r"\sqrt{3+2\sqrt2}"]),
    ("Simplify (a+b)^2-(a-b)^2 please", "4ab", ["(a+b)^2-(a-b)^2", "(b+a)^2-(a-b)^2", "-(a-b)^2+(a+b)^2",
     "((a+b)^2-(a-b)^2)", "(a+b)^2-(a-b)^2+0"]),
    (r"Compute $\frac{12}{18}$ in lowest terms.", r"\frac{2}{3}", [r"\frac{12}{18}", "12/18", r"\frac{24}{36}",
    "x=12/18",
     r"\frac{-12}{-18}"]),
    ("Write $0.45$ as a fraction.", r"\frac{9}{20}", ["0.45", ".45", "0.450", "x=0.45", r"4.5\times10^{-1}"]),
    (r"Write $0.\overline{36}$ as a fraction.", r"\frac{4}{11}", [r"0.\overline{36}", r".\overline{36}",
     r"0.\overline{3636}", r"0.3\overline{63}", "0.363636"]),
    (r"Write $\frac{7}{20}$ as a decimal.", "0.35", [r"\frac{7}{20}", "7/20", r"\frac{14}{40}", "x=7/20",
    r"\dfrac7{20}"]),
    ("Put the circle $x^2+y^2-4x=0$ into standard form.", "(x-2)^2+y^2=4", ["x^2+y^2-4x=0", "x^2-4x+y^2=0",
     "0=x^2+y^2-4x", "y^2+x^2-4x=0", "(x^2+y^2-4x)=0"]),
]  # fmt: skip
REPEATED += [
    ("Simplify $3(x-2)+4(2x+1)-7$.", "11x-9", ["3(x-2)+4(2x+1)-7", "3x-6+8x-3", "11(x-1)+2", "11x-2-7",
    "-7+3(x-2)+4(1+2x)"]),
    (r"Simplify $\frac{x^2-1}{x-1}$.", "x+1", [r"\frac{x^2-1}{x-1}", "(x^2-1)(x-1)^{-1}", r"\frac{1-x^2}{1-x}",
     r"\frac{2x^2-2}{2x-2}", r"\frac{x^2}{x-1}-\frac{1}{x-1}"]),
    ("Write in vertex form: $y=x^2-4x+7$.", "y=(x-2)^2+3", ["y=x^2-4x+7", "y=x(x-4)+7", "y-3=x^2-4x+4",
    "2y=2x^2-8x+14",
     "y-7=x(x-4)"]),
    (r"Compute $\sqrt[3]{54}-\sqrt[3]{16}$.", r"\sqrt[3]{2}", [r"\sqrt[3]{54}-\sqrt[3]{16}",
    r"\sqrt[3]{54}-2\sqrt[3]{2}",
     r"3\sqrt[3]{2}-2\sqrt[3]{2}", r"54^{1/3}-16^{1/3}", r"-\sqrt[3]{16}+\sqrt[3]{54}"]),
]  # fmt: skip
UNDONE = [
    ("", "156", [r"12\cdot13", "12*13", "100+56", r"\frac{312}{2}", "2^7+28", "13^2-13", r"\sqrt{24336}"]),
    ("", "120", ["5!", r"\binom{10}{3}", r"\binom{16}{2}", r"\gcd(120,240)", r"\lfloor120.5\rfloor", r"\max(1,120)"]),
    ("", "3", [r"\log_28", r"\sqrt9", r"\sqrt[3]{27}", r"\ln e^3", r"3\sin^2x+3\cos^2x", r"\tan^2 60^\circ",
    "9^{1/2}"]),
    ("", "-4", ["(1+i)^4", "4i^2", r"4e^{i\pi}", "(2i)^2", r"\frac{8}{-2}", "-|4|", "4(-1)"]),
    ("", r"5\sqrt3", [r"\sqrt{25\cdot3}", r"10\sin 60^\circ", r"\sqrt{6^2+39}", r"\frac{15}{3}\sqrt3\cdot1",
    r"2\sqrt3+3\sqrt3",
     r"\sqrt3\cdot\sqrt{25}", r"\sqrt{3}\sqrt{3}\sqrt{25}/\sqrt3"]),
    ("", "7+i", ["(2+i)(3-i)", "(3-i)(2+i)", "2(3-i)+i(3-i)", r"\frac{50}{7-i}", r"\frac{(2+i)(3-i)}{1}",
    "6-2i+3i+1"]),
    ("", r"12\pi", [r"\pi\cdot2^2\cdot3", r"3\cdot4\pi", r"\frac{1}{3}\pi\cdot36", r"6\pi+6\pi",
    r"\frac{144\pi}{12}\cdot1",
     r"\sqrt{144}\pi", r"\frac{12\pi^2}{\pi}"]),
    ("", r"\ln x+3", [r"\ln x+\log_2 8", r"\ln x+\ln e^3"]),
    ("", r"\sin x+\frac12", [r"\sin x+\sin 30^\circ", r"\sin x+\cos\frac{\pi}{3}"]),
    ("", "2x+3", ["x+x+3", "2x+1+2", r"2\cdot x+\sqrt9", "2(x+1)+1^2", r"\frac{2x^2+3x}{x}\cdot1", "2x+3x^0",
    r"x\log_24+3"]),
]  # fmt: skip
TIMES = [("When?", gold, ["5 pm", "5 PM", r"5\text{ p.m.}", "5:00", "5 am", "17:00", "5 o'clock", "5:00 PM", "5h"])
         for gold in ("5", "17", "500")]  # fmt: skip
TIMES += [("When?", "4:30 PM", ["4:30", "4:30 AM", "4.5", "16.5", "430", "4 PM", "4:30 PM or AM"])]
PERCENT = [
    # Without a problem the label decides: behind a number above 1 the sign is a unit.
    ("", "75", [r"7500\%", "0.75", r"0.75\%", r"7500\text{ percent}"]),
    ("", "0.75", ["75", r"0.75\%", r"7500\%"]),
    ("", r"75\%", ["7500", r"0.75\%", "0.0075"]),
    ("How many?", "5", [r"500\%", r"5\%", r"50\%", r"0.05\%", r"5\%\%", r"5\text{ percent}"]),
    ("What percent?", "25", ["0.25", r"\frac14", r"2500\%", r"0.25\%", "1/4"]),
    ("What is the probability?", r"\frac14", ["25", r"0.25\%", r"2500\%", "250", r"25\%\%"]),
    ("", "5000", ["5 thousand", r"5\text{ thousand}", "5k", "5 K", "50 hundred", "5 kilo"]),
    ("", "60", ["5 dozen", r"5\text{ dozen}", "sixty", "3 score", "half of 120", "60 or so"]),
]
COMMAS = [
    ("", "300400", ["300, 400", "300,4,00", "3,00,400", "300;400", "30,0400", "300,400,0"]),
    ("", "300, 400", ["300,400", "300400", "(300,400)", "[300,400]", "300.400", "400"]),
    ("", "10", ["1,0", "1 0", "1,0,", "10,0", "10 0"]),
    ("", "(1,2)", ["1,2", "[1,2]", "12", "1.2", r"\{1,2\}", "1<2"]),
    ("Find $(x,y)$.", "(1,2)", [r"x=1 \text{ or } y=2", "x=1 or y=2", "x=2, y=1", "x=1, x=2"]),
]
UNITS = [
    (
        "How many dollars does Tom have?",
        "5",
        ["5 does", "5 Toms", "5 how", "5 many", "5 have", "5 dozen dollars", "5 dollars or 6"],
    ),
    (
        "How many cats?",
        "5",
        ["5 dogs", "5 elephants", "5x", "5 m", "5 hundred", "5 more", "5 less", "5 times", "5 of 6"],
    ),
    (
        "How many cats, at least?",
        "5",
        ["5 at least", "5 or more cats", "5 negative cats", "5 not cats", "5 cats or 6"],
    ),
    ("", "5", ["5 squared", "5 cubed", "5 percent of 10", "5 nonsense", "5 abc", r"5\text{ or }6", r"5\text{ wrong}"]),
    ("", r"5\text{ cm}", ["5 m", r"5\text{ kg}", r"5\text{ cm}^2", "5 inches", r"5\%", "5 pm"]),
]
PIECEWISE = [
    ("", "x", [r"x\text{ if }x>0", r"x, x>0", r"x\text{ for }x\ne3,\ 7\text{ otherwise}", "|x|", r"\sqrt{x^2}",
    r"\max(x,-x)",
     r"\begin{cases}x&x>0\\5&x<0\end{cases}", r"x\text{ unless }x=2", r"\lfloor x\rfloor+\sin(\pi x)", "x (x > 3)"]),
    ("", "5", [r"5\text{ if }x>0", r"5, x\ne3", r"5\text{ for }1>2", r"5\text{ or }6", "5 (1>2)", r"5\text{ mod }7",
     r"5\pmod 7", r"5, \text{ not } 6", r"\begin{cases}5\\6\end{cases}", r"5\text{ when }0=1"]),
]  # fmt: skip
CHAINS = [
    (
        "",
        "5",
        ["5=2+3", "x=5=2+3", "5=5", "6=5", "2+4=5", "x=2+4=5", "5+x=5", r"\frac{x}{2}=5", "x+y=5", "2x=5", "|x|=5"],
    ),
    ("", "5", [r"\lim_{x\to0}x=5", r"\sum_{k}k=5", r"\int x=5", r"\gcd(a,b)=2+3", r"\min x=6=5", r"\max\{5,6\}=5"]),
    (
        "",
        r"\frac12",
        [r"\frac12=\frac13", r"\frac12=0.5=1", r"x+1=\frac12", r"\frac24\approx\frac12", r"\frac12\ne\frac13"],
    ),
]
YES = [
    (
        "Is it?",
        "yes",
        [
            "yes, no",
            "yes or no",
            "not yes",
            "yes but no",
            "yes, no, maybe",
            "no",
            "yesno",
            "yes?no",
            "-yes",
            "!yes",
            r"\neg yes",
            r"\lnot\text{yes}",
        ],
    ),
    ("Who?", r"\text{Evelyn}", [r"-\text{Evelyn}", r"\text{-Evelyn}", r"\text{not Evelyn}", r"!\text{Evelyn}"]),
    ("Is it?", "no", ["no, yes", "no - yes", "no or yes", "not no", "nothing", "no, but yes", r"\text{no or yes}"]),
    (
        "Which? (A) 3 (B) 4",
        "B",
        ["A or B", "(A)(B)", "B, A", "not B", "(B) 3", "B or C", "A, B", "AB", "b", "(B) 4 or (A) 3"],
    ),
]
HIDDEN = [
    ("", "5", ["5\u200b", "\u200b5", "5\u2060", "\ufeff5", "5\x00", "5\ufe0f", "\u202e5"]),
    (
        "",
        "5",
        [
            r"\color{red}5",
            r"\textcolor{red}{5}",
            r"\phantom{6}5",
            r"5\phantom{6}",
            r"\hspace{3}5",
            r"\colorbox{red}{5}",
        ],
    ),
    (
        "",
        "5",
        [r"\newcommand{\x}{5}\x", r"\def\x{5}\x", "np.5", "math.5", r"\let\x=5", r"\cancel{6}5", r"\rule{1}{2}5"],
    ),
]
EQUATIONS = [
    ("", "y(y-2x)=0", ["y-2x=0", "y=0", "y=2x", "2y-4x=0", "(y-2x)^2=0"]),
    ("", "x^2+y^2=1", ["1", "x^2+y^2=1+0", "(x^2+y^2)^2=1", "0=0", r"\sqrt{x^2+y^2}=1", "x+y=1"]),
    ("", "y=2x+1", ["y=2x+1+0", "y=2x+2", "(y-2x-1)(x^2+1)=0", "x=2y+1", r"\frac{y}{1}=2x+1", "y^2=(2x+1)^2"]),
    ("", "xy=1", [r"\frac{xy-1}{x-y}=0", "xy-1=1-xy+xy", r"(xy-1)^2=0", "x=1", r"\frac{1}{xy}=1"]),
]
DECIMALS = [
    ("", r"\frac13", ["0.33", "0.333", "0.3333", "0.33333", ".3", "0.333334", "0.34"]),
    ("", r"\frac{1}{7}", ["0.14", "0.142857143142", "0.1428", "0.142858", "0.14285"]),
    ("", "0.5", ["0.50001", "0.500001", "0.4999999", r"\frac{500001}{1000000}", "0.49"]),
    ("", r"\sqrt2", ["1.41", "1.414213562", "1.4142", r"\frac{99}{70}", "1.41421356237"]),
    ("", "1000000", ["1000000.1", "1e6", "999999.9999", "10^6", "1000000.0001"]),
]
OF_ALL_KINDS = [
    ("A bag has 3 red and 5 blue balls. What is the probability of red? Write a fraction.", r"\frac38", [
     r"\frac{3}{3+5}", r"\frac{3}{8}\cdot\frac{1}{1}", r"1-\frac58", r"\frac{\binom31}{\binom81}", "3 out of 8",
     "3:8", "3 in 8", r"37\%", "0.38"]),
    ("Multiply out $(x-2)(x^2+2x+4)$.", "x^3-8", ["(x-2)(x^2+2x+4)", "(2-x)(-x^2-2x-4)", "x(x^2+2x+4)-2(x^2+2x+4)",
     "x^3+2x^2-2x^2-8", "x^3-2^3", "(x-2)((x+1)^2+3)"]),
    ("", r"\frac{x+3}{2}", [r"\frac{x+1}{2}+1", r"\frac{2x+6}{4}", r"\frac{-x-3}{-2}", r"x-\frac{x-3}{2}",
     r"\frac{x^2+3x}{2x}", r"\frac{(x+3)(x-1)}{2(x-1)}", r"(x+3)\div2\div1"]),
    ("", r"\frac{a}{b}", [r"\frac{2a}{2b}", r"\frac{-a}{-b}", r"\frac{a^2}{ab}", r"a\div b\cdot1", r"\frac{a+0}{b}",
     r"\frac{ac}{bc}"]),
    ("", "x^6", ["(x^2)^3", "(x^3)^2", "x^2x^4", r"\frac{x^8}{x^2}", r"x^{2\cdot3}", "x^{2+4}", "(-x)^6",
     r"\sqrt{x^{12}}"]),
    ("", "8x^3", ["(2x)^3", "2^3x^3"]),
    (r"Simplify $\sqrt{32}$.", r"4\sqrt2", [r"\sqrt{32}", r"2\sqrt{8}", r"\sqrt{16\cdot2}", r"\frac{8}{\sqrt2}",
     "2^{5/2}", "32^{0.5}", r"\sqrt[4]{1024}"]),
    ("", r"4\sqrt2", [r"\sqrt2+3\sqrt2", r"5\sqrt2-\sqrt2", r"\sqrt{2}\cdot2\cdot2",
     r"\sqrt2\cdot4\cdot\sin90^\circ", r"|-4\sqrt2|", r"4\sqrt{1+1}"]),
    ("", r"\frac{25\pi}{4}", [r"\pi(\frac52)^2", r"\pi\cdot2.5^2", r"\frac{\pi\cdot5^2}{4}",
     r"\frac{1}{4}\cdot25\pi\cdot1", r"\frac{5}{2}\cdot\frac52\pi", r"25\cdot\frac{\pi}{4}\cdot\tan45^\circ"]),
    ("", "2+3i", ["3i+2i^4", "i(3-2i)", r"\frac{13}{2-3i}", r"\frac{4+6i}{2}", "2-3i^3",
     r"2+\sqrt{-9}", r"\overline{2-3i}", r"(1+i)(\frac52+\frac12i)"]),
    ("Write the line through $(1,4)$ with slope 3 in standard form.", "y=3x+1", ["y-4=3(x-1)"]),
    ("", "y=3x+1", ["y=3(x-1)+4", "y-1=3(x-0)", "3x-y+1+0=0", r"6x-2y+2=0\cdot x", "(3x-y+1)(x)=0", "y^2=(3x+1)y",
     "y=3x+1, y=0"]),
    ("How many students are there?", "48", [r"48 \text{ pairs}"]),
    ("", "48", ["4 dozen", "48 tens", "0.48", r"480\%", r"48\text{ or }49", "four dozen", r"24\times2", "24+24",
     "48=24", "48x", "x_{not}=48"]),
    ("Write it in twelfths.", "48", ["48 twelfths"]),
    ("How many years old is he?", "48", ["48 months"]),
    ("How much is left in dollars?", "48", [r"48\%"]),
    ("Find $x$.", "48", ["x^{-1}=48", r"\Delta x=48", r"\hat{x}=48", "x^2=48", "f^{-1}=48"]),
    (r"Evaluate $4.8\times10^6$.", "4800000", [r"4.8\cdot10^6", r"4.80\times 10^{6}", "4.8e6", r"48\times10^5"]),
    (r"Evaluate $4.8\cdot 10^6$.", "4800000", ["4.8*10^6"]),
]  # fmt: skip
# The problem with a function in other words, or with factors that cancel.
REWRITTEN = [
    (
        r"Simplify $\frac{1+\sin x-\cos x}{1+\sin x+\cos x}$.",
        r"\tan\frac x2",
        [r"\frac{1+\frac{1}{\csc x}-\cos x}{1+\sin x+\cos x}"],
    ),
    (
        r"Express $\sin 4x+\sin 6x$ as a product of trigonometric functions.",
        r"2\sin 5x\cos x",
        [r"\frac{1}{\csc 4x}+\sin 6x", r"\tan 4x\cos 4x+\sin 6x"],
    ),
    (
        r"Simplify $\tan x+2\tan 2x+4\tan 4x+8\cot 8x$.",
        r"\cot x",
        [r"\frac{1}{\cot x}+2\tan 2x+4\tan 4x+8\cot 8x"],
    ),
    (r"Simplify $\cos^2x-\sin^2x$.", r"\cos 2x", [r"\cos x\cos x-\sin x\sin x"]),
]
PAIR = "Find the ordered pair $(x,y)$ with $x+y=3$."
LINE = r"Solve $2x+3y=6$ for $y$."
OTHER_NAMES = [
    ("", "f(x)=x^2+1", ["f(2x)=2x^2+2", "f(-x)=-x^2-1", "f(3x)=3x^2+3"]),
    ("", "P(x)=x^2", ["P(2x)=2x^2"]),
    (PAIR, "(1,2)", ["(y=1,x=2)", "(z=1,z=2)", "(x=1,2)"]),
]
UNSOLVED = [
    (LINE, r"y=2-\frac{2x}{3}", ["4x+6y=12", "3y+2x-6=0", r"x=3-\frac{3y}{2}", "2x+3y=6"]),
    ("Write $y$ in terms of $x$ if $2x+3y=6$.", r"y=2-\frac{2x}{3}", ["3y=6-2x"]),
    ("Make $y$ the subject of $2x+3y=6$.", r"y=2-\frac{2x}{3}", ["3y=6-2x"]),
    ("Isolate y in $2x+3y=6$.", r"y=2-\frac{2x}{3}", ["3y=6-2x"]),
]
KINDS = {
    "repeated": REPEATED, "undone": UNDONE, "times": TIMES, "percent": PERCENT, "commas": COMMAS, "units": UNITS,
    "piecewise": PIECEWISE, "chains": CHAINS, "yes": YES, "hidden": HIDDEN, "equations": EQUATIONS,
    "decimals": DECIMALS, "of all kinds": OF_ALL_KINDS, "rewritten": REWRITTEN,
    "other names": OTHER_NAMES, "unsolved": UNSOLVED,
}  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "gold", "answer"),
    [
        ("", "f(x)=x^2+1", "f(x)=1+x^2"),
        ("Solve the system $x+y=3$, $x-y=-1$. Answer with an ordered pair.", "(1,2)", "(x=1,y=2)"),
        ("Solve the following problem:\n\nFind an equation for the line.", "y=2x+3", "2x-y+3=0"),
        (r"Let $f(x)=\frac{x(x+2)}{x+2}$. Find $f(x)^2+2f(x)$.", "x^2+2x", "x(x+2)"),
        ("Let $f(x)=3x^2$. Find $xf(x)+f(x)/3$.", "x^2(3x+1)", "3x^3+x^2"),
        ("", "f(x)=x^2+1", "x^2+1"),
        (PAIR, "(1,2)", "(x=1,y=2)"),
        (PAIR, "(1,2)", "(x,y)=(1,2)"),
        (LINE, r"y=2-\frac{2x}{3}", r"y=\frac{6-2x}{3}"),
        ("Find an equation of the line.", r"y=2-\frac{2x}{3}", "2x+3y=6"),
    ],
)
def test_the_same_with_the_right_names_is_right(problem, gold, answer):
    assert grade(f"\\boxed{{{answer}}}", gold, prompt=problem, timeout=20).correct


@pytest.mark.parametrize("kind", KINDS)
def test_a_cheat_earns_nothing(kind):
    accepted = [
        (problem, gold, answer)
        for problem, gold, answers in KINDS[kind]
        for answer in answers
        if grade(f"\\boxed{{{answer}}}", gold, prompt=problem, timeout=20).correct
    ]
    assert accepted == []


RESPONSES = [
    r"<think>\boxed{5}</think> I do not know.", r"<think>\boxed{5}", r"\boxed{6} <!-- \boxed{5} -->",
    "\\boxed{6}\n% \\boxed{5}", "\\boxed{6} ok\n  % it is \\boxed{5}",
    r"\phantom{\boxed{5}}", r"\newcommand{\x}{\boxed{5}}", r"\boxed{6}<|im_end|>\boxed{5}",
    r"\boxed{6}<|endoftext|> \boxed{5}", r"It is not \boxed{5}.", r"\boxed{5} is wrong.",
    r"The answer isn't $\boxed{5}$",
    r"Anything but \boxed{5}", r"\boxed{5} or \boxed{6}", r"\boxed{6}, \boxed{5}", r"\boxed{5, \boxed{6}}",
    r"\cancel{\boxed{5\text{ cm}}}", r"\phantom{\boxed{\frac{\sqrt{100}}{2}}}", r"\color{white}{\boxed{5}}",
    r"\scalebox{0.0}{\boxed{5}}", r"\begin{verbatim}\boxed{5}\end{verbatim}",
    r'<span style="opacity:0.0">\boxed{5}</span>',
    r"\def\x{\boxed{5}} so it is 6", r"\iffalse \boxed{5} \fi", r"\begin{comment}\boxed{5}\end{comment}",
]  # fmt: skip


@pytest.mark.parametrize("response", RESPONSES)
def test_what_a_reader_does_not_see_or_is_told_to_ignore_is_no_answer(response):
    assert not grade(response, "5").correct
    assert not grade_label(response, "5", RewardConfig()).correct


def test_the_prompt_reaches_the_rules_through_its_template():
    prompt = "<|im_start|>user\nExpand $(x+1)(x+2)$.<|im_end|>\n<|im_start|>assistant\n"
    label = "x^2+3x+2"
    assert not grade_label(r"\boxed{(x+1)(x+2)}", label, RewardConfig(), prompt=prompt).correct
    assert grade_label(r"\boxed{x^2+2+3x}", label, RewardConfig(), prompt=prompt).correct


def test_examples_of_a_template_are_not_the_problem():
    prompt = "<|im_start|>system\nExample: $x^2+3x+2$<|im_end|>\n<|im_start|>user\nExpand $(x+1)(x+2)$.<|im_end|>\n"
    assert grade(r"\boxed{2+3x+x^2}", "x^2+3x+2", prompt=prompt).correct
