import math
from dataclasses import replace

import pytest
from html_page import HOSTILE, Page
from hypothesis import given
from hypothesis import strategies as st
from texts import missing

from openrlhf_cov.evaluation.evaluation_page import (
    DISAGREEING,
    LONGEST_WRONG,
    answer_entropy,
    choose_highlights,
    evaluation_page,
    shorten,
    text_limit,
    variance,
)
from openrlhf_cov.evaluation.summary import summarize


def page_of(run, **keywords):
    return evaluation_page(summarize(run.settings, run.problems, run.responses), run.samples, **keywords)


@pytest.fixture(scope="module")
def run(make_evaluation):
    return make_evaluation({"aime24": ["1 2 -", "1 1 1"], "math500": ["2"]})


@pytest.mark.slow
def test_the_page_holds_every_problem_and_response(run):
    data = Page(page_of(run)).data
    assert data["benchmarks"] == ["aime24", "math500"]
    assert [problem["id"] for problem in data["problems"]] == ["aime24-0", "aime24-1", "math500-0"]
    assert data["highlights"] == [0]
    assert data["problems"][0]["samples"][1] == {
        "answer": "2",
        "status": "graded",
        "correct": False,
        "truncated": False,
        "tokens": 20,
        "surprisal": None,
        "text": r"So \boxed{2}.",
    }
    assert data["problems"][0]["samples"][2]["answer"] is None


def test_the_page_needs_no_network_and_shows_its_charts(run):
    text = page_of(replace(run, settings=replace(run.settings, template_text="{{ problem }}")))
    page = Page(text)
    page.check_policy()
    assert "<pre>{{ problem }}</pre>" in text  # a text of the run, not a placeholder of the page
    # a curve for the benchmark with several samples, a histogram for each
    assert list(page.data["charts"]) == ["pass0", "lengths0", "lengths1"]
    assert {f"chart-{name}" for name in page.data["charts"]} < set(page.ids())


@pytest.mark.slow
def test_text_of_models_and_data_is_never_markup(run):
    tags = [tag for tag, _ in Page(page_of(run)).tags]
    hostile = run.having(lambda response: replace(response, text=HOSTILE, answer=response.answer and HOSTILE))
    problems = [replace(p, problem=HOSTILE, answer=HOSTILE, source=HOSTILE) for p in run.problems]
    settings = replace(
        run.settings, model=HOSTILE, template_text=HOSTILE, protocol=HOSTILE, packages={HOSTILE: HOSTILE}
    )
    page = Page(page_of(replace(hostile, settings=settings, problems=problems)))
    assert [tag for tag, _ in page.tags] == tags
    assert page.data["problems"][0]["samples"][0]["text"] == HOSTILE


def test_half_a_surrogate_pair_does_no_harm(run):
    page = page_of(run.having(lambda response: replace(response, text="a\ud800b")))
    assert Page(page).data["problems"][0]["samples"][0]["text"] == "a?b"
    page.encode()


# --- long responses


@given(lengths=st.lists(st.integers(0, 50), min_size=1), budget=st.integers(0, 500))
def test_the_limit_is_the_largest_that_fits(lengths, budget):
    limit = text_limit(lengths, budget)
    assert sum(min(length, limit) for length in lengths) <= budget
    assert limit == max(lengths) or sum(min(length, limit + 1) for length in lengths) > budget


def test_the_middle_is_left_out():
    assert shorten("0123456789", 10) == "0123456789"
    assert shorten("0123456789", 5) == "012\n[... 5 characters left out ...]\n89"
    assert shorten("0123456789", 1) == "0\n[... 9 characters left out ...]\n"
    assert shorten("0123456789", 0) == "\n[... 10 characters left out ...]\n"


@pytest.mark.slow
def test_a_page_over_its_budget_says_so(run):
    long = run.having(lambda response: replace(response, text="x" * 100 if response.correct else "short"))
    page = page_of(long, budget=215)  # 4 right ones share what 3 short ones leave: (215 - 15) / 4 = 50
    assert missing(page, "4 of 7 responses", "50 characters") == []
    texts = [sample["text"] for problem in Page(page).data["problems"] for sample in problem["samples"]]
    assert texts[0] == "x" * 25 + "\n[... 50 characters left out ...]\n" + "x" * 25
    assert texts[1] == "short"


# --- what to look at first


def test_disagreement_by_hand(make_evaluation):
    items = make_evaluation({"aime24": ["1 1 2 3", "1 1 1 1", "2 - - -"]}).samples[0].items
    assert [variance(item.responses) for item in items] == [0.25, 0.0, 0.0]  # 1/2 * 1/2
    # 1/2, 1/4, 1/4: ln 2 / 2 + 2 ln 4 / 4 = 3/2 ln 2; 1/4, 3/4, no answer being one
    expected = [1.5 * math.log(2), 0.0, 0.25 * math.log(4) + 0.75 * math.log(4 / 3)]
    assert [answer_entropy(item.responses) for item in items] == pytest.approx(expected, abs=1e-15)


def test_problems_are_ranked_by_disagreement_then_by_variety(make_evaluation):
    tables = {"aime24": ["1 2 2 2", "1 1 2 2", "1 1 1 1", "2 3 4 5"], "gsm8k": ["1"], "aime25": ["1 1 2 3", "1 1 3 2"]}
    # variances 3/16, 1/4, 0, 0 | 0 | 1/4, 1/4; entropies of the quarters: ln 2, 3/2 ln 2, 3/2 ln 2
    assert choose_highlights(make_evaluation(tables).samples) == (DISAGREEING, [5, 6, 1, 0])


def test_single_samples_show_the_longest_wrong_ones(make_evaluation):
    run = make_evaluation({"aime24": ["2", "1", "2", "-"]})
    tokens = {"aime24-0": 5, "aime24-1": 100, "aime24-2": 50, "aime24-3": 7}
    run = run.having(lambda response: replace(response, tokens=tokens[response.id]))
    assert choose_highlights(run.samples) == (LONGEST_WRONG, [2, 3, 0])
    assert f">{LONGEST_WRONG}</h2>" in page_of(run)
