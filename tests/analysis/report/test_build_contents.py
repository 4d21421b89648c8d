import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from texts import missing

from openrlhf_cov.analysis.across import against_size
from openrlhf_cov.analysis.law import fit_law, forecast
from openrlhf_cov.analysis.report.build_contents import check_metric, law_line, law_section
from openrlhf_cov.analysis.report.contents import Options
from openrlhf_cov.analysis.report.export import export_text
from openrlhf_cov.analysis.runs import Run, training_points
from openrlhf_cov.analysis.table import Table
from openrlhf_cov.analysis.theory import check_theorem
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.redaction import HIDDEN

NAN = float("nan")


def table_of(**columns):
    columns = {name.replace("__", "/"): np.array(values, dtype=float) for name, values in columns.items()}
    return Table(np.arange(len(next(iter(columns.values())))) + 1, columns)


def report_of(make_contents, table):
    return make_contents(Run("run", Path("nowhere"), table)).runs[0]


def test_summary_numbers_by_hand(make_contents):
    # a twentieth of 40 values is 2: the means of the first and last two that were logged
    reward = [NAN, 0.1, 0.3, *[9.0] * 37, 0.5, 0.9]
    run = report_of(make_contents, table_of(reward=reward, entropy__mean=np.ones(42), time=10.0 * np.arange(42)))
    assert (run.step_count, run.last_step, run.seconds) == (42, 42, 410.0)
    assert run.reward.first == pytest.approx(0.2, abs=1e-12)
    assert run.reward.last == pytest.approx(0.7, abs=1e-12)


def test_a_run_of_two_columns_has_reasons_for_the_rest(make_contents):
    run = report_of(make_contents, table_of(reward=[0.1, 0.2, 0.3], entropy__mean=[1.0, 0.9, 0.8]))
    assert set(run.series) == {"reward", "entropy/mean"}
    assert math.isnan(run.seconds)
    assert [(section.theorem, section.check) for section in run.theory] == [(1, None), (2, None)]
    for section in run.theory:
        assert missing(section.reason, f"entropy/delta_theorem{section.theorem}", "entropy/delta") == []
    assert run.stage_bands == ()
    assert run.accuracy == {}
    assert run.group_correlation is run.phases is None
    assert run.token_files == ()


def test_theory_keeps_the_numbers_of_all_pairs(make_contents, make_report_run):
    source = make_report_run("run", steps=3000)
    section = make_contents(source).runs[0].theory[0]
    whole = check_theorem(source.training, 1)
    assert section.check.pairs == whole.pairs == 2999
    assert section.check.correlation == whole.correlation
    assert len(section.check.predicted) == len(section.check.changes) == 1000
    assert section.check.predicted[[0, -1]].tolist() == whole.predicted[[0, -1]].tolist()


def test_groups_of_predictions_by_hand(make_contents):
    # 50 pairs are the fewest with groups: the prediction of the steps in a shuffled order, the change twice as large
    predicted = np.random.default_rng(0).permutation(np.arange(50.0))
    columns = {"entropy__delta": [NAN, *(2 * predicted)], "entropy__delta_theorem1": [*predicted, NAN]}
    section = report_of(make_contents, table_of(**columns, entropy__mean=np.ones(51))).theory[0]
    assert section.group_predicted.tolist() == [2.0 + 5 * tenth for tenth in range(10)]
    assert section.group_changes.tolist() == [4.0 + 10 * tenth for tenth in range(10)]


def test_phases_and_what_is_in_none(make_contents):
    # totals 10, 12 and none: 10 - 3 - 2 = 5, 12 - 4 - 2 = 6, and no total says nothing
    columns = {"timing__generation": [3.0, 4.0, 3.0], "timing__ppo_train": [2.0, 2.0, 2.0]}
    run = report_of(make_contents, table_of(**columns, timing__step_total=[10.0, 12.0, NAN]))
    assert {name: values.tolist() for name, values in run.phases.seconds.items()} == {
        "timing/generation": [3, 4, 3],
        "timing/ppo_train": [2, 2, 2],
        "other": [5, 6, 0],
    }


@pytest.mark.slow
def test_rewards_above_their_bound_are_noted_and_the_bound_is_not_used(make_contents, make_report_run):
    run = make_report_run("run")
    columns = dict(run.training.columns) | {"reward": 10 * run.training.column("reward")}
    high = replace(run, name="high", training=Table(run.training.steps, columns))
    contents = make_contents(run, high)
    note, kept = contents.notes
    assert missing(kept, "run, high", "dynamic sampling") == []
    highest = 10 * run.training.column("reward").max()
    assert note.startswith(f"high: reward reaches {highest:.3g}, above --reward_max 1")
    assert "ceiling_too_high" not in contents.runs[1].law.result.verdict.codes
    assert make_contents(run, high, highest_reward=None).notes == (kept,)


def test_settings_that_a_run_recorded_are_known_without_its_command_line(make_contents, make_report_run):
    run = replace(make_report_run("moved", only=["reward", "entropy/mean"]), settings={})
    (note,) = make_contents(run).notes
    assert note.startswith("moved: the flags of the run are unknown")
    assert make_contents(replace(run, resolved={"--actor.entropy_coef": ""})).notes == ()


def test_secrets_are_masked_wherever_settings_are(make_contents, make_report_run):
    settings = {"--runtime-env-json": "TOP1", "--judge.api_key": "TOP2", "--x": "1"}
    runs = [make_report_run(name, settings={flag: name + each for flag, each in settings.items()}) for name in "ab"]
    contents = make_contents(*runs)
    assert contents.runs[0].settings == {"--runtime-env-json": HIDDEN, "--judge.api_key": HIDDEN, "--x": "a1"}
    assert [each.flag for each in contents.settings] == ["--x"]
    assert "TOP" not in export_text(contents)


def test_the_law_of_a_run_is_that_of_all_its_points(make_report_run):
    run = make_report_run("run", steps=3000)
    section = law_section(run, Options())
    points = training_points(run)
    assert section.point_count == 3000
    assert len(section.points) == 1000
    assert section.points.steps[[0, -1]].tolist() == [1, 3000]
    whole = fit_law(points)
    assert (section.result.fit.a, section.result.fit.ceiling) == (whole.a, whole.ceiling)
    # R = -0.3 exp(H) + 0.9 up to noise of 0.01, a standard error of a of about 0.01 / sqrt(3000) / sd(exp(H)) = 0.0004
    assert section.result.fit.a.estimate == pytest.approx(0.3, abs=0.003)
    assert section.result.fit.ceiling.estimate == pytest.approx(0.6, abs=0.003)
    assert section.result.verdict.applies


def test_the_forecast_has_the_numbers_of_all_points(make_report_run):
    run = make_report_run("run", steps=3000)
    found = law_section(run, Options(forecast_share=0.2)).forecast
    whole = forecast(training_points(run), 0.2)
    assert (found.rmse, found.final_error, found.in_band_frac) == (whole.rmse, whole.final_error, whole.in_band_frac)
    assert found.fit.points == 600
    assert len(found.later) == len(found.predicted) == len(found.low) == len(found.high) == 1000
    np.testing.assert_array_equal(found.predicted, found.fit.reward_at(found.later.entropy))


def test_the_mean_of_several_evaluations_as_reward(make_contents, make_report_run):
    # R of the two benchmarks are 0.1 and 0.5 at step 10, 0.2 and NaN at 20, 0.3 and 0.7 at 30
    table = Table(
        np.array([10, 20, 30]), {"eval/a/avg@1": np.array([0.1, 0.2, 0.3]), "eval/b/avg@1": np.array([0.5, NAN, 0.7])}
    )
    metric = "eval/a/avg@1,eval/b/avg@1"
    contents = make_contents(make_report_run("run", steps=40, evaluations=table), metric=metric)
    run = contents.runs[0]
    assert run.law.point_count == 2
    np.testing.assert_allclose(run.law.points.reward, [0.3, 0.5])
    assert list(run.evaluations) == ["eval/a/avg@1", "eval/b/avg@1", metric]


@pytest.mark.parametrize(
    "metric", ["reward,eval/aime24/avg@32", "reward,reward", "eval/aime24/avg@32,eval/aime24/avg@32"]
)
def test_a_mean_is_of_numbers_of_one_kind(make_report_run, metric):
    with pytest.raises(UsageError, match="the metrics of a mean must differ and be all of evaluations"):
        check_metric(metric, [make_report_run("run")])


@pytest.mark.parametrize(
    ("only", "metric", "missing"),
    [
        (["reward"], "reward", "the log has no entropy"),
        (["entropy/mean"], "reward", "the log has no reward"),
        (["response_length"], "eval/x", "the log has no entropy and no eval/x"),
    ],
)
def test_what_the_log_lacks(make_report_run, only, metric, missing):
    section = law_section(make_report_run("run", only=only), Options(metric=metric))
    (reason,) = section.result.verdict.reasons
    assert (reason.code, reason.text) == ("not_logged", missing)
    assert section.result.fit is section.line is section.forecast is None
    assert len(section.points) == 0


def test_the_line_goes_from_the_ceiling_to_the_highest_entropy(make_report_run):
    points = training_points(make_report_run("run"))
    fit = fit_law(points)
    line = law_line(fit, points)
    assert line.exp_entropy[0] == 1.0
    assert line.exp_entropy[-1] == pytest.approx(math.exp(points.entropy.max()), rel=1e-12)
    # at H = 0 the line and its interval are the ceiling's
    assert (line.reward[0], line.low[0], line.high[0]) == pytest.approx(
        (fit.ceiling.estimate, fit.ceiling.low, fit.ceiling.high), abs=1e-12
    )
    assert (line.point_low < line.low).all()
    assert (line.point_high > line.high).all()


@pytest.mark.slow
def test_the_trend_against_size(make_contents, make_report_run):
    runs = [make_report_run(name, seed=seed) for seed, name in enumerate("abcd")]
    sizes = make_contents(*runs, sizes={"c": 4e9, "a": 1e9, "b": 2e9}, extrapolate_to=32e9).sizes
    assert sizes.names == ("a", "b", "c")
    assert sizes.sizes == (1e9, 2e9, 4e9)
    assert sizes.unfit == ()
    trend = against_size(sizes.sizes, [fit_law(training_points(run)) for run in runs[:3]])
    assert sizes.extrapolation.size == 32e9
    assert sizes.extrapolation.ceiling == trend.ceiling.at(32e9)
    assert [sizes.grid[0].size, sizes.grid[-1].size] == pytest.approx([1e9, 32e9], rel=1e-12)
    assert sizes.grid[0].a == trend.a.at(sizes.grid[0].size)
