"""The numbers of docs/study.md: with no run, with some, and with all of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from texts import missing

from openrlhf_cov.analysis.table import Table
from openrlhf_cov.experiments.lab.mechanism import probability_column
from openrlhf_cov.experiments.study import study_numbers
from openrlhf_cov.experiments.study.entropy_drop_page import drop_document, drop_row
from openrlhf_cov.experiments.study.forecast_page import (
    all_settings,
    errors_by_seed,
    forecast_document,
    runs_by_setting,
    study_errors,
)
from openrlhf_cov.experiments.study.mechanism_page import (
    RARE,
    mechanism_chart,
    mechanism_section,
    name_at,
    name_probability,
    peak_ratio,
    removed_share,
    spread,
)
from openrlhf_cov.experiments.study.run_plan import REPORT, SCREEN, StudyRun
from openrlhf_cov.experiments.study.spec_file import read_spec, spec_of
from openrlhf_cov.experiments.study.study_numbers import METHODS, Finished
from openrlhf_cov.experiments.study.sweeps import critical_panel
from openrlhf_cov.experiments.tiny_task.hidden_skills import SKILLS

SPECS = Path(__file__).resolve().parents[3] / "studies"
STEPS = 120
EVALUATED = np.array([0, 100, 120])


def spec_named(name):
    return read_spec(SPECS / f"{name}.yaml")


@pytest.fixture
def recorded(make_result):
    """Function (run, hard accuracy, own, other) -> a run with ``--record_mechanism``.

    Rare names have the probabilities ``own`` and ``other`` at the last evaluation, and 0.05 before.
    """

    def make(run, hard=0.9, own=0.4, other=0.02):
        made = make_result(run, 0.5)
        evaluations = {
            "greedy": np.full(3, 0.5),
            "greedy_hard": np.array([0.0, 0.1, hard]),
            "decision_entropy": np.array([1.8, 1.0, 0.2]),
        }
        for name in SKILLS:
            for skill in SKILLS:
                end = own if name == skill else other
                evaluations[probability_column(name, skill)] = np.array([0.05, 0.05, end])
        zero = np.zeros(STEPS)
        metrics = {"reward": np.linspace(0.1, 0.5, STEPS), "entropy/mean": np.linspace(1.0, 0.2, STEPS)}
        for name in SKILLS:
            for column in ("sampled", "selected", "advantage", "selected_advantage"):
                metrics |= {f"decision/{column}_{side}/{name}": zero.copy() for side in ("own", "other")}
        # One rare name: in step 3, two tokens on other prompts with -1 and -3, of which the second is selected; one on
        # own prompts with 2, which is not. In step 110, after the first 100, another one that would be seen.
        rare = RARE[0]
        metrics[f"decision/advantage_other/{rare}"][2] = -4.0
        metrics[f"decision/selected_advantage_other/{rare}"][2] = -3.0
        metrics[f"decision/selected_other/{rare}"][2] = 1
        metrics[f"decision/advantage_own/{rare}"][2] = 2.0
        metrics[f"decision/advantage_other/{rare}"][109] = -100.0
        return replace(
            made, metrics=Table(np.arange(1, STEPS + 1), metrics), evaluations=Table(EVALUATED, evaluations)
        )

    return make


def of_mechanism(recorded, seeds=(0, 1, 2), **settings):
    """The study of the mechanism with these seeds of every method."""
    spec = spec_named("mechanism")
    runs = [recorded(StudyRun(method.name, REPORT, (), seed), **settings) for method in spec.methods for seed in seeds]
    return Finished("mechanism", spec, runs)


def of_shortcut(make_result, critical, seeds=range(3)):
    """The study of the shortcut, tuned to the first configuration: method -> share up to which all seeds learn."""
    spec = spec_named("shortcut")
    found = []
    for method in spec.methods:
        if method.name not in critical:
            continue
        for configuration in method.configurations:
            # The first configuration is the best one; three of them run again.
            accuracy = 0.9 if configuration == method.configurations[0] else 0.1
            found.append(make_result(StudyRun(method.name, SCREEN, configuration, 100), accuracy))
            found.append(make_result(StudyRun(method.name, "final", configuration, 101), accuracy))
        for seed in seeds:
            for configuration in spec.sweep.configurations:
                learns = float(configuration[1]) <= critical[method.name]
                run = StudyRun(method.name, REPORT, (*method.configurations[0], *configuration), seed)
                found.append(make_result(run, 0.9 if learns else 0.1))
    return Finished("shortcut", spec, found)


def of_map(make_result, learned, seeds=(0, 1)):
    """The map with four updates: method -> lowest and highest learning rate at which all seeds learn."""
    spec = spec_named("learning_rate_map")
    configurations = [configuration for configuration in spec.sweep.configurations if configuration[-1] == "4"]
    found = []
    for method, (lowest, highest) in learned.items():
        for configuration in configurations:
            accuracy = 0.9 if lowest <= float(configuration[1]) <= highest else 0.1
            found += [make_result(StudyRun(method, REPORT, configuration, seed), accuracy) for seed in seeds]
    return Finished("learning_rate_map", spec, found)


def test_without_a_run_nothing_looks_like_a_result():
    shortcut = Finished("shortcut", spec_named("shortcut"), [])
    mechanism = Finished("mechanism", spec_named("mechanism"), [])
    rates = Finished("learning_rate_map", spec_named("learning_rate_map"), [])
    table = study_numbers.table(shortcut, rates)
    assert [row[0] for row in table.rows] == ["base policy", *METHODS]
    assert {cell for row in table.rows for cell in row[1:]} == {"–"}
    answer = study_numbers.answer(shortcut, rates)
    assert "not known yet" in answer
    assert "decades" not in answer
    assert study_numbers.map_panel(rates, METHODS) is None
    assert "0 of 315 runs" in study_numbers.said_of_figure(shortcut, rates, mechanism)
    assert critical_panel(shortcut.spec, []) is None
    assert study_numbers.mechanism_numbers(mechanism).rows == ()


@pytest.mark.slow
def test_critical_shares_decide_the_answer(make_result):
    # Every seed of Clip-Cov and of the reference KL learns up to 0.3, of KL-Cov up to 0.05, of the others up to 0.15.
    critical = dict.fromkeys(METHODS, 0.15) | {"Clip-Cov": 0.3, "reference KL": 0.3, "KL-Cov": 0.05}
    shortcut = of_shortcut(make_result, critical)
    rates = of_map(make_result, {"GRPO": (1e-4, 1e-4), "Clip-Cov": (3e-5, 1e-3)})
    answer = study_numbers.answer(shortcut, rates)
    assert missing(answer, "larger", "reference KL (0.346)", "Clip-Cov (0.346)", "smaller", "KL-Cov (0.071)") == []
    known = study_numbers.shares_and_widths(shortcut, rates)
    # Perfectly separated between 0.15 and 0.2: the geometric middle is 0.173.
    assert known["GRPO"][0].startswith("0.173 [")
    # GRPO learns at 1e-4 alone: half of the way from 3e-5, log10(1e-4 / 3e-5) / 2 = 0.261, and of that to 3e-4,
    # log10(3) / 2 = 0.239. Clip-Cov learns from 3e-5 to 1e-3, log10(100 / 3) = 1.523, and on half of the way from
    # 1e-5, log10(3) / 2 = 0.239.
    assert known["GRPO"][1] == "0.50"
    assert known["Clip-Cov"][1] == "at least 1.76"
    assert missing(answer, "GRPO", "0.50 decades", "Clip-Cov (at least 1.76)") == []
    assert known["KL-Cov"][1] == "–"
    # The largest critical share comes first.
    assert list(known) == [
        *("reference KL", "Clip-Cov", "GRPO", "pass@k training", "MaxRL", "Clip_V", "KL-Cov"),
    ]
    panel = critical_panel(shortcut.spec, shortcut.results)
    assert list(panel.y.ticks.values()) == list(known)
    # The search begins at 0.2: all seeds of Clip-Cov learn there and end at 0.9, no seed of GRPO does.
    rows = {row[0]: row for row in study_numbers.table(shortcut, rates).rows}
    assert list(rows) == ["base policy", *METHODS]
    assert rows["GRPO"][1:4] == (*known["GRPO"], "0 of 3")
    assert rows["Clip-Cov"][1:4] == (*known["Clip-Cov"], "3 of 3")
    assert rows["Clip-Cov"][4].startswith("0.90")
    # The middle between 0.3 and 0.4, and the lowest place for the critical share between the two smallest values.
    [dots] = panel.marks
    assert np.exp(dots.values("x"))[0] == pytest.approx((0.3 * 0.4) ** 0.5, rel=1e-3)
    assert np.exp(dots.values("x"))[-1] == pytest.approx((0.05 * 0.1) ** 0.5, rel=1e-3)


@pytest.mark.slow
def test_a_method_without_runs_leaves_the_question_open(make_result):
    shortcut = of_shortcut(make_result, {"GRPO": 0.15, "Clip-Cov": 0.3})
    rates = of_map(make_result, {})
    assert "not known yet" in study_numbers.answer(shortcut, rates)
    rows = {row[0]: row for row in study_numbers.table(shortcut, rates).rows}
    assert set(rows["KL-Cov"][1:]) == {"–"}


def test_probabilities_and_pushes_by_hand(recorded):
    run = recorded(StudyRun("Clip-Cov", REPORT, (), 0))
    assert name_probability(run, own=True)[-1] == pytest.approx(0.4)
    assert name_probability(run, own=False)[-1] == pytest.approx(0.02)
    # -3 of -4 was selected in the first 100 steps; on own prompts nothing of 2.
    assert removed_share(run, -1) == pytest.approx(0.75)
    assert removed_share(run, 1) == 0.0
    assert np.isnan(removed_share(run, -1, steps=2))
    assert peak_ratio(run) == pytest.approx(20.0)
    assert name_at(run, 100) == pytest.approx(0.05)


def test_a_range_is_that_of_the_seeds():
    assert spread([0.5, 0.661, 0.2]) == "0.20–0.66"
    assert spread([-0.001, 0.001]) == "0.00"  # no minus before zero
    assert spread([-0.02, 0.3]) == "−0.02–0.30"


def test_the_table_of_the_mechanism_has_the_methods_that_ran(recorded):
    study = of_mechanism(recorded, seeds=(0, 1))
    section = mechanism_section(study.runs)
    assert [row[0] for row in section.rows] == [method.name for method in study.spec.methods]
    # 0.05 at step 100; at the end 0.4 on own and 0.02 on other prompts, 20 times as much.
    assert section.rows[0][1:6] == ("2", "0.050", "20.000", "0.400", "0.020")
    chart = mechanism_chart(study.runs)
    assert [panel.title for panel in chart.panels] == [method.name for method in study.spec.methods]
    # Three lines and one row of marks for each seed: nothing was selected on own prompts.
    assert len(chart.panels[0].marks) == 2 * 4
    assert mechanism_chart({"GRPO": {}}).panels == ()


@pytest.mark.slow
def test_the_figure_gets_its_map_when_the_map_has_runs(make_result, recorded):
    rates = of_map(make_result, {"GRPO": (1e-5, 1e-3)})
    mechanism = of_mechanism(recorded, seeds=(0, 1))
    nothing = Finished("shortcut", spec_named("shortcut"), [])
    chart = study_numbers.figure(nothing, rates, mechanism)
    assert len(chart.panels) == 3
    # Five learning rates.
    assert len(chart.panels[0].marks) == 5
    assert list(chart.panels[0].x.ticks.values()) == ["1e-5", "3e-5", "1e-4", "3e-4", "1e-3"]
    assert len(study_numbers.figure(nothing, replace(rates, results=[]), mechanism).panels) == 2
    assert "10 of 315 runs" in study_numbers.said_of_figure(nothing, rates, mechanism)
    shortcut = of_shortcut(make_result, {"GRPO": 0.15}, seeds=(0,))
    both = study_numbers.figure(shortcut, rates, mechanism)
    assert len(both.panels) == 4
    # The map has the rows of the panel on its left.
    assert both.panels[0].y.ticks == both.panels[1].y.ticks
    assert "Dots: critical shares" in study_numbers.said_of_figure(shortcut, rates, mechanism)


def test_forecasts_are_told_by_task(make_runs):
    # The reward of ``make_result`` lies on the law, so the law has a smaller error than the sigmoid.
    runs = make_runs(**dict.fromkeys(("GRPO", "other"), [{"accuracy": 0.5}] * 3))
    study = study_errors("one", "commands", {method: [of_method] for method, of_method in runs.items()})
    content = forecast_document([study])
    by_study = {(row[1], row[3]): row for row in content.sections[1].rows}
    assert by_study["GRPO", "50%"][2] == "3"
    assert by_study["all methods", "50%"][2] == "6"
    assert float(by_study["all methods", "50%"][4].split()[0]) < float(by_study["all methods", "50%"][6].split()[0])
    # 15 % of 40 steps are the six points that a forecast needs at least.
    assert [row[2] for row in content.sections[0].rows] == ["15%", "30%", "50%"]
    assert content.sections[0].rows[2][-2:] == ("1", "0")
    assert missing(content.summary, "the law", "1 of 1", "commands", "the sigmoid", "0 of 1", "commands") == []


def test_forecasts_count_the_runs_of_a_sweep(make_result):
    methods = [{"name": "GRPO"}, {"name": "other", "flags": "--method passk"}]
    sweep = {"grid": {"--shortcut_share": [0.1, 0.2]}}
    spec = spec_of(
        {"title": "t", "task": "shortcut", "seeds": [0, 1, 2], "learned": 0.5, "sweep": sweep, "arms": methods}
    )
    results = [
        make_result(StudyRun(method, REPORT, ("--shortcut_share", share), seed), 0.5, entropy=0.2 + float(share))
        for method in ("GRPO", "other")
        for share in ("0.1", "0.2")
        for seed in range(3)
    ]
    study = study_errors("swept", "shortcut", runs_by_setting(spec, results))
    rows = {(row[1], row[3]): row for row in forecast_document([study]).sections[1].rows}
    assert rows["GRPO", "50%"][2] == "6"
    assert rows["all methods", "50%"][2] == "12"
    # The runs of a seed are averaged first, so that there are three independent errors.
    assert sorted(errors_by_seed(all_settings(study, 0.5), "law")) == [0, 1, 2]


def test_falls_are_told_by_group_of_runs(recorded):
    run = recorded(StudyRun("GRPO", REPORT, (), 0))
    rising = np.arange(STEPS, dtype=float)
    columns = {**run.metrics.columns, "drop/measured": rising, "drop/theorem1": rising**3, "drop/theorem2": -rising}
    recorded_run = replace(run, metrics=Table(run.metrics.steps, columns))
    content = drop_document([drop_row("shortcut", [recorded_run])])
    row = dict(zip(content.sections[0].head, content.sections[0].rows[0], strict=True))
    assert row["theorem 1"] == "+1.00"
    assert row["theorem 2"] == "-1.00"
    assert row["discriminator"] == "-"
    assert "theorem 2 −1.00 to −1.00" in study_numbers.said_of_drops(content)
    # One run, so the medians are its correlations; the other predictions were not recorded.
    facts = ("Theorem 1", "best", "1 group of runs", "theorem 1 (+1.00)", "theorem 2 (−1.00)")
    assert missing(content.summary, *facts) == []
    # Predictions that no run has get no panel.
    assert [panel.title for panel in content.charts[0].panels] == ["theorem 1", "theorem 2"]
