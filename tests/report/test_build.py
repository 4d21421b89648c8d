import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openrlhf_cov.analysis.runs import Run
from openrlhf_cov.analysis.table import Table
from openrlhf_cov.analysis.theory import check_theorem
from openrlhf_cov.errors import UsageError
from openrlhf_cov.report.build import build_contents
from openrlhf_cov.report.contents import Options
from openrlhf_cov.report.curves import SERIES_COLUMNS
from openrlhf_cov.report.export import export_text
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
    assert [(section.theorem, section.check, section.reason) for section in run.theory] == [
        (1, None, "the log has no entropy/delta_theorem1 and no entropy/delta"),
        (2, None, "the log has no entropy/delta_theorem2 and no entropy/delta"),
    ]
    assert run.stage_bands == ()
    assert run.accuracy is run.token_accuracy is run.phases is None
    assert run.token_files == ()


def test_a_run_without_rewards_can_be_shown(make_contents):
    run = report_of(make_contents, table_of(entropy__mean=[1.0, 0.9, 0.8]))
    assert math.isnan(run.reward.first)
    assert [reason.text for reason in run.law.result.verdict.reasons] == ["the log has no reward"]


def test_every_column_has_its_curve(make_contents, make_report_run):
    run = make_contents(make_report_run("run", method="kl_cov")).runs[0]
    logged = set(make_report_run("run").training.columns)
    assert set(run.series) == {name for name in SERIES_COLUMNS if name in logged}
    assert list(run.evaluations) == ["eval/aime24/avg@32"]
    assert run.evaluations["eval/aime24/avg@32"].steps.tolist() == [10, 20, 30, 40, 50, 60]


def test_evaluations_are_not_smoothed(make_contents, make_report_run):
    evaluations = Table(np.arange(300), {"eval/x": np.arange(300.0)})
    run = make_contents(make_report_run("run", evaluations=evaluations)).runs[0]
    assert run.evaluations["eval/x"].window == 1


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


def test_fewer_pairs_have_no_groups(make_contents):
    columns = {"entropy__delta": [NAN, *np.arange(49.0)], "entropy__delta_theorem1": [*np.arange(49.0), NAN]}
    section = report_of(make_contents, table_of(**columns, entropy__mean=np.ones(50))).theory[0]
    assert section.check.pairs == 49
    assert len(section.group_predicted) == 0


def test_phases_and_what_is_in_none(make_contents):
    # totals 10, 12 and none: 10 - 3 - 2 = 5, 12 - 4 - 2 = 6, and no total says nothing
    columns = {"timing__generation": [3.0, 4.0, 3.0], "timing__ppo_train": [2.0, 2.0, 2.0]}
    run = report_of(make_contents, table_of(**columns, timing__step_total=[10.0, 12.0, NAN]))
    assert {name: values.tolist() for name, values in run.phases.seconds.items()} == {
        "timing/generation": [3, 4, 3],
        "timing/ppo_train": [2, 2, 2],
        "other": [5, 6, 0],
    }


def test_covariance_by_accuracy_of_responses_and_of_tokens(make_contents):
    table = table_of(cov__acc_low=[0.1, 0.3], cov__acc_high=[0.5, 0.5], cov__token_acc_low=[0.7, 0.9])
    run = report_of(make_contents, table)
    assert run.accuracy.means["low"].estimate == pytest.approx(0.2, abs=1e-12)
    assert run.accuracy.easy_minus_hard.estimate == pytest.approx(0.3, abs=1e-12)
    assert run.token_accuracy.means["low"].estimate == pytest.approx(0.8, abs=1e-12)


def test_rewards_above_their_bound_are_noted_and_the_bound_is_not_used(make_contents, make_report_run):
    run = make_report_run("run")
    columns = dict(run.training.columns) | {"reward": 10 * run.training.column("reward")}
    high = replace(run, name="high", training=Table(run.training.steps, columns))
    contents = make_contents(run, high)
    note, kept = contents.notes
    assert kept == "run, high: R is that of the groups that dynamic sampling kept"
    highest = 10 * run.training.column("reward").max()
    assert note == f"high: reward reaches {highest:.3g}, above --reward_max 1, which is not used for this run"
    assert "ceiling_too_high" not in contents.runs[1].law.result.verdict.codes
    assert make_contents(run, high, highest_reward=None).notes == (kept,)


def test_the_reward_of_kept_groups_is_noted_where_it_is_r(make_contents, make_report_run):
    plain = make_report_run("plain", only=["reward", "entropy/mean"])
    assert make_contents(plain).notes == ()
    kept = make_report_run("kept")
    assert make_contents(plain, kept).notes == ("kept: R is that of the groups that dynamic sampling kept",)
    assert make_contents(plain, kept, metric="eval/aime24/avg@32").notes == ()


def test_secrets_are_masked_wherever_settings_are(make_contents, make_report_run):
    settings = {"--runtime-env-json": "TOP1", "--judge.api_key": "TOP2", "--x": "1"}
    runs = [make_report_run(name, settings={flag: name + each for flag, each in settings.items()}) for name in "ab"]
    contents = make_contents(*runs)
    assert contents.runs[0].settings == {"--runtime-env-json": HIDDEN, "--judge.api_key": HIDDEN, "--x": "a1"}
    assert [each.flag for each in contents.settings] == ["--x"]
    assert "TOP" not in export_text(contents)


@pytest.mark.parametrize("options", [{"metric": "evals/x"}, {"sizes": {"other": 7e9}}])
def test_options_that_do_not_fit_the_runs_are_refused(make_report_run, options):
    with pytest.raises(UsageError):
        build_contents([make_report_run("run")], Options(**options))


def test_the_title(make_contents, make_report_run):
    assert make_contents(make_report_run("one")).title == "one"
    assert make_contents(make_report_run("one"), make_report_run("two", seed=1)).title == "2 runs"
