import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from openrlhf_cov.evaluation.scores import avg_at_k, bootstrap_interval
from openrlhf_cov.evaluation.summary import SUMMARY_FILE, mean_surprisal, summarize, write_summary

# 0.5 and \frac{1}{2} are the same answer and outvote the right one; in the second problem 1 wins with 3 of 4
TABLES = {"aime24": [r"1 0.5 \frac{1}{2} -", "1 1 1 2"], "math500": ["1", "2", "1", "-"]}


def summary_of(run):
    return summarize(run.settings, run.problems, run.responses)


@pytest.fixture(scope="module")
def run(make_evaluation):
    return make_evaluation(TABLES)


@pytest.fixture(scope="module")
def summary(run):
    return summary_of(run)


def test_scores_by_hand(summary):
    aime, math500 = summary.benchmarks
    assert aime.avg_at_k.estimate == 0.5  # (1 + 3) / 8
    # pass@1 = (1/4 + 3/4) / 2; pass@2 = (1 - C(3,2)/C(4,2) + 1) / 2 = (1/2 + 1) / 2; pass@4: both have a right one
    assert {k: score.estimate for k, score in aime.pass_at_k.items()} == {1: 0.5, 2: 0.75, 4: 1.0}
    assert aime.maj_at_k == 0.5  # wrong and right
    assert math500.avg_at_k.estimate == 0.5
    assert list(math500.pass_at_k) == [1]
    assert math500.maj_at_k is None
    assert summary.mean_avg_at_k == 0.5


@pytest.mark.parametrize(("sources", "vote"), [(("math/a", "gsm8k/b"), 0.5), (("math/a", "Code/b"), None)])
def test_programs_have_no_majority_vote_in_a_file_whose_rows_name_their_rules(make_evaluation, sources, vote):
    # The first problem is solved by the majority of three samples, the second one is not.
    run = make_evaluation({"own": ["1 1 2", "2 2 1"]}, {"own": {"grader": "row"}})
    problems = [replace(problem, source=source) for problem, source in zip(run.problems, sources, strict=True)]
    (benchmark,) = summarize(run.settings, problems, run.responses).benchmarks
    assert benchmark.maj_at_k == vote


def test_intervals_are_those_of_the_bootstrap(summary):
    aime, math500 = summary.benchmarks
    correct = np.array([[True, False, False, False], [True, True, True, False]])
    assert aime.avg_at_k == aime.pass_at_k[1] == bootstrap_interval(correct, avg_at_k)
    # two problems, each drawn once or twice: means 1/4, 1/2, 3/4, the outer ones with probability 1/4 each
    assert (aime.avg_at_k.low, aime.avg_at_k.high, aime.avg_at_k.level) == (0.25, 0.75, 0.95)
    # C(4, 2) = 6: shares of pass@4 are 1 for both, so nothing varies
    assert (aime.pass_at_k[4].low, aime.pass_at_k[4].high) == (1.0, 1.0)
    assert (math500.avg_at_k.low, math500.avg_at_k.high) == (0.0, 1.0)  # P(all 4 draws wrong) = 1/16 > 2.5 %


def test_counts_by_hand(summary):
    aime, math500 = summary.benchmarks
    assert (aime.total_tokens, aime.mean_tokens) == (200, 25.0)  # 2 (10 + 20 + 30 + 40)
    assert aime.statuses == {"graded": 7, "no_answer": 1, "unparsable": 0, "timeout": 0, "prompt_too_long": 0}
    assert math500.statuses["no_answer"] == 1
    assert (aime.truncated_frac, aime.surprisal, aime.ungradable) == (0.0, None, 0)


def test_truncated_and_ungradable_are_counted(make_evaluation):
    run = make_evaluation({"aime24": ["1 2 - 1"]}, {"aime24": {"ungradable": ["aime24-0"]}})
    run = run.having(lambda response: replace(response, truncated=response.sample == 2))
    (aime,) = summary_of(run).benchmarks
    assert (aime.truncated_frac, aime.ungradable) == (0.25, 1)


def test_surprisal_weighs_tokens(run):
    # 10 tokens at 0.5 and 30 at 0.1: (5 + 3) / 40; the response without a value has no weight
    values = {0: 0.5, 1: None, 2: 0.1}
    responses = [replace(run.responses[k], surprisal=surprisal) for k, surprisal in values.items()]
    assert mean_surprisal(responses) == pytest.approx(0.2, rel=1e-15)
    assert mean_surprisal(responses[1:2]) is None
    assert mean_surprisal([replace(responses[0], tokens=0)]) is None


def test_the_mean_is_of_whole_benchmarks_only(make_evaluation):
    assert summary_of(make_evaluation({"aime24": ["1"]})).mean_avg_at_k is None
    run = make_evaluation({"aime24": ["1"], "gsm8k": ["1", "2", "2", "2"]})
    assert summary_of(run).mean_avg_at_k == 0.625  # (1 + 1/4) / 2, not the share 2/5 of all problems
    run = make_evaluation({"aime24": ["1"], "gsm8k": ["2"]}, {"gsm8k": {"complete": False}})
    assert summary_of(run).mean_avg_at_k is None


# --- summary.json


def test_the_summary_of_a_real_run_is_in_its_file(make_evaluation, tmp_path):
    run = make_evaluation(
        {"aime24": ["1 2"]}, {"aime24": {"ungradable": ("aime24-0",)}}, model="modèle \u2028", max_model_len=None
    )
    write_summary(tmp_path, summary_of(run))
    values = json.loads((tmp_path / SUMMARY_FILE).read_text(encoding="utf-8"))
    settings = json.loads(json.dumps(asdict(run.settings)))  # JSON has lists for tuples
    assert values["settings"] == settings | {"benchmarks": values["settings"]["benchmarks"]}
    (settings,), (scores,) = values["settings"]["benchmarks"], values["benchmarks"]
    assert (values["settings"]["model"], settings["ungradable"]) == ("modèle \u2028", ["aime24-0"])
    assert (scores["avg_at_k"]["estimate"], scores["ungradable"], list(scores["pass_at_k"])) == (0.5, 1, ["1", "2"])
    # Whoever takes a field away or changes its meaning counts the schema up, and then mends these lines.
    assert values["schema"] == 1
    assert {*"version title problems complete samples temperature maj_at_k mean_tokens total_tokens".split()} | {
        *"name avg_at_k pass_at_k truncated_frac statuses surprisal ungradable published differing".split()
    } == scores.keys()


def test_a_score_that_is_no_json_is_not_written(summary, tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_summary(tmp_path, replace(summary, mean_avg_at_k=float("nan")))
    assert not (tmp_path / SUMMARY_FILE).exists()
