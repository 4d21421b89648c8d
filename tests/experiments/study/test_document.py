from dataclasses import replace

import pytest
from html_page import Page
from texts import missing

from openrlhf_cov.experiments.study import study_charts
from openrlhf_cov.experiments.study.document import (
    UNTUNED,
    document,
    how_tuned,
    in_short,
    markdown,
    mixed,
    page,
    tuning_table,
)
from openrlhf_cov.experiments.study.run_plan import FINAL, REPORT, SCREEN, StudyRun
from openrlhf_cov.experiments.study.spec_file import spec_of


@pytest.fixture
def results(spec, make_result):
    """A whole study; the second method is better."""
    runs = []
    for method in spec.methods:
        for configuration in method.configurations if method.at is None else ():
            accuracy = 0.6 if configuration == method.configurations[0] else 0.5
            runs.append(make_result(StudyRun(method.name, SCREEN, configuration, 100), accuracy))
            if configuration in method.configurations[:2]:
                runs.append(make_result(StudyRun(method.name, FINAL, configuration, 101), accuracy))
        accuracies = (0.6, 0.6, 0.7) if method.name == "GRPO" else (0.8, 0.9, 0.9)
        runs += [
            make_result(StudyRun(method.name, REPORT, method.configurations[0], seed), accuracy)
            for seed, accuracy in enumerate(accuracies)
        ]
    return runs


@pytest.mark.slow
def test_the_page_has_tables_answers_and_charts(spec, results):
    text = page(document(spec, results))
    found = Page(text)
    assert missing(text, "19 of 19 runs", "--steps 40") == []
    assert "<h1>Two methods</h1>" in text
    assert missing(text, "KL-Cov (+0.23)", "by micro-batch (+0.23)", "higher accuracy", "GRPO") == []
    assert set(found.data["charts"]) == {
        "test",
        "differences",
        "accuracy",
        "first_token_entropy",
        "entropy",
        "pass_at_k",
    }
    assert {f"chart-{name}" for name in found.data["charts"]} < set(found.ids())
    # 0.6, 0.6, 0.7: mean 0.6333, s 0.057735, half width 4.302653 / 30 = 0.143422
    assert "0.63 [0.49, 0.78]" in text


@pytest.mark.slow
def test_many_arms_have_no_curves(spec, results, monkeypatch):
    monkeypatch.setattr(study_charts, "MAX_CURVES", 1)
    assert [chart.name for chart in document(spec, results).charts] == ["test", "differences"]


@pytest.mark.slow
def test_a_part_of_a_study_says_how_much_there_is(spec, results):
    for some in ([], results[:5], results[:-4]):
        text = markdown(document(spec, some))
        assert f"{len(some)} of 19 runs" in text
        page(document(spec, some))
    assert "| GRPO | 0 | not chosen yet |" in markdown(document(spec, []))


@pytest.mark.slow
def test_markdown_holds_the_same_rows(spec, results):
    content = document(spec, results)
    lines = markdown(content).splitlines()
    assert lines[:4] == ["# Two methods", "", content.summary, ""]
    for section in content.sections:
        assert f"## {section.title}" in lines
        assert all(len(row) == len(section.head) for row in section.rows)
    assert "| GRPO | 3 | --actor.adam.lr 0.0001 --actor.eps_clip_low_high 0.1 0.1 | 0.63 [0.49, 0.78] |" in markdown(
        content
    )


def test_in_short_it_fits_a_terminal(spec, results):
    lines = [line.split() for line in in_short(spec, results).splitlines()]
    assert ["GRPO", "0.63", "[0.49,", "0.78]"] in [line[:4] for line in lines]
    # 0.2, 0.3 and 0.2: mean 0.2333, s 0.057735, half width 0.143422
    assert ["KL-Cov", "+0.23", "[+0.09,", "+0.38]"] in [line[:4] for line in lines[lines.index(["minus", "GRPO"]) :]]
    assert in_short(spec, []).count(" -") >= 3 * len(spec.methods)  # nothing is finished


def test_how_arms_were_tuned_is_told_from_the_spec(content, results):
    # four configurations for GRPO, two for KL-Cov, the third method takes one of another
    text = how_tuned(spec_of(content))
    facts = (
        "1 method with 4 configurations",
        "1 method with 2 configurations",
        "1 tuning seed",
        "best 2",
        "1 other seed",
    )
    assert missing(text, *facts) == []
    content["tuning"].pop("final_seeds")
    content["tuning"].pop("finalists")
    assert "again" not in how_tuned(spec_of(content))
    content.pop("tuning")
    content["arms"] = [{"name": "GRPO"}]
    assert how_tuned(spec_of(content)) == UNTUNED


@pytest.mark.slow
def test_names_cannot_break_the_page(content, results):
    content["title"] = "</script><script>alert(1)</script>"
    content["arms"][0]["name"] = "<b>|*"
    text = page(document(spec_of(content), results))
    assert "<script>alert" not in text
    assert "\\|" in markdown(document(spec_of(content), results))


def test_base_policies_that_differ_are_said_with_the_runs_of_the_fewest(spec, results):
    assert mixed(spec, results) == []
    other = results[4]
    column = other.evaluations.columns["entropy"]
    values = column.copy()
    values[0] += 1e-3
    changed = replace(
        other, evaluations=replace(other.evaluations, columns={**other.evaluations.columns, "entropy": values})
    )
    (said,) = mixed(spec, [*results[:4], changed, *results[5:]])
    assert f"1 of {len(results)}" in said
    assert f"{other.run.method} with seed {other.run.seed}" in said
    # what a packed file has rounded is the same
    values[0] = column[0] * (1 + 1e-8)
    assert mixed(spec, [*results[:4], changed, *results[5:]]) == []


def test_the_table_of_tuning_has_the_digits_that_decide(content, make_result):
    content["tuning"] = {"seeds": [100, 101], "grid": {"--actor.adam.lr": [1e-4, "3e-4"]}}
    spec = spec_of(content | {"arms": [{"name": "GRPO"}]})
    first, second = spec.methods[0].configurations
    # With two digits, the second configuration looks better: 0.87 and 0.75 against 0.88 and 0.75.
    ends = {first: (0.874, 0.754), second: (0.876, 0.746)}
    runs = [
        make_result(StudyRun("GRPO", SCREEN, configuration, seed), accuracy)
        for configuration, accuracies in ends.items()
        for seed, accuracy in zip((100, 101), accuracies, strict=True)
    ]
    rows = tuning_table(spec, runs)
    assert [row[2:4] for row in rows] == [("0.87, 0.75", "0.8140"), ("0.88, 0.75", "0.8110")]
    assert [row[1].endswith("*") for row in rows] == [True, False]
