import asyncio
import json
import threading
import time
from collections import Counter
from itertools import chain, groupby, islice
from pathlib import Path

import pytest

from openrlhf_cov.rewards.grades import Grade
from openrlhf_cov.rewards.maths.grading import MAX_ANSWER, answers_equal, grade

CASES = [json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text().splitlines()]
GROUPS = {
    group: list(cases)
    for group, cases in groupby(sorted(CASES, key=lambda case: case["group"]), lambda case: case["group"])
}
GOLD = Path(__file__).parents[4] / "shared/data/eval"
FILES = sorted(GOLD.glob("*.jsonl"))

# Two formulas with 42 functions between them, each computed to some hundred digits at 22 points.
SLOW_ANSWER = "+".join(rf"\frac{{3\sin({k}x)}}{{2}}" for k in range(2, 23))
SLOW_GOLD = "+".join(rf"\frac{{3}}{{2}}\sin({k}x)" for k in range(2, 23))


def verdict(case: dict, answer: str, gold: str) -> bool:
    response = answer if "mode" in case else f"\\boxed{{{answer}}}"
    return grade(response, gold, mode=case.get("mode", "boxed")).correct


def expected(case: dict) -> bool:
    """Return True if the grader accepts the answer; ``accepted`` is in the file where that differs from ``equal``."""
    return case.get("accepted", case["equal"])


@pytest.mark.parametrize("group", GROUPS)
def test_cases(group):
    wrong = [case for case in GROUPS[group] if verdict(case, case["answer"], case["gold"]) is not expected(case)]
    assert wrong == []


@pytest.mark.parametrize("group", GROUPS)
def test_white_space_changes_nothing(group):
    wrong = []
    for case in GROUPS[group]:
        if "mode" not in case:  # in a response, a line break ends an answer line
            answer, gold = (f"\n {case[key].replace(' ', '  ')}\t " for key in ("answer", "gold"))
            if verdict(case, answer, gold) is not expected(case):
                wrong.append(case)
    assert wrong == []


def test_the_table_is_what_the_documentation_says():
    assert len(CASES) >= 1_500
    assert sum(not case["equal"] for case in CASES) >= len(CASES) / 3
    assert all({"answer", "gold", "equal", "group"} <= set(case) for case in CASES)
    keys = Counter((case["answer"], case["gold"], case.get("mode")) for case in CASES)
    assert [key for key, count in keys.items() if count > 1] == []


SELF_WRONG = {
    # braces that do not match: no box holds them, so nothing can be equal to them
    r"\frac{5055}{2^{15}",
    r"\frac{81^{10}}{82^{10}",
    r"\frac{2 k n}{n+k-1}-2 \frac{k!n!}{(k+n-1)!",
    r"\frac{11}{2^{20}",
    # a sentence with a box of its own: the box in it is the answer of a response that repeats the sentence
    r"The number of distinct such colorings of \( P \) is \(\boxed{6}\).",
}
# (next row's gold, gold): different spellings of one answer.
NEXT_RIGHT = {("x=5", "5")}


def gold_answers() -> list[tuple[str, list[str]]]:
    return [(path.name, [json.loads(line)["answer"] for line in path.read_text().splitlines()]) for path in FILES]


@pytest.mark.slow
@pytest.mark.skipif(not FILES, reason=f"the benchmarks are not at {GOLD}")
def test_every_gold_answer_in_a_box_is_right():
    wrong = {
        gold for _, golds in gold_answers() for gold in golds if not grade(f"so $\\boxed{{{gold}}}$.", gold).correct
    }
    assert wrong == SELF_WRONG


@pytest.mark.slow
@pytest.mark.skipif(not FILES, reason=f"the benchmarks are not at {GOLD}")
def test_the_next_gold_answer_is_wrong():
    right = set()
    for _, golds in gold_answers():
        for place, gold in enumerate(golds):
            other = next(answer for answer in chain(islice(golds, place + 1, None), golds) if answer != gold)
            if grade(f"so \\boxed{{{other}}}", gold).correct:
                right.add((other, gold))
    assert right == NEXT_RIGHT


@pytest.mark.parametrize(
    ("response", "mode", "expected"),
    [
        (r"\boxed{5}", "boxed", (True, "graded", "5")),
        (r"\boxed{6}", "boxed", (False, "graded", "6")),
        (r"\boxed{\foo}", "boxed", (False, "unparsable", r"\foo")),
        (r"\boxed{$}", "boxed", (False, "unparsable", "$")),
        (r"\boxed{}", "boxed", (False, "no_answer", None)),
        ("#### 5", "boxed", (False, "no_answer", None)),
        ("#### 5", "gsm8k", (True, "graded", "5")),
        ("Answer: 5", "answer_line", (True, "graded", "5")),
        ("Answer: 5", "any", (True, "graded", "5")),
    ],
)
def test_grade(response, mode, expected):
    started = time.perf_counter()
    result = grade(response, "5", mode=mode)
    assert (result.correct, result.status, result.answer) == expected
    assert 0 < result.seconds <= time.perf_counter() - started


def test_what_cannot_be_read_is_right_if_it_is_spelt_alike():
    assert grade(r"\boxed{\int_0^x f(t)\,dt}", r"\int_0^x  f(t) dt").correct
    assert not grade(r"\boxed{\int_0^y f(t)\,dt}", r"\int_0^x f(t)\,dt").correct


def test_an_unknown_mode_is_an_error():
    with pytest.raises(ValueError, match="--reward_format is one of boxed"):
        grade("5", "5", mode="latex")


def test_a_long_answer_is_right_only_if_it_is_spelt_alike():
    long = "1" * (MAX_ANSWER + 1)
    assert grade(f"\\boxed{{ {long} }}", long) == Grade(True, "graded", long, pytest.approx(0, abs=1))
    assert grade(f"\\boxed{{{long}.0}}", long).status == "unparsable"
    assert answers_equal("+" + long[:-2], long[:-2]) is False  # too many digits to be computed with


@pytest.mark.slow
def test_a_case_that_takes_too_long_is_given_up_and_the_next_one_graded():
    started = time.perf_counter()
    for _ in range(3):
        result = grade(f"\\boxed{{{SLOW_ANSWER}}}", SLOW_GOLD, timeout=0.001)
        assert (result.correct, result.status) == (False, "timeout")
        assert grade(r"\boxed{\sqrt{8}}", r"2\sqrt{2}").correct  # reaches the pool, too
    assert time.perf_counter() - started < 3 * 0.001 + 5


def test_from_any_thread():
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(grade(r"\boxed{\sqrt{8}}", r"2\sqrt{2}").correct))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [True] * 8


@pytest.mark.slow
def test_from_many_tasks_at_once():
    # in every tenth task the pool kills a worker; the others get their own verdicts
    async def one(number: int) -> tuple[bool, str]:
        if number % 10 == 0:
            result = await asyncio.to_thread(grade, f"\\boxed{{{SLOW_ANSWER}}}", SLOW_GOLD, timeout=0.001)
        else:
            gold = rf"{number}\sqrt{{2}}"
            other = number + number % 2  # right for even numbers
            result = await asyncio.to_thread(grade, rf"\boxed{{\sqrt{{{2 * other**2}}}}}", gold)
        return result.correct, result.status

    async def all_of_them() -> list[tuple[bool, str]]:
        return await asyncio.gather(*map(one, range(50)))

    expected = [(False, "timeout") if n % 10 == 0 else (n % 2 == 0, "graded") for n in range(50)]
    assert asyncio.run(all_of_them()) == expected
