"""Responses are graded by the rule of training, and may be graded again by another."""

import shutil
from dataclasses import replace

import pytest

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.evaluation.plan import Completion, Request
from openrlhf_cov.evaluation.response_records import AskedProblem, read_responses, read_settings, write_settings
from openrlhf_cov.evaluation.runner import Grader, regrade
from openrlhf_cov.rewards import reward_func


class TestRegrade:
    def test_another_form_of_answer_gives_other_grades(self, again, straight, small):
        folder = again()
        shutil.copytree(straight, folder)
        # of the right answers outside of a box and the texts without any, those in a sentence are found now
        outside = [response for response in read_responses(straight) if "answer is" in response.text]
        assert outside
        assert regrade(folder, RewardConfig(reward_format="answer_line"), workers=2) > 0
        new = {response.key: response for response in read_responses(folder)}
        assert all(new[response.key].correct for response in outside)
        assert read_settings(folder) == replace(small.settings, reward_format="answer_line")
        boxed = [response for response in read_responses(straight) if "boxed" in response.text]
        assert {new[response.key].status for response in boxed} == {"no_answer"}
        assert {new[key].status for key in small.too_long} == {"prompt_too_long"}
        regrade(folder, small.config, workers=2)
        assert small.files(folder) == small.files(straight)

    def test_gold_answers_that_an_earlier_version_could_not_read_are_looked_at_again(self, again, straight, small):
        folder = again()
        shutil.copytree(straight, folder)
        first, *others = small.settings.benchmarks
        write_settings(folder, replace(small.settings, benchmarks=(replace(first, ungradable=("p0",)), *others)))
        regrade(folder, small.config, workers=2)
        assert read_settings(folder) == small.settings

    def test_both_graders_are_asked_where_both_are_wanted(self, again, straight, small):
        folder = again()
        shutil.copytree(straight, folder)
        config = RewardConfig(reward_grader="published")
        assert regrade(folder, config, workers=2, packages={"math-verify": "1"}) == 0
        assert read_settings(folder).packages == small.settings.packages | {"math-verify": "1"}
        # 7 is right for nobody, and the union never loses what is right for strict
        assert all(response.published is response.correct for response in read_responses(folder))
        regrade(folder, small.config, workers=2)
        assert {response.published for response in read_responses(folder) if response.tokens} == {None}

    def test_an_unfinished_run_stays_one(self, again, straight, small):
        folder = again()
        with pytest.raises(RunStopped):
            small.evaluate(folder, small.Model(stop_after=3))
        before = read_responses(folder)
        assert regrade(folder, small.config, workers=2) == 0
        assert read_responses(folder) == before
        small.evaluate(folder, small.Model())
        assert small.files(folder) == small.files(straight)


ROWS = [("math", "s", "1/2"), ("gsm8k", "s", "1,234"), ("choice", "s", "B"), ("row", "tiny_addition", "91"),
        ("row", "gsm8k/main", "5"), ("row", "math/aime", "x+1")]  # fmt: skip
RESPONSES = [r"\boxed{0.5}", r"\boxed{1234}", r"\boxed{(B)}", "34+57;91<eos>", r"\boxed{5 apples}", r"\boxed{1+x}",
             r"\boxed{\dot{x}}", "", "5", r"\boxed{5}"]  # fmt: skip


@pytest.mark.parametrize(("rule", "source", "answer"), ROWS)
def test_a_response_is_graded_as_it_is_rewarded_in_training(small, rule, source, answer):
    problem = AskedProblem(benchmark="b", id="p", problem="?", answer=answer, source=source)
    grader = Grader([problem], {"b": rule}, small.config)
    reward = reward_func.make_reward_func(RewardConfig(reward_source=rule))
    scores = reward(RESPONSES, [""] * len(RESPONSES), [{"answer": answer, "source": source}] * len(RESPONSES))[
        "scores"
    ]
    assert [float(grader.grade("b", "p", text).correct) for text in RESPONSES] == scores.tolist()
    assert 0 < scores.sum() < len(RESPONSES)


PROMPT_THAT_OPENS = "user\n{problem}\nassistant\n<think>\n"


@pytest.mark.parametrize(
    ("text", "correct", "status"),
    [(r"Maybe \boxed{4}. But wait", False, "no_answer"), (r"Maybe \boxed{5}.</think>\boxed{4}", True, "graded")],
)
def test_a_prompt_that_opens_the_thinking(small, text, correct, status):
    problem = AskedProblem(benchmark="b", id="p", problem="2+2?", answer="4", source="s")
    grader = Grader([problem], {"b": "math"}, small.config, PROMPT_THAT_OPENS)
    request = Request(("b", "p", 0), "2+2?\n<think>\n", None, None, 0.0, 1.0, 9)
    response = grader(request, Completion(text, 9, 5, truncated=not correct))
    assert (response.correct, response.status) == (correct, status)
    assert grader.again(response) == response  # which is told by the template alone
    # a problem that speaks of the marker opens nothing
    asked = replace(problem, problem="What is <think>?")
    assert Grader([asked], {"b": "math"}, small.config, "{problem}\nAnswer it.").grade("b", "p", r"\boxed{4}").correct


def test_a_regrade_records_the_markers_that_it_reads(again, straight, small):
    folder = again()
    shutil.copytree(straight, folder)
    markers = ("[THINK]", "[/THINK]")
    assert regrade(folder, RewardConfig(thinking_markers=markers), workers=2) == 0  # no response has thinking
    assert read_settings(folder) == replace(small.settings, thinking_markers=markers)
    assert regrade(folder, RewardConfig(thinking_opened=True), workers=2) > 0
    assert read_settings(folder) == replace(small.settings, thinking_opened=True)
    # the prompt that leaves no room is no response
    statuses = {response.status for response in read_responses(folder)}
    assert statuses == {"no_answer", "prompt_too_long"}
