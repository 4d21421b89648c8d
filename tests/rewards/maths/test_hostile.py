"""Answers that are made to hang, crash, fill memory or run code: wrong within the timeout, and no more happens."""

import os
import resource
import time

import pytest

from openrlhf_cov.rewards.maths.extraction import EXTRACTORS
from openrlhf_cov.rewards.maths.grading import answers_equal, grade
from openrlhf_cov.rewards.maths.grammar import accepts
from openrlhf_cov.rewards.maths.labels import bare_answer, read_label
from openrlhf_cov.rewards.maths.prompt import read_problem
from openrlhf_cov.rewards.maths.symbolic import compare_texts

TIMEOUT = 1.0
# Seconds on top of the timeout: extraction, cleaning, and a worker that has to be replaced on a busy host.
MARGIN = 5.0

N = 100_000
LARGE = 200_000
ANSWERS = {
    "braces": "{" * N + "5" + "}" * N,
    "parentheses": "(" * N + "5" + ")" * N,
    "brackets": "[" * N + "5" + "]" * N,
    "open": "(" * N,
    "closed": ")" * N,
    "short_nesting": "(" * 1_900 + "5" + ")" * 1_900,
    "short_text": r"\text{" * 600 + "5" + "}" * 600,
    "bars": "|" * 3_999,
    "carets": "^" * N,
    "short_carets": "x" + "^2" * 1_900,
    "underscores": "x" + "_1" * 1_900,
    "primes": "x" + "'" * 3_900,
    "factorials": "5" + "!" * 3_900,
    "signs": "-" * 3_901 + "5",
    "fracs": r"\frac" * 799,
    "fracs_closed": r"\frac1" * 600 + "5",
    "sqrts": r"\sqrt" * 790 + "5",
    "sines": "sin " * 990 + "0",
    "sums": "5" + "+0" * 1_900,
    "products": "5" + r"\cdot 1" * 500,
    "lefts": r"\left(" * 600,
    "boxes": r"\boxed" * 600,
    "tower": "9**9**9",
    "tower_latex": "9^{9^{9^{9}}}",
    "tower_of_two": "2^{" * 50 + "2" + "}" * 50,
    "power_of_name": "x^{9^{9^9}}",
    "factorial": "(10^9)!",
    "factorial_of_factorial": "(((((9!)!)!)!)!)!",
    "fractional_factorials": "+".join(f"({k}.5)!" for k in range(100, 600)),
    "binomial": r"\binom{10^{9}}{5\cdot 10^{8}}",
    "exponent": "1e999999999",
    "negative_exponent": "1e-999999999",
    "tiny": "10^{-10^{10}}",
    "zero_times": "0 \\cdot 9^{9^{9}} + 5",
    "digits": "7" * 5_000_000,
    "short_digits": "7" * 3_900,
    "decimals": "0." + "3" * 3_900,
    "fraction_of_digits": "1" * 1_900 + "/" + "3" * 1_900,
    "latex": r"\frac{1}{2}+\sqrt{x}\cdot\left(\sin x\right)^{2}" * (LARGE // 45),
    "environments": r"\begin{pmatrix}" * (LARGE // 15),
    "short_environments": r"\begin{pmatrix}" * 260,
    "commands": r"\alpha\beta\foo " * (LARGE // 16),
    "backslashes": "\\" * LARGE,
    "list": ",".join(map(str, range(N))),
    "short_list": ",".join(str(k % 10) for k in range(1_900)),
    "list_of_surds": ",".join(rf"\sqrt{{{k}}}" for k in range(2, 101)),
    "ors": " or ".join(["5"] * 700),
    "equals": "=".join(["5"] * 1_900),
    "less": "<".join("x" * 1_900),
    "cups": r"(1,2)\cup" * 400,
    "plus_minus": r"\pm" * 1_300 + "5",
    "nested_plus_minus": r"\pm(" * 700 + "5" + ")" * 700,
    "matrix": r"\begin{pmatrix}" + r"1 & 2 \\ " * 20_000 + r"\end{pmatrix}",
    "short_matrix": r"\begin{pmatrix}" + "&".join(["x"] * 1_900) + r"\end{pmatrix}",
    "zero_width": "5" + "\u200b5" * 1_900,
    "combining": "5" + "\u0301" * N,
    "bidirectional": "\u202e5\u202c\u200f6",
    "nul": "5\x00" * 1_000,
    "surrogates": "\ud800" * 1_000 + "5",
    "private_use": "\ue000\U0010ffff5",
    "mathematical_alphabet": "\U0001d7ce" * 3_000 + "1",
    "expanding": "\ufdfa" * 3_900,  # one character that NFKC turns into 18
    "superscripts": "5" + "²" * 3_000,
    "spaces": " " * LARGE + "6",
    "line_breaks": "\n" * LARGE + "6",
    "html": "<b>5</b>" * 400,
}


@pytest.mark.parametrize("name", ANSWERS)
def test_hostile_answers_are_wrong_in_time(name):
    started = time.perf_counter()
    result = grade(f"so \\boxed{{{ANSWERS[name]}}}", "5", timeout=TIMEOUT)
    assert not result.correct
    assert time.perf_counter() - started < TIMEOUT + MARGIN


@pytest.mark.slow
@pytest.mark.parametrize("gold", [r"2\sqrt{2}", "x,1", r"\text{no}"])
def test_hostile_answers_are_wrong_against_other_golds(gold):
    for answer in ANSWERS.values():
        if len(answer) < 4_000:
            started = time.perf_counter()
            assert not answers_equal(answer, gold, timeout=TIMEOUT)
            assert time.perf_counter() - started < TIMEOUT + MARGIN


@pytest.mark.parametrize("mode", EXTRACTORS)
@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{" * N,
        r"\boxed" * N,
        r"\boxed{5" * N,
        r"\boxed{{" * N + "}" * N,
        "{" * N + r"\boxed{" * N,
        "answer is " * N,
        "answer: *" * N,
        "####" * N,
        "<|a|>" * N,
        "<|" * N,
        "\n" * 400_000,
        "Answer: " + "*_ " * N,
        "x" * 5_000_000,
    ],
    ids=lambda response: response[:12].strip(),
)
def test_hostile_responses_are_wrong_in_time(mode, response):
    started = time.perf_counter()
    assert not grade(response, "6", mode=mode, timeout=TIMEOUT).correct
    assert time.perf_counter() - started < TIMEOUT + MARGIN


CODE = [
    "__import__('os').system('touch {path}')",
    "open('{path}','w')",
    "exec(\"open('{path}','w')\")",
    "eval(\"open('{path}','w')\")",
    "(lambda: open('{path}','w'))()",
    "[open('{path}','w') for x in [1]]",
    "().__class__.__bases__[0].__subclasses__()",
    "sympy.sympify(\"open('{path}','w')\")",
    'f\'{{open("{path}","w")}}\'',
    "$(touch {path})",
    "`touch {path}`",
    "; touch {path}",
    r"\write18{{touch {path}}}",
    r"\immediate\write18{{touch {path}}}",
    r"\input{{|touch {path}}}",
    r"\openout15={path}",
    r"\text{{__import__('os').system('touch {path}')}}",
    r"\operatorname{{exec}}(open('{path}','w'))",
    r"\frac{{__import__('os').system('touch {path}')}}{{1}}",
    "5 if open('{path}','w') else 5",
    r"\input{{/etc/passwd}}",
    "file:///etc/passwd",
    "import os; os._exit(0)",
    "raise SystemExit",
    "while True: pass",
]


@pytest.mark.parametrize("code", CODE)
@pytest.mark.parametrize("gold", ["5", "x+1", r"2\sqrt{2}"])
def test_nothing_is_executed(code, gold, tmp_path):
    path = tmp_path / "touched"
    answer = code.format(path=path)
    here = sorted(os.listdir())
    assert not grade(f"so \\boxed{{{answer}}}", gold, timeout=TIMEOUT).correct
    grade(f"so \\boxed{{{gold}}}", answer, timeout=TIMEOUT)
    assert not path.exists()
    assert sorted(os.listdir()) == here


@pytest.mark.slow
def test_memory_stays_bounded():
    # ru_maxrss is the peak in kB; the 5 MB of the longest answer are copied a few times, never a thousand times
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for answer in ANSWERS.values():
        grade(f"\\boxed{{{answer}}}", "7", timeout=TIMEOUT)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


def test_the_grader_works_as_before():
    assert answers_equal(r"\sqrt{8}", r"2\sqrt{2}")
    assert not answers_equal(r"\sqrt{8}", r"3\sqrt{2}")


LABELS = [
    "5",
    r"\frac12",
    "0.25",
    r"5\text{ cm}",
    r"2\sqrt3",
    "x^2+1",
    "x^2+y^2=1",
    "x>3",
    "1,2",
    "(1,2)",
    "3:30 PM",
    "B",
    "yes",
]
BLOCKS = [
    "(", "}", "[", "1", "x=", r"\cup ", r"\text{", "1,", "and ", r"\frac{", r"\pm ", r"\begin{pmatrix}", "(1,2),",
    r"\{1,", "1 000 ",
    r"\mathbb{R}\setminus\{1,", r"\le ", "10^", "A) ", r"x\in ", "5 cm ", "- ",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_what_needs_no_child_process_is_read_at_once(label):
    def in_a_child(text, label, problem):
        return None

    typed = read_label(label)
    problem = read_problem("Find all $x$ with $x^2+1=5$. How many cats are in (A) 3 (B) 4?")
    for block in BLOCKS:
        for end in ("", "5", "}" * 50):
            text = (block * 4_000)[:3_900] + end
            started = time.process_time()
            accepts(bare_answer(text), typed, problem, in_a_child)
            assert time.process_time() - started < 0.05, block


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        (r"\sqrt{4500!}", r"\sqrt{4400!}"), (r"\sqrt{4500!}", r"\sqrt2"), ("2^{2^{2^{20}}}", "2^{10}"),
        ("9^{9^{9^9}}", "3^{2007}"),
        ("+".join(rf"\sin({k}x)" for k in range(60)), r"\sin x+\sin 2x"), (", ".join(map(str, range(60))), "1, 2"),
        (r"\sqrt{" * 50 + "2" + "}" * 50, r"\sqrt2"), ("(x+1)^{5000}", "(x+1)^2"), (r"\binom{5000}{2500}x",
        r"\binom{10}{5}x"),
    ],
)  # fmt: skip
def test_size_is_bounded_before_anything_is_computed(answer, label):
    started = time.process_time()
    assert not compare_texts(bare_answer(answer), label)
    assert time.process_time() - started < 0.5
