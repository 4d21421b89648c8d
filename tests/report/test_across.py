from dataclasses import replace

import pytest

from openrlhf_cov.analysis.across import against_size, same_coefficients
from openrlhf_cov.analysis.law import fit_law
from openrlhf_cov.analysis.runs import training_points
from openrlhf_cov.report.contents import Setting


def test_settings_that_differ(make_contents, make_report_run):
    first = make_report_run("a", settings={"--lr": "1", "--batch": "8", "--ckpt.output_dir": "x"})
    second = make_report_run("b", settings={"--lr": "2", "--batch": "8", "--ckpt.output_dir": "y", "--new": "true"})
    unknown = make_report_run("c", settings={})
    assert make_contents(first, unknown, second).settings == (
        Setting("--lr", ("1", None, "2")),
        Setting("--new", (None, None, "true")),
    )
    assert make_contents(first, unknown).settings == ()


def test_one_run_is_not_compared(make_contents, make_report_run):
    contents = make_contents(make_report_run("a"))
    assert contents.same is None
    assert contents.sizes is None


def test_the_runs_that_have_a_fit_are_compared(make_contents, make_report_run):
    runs = [make_report_run("a"), make_report_run("b", only=["reward"]), make_report_run("c", seed=1, method="kl_cov")]
    same = make_contents(*runs).same
    assert same.names == ("a", "c")
    assert same.unfit == ("c",)
    expected = same_coefficients([fit_law(training_points(run)) for run in (runs[0], runs[2])])
    assert same.result == expected


def test_a_single_fit_is_compared_with_nothing(make_contents, make_report_run):
    same = make_contents(make_report_run("a"), make_report_run("b", only=["reward"])).same
    assert same.result is None
    assert same.reason == "comparing coefficients needs at least two runs, got 1"


def test_the_trend_in_size(make_contents, make_report_run):
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


def test_runs_without_the_law_are_named_in_the_trend(make_contents, make_report_run):
    runs = [make_report_run("a"), make_report_run("b", seed=1, method="kl_cov"), make_report_run("c", method="kl_cov")]
    assert make_contents(*runs, sizes={"a": 1e9, "b": 2e9}).sizes.unfit == ("b",)
    assert make_contents(*runs, sizes={"b": 1e9}).sizes.unfit == ("b",)


def test_one_size_makes_no_trend(make_contents, make_report_run):
    runs = [make_report_run("a"), replace(make_report_run("b", seed=1), name="b")]
    sizes = make_contents(*runs, sizes={"a": 7e9, "b": 7e9}).sizes
    assert sizes.trend is None
    assert "two different positive sizes" in sizes.reason
