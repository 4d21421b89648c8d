from dataclasses import replace

import pytest

from openrlhf_cov.evaluation.summary import summarize
from openrlhf_cov.evaluation.tables import (
    COUNTS,
    SCORES,
    count_rows,
    grader_rows,
    markdown,
    notes,
    score_rows,
    setting_rows,
    table,
)


def summary_of(run):
    return summarize(run.settings, run.problems, run.responses)


@pytest.fixture(scope="module")
def summary(make_evaluation):
    # aime24: 4 of 8 are right, 1 of 8 has no answer
    run = make_evaluation({"aime24": ["1 2 - 3", "1 1 1 2"], "math500": ["1", "2", "1", "1"]})
    return summary_of(run)


def test_the_table_for_the_terminal(summary):
    # vote of "1 2 - 3": three groups of one tie, of which one is right: (1/3 + 1) / 2
    assert table(summary).splitlines() == [
        "models/tiny, protocol paper",
        "",
        "benchmark  problems  samples  avg@K   95% interval  pass@K  maj@K  tokens  truncated  no answer",
        "aime24            2        4   50.0   25.0 to 75.0   100.0   66.7      25       0.0%      12.5%",
        "math500           4        1   75.0  25.0 to 100.0       -      -      10       0.0%       0.0%",
        "mean                           62.5",
        "",
        "mean: the plain mean of avg@K, every benchmark weighs the same",
    ]


def test_both_graders_stand_side_by_side(make_evaluation):
    run = make_evaluation({"aime24": ["1 2 - 3", "1 1 1 2"], "math500": ["1", "2", "1", "1"]})
    run = run.having(lambda response: replace(response, published=response.answer in ("1", "2")))
    # published takes the answer 2 for right too: one more response of each problem of aime24, the one of math500;
    # 6/8 with problems of 2/4 and 4/4, 4/4 with no spread at all
    assert grader_rows(summary_of(run)) == [
        ("aime24", "8", "50.0", "25.0 to 75.0", "75.0", "50.0 to 100.0", "2"),
        ("math500", "4", "75.0", "25.0 to 100.0", "100.0", "100.0 to 100.0", "1"),
        ("mean", "", "62.5", "", "87.5", "", ""),
    ]
    assert table(summary_of(run)).splitlines()[7:9] == [
        "benchmark  responses  strict   95% interval  published    95% interval  differ",
        "aime24             8    50.0   25.0 to 75.0       75.0   50.0 to 100.0       2",
    ]
    assert "| aime24 | 8 | 50.0 | 25.0 to 75.0 | 75.0 | 50.0 to 100.0 | 2 |" in markdown(summary_of(run)).split("\n")


def test_a_benchmark_with_a_response_that_published_was_not_asked_about_has_no_score_by_it(make_evaluation):
    run = make_evaluation({"aime24": ["1 2"], "math500": ["1"]})
    run = run.having(lambda response: replace(response, published=None if response.answer == "2" else True))
    assert [row[0] for row in grader_rows(summary_of(run))] == ["math500"]


def test_a_k_that_is_no_power_of_two_is_named(make_evaluation):
    (row,) = score_rows(summary_of(make_evaluation({"aime24": ["1 2 2"]})))
    # pass@2 = 1 - C(2,2)/C(3,2) = 2/3; the vote is for 2
    assert row[SCORES.index("pass@K")] == "pass@2 66.7"
    assert row[SCORES.index("maj@K")] == "0.0"


def test_counts(make_evaluation):
    run = make_evaluation({"aime24": ["1 2 -"]}).having(lambda response: replace(response, surprisal=0.25))
    assert count_rows(summary_of(run)) == [("aime24", "3", "2", "1", "0", "0", "0", "60", "0.250")]
    assert len(COUNTS) == 9


def test_notes_say_what_is_not_as_it_should_be(make_evaluation):
    run = make_evaluation({"aime24": ["1 -"]}, {"aime24": {"complete": False, "ungradable": ["aime24-0"]}})
    statuses = {0: "timeout", 1: "prompt_too_long"}
    run = run.having(lambda response: replace(response, status=statuses[response.sample]))
    assert notes(summary_of(run)) == [
        "aime24: the first 1 problems only; not comparable with the whole",
        "aime24: the gold answer of 1 problems cannot be read; responses to them count as wrong",
        "aime24: 1 responses are empty, the prompt left no room; they count as wrong",
        "aime24: 1 responses count as wrong because grading them took too long",
    ]
    assert score_rows(summary_of(run))[0][1] == "first 1"


def test_nothing_to_note(make_evaluation):
    summary = summary_of(make_evaluation({"aime24": ["1 2"]}))
    assert notes(summary) == []
    assert table(summary).splitlines()[-1].startswith("aime24")


def test_settings_show_benchmarks_that_were_sampled_alike_together(make_evaluation):
    run = make_evaluation({"aime24": ["1 1"], "math500": ["1"], "aime25": ["1 1"]}, dtype="bfloat16")
    rows = setting_rows(summary_of(run))
    assert [value for name, value in rows if name == "sampling"] == [
        "temperature 0.6, top_p 1, at most 100 tokens: aime24 (version 1), aime25 (version 1)",
        "temperature 0, top_p 1, at most 100 tokens: math500 (version 1)",
    ]
    shown = dict(rows)
    assert (shown["seed"], shown["precision"], shown["versions"]) == ("7", "bfloat16", "vllm 0.19.1")
    assert shown["prompt and response"] == "512 tokens"
    assert dict(setting_rows(summary_of(make_evaluation({"aime24": ["1"]}, max_model_len=None))))[
        "prompt and response"
    ] == ("as the endpoint allows")


def test_markdown(make_evaluation):
    run = make_evaluation(
        {"aime24": ["1 2"]}, protocol="a|b", template_text="# no heading\n```{problem}", max_model_len=512
    )
    lines = markdown(summary_of(run)).split("\n")
    assert lines[0] == "# Evaluation of models/tiny"
    assert lines[2:5] == [
        "| benchmark | problems | samples | avg@K | 95% interval | pass@K | maj@K | tokens | truncated | no answer |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
        "| aime24 | 1 | 2 | 50.0 | 50.0 to 50.0 | 100.0 | 50.0 | 15 | 0.0% | 0.0% |",
    ]
    assert r"| protocol | a\|b |" in lines
    assert "| seed | 7 |" in lines
    assert "| versions | vllm 0.19.1 |" in lines
    start = lines.index("The prompt:")
    assert lines[start + 2 : start + 4] == ["    # no heading", "    ```{problem}"]  # code, whatever it holds
    assert any("95% of 10,000 bootstrap resamples" in line for line in lines)
