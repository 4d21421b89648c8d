import math

import numpy as np
import pytest

from openrlhf_cov.analysis.dashboard.panels import compact
from openrlhf_cov.analysis.dashboard.state import COLUMNS, CURVES, RunningVerdict, build
from openrlhf_cov.analysis.runs import Run, read_run
from openrlhf_cov.analysis.table import Table

START = 1_700_000_000.0  # of the folders


def run_of(table, **settings):
    return Run("demo", "runs/demo", table, settings={name.replace("__", "."): text for name, text in settings.items()})


def test_numbers_of_a_run(folder):
    run = read_run(folder().add(1, 2, 3).path, columns=COLUMNS)
    state = build(run)
    assert (state.name, state.done, state.total.steps) == ("demo", 3, 40)
    assert (state.pace.mean, state.last_time, state.step_seconds) == (10.0, START + 30, 10.0)
    assert state.tokens_per_second == (1600.0, 320.0)  # 64 x 50 tokens in 2 s and in 10 s
    assert [(phase.name, phase.seconds, phase.share) for phase in state.phases] == [
        ("generation", 2.0, 0.2),
        ("scoring", 1.0, 0.1),
        ("updates", 6.0, 0.6),
        ("weight transfer", 0.5, 0.05),
        ("other", 0.5, 0.05),
    ]
    assert state.grader == {"no answer": 0.25, "error": 0.0, "cut at the limit": 0.0}
    assert state.sampling == {}
    assert state.selected_frac == 0.0
    assert [curve.last for curve in state.curves] == [0.03, math.exp(-0.15), 0.01, 53.0]
    assert state.alerts == ()


def test_shares_are_those_of_the_last_steps(folder):
    many = folder().add(1, timing__generation=900.0, timing__step_total=908.0).add(*range(2, 52))
    assert build(read_run(many.path)).phases[0].share == 0.2  # 50 steps, the first is not among them


def test_a_value_that_is_missing_is_left_out_of_its_curve(folder):
    run = read_run(folder().add(1, 2).add(3, cov__mean=float("nan")).path, columns=COLUMNS)
    state = build(run)
    curve = state.curves[2]
    assert (curve.metric, curve.steps.tolist(), curve.last) == ("cov/mean", [1, 2], 0.01)


def test_numbers_of_a_method_are_shown_whatever_its_name(folder):
    logged = {"control/value": 0.1, "control/gap": -0.05, "method/yet_unknown/share": 0.25, "gradient/norm": 0.7}
    logged |= {"gradient/positive_mass": 0.4, "gradient/zero_frac": 0.2, "control/": 1.0, "control/of_another": 1.0}
    state = build(read_run(folder().add(1, **logged).path, columns=COLUMNS))
    assert state.own == {
        "value of what is controlled": 0.1,
        "entropy missing to the target": -0.05,
        "yet_unknown/share": 0.25,
    }
    assert state.gradient == {"push up": 0.4, "tokens with k = 0": 0.2}
    shown = "\n".join(compact(state, START))
    assert (
        "method: entropy missing to the target: -0.05, value of what is controlled: 0.1, yet_unknown/share: 0.25"
        in shown
    )
    assert "gradient: push up: 0.4, tokens with k = 0: 0.2" in shown


def test_what_a_run_does(folder):
    state = build(read_run(folder().add(1, 2, 3).path))
    now = START + 32  # 2 s after step 3
    assert (state.age(now), state.activity(now).state, state.remaining(now)) == (2.0, "running", 37 * 10 - 2.0)
    assert state.activity(now + 60).state == "silent"
    assert math.isnan(state.remaining(now + 60))
    assert state.age(START) == 0.0  # its clock is ahead
    assert build(read_run(folder("short").add(1, 2, 3).path), asked_steps=3).activity(now).state == "finished"


def test_a_log_of_others_has_no_age(folder):
    state = build(read_run(folder().add(1).path), follows=False)
    assert state.activity(START + 1e6).state == "read"


def test_a_log_without_times_has_no_age(folder):
    state = build(read_run(folder().add(1, 2).path, columns=["reward"]))
    assert math.isnan(state.age(START))
    found = state.activity(START)
    assert (found.state, found.text) == ("running", "time of the last step unknown")


@pytest.mark.parametrize("columns", [["reward"], ["timing/step_total"], ["time", "entropy/mean"]])
def test_logs_that_lack_metrics(folder, columns):
    state = build(read_run(folder().add(1, 2).path, columns=columns))
    assert len(state.curves) == len(CURVES)
    assert (state.phases, state.sampling, state.grader) == ((), {}, {})
    assert all(math.isnan(each) for each in state.tokens_per_second)


# --- the law


def points(n, noise=0.01):
    entropy = np.exp(-np.arange(n) / 50)
    reward = 0.9 - 0.2 * np.exp(entropy) + np.random.default_rng(0).normal(0, noise, n)
    return Table(np.arange(1, n + 1), {"entropy/mean": entropy, "reward": reward})


def test_the_law_is_fitted_again_when_enough_is_new():
    verdict = RunningVerdict()
    first = verdict.of(run_of(points(300)))
    assert verdict.of(run_of(points(302))) is first  # 1 % of 300 are 3
    again = verdict.of(run_of(points(303)))
    assert again.fit.points == 303
    assert verdict.of(run_of(points(100))).fit.points == 100  # the file was replaced


def test_a_ceiling_that_no_accuracy_can_have_is_a_reason():
    # R = -2 exp(H) + 4 has its ceiling at 2; the run ends at exp(0.6): its rewards are below 0.4
    entropy = 0.6 + 0.5 * np.exp(-6 * np.arange(60) / 60)
    reward = 4 - 2.0 * np.exp(entropy) + 0.01 * np.random.default_rng(0).standard_normal(60)
    columns = {"entropy/mean": entropy, "reward": reward}
    assert RunningVerdict().of(run_of(Table(np.arange(60) + 1, columns))).verdict.codes == {"ceiling_too_high"}
    columns["reward"] = reward + 3  # above 1, R is no accuracy
    assert RunningVerdict().of(run_of(Table(np.arange(60) + 1, columns))).verdict.applies
