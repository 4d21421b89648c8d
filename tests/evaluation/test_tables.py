from dataclasses import replace

import pytest
from texts import missing

from openrlhf_cov.evaluation.summary import summarize
from openrlhf_cov.evaluation.tables import SCORES, count_rows, grader_rows, markdown, notes, score_rows, table


def summary_of(run):
    return summarize(run.settings, run.problems, run.responses)


@pytest.fixture(scope="module")
def summary(make_evaluation):
    # aime24: 4 of 8 are right, 1 of 8 has no answer
    run = make_evaluation({"aime24": ["1 2 - 3", "1 1 1 2"], "math500": ["1", "2", "1", "1"]})
    return summary_of(run)


def test_scores_by_hand(summary):
    # vote of "1 2 - 3": three groups of one tie, of which one is right: (1/3 + 1) / 2
    assert score_rows(summary) == [
        ("aime24", "2", "4", "50.0", "25.0 to 75.0", "100.0", "66.7", "25", "0.0%", "12.5%"),
        ("math500", "4", "1", "75.0", "25.0 to 100.0", "-", "-", "10", "0.0%", "0.0%"),
        ("mean", "", "", "62.5", *[""] * 6),
    ]
    lines = table(summary).splitlines()
    assert lines[0] == "models/tiny, protocol paper"
    assert [line.split()[0] for line in lines[2:6]] == ["benchmark", "aime24", "math500", "mean"]


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
    assert "published" in table(summary_of(run))
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


def test_notes_say_what_is_not_as_it_should_be(make_evaluation):
    assert notes(summary_of(make_evaluation({"aime24": ["1 2"]}))) == []
    run = make_evaluation({"aime24": ["1 -"]}, {"aime24": {"complete": False, "ungradable": ["aime24-0"]}})
    statuses = {0: "timeout", 1: "prompt_too_long"}
    run = run.having(lambda response: replace(response, status=statuses[response.sample]))
    said = ("first 1 problems only", "gold answer of 1 problems", "1 responses are empty", "took too long")
    assert [part in line for part, line in zip(said, notes(summary_of(run)), strict=True)] == [True] * 4
    assert score_rows(summary_of(run))[0][1] == "first 1"


def test_markdown_holds_any_text(make_evaluation):
    run = make_evaluation(
        {"aime24": ["1 2"], "aime25": ["1 1"]}, protocol="a|b", template_text="# no heading\n```{problem}"
    )
    lines = markdown(summary_of(run)).split("\n")
    assert "| aime24 | 1 | 2 | 50.0 | 50.0 to 50.0 | 100.0 | 50.0 | 15 | 0.0% | 0.0% |" in lines
    assert r"| protocol | a\|b |" in lines
    # benchmarks that were sampled alike share a row
    (sampling,) = [line for line in lines if line.startswith("| sampling ")]
    settings = ("temperature 0.6", "top_p 1", "8,192 tokens")
    assert missing(sampling, *settings, "aime24 (version 1)", "aime25 (version 1)") == []
    start = lines.index("The prompt:")
    assert lines[start + 2 : start + 4] == ["    # no heading", "    ```{problem}"]  # code, whatever it holds
