"""The grader ``published``: ours or Math-Verify's verdict, from any thread, and no more than ours where that fails."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards.grades import Grade
from openrlhf_cov.rewards.maths import grading
from openrlhf_cov.rewards.maths.grading import MAX_ANSWER, grade, with_second_opinion
from openrlhf_cov.rewards.pool import WorkerDied, shared_pool
from openrlhf_cov.rewards.reward_func import make_reward_func
from openrlhf_cov.rewards.sources import grade_label, published_grade

PUBLISHED = RewardConfig(reward_grader="published", reward_timeout=10.0)

# Answer and label: wrong by a policy of ours, right for Math-Verify.
POLICY = [
    ("3+2", "5"),  # computations left undone
    (r"37 \cdot 43", "1591"),
    (r"\log_2 8", "3"),
    ("(1,2)", "1,2"),  # a tuple is no list
    ("12", "12_5"),  # a base
    ("6=5", "5"),  # a chain whose sides do not agree
]

# Wrong for both.
WRONG = [("6", "5"), ("1,2", "2"), ("10", "0.1"), (r"\sqrt{x^2}", "x"), (r"\text{yes}", r"\text{no}"), ("(((", "5")]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "gold"), POLICY)
def test_what_a_policy_of_ours_refuses_is_right_for_published(answer, gold):
    response = f"so \\boxed{{{answer}}}"
    assert not grade_label(response, gold, RewardConfig()).correct
    result = grade_label(response, gold, PUBLISHED)
    assert (result.correct, result.status, result.answer) == (True, "graded", answer)


@pytest.mark.parametrize(("answer", "gold"), WRONG)
def test_what_both_refuse_keeps_our_grade(answer, gold):
    strict, published = (grade_label(f"\\boxed{{{answer}}}", gold, each) for each in (RewardConfig(), PUBLISHED))
    assert (published.correct, published.status) == (False, strict.status)


def test_what_is_right_for_ours_is_right_without_a_question(monkeypatch):
    monkeypatch.setattr(grading, "_in_worker", None)
    right = grade(r"\boxed{5 \text{ cm}}", "5")
    assert right.correct
    assert with_second_opinion(right, "5") is right


@pytest.mark.parametrize("result", [Grade(False, "no_answer"), Grade(False, "unparsable", "1" * (MAX_ANSWER + 1))])
def test_what_is_no_answer_is_no_question(result, monkeypatch):
    monkeypatch.setattr(grading, "_in_worker", None)
    assert with_second_opinion(result, "5") is result


@pytest.mark.parametrize("source", ["gsm8k", "choice", "tiny_addition"])
def test_other_rules_have_one_grader(source, monkeypatch):
    monkeypatch.setattr(grading, "_in_worker", None)
    strict = Grade(False, "graded", "3+2")
    label = {"answer": "5", "source": source}
    assert published_grade(strict, label, RewardConfig(reward_source="row")) is strict


def test_rewards_are_those_of_the_grader():
    responses, labels = [r"\boxed{3+2}", r"\boxed{5}", r"\boxed{6}", "5"], ["5"] * 4
    assert make_reward_func(RewardConfig())(responses, [""] * 4, labels)["scores"].tolist() == [0, 1, 0, 0]
    result = make_reward_func(PUBLISHED)(responses, [""] * 4, labels)
    assert result["scores"].tolist() == [1, 1, 0, 0]
    assert result["extra_logs"]["reward/unparsable_frac"].tolist() == [0, 0, 0, 0]


@pytest.mark.slow
def test_many_threads_ask_at_once():
    # Math-Verify's own time limit raises outside of the main thread
    with ThreadPoolExecutor(8) as threads:
        grades = list(threads.map(lambda pair: grade_label(f"\\boxed{{{pair[0]}}}", pair[1], PUBLISHED), POLICY * 4))
    assert all(result.correct for result in grades)


HANGING = ["9^{9^{9^{9}}}", "(((((9!)!)!)!)!)!", r"\binom{10^{9}}{5\cdot 10^{8}}", "|" * 3_999, "x" + "^2" * 1_900]


@pytest.mark.slow
@pytest.mark.parametrize("answer", HANGING, ids=lambda answer: answer[:12])
def test_an_answer_that_hangs_math_verify_is_wrong_in_time(answer):
    started = time.perf_counter()
    result = with_second_opinion(Grade(False, "graded", answer), "5", timeout=1.0)
    # An early Python 3.11 gives up on the powers at its limit of recursion; later ones go on.
    expected = {"timeout", "graded"} if "^2^2" in answer else {"timeout"}
    assert not result.correct
    assert result.status in expected
    assert time.perf_counter() - started < 6.0  # a worker may have to start on a busy host
    assert grade_label(r"\boxed{3+2}", "5", PUBLISHED).correct


@pytest.fixture
def opine(pool_targets, monkeypatch):
    """Math-Verify does what the answer says; the target."""
    monkeypatch.setattr(grading, "SECOND_OPINION_TARGET", "pool_targets:opine")
    yield
    shared_pool(target="pool_targets:opine").close()


@pytest.mark.slow
@pytest.mark.usefixtures("opine")
@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("spin", "timeout"),
        *((answer, "unparsable") for answer in ("crash", "fail", "recurse", "allocate_at_once", "leave")),
    ],
)
def test_a_second_opinion_that_fails_is_none(answer, status):
    result = with_second_opinion(Grade(False, "unparsable", answer), "5", timeout=1.0)
    assert (result.correct, result.status, result.answer) == (False, status, answer)
    assert result.seconds > 0.0


@pytest.mark.slow
@pytest.mark.usefixtures("opine")
@pytest.mark.parametrize("answer", ["kill_oneself", "exit_hard"])
def test_a_machine_that_kills_the_second_opinion_gives_no_grade(answer):
    with pytest.raises(WorkerDied):
        with_second_opinion(Grade(False, "graded", answer), "5", timeout=5.0)


STRICT_RUN = r"""
import sys
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards import pool
from openrlhf_cov.rewards.sources import grade_label
assert not grade_label(r"\boxed{\sqrt{3}+\sqrt{2}}", r"\sqrt{5}", RewardConfig()).correct
print(*pool._shared, *({"math_verify", "sympy"} & sys.modules.keys()))
"""


@pytest.mark.slow
def test_a_strict_run_does_not_pay_for_math_verify():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", STRICT_RUN], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "openrlhf_cov.rewards.maths.symbolic:compare_texts\n", done.stderr
