"""Pairs of an answer and a label: the answer was made to be accepted without being correct."""

import time

import pytest

from openrlhf_cov.rewards.maths import grading
from openrlhf_cov.rewards.maths.grading import answers_equal, grade
from openrlhf_cov.rewards.maths.labels import read_label
from openrlhf_cov.rewards.maths.normalization import clean

NEAR_A_RATIONAL = [
    (r"2^{2024}+\pi", "2^{2024}+3"),
    (r"2^{2024}+\pi+0.1", "2^{2024}+3"),
    (r"2^{2024}+\pi+0.1", r"2^{2024}+2\pi"),
    (r"-2^{2024}-\pi", "-2^{2024}-3"),
    (r"2^{2024}+\pi i", "2^{2024}+3i"),
    (r"2^{2024}+\frac{1}{3}", "2^{2024}"),
    (r"1.5\cdot 2^{2023}\cdot\frac43", "2^{2024}+1"),
    (r"2^{2^{20}}+\pi", "2^{2^{20}}+1"),
    (r"\frac{2^{2024}+\pi}{3}", r"\frac{2^{2024}+1}{3}"),
    (r"\frac{1}{2^{2024}+\pi}", r"\frac{1}{2^{2024}+3}"),
    (r"\lfloor 2^{2024}+\pi\rfloor", "2^{2024}+4"),
    (r"\sqrt{10^{2000}+1}", "10^{1000}"),
    (r"\pi^{3000}+1", r"\pi^{3000}"),
    (r"2000!+\pi", "2000!+1"),
    (r"\binom{5000}{2500}+\pi", r"\binom{5000}{2500}+1"),
    (r"\ln(10^{1000}+1)", r"\ln(10^{1000})"),
    (r"\ln(2^{2000}+\pi)", r"2000\ln 2"),
    (r"e^{2000}+\pi", "e^{2000}+3"),
    (r"\sqrt2+10^{-5000}", r"\sqrt2"),
    (r"\pi(1+10^{-700})", r"\pi"),
    (r"(1+10^{-700})^{\sqrt2}", "1"),
    (r"\sqrt{2}+(\sqrt{10^{200}+1}-10^{100})^{50}", r"\sqrt2"),
]
OTHER_FUNCTIONS = [
    (r"\sqrt{a^2}+bi", "a+bi"),
    ("a+|b|i", "a+bi"),
    (r"|\cos\theta|+i\sin\theta", r"e^{i\theta}"),
    (r"\sqrt{z^2}", "z"),
    (r"\frac{|x-1|}{x-1}x+10^{-50}i", "x"),
    (r"\frac{|x-1|}{x-1}x+10^{-50}i", "-x"),
    (r"\frac{\sqrt{(x-1)^2}}{x-1}x", "x"),
    ("x+10^{-50}i", "x"),
    ("x+10^{-5000}", "x"),
    (r"x+\frac{0}{x-|x|}", "x"),  # no value for x > 0
    (r"x\frac{\sqrt{x}}{\sqrt{x}}", "|x|"),
    (r"(\sqrt{x})^2", "|x|"),
    (r"\max(x,-x)", "x"),
    (r"\log(e^x)+\sqrt{-x^2}", "x"),
    (r"\arcsin(\sin x)", "x"),
    (r"\ln(e^{ix})", "ix"),
    (r"\lfloor x\rfloor+\frac12", "x"),
    (r"2.5x+2^{2024}+\pi", "2.5x+2^{2024}+3"),
    (r"y=\frac{|x|}{x}x", "y=x"),
    (r"y=\sqrt{x^2}+10^{-50}i", "y=x"),
]
POINTS_CHOSEN_BY_THE_ANSWER = [
    (r"\lfloor x\rfloor\cdot0!", "x"),
    (r"x^2\cdot0!+\sin(\pi x)", "x^2"),
    (r"\lfloor x\rfloor\binom{5}{0}", "x"),
    (r"\lfloor x\rfloor\gcd(1,1)", "x"),
    (r"\lfloor x\rfloor+\gcd(x,1)-1", "x"),
    (r"\lfloor n\rfloor\cdot0!", "n"),
    (r"n^2+\sin(\pi n)", "n^2"),
    (r"n\cos(2\pi n)(-1)^{2n}", "n"),
    ("(-1)^{2x}x", "x"),
    (r"n!\cos(2\pi n)", "n!"),
    (r"x\cos(2\pi x)\cdot 0!", "x"),
]
UNDONE = [
    (r"\frac{6}{1/7}", "42"),
    ("6/(1/7)", "42"),
    (r"\frac{1}{1/42}", "42"),
    (r"\frac{\frac{6}{1}}{\frac{1}{7}}", "42"),
    (r"\frac{12^2}{12}+\frac{30^2}{30}", "42"),
    (r"37^2\cdot37^{-1}+43", "80"),
    (r"17.5+3.25+\pi\cdot10^{-12}", "20.75"),
    (r"17.5+\frac{13}{4}+\pi\cdot10^{-12}", "20.75"),
    (r"\frac{41.5}{2+\pi\cdot10^{-12}}", "20.75"),
    (r"\sqrt{306.25}+3.25+\pi10^{-12}", "20.75"),
    (r"19.75+\sin^2 1+\cos^2 1", "20.75"),
    (r"\frac{83}{4}\cdot\frac{\pi}{\pi}", "20.75"),
    (r"\frac{6^3\cdot7^3}{6^2\cdot7^2}", "42"),
    (r"\binom{12}{1}+30", "42"),
    (r"2^2\cdot3+30", "42"),
    ("5^2+12^2", "169"),
    ("8!-7!", "35280"),
    (r"x=\frac{6}{1/7}", "42"),
    (r"(\frac{6}{1/7},5)", "(42,5)"),
    (r"\{\frac{6}{1/7},5\}", r"\{42,5\}"),
    (r"\frac{6}{1/7}\text{ cm}", "42"),
    (r"\frac{6}{1/7}\%", r"42\%"),
]
UNDONE += [
    (r"\frac{37}{0.025}", "1480"), ("37/0.025", "1480"), ("0.025^{-1}", "40"), ("252/3/2", "42"), ("1764^{1/2}", "42"),
    (r"\frac{\frac{252}{3}}{2}", "42"), (r"(\frac{2}{84})^{-1}", "42"), (r"(\frac{1}{42})^{-1}", "42"),
    (r"37\cdot43x", "1591x"), ("(2+3i)(4+5i)", "-7+22i"), ("(1+i)^5", "-4-4i"),
    (r"\frac{37\cdot43}{2}\sqrt{3}", r"\frac{1591\sqrt{3}}{2}"), ("x+12+30", "x+42"),
]  # fmt: skip
EQUATIONS = [  # of which the answer would choose what they are multiplied by
    (r"1+\frac{0}{y-2x}+\frac{0}{y-3x}=0", "y=2x"), (r"1+\frac{0}{y-2x}+\frac{0}{y-3x}=0", "y=3x"),
    (r"\frac{1}{y-x}=0", "x=y"), (r"\frac{0}{x}+\frac{0}{y}=1", "xy=0"), (r"\frac1x=0", "x=0"),
    (r"\frac{1}{x}+\frac{1}{y}=0", "xy=0"), (r"\frac{y-2x}{x^2+y^2}=0", "(y-2x)(x^2+y^2)=0"),
    (r"\frac{y-3}{x}=0", "x(y-3)=0"), (r"\frac{(y-2x)(y-3x)}{y-3x}=0", "(y-2x)(y-3x)=0"),
    (r"\frac{(y-2x)(y-3x)^2}{y-3x}=0", "y=2x"), (r"1+\frac{0}{x}=0", "x=0"),
]  # fmt: skip
UNDECIDED = [  # a part that takes too many digits, where it suits the answer
    (r"|x|+\sin(10^{12}\max(0,-x))", "x"), (r"|x|+\sin(10^{12}\max(0,-x))", "|x|"),
    (r"x+\sin(10^{20}(x-|x|))", "x"), (r"x+0\cdot e^{10^{12}(|x|-x)}", "x"),
    (r"\sqrt{x^2}+\cos(10^{30}\max(0,-x))-1", "x"),
]  # fmt: skip
INTEGERS_CHOSEN = [
    (r"(-1)^n(1-\lceil n\rceil+\lfloor n\rfloor)+n(\lceil n\rceil-\lfloor n\rfloor)", "(-1)^n"),
    (r"n^2(\lceil n\rceil-\lfloor n\rfloor)+(-1)^n", "(-1)^n"),
    (r"(-1)^n+(n-\lfloor n\rfloor)", "(-1)^n"), (r"(-1)^n+\sin^2(\pi n)", "(-1)^n"),
    (r"(-1)^n+n(n-\lfloor\frac n2\rfloor-\lceil\frac n2\rceil)", "(-1)^n"),
]  # fmt: skip
FAR_AWAY = [
    (r"\min(x,10^9)", "x"),
    (r"\max(x,-10^5)", "x"),
    (r"|x-10^{11}|", "10^{11}-x"),
    (r"\min(x^2,10^{13})", "x^2"),
]
DIGITS = [
    ("12345678.5", "12345680.5"),
    ("123456.4", "123456.3"),
    ("12345680", "12345678.5"),
    ("1234567.25", "1234567.75"),
]
WORDS = [
    ("cab", "abc"), ("won", "now"), ("own", "now"), ("CAB", "ABC"), ("Cab", "Cba"), ("a b c", "cab"),
    ("pu", "up"), ("si", "is"), ("Fi", "if"),
    (r"c\cdot a\cdot b", "abc"), ("c^1ab", "abc"), ("o n", "no"),
]  # fmt: skip
SOLVED = [  # an equation is solved or it is not
    ("37x=1591", "x=43"), ("2x+3=7", "x=2"), (r"\frac{x}{2}=5", "x=10"), ("3x+6>12", "x>2"),
    (r"x=37\cdot 43", "x=1591"),
    (r"x>37\cdot43", "x>1591"), (r"x=\frac{6}{1/7}", "x=42"), (r"x=\sqrt{16}", "x=4"), (r"x=\log_2 8", "x=3"),
    (r"y=37\cdot43x", "y=1591x"), (r"x+y=37\cdot43", "x+y=1591"), (r"\frac{AB}{37}=43", "AB=1591"), ("2x>4", "x>2"),
    (r"37\theta=1591", r"\theta=43"), (r"AB=37\cdot43", "BA=1591"), ("x-5=0", "x=5"),
]  # fmt: skip
ZEROS_CHOSEN = [  # of denominators
    *((r"10^{60}+\frac{0}{n-4}+\frac{0}{n-5}+\frac{0}{n-6}+\frac{0}{n-7}=0", f"n={n}") for n in (4, 5, 6, 7)),
    *((r"10^{60}+\frac{0}{y-2x}+\frac{0}{y-3x}=0", f"y={n}x") for n in (2, 3)),
    *((r"10^{-60}+\frac{0}{y-2x}+\frac{0}{y-3x}=0", f"y={n}x") for n in (2, 3)),
    (r"1+\frac{0}{n-4+1-\lceil n\rceil+\lfloor n\rfloor}+\frac{0}{n-5}=0", "n=4"),
    (r"1+\frac{0}{n-4m+1-\lceil n\rceil+\lfloor n\rfloor}+\frac{0}{n-5m}=0", "n=4m"),
    (r"1+\frac{0}{y-2x+\max(0,y)-|y|}=0", r"y-2x+\max(0,y)-|y|=0"),
    (r"1+\frac{0}{n-4m+n(n-1)(n-2)}+\frac{0}{n-5m}=0", "n=4m-n(n-1)(n-2)"),  # linear at 0, 1, 2 only
]  # fmt: skip
CEIL, FLOOR = r"\lceil n-10^{-9}\rceil", r"\lfloor n+10^{-9}\rfloor"
HALVES = r"(\lceil\frac n2\rceil+\lceil\frac{n-1}2\rceil)", r"(\lfloor\frac n2\rfloor+\lfloor\frac{n+1}2\rfloor)"
INTEGERS_CHOSEN += [
    *((f"(-1)^n-(-1)^n{CEIL}+(-1)^n{FLOOR}+n{CEIL}-n{FLOOR}", gold) for gold in ("(-1)^n", "n")),
    (f"(-1)^n-(-1)^n{HALVES[0]}+(-1)^n{HALVES[1]}+n{HALVES[0]}-n{HALVES[1]}", "n"),
]
NEAR_A_DECIMAL = [
    (r"37.25e^{\ln 1.3000000001}", "48.425"), (r"\sqrt{428.4900001}", "20.7"),
    (r"12.5\cdot 3.7^{1.00000000001}", "46.25"),
    (r"\frac{185\pi^{1.0000000001}}{4\pi}", "46.25"), (r"37.2501e^{\ln 1.3000000001}", "48.4251"),
    (r"\sqrt{23439906}", "4841.48"), (r"12.5\cdot 3.7^{1.00000000001}x", "46.25x"),
    (r"46.25^{1.000000001}\%", r"46.25\%"),
]  # fmt: skip
DIGITS += [
    ("1234567.301", "1234567.31"), ("1234567.301", "1234566.31"), ("1234567.30", "1234567.31"),
    ("1000000.5x", "1000000x"), ("1000000.5x", "1000001x"), ("1000000000x+1.5", "1000000000x+1"),
    ("1000000000x+1.5", "1000000000x+2"), (r"1000000000x+1.5", r"1000000000x+\frac43"),
]  # fmt: skip
UNDONE += [
    ("1/37/43", r"\frac{1}{1591}"), ("5/36/35", r"\frac{1}{252}"),
    (r"\frac{\frac{12.5}{37}}{43}", r"\frac{12.5}{1591}"), ("1/7/3/2", r"\frac{1}{42}"),
]  # fmt: skip
UNDONE += [  # beside names, roots, pi and i
    (r"\frac{37}{\frac{1}{43}}\pi", r"1591\pi"), (r"\frac{37x}{1/43}", "1591x"),
    (r"\frac{37\pi}{0.025}", r"1480\pi"), (r"43\cdot\frac{37\pi}{1}", r"1591\pi"), (r"43(37\pi+0)", r"1591\pi"),
    (r"-(-37\pi)\cdot43", r"1591\pi"), (r"(37\sqrt2)^{1}43", r"1591\sqrt2"), (r"\sqrt[1]{37\pi}43", r"1591\pi"),
    (r"\frac{37}{\frac{1}{43\pi}}", r"1591\pi"), (r"\frac{\frac{\pi}{37}}{43}", r"\frac{\pi}{1591}"),
    ("30-(-12-x)", "x+42"), ("(x+12)^1+30", "x+42"), ("1(x+12)+30", "x+42"), ("(x+12+(1-1))+30", "x+42"),
    (r"\frac{2+3i}{4-5i}", r"\frac{-7+22i}{41}"), (r"\frac{10}{1+3i}", "1-3i"), ("(2+3i)^{-1}", r"\frac{2-3i}{13}"),
    (r"\sqrt{1369}\pi", r"37\pi"), (r"\log_2(1024)x", "10x"), (r"\gcd(1591,37)x", "37x"),
    (r"\max(37,12)\pi", r"37\pi"),
    (r"\frac{7!}{3!}\pi", r"840\pi"), (r"(\sin 30^\circ)x", r"\frac x2"),
    (r"\cos 60^\circ\sqrt3", r"\frac{\sqrt3}{2}"),
    (r"x+\lfloor 37.5\rfloor", "x+37"), (r"\ln(e^{12})x", "12x"),
    (r"2^{37\cdot43}", "2^{1591}"), (r"e^{37\cdot43}", "e^{1591}"), (r"x^{37\cdot43}", "x^{1591}"),
]  # fmt: skip
SAID_OTHERWISE = [
    *((f"5 {word}", "5") for word in "quadrillion zillion crore lakh tens gross grand googol".split()),
    *((f"{name} has 5", "5") for name in "Nobody None Wrongly Nothing Guess".split()),
    ("Nothing: 5", "5"), ("Guess: 5", "5"), (r"\text{Nobody}: 5", "5"), ("No-one", "no"), ("No.5", "no"),
    (r"\text{x}+3=8", "8"), (r"\text{cost}+3=8", "8"), (r"\text{cost}\cdot3=24", "24"), (r"\text{cost}/2=24", "24"),
    (r"\text{x}", "X"), 
]  # fmt: skip
CHEATS = [
    *NEAR_A_RATIONAL, *OTHER_FUNCTIONS, *POINTS_CHOSEN_BY_THE_ANSWER, *UNDONE, *EQUATIONS, *UNDECIDED,
    *INTEGERS_CHOSEN, *FAR_AWAY, *DIGITS, *WORDS, *SOLVED, *ZEROS_CHOSEN, *NEAR_A_DECIMAL, *SAID_OTHERWISE,
]  # fmt: skip


@pytest.mark.parametrize(("answer", "gold"), CHEATS)
def test_cheats_are_wrong(answer, gold):
    assert not grade(f"\\boxed{{{answer}}}", gold, timeout=20).correct  # given up would be wrong as well, but no proof


@pytest.mark.slow
def test_one_answer_cannot_be_right_for_many_labels():
    for answer in (r"2^{2024}+\pi", "2^{2024}+0.5", r"2^{2024}\cdot 1.0", r"2^{2024}+\frac{\pi}{0.5}"):
        right = [k for k in range(-100, 100) if answers_equal(answer, f"2^{{2024}}{k:+}")]
        assert len(right) <= 1


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
        (r"\frac{n!}{k!(n-k)!}", r"\binom{n}{k}"),
        (r"\frac{2n^2-1+(-1)^n}{8}", r"\frac12\lfloor\frac{n^2}{2}\rfloor"),  # n is whole for both
        (r"\cos\theta+i\sin\theta", r"e^{i\theta}"),
        (r"\frac{\sqrt{a}}{\sqrt{b}}", r"\sqrt{\frac{a}{b}}"),
        (r"\frac{\sqrt{2gh}}{g}", r"\sqrt{\frac{2h}{g}}"),  # no two names are negative at once
        ("x^{1/3}", r"\sqrt[3]{x}"),
        (r"\sqrt{1-x^2}", r"\sqrt{(1-x)(1+x)}"),
        (r"\sqrt{x-100}", "(x-100)^{1/2}"),
        (r"\arccos x", r"\frac{\pi}{2}-\arcsin x"),
        (r"\ln\frac{a}{b}", r"\ln a-\ln b"),
        ("e^{x^2}+1", "1+e^{x^2}"),
        (r"2e^{1000000}", r"e^{1000000}\cdot 2"),
        (r"m\cdot g\cdot h", "mgh"),
        (r"\sin 2x", r"2\sin x\cos x"),
        # beside what keeps the answers above out
        (r"\frac{e^x}{1+e^x}", r"\frac{1}{1+e^{-x}}"), 
        (r"\frac12\sinh 2x", r"\sinh x\cosh x"),
        ("gm", "mg"),
        ("x=5.0", "x=5"),   ("2x+2y=4", "x+y=2"),
         ("x<2-y", "y<2-x"), ("AB=10", "BA=10"), (r"x=\alpha", r"\alpha=x"), 
        (r"\sqrt{12}", "3.46410"), (r"\sqrt2", "1.41421"), ("6.02214076e23", "6.02214e23"), ("98765.432", "98765.4"),
        (r"\frac{37\pi}{43}", r"\frac{37}{43}\pi"), (r"\frac{24\pi}{36}", r"\frac{2\pi}{3}"),
        (r"\frac{10}{\sqrt5}", r"2\sqrt5"),
         (r"\text{x}=5", "5"), 
    ],
)  # fmt: skip
def test_what_is_right_stays_right(answer, gold):
    assert grade(f"\\boxed{{{answer}}}", gold, timeout=20).correct


NESTINGS = [
    r"\{%s;y\}", r"\{p=%s,q=2;p=3,q=1\}", r"\mathbb{R}\setminus\{%s\}", r"(1,2)\setminus\{%s\}", "(-x<%s or -x>2)",
    r"(x\ne %s)", r"\{x|x\in %s\}", r"(%s \text{ or } 2<x<3)",
]  # fmt: skip


@pytest.mark.parametrize("nesting", NESTINGS)
def test_nested_answers_are_read_in_time(nesting):
    answer = "x"
    while len(answer) < 60:
        answer = nesting.replace("%s", answer)
    started = time.process_time()
    read_label(clean(";".join([answer] * 200)[:4_000]))
    assert time.process_time() - started < 0.5  # some 0.02; every level parsed twice took seconds


@pytest.mark.parametrize(
    "answer", [r"\$" * 1_000 + "5", "€" * 1_000 + "5", r"\text{USD}" * 300 + "5", r"\$\$5", "-" * 2_000 + r"\$5"]
)
def test_money_signs_do_not_pile_up(answer):
    assert not grade(f"\\boxed{{{answer}}}", "5").correct


def test_what_is_too_deep_is_unparsable(monkeypatch):
    def too_deep(text):
        raise RecursionError

    monkeypatch.setattr(grading, "bare_answer", too_deep)
    assert grading.grade(r"\boxed{5}", "5").status == "unparsable"
