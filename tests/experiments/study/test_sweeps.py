import math
from dataclasses import replace

import numpy as np
import pytest

from openrlhf_cov.analysis.table import Table
from openrlhf_cov.experiments.study.document import document, in_short, markdown, page
from openrlhf_cov.experiments.study.run_plan import REPORT, SCREEN, Score, StudyRun, all_runs, number_of_runs, runs_due
from openrlhf_cov.experiments.study.spec_file import spec_of
from openrlhf_cov.experiments.study.sweeps import settings_of, solved_width, sweep_answer

SHARES = ["0.05", "0.1", "0.15", "0.2", "0.3", "0.4", "0.5"]


@pytest.fixture
def content():
    """A bisection over seven shares with two methods and three base policies, as parsed YAML."""
    return {
        "title": "Shares",
        "task": "shortcut",
        "seeds": [0, 1, 2, 3],
        "base_policies": 3,
        "learned": 0.5,
        "sweep": {"grid": {"--shortcut_share": [float(share) for share in SHARES]}, "bisect": True},
        "arms": [{"name": "GRPO"}, {"name": "pass@k", "flags": "--method passk"}],
    }


def share_of(run):
    return float(settings_of(run.configuration)["--shortcut_share"])


def learns_up_to(last):
    """Outcome of a run that learns up to a share: a number by method, or one for all."""
    return lambda run: Score(0.5, 0.5, 0.9 if share_of(run) <= last else 0.1)


def play(spec, outcome):
    """All runs in the order in which one worker makes them."""
    made, scores = [], {}
    while due := runs_due(spec, scores):
        made.append(due[0])
        scores[due[0]] = outcome(due[0])
    return made, scores


@pytest.mark.parametrize(
    ("last", "tried"),
    [
        # The middle of seven is 0.2, then that of three, then the one left.
        (0.5, [0.2, 0.4, 0.5]),
        (0.15, [0.2, 0.1, 0.15]),
        (0.3, [0.2, 0.4, 0.3]),
        (0.0, [0.2, 0.1, 0.05]),
    ],
)
def test_a_bisection_takes_three_of_seven_values(content, last, tried):
    spec = spec_of(content)
    made, scores = play(spec, learns_up_to(last))
    assert [share_of(run) for run in made if (run.method, run.seed) == ("GRPO", 1)] == tried
    assert len(made) == number_of_runs(spec) == 2 * 4 * 3
    assert set(made) == set(all_runs(spec, scores))
    assert all(run.stage == REPORT for run in made)
    assert len({run.folder for run in made}) == len(made)


def test_an_interrupted_bisection_goes_on_from_its_finished_runs(content):
    spec = spec_of(content)
    made, scores = play(spec, learns_up_to(0.15))
    for count in (0, 1, 7, 23):
        finished = {run: scores[run] for run in made[:count]}
        assert runs_due(spec, finished)[0] == made[count]
        assert not set(runs_due(spec, finished)) & set(finished)


def test_a_sweep_without_bisection_runs_every_configuration(content):
    content["sweep"] = {"grid": {"--actor.adam.lr": [1e-5, 1e-4], "--updates": [1, 4]}}
    spec = spec_of(content)
    made, _ = play(spec, lambda run: Score(0.5, 0.5, 0.9))
    assert len(made) == number_of_runs(spec) == 2 * 4 * 4
    # seed by seed, so that all configurations advance together
    assert [run.seed for run in made[:8]] == [0] * 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sweep": {"grid": {"--x": [1, 2]}, "bisect": True}}, "sweep: bisect takes 1, 3, 7, 15, ... values; got 2"),
        ({"sweep": {"grid": {"--x": [2, 1, 3]}, "bisect": True}}, "positive numbers that increase"),
        ({"sweep": {"grid": {"--x": ["a", "b", "c"]}, "bisect": True}}, "bisect takes numbers"),
        ({"sweep": {"grid": {"--x": [1], "--y": [1]}, "bisect": True}}, "the values of one flag"),
        ({"sweep": {"grid": {"--method": ["psr"]}}}, "method pass@k: flags: --method has values in its sweep"),
        ({"sweep": {"values": {}}}, "sweep.values: no such field; choose from grid, bisect"),
        ({"learned": None}, "sweep needs the field learned"),
        ({"learned": 1.5}, "learned: must be at most 1; got 1.5"),
        ({"base_policies": 0}, "base_policies: must be at least 1; got 0"),
    ],
)
def test_a_wrong_sweep_is_named(content, changes, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        spec_of(content | changes)


@pytest.fixture
def swept(make_result):
    """Function (spec, outcome) -> the results of a study whose runs end at these accuracies on hard questions."""

    def make(spec, outcome):
        results = []
        made, scores = play(spec, outcome)
        for run in made:
            result = make_result(run, 0.5)
            curve = dict(result.evaluations.columns)
            curve["greedy_hard"] = np.array([0.0, 0.0, scores[run].hard])
            # Three base policies begin with entropies of their own.
            curve["entropy"] = np.array([1.0 + run.seed % 3, 0.7, 0.5])
            results.append(replace(result, evaluations=Table(result.evaluations.steps, curve)))
        return results

    return make


@pytest.mark.slow
def test_critical_values_of_a_study(content, swept):
    spec = spec_of(content)

    def outcome(run):
        return learns_up_to(0.15 if run.method == "GRPO" else 0.5)(run)

    results = swept(spec, outcome)
    answer = sweep_answer(spec, results)
    grpo, passk = answer.rows
    assert answer.head[:4] == ("method", "runs", "critical value", "slope")
    # Four seeds learn at 0.1 and 0.15 and fail at 0.2: perfect separation, sqrt(0.15 * 0.2) = 0.173.
    assert grpo[:2] == ("GRPO", "12")
    assert grpo[2].startswith("0.173 [0.15")
    # The same for each base policy alone: seeds 0 and 3, 1, and 2.
    assert answer.head[4:7] == ("base policy 0", "base policy 1", "base policy 2")
    assert grpo[4:7] == ("0.173", "0.173", "0.173")
    assert grpo[7:] == ("", "4/4", "4/4", "0/4", "", "", "")
    # All runs of the other method learn, so the whole interval lies above the largest share.
    assert passk[2] == "above 0.5"
    whole = document(spec, results)
    assert "| GRPO | 12 | 0.173" in markdown(whole)
    assert "begin with" not in markdown(whole)  # base policies are those of the spec
    assert "0.173" in in_short(spec, results)
    assert "critical value" in in_short(spec, [])
    page(whole)


def test_no_run_is_a_row_without_numbers(content):
    rows = sweep_answer(spec_of(content), []).rows
    assert [row[:3] for row in rows] == [("GRPO", "0", ""), ("pass@k", "0", "")]


def test_the_region_of_learning_rates(content, swept):
    content["sweep"] = {"grid": {"--actor.adam.lr": [1e-5, 1e-4, 1e-3], "--updates": [1, 4]}}
    content["arms"] = content["arms"][:1]
    spec = spec_of(content)

    def outcome(run):
        settings = settings_of(run.configuration)
        learns = settings["--actor.adam.lr"] == "0.0001" and (settings["--updates"] == "4" or run.seed < 2)
        return Score(0.5, 0.5, 0.9 if learns else 0.0)

    results = swept(spec, outcome)
    answer = sweep_answer(spec, results)
    assert answer.head == ("method", "setting", "lr 1e-05", "lr 0.0001", "lr 0.001", "width, decades")
    one, four = answer.rows
    # The line is at 1/2 in one point only.
    assert one == ("GRPO", "--updates 1", "0 of 4", "2 of 4", "0 of 4", "0.00")
    # Clopper and Pearson: no success in four has 1 - 0.025^(1/4) = 0.602 as its upper end.
    assert "is 0.00 [0.00, 0.60] for 0 of 4 and 1.00 [0.40, 1.00] for 4 of 4" in answer.text
    # from 0 to 1 over a decade, half of it is above 1/2, on either side
    assert four[-1] == "1.00"
    (chart,) = document(spec, results).charts
    assert len(chart.panels[0].marks) == 6
    colors = {mark.look.color for mark in chart.panels[0].marks}
    assert {"#e0e0e0", "#004488"} < colors
    page(document(spec, results))


@pytest.mark.parametrize(
    ("shares", "width", "reaches_end"),
    [
        ([0.0, 1.0, 1.0, 0.0], 2.0, False),  # half of the outer decades and the middle one
        ([0.0, 0.0, 0.0, 0.0], 0.0, False),
        ([1.0, 1.0, 1.0, 1.0], 3.0, True),
        ([0.0, 0.75, 0.25, 0.0], 0.25 / 0.75 + 0.5, False),
    ],
)
def test_widths_by_hand(shares, width, reaches_end):
    assert solved_width([1e-5, 1e-4, 1e-3, 1e-2], shares) == (pytest.approx(width), reaches_end)


@pytest.mark.slow
def test_tuning_runs_are_no_outcomes_of_a_sweep(content, swept):
    spec = spec_of(content)
    results = swept(spec, learns_up_to(0.15))
    screened = replace(results[0], run=replace(results[0].run, stage=SCREEN, seed=100))
    other = replace(results[0], run=StudyRun("GRPO", REPORT, (), 0))
    assert sweep_answer(spec, [*results, screened, other]).rows == sweep_answer(spec, results).rows
    assert math.isnan(Score(0.5, 0.5).hard)
