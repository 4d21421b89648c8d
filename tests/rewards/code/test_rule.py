"""The rule ``code``: grades, rewards and metrics of responses with programs."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards import sources
from openrlhf_cov.rewards.code import rule
from openrlhf_cov.rewards.code.judge import Verdict
from openrlhf_cov.rewards.reward_func import make_check_label, make_reward_func

CONFIG = RewardConfig(reward_source="code", code_timeout=2.0)
ASSERTS = json.dumps(["assert f(1) == 2", "assert f(2) == 3", "assert f(3) == 4", "assert f(4) == 9"])
STDIN = json.dumps({"stdin": [["1\n", "2\n"]]})


def fenced(program):
    return f"So:\n```python\n{program}\n```\n"


@pytest.fixture
def judged(monkeypatch):
    """Programs that were judged, by a stand-in for the sandbox that passes the first of two tests."""
    seen = []

    def judge(program, label, budget, config):
        seen.append(program)
        status = {"right": "passed", "slow": "time"}.get(program.strip(), "wrong")
        return Verdict(status=status, passed=2 if status == "passed" else 1, total=2, seconds=0.5)

    monkeypatch.setattr(rule, "_judge_here", judge)
    monkeypatch.setattr(rule, "_verdicts", rule.Verdicts())
    return seen


def rewards(responses, config, label=STDIN):
    return make_reward_func(config)(
        ["p" + each for each in responses], ["p"] * len(responses), [label] * len(responses)
    )


def test_a_verdict_is_kept_for_the_same_program_and_tests(judged):
    for _ in range(3):
        assert rule.grade_code(fenced("right"), STDIN, CONFIG).correct
    assert judged == ["right\n"]
    assert rule.grade_code(fenced("right"), STDIN, CONFIG).cached
    rule.grade_code(fenced("right"), ASSERTS, CONFIG)
    rule.grade_code(fenced("right"), STDIN, replace(CONFIG, code_timeout=3.0))
    rule.grade_code(fenced("right "), STDIN, CONFIG)
    assert len(judged) == 4


def test_what_took_too_long_is_tried_again(judged):
    for _ in range(2):
        assert rule.grade_code(fenced("slow"), STDIN, CONFIG).status == "timeout"
    assert len(judged) == 2


def test_no_more_verdicts_than_a_limit_are_kept(judged, monkeypatch):
    monkeypatch.setattr(rule, "REMEMBERED", 2)
    for program in ("a", "b", "a", "c", "b", "a"):
        rule.grade_code(fenced(program), STDIN, CONFIG)
    assert judged == ["a\n", "b\n", "c\n", "b\n", "a\n"]


def test_the_reward_is_for_all_tests_or_for_their_share(judged):
    responses = [fenced("right"), fenced("wrong"), "no program"]
    assert rewards(responses, CONFIG)["rewards"].tolist() == [1.0, 0.0, 0.0]
    share = replace(CONFIG, code_reward="share")
    assert rewards(responses, share)["rewards"].tolist() == [1.0, 0.5, 0.0]
    # -1 + 0.5 * (1 - -1) = 0
    assert rewards(responses, replace(share, reward_incorrect=-1.0))["rewards"].tolist() == [1.0, 0.0, -1.0]
    assert rewards(responses, share)["scores"].tolist() == [1.0, 0.0, 0.0]


def test_metrics(judged):
    logs = rewards([fenced("right"), fenced("wrong"), fenced("wrong"), "none"], CONFIG)["extra_logs"]
    assert logs["reward/no_answer_frac"].tolist() == [0, 0, 0, 1]
    assert logs["reward/code_wrong_frac"].tolist() == [0, 1, 1, 0]
    assert logs["reward/code_test_share"].tolist() == [1.0, 0.5, 0.5, 0.0]
    assert logs["reward/code_cached_frac"].tolist() == [0, 0, 1, 0]
    assert logs["reward/code_seconds"].tolist() == [0.5, 0.5, 0.0, 0.0]


def test_other_rules_have_no_metrics_of_programs():
    logs = make_reward_func(RewardConfig())([r"p\boxed{1}"], ["p"], ["1"])["extra_logs"]
    assert not any("code" in name for name in logs)


def test_rows_choose_the_rule(judged):
    config = RewardConfig(reward_source="row")
    assert sources.grade_label(fenced("right"), {"answer": STDIN, "source": "code/taco"}, config).correct
    assert sources.grade_label(r"\boxed{3}", {"answer": "3", "source": "math"}, config).correct


def test_the_whole_response_can_be_the_program(judged):
    assert rule.grade_code("right<|im_end|>", STDIN, replace(CONFIG, code_extract="whole")).correct


def test_a_program_that_is_too_long_is_none(judged):
    assert rule.grade_code(fenced("x" * 300_000), STDIN, CONFIG).status == "no_answer"
    assert not judged


def test_labels_are_checked_and_the_sandbox_once(monkeypatch):
    asked = []
    check = rule.check_code_ready
    code = replace(sources.SOURCES["code"], check_ready=asked.append)
    monkeypatch.setitem(sources.SOURCES, "code", code)
    checked = make_check_label(CONFIG)
    for label in (STDIN, ASSERTS):
        checked(label)
    assert asked == [CONFIG]
    with pytest.raises(ValueError, match="JSON"):
        checked("x = 42")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match=r"--code_sandbox bubblewrap: bwrap is not installed .*--code_sandbox url:"):
        check(CONFIG)


def test_a_service_needs_no_sandbox_here(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    rule.check_code_ready(replace(CONFIG, code_sandbox="url:http://127.0.0.1:1"))


@pytest.mark.slow
@pytest.mark.usefixtures("sandbox", "no_shared_pool")
def test_many_threads_are_graded_by_warm_sandboxes_beside_a_hostile_one():
    programs = [f"def f(n): return n + {k % 2 + 1}  # {k}" for k in range(40)]
    programs[7] = "while True: pass"
    programs[9] = "import os, signal\nos.kill(-1, signal.SIGKILL)\nos.kill(1, signal.SIGKILL)"
    label = json.dumps(["assert f(1) == 2", "assert f(2) == 3"])
    config = replace(CONFIG, code_timeout=0.5)
    with ThreadPoolExecutor(8) as threads:
        grades = list(threads.map(lambda program: rule.grade_code(fenced(program), label, config), programs))
    assert [grade.correct for grade in grades] == [k % 2 == 0 for k in range(40)]
    assert grades[7].status == "timeout"
    rule.shared_pool(target=rule.TARGET).close()
