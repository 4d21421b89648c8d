import math
from dataclasses import replace

import pytest

from openrlhf_cov.report.page import asked
from openrlhf_cov.report.text import number, percent, run_rows, size_text, summary, with_interval
from openrlhf_cov.utils.estimates import Interval


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0.0, "0.000"), (0.12345, "0.123"), (-0.5, "-0.500"), (0.012345, "0.0123"), (12.5, "12.500")],
        *[(1234.5, "1.23e+03"), (1e-6, "1e-06"), (math.nan, "-"), (math.inf, "-")],
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_an_interval():
    assert with_interval(Interval(0.71, 0.69, 0.73, 0.95)) == "0.710 [0.690, 0.730]"
    assert with_interval(Interval(0.71, -math.inf, math.inf, 0.95)) == "0.710 [no interval]"


@pytest.mark.parametrize(
    ("size", "text"), [(7e9, "7B"), (1.5e9, "1.5B"), (494e6, "494M"), (1e12, "1T"), (2e3, "2K"), (12, "12")]
)
def test_sizes(size, text):
    assert size_text(size) == text


def test_a_run_that_follows_the_law_has_its_numbers(make_contents, make_report_run):
    contents = make_contents(make_report_run("holds", steps=200))
    fit, found = contents.runs[0].law.result.fit, contents.runs[0].law.forecast
    (row,) = run_rows(contents)
    assert row[0:2] == ("holds", "200")
    assert row[4:] == (
        *(f"{fit.a.estimate:.3f}", f"{fit.b.estimate:.3f}"),
        f"{fit.ceiling.estimate:.3f} [{fit.ceiling.low:.3f}, {fit.ceiling.high:.3f}]",
        number(fit.slope_at(contents.runs[0].entropy.last).estimate),
        *(f"{fit.r2:.3f}", number(fit.rmse), number(found.rmse), f"{found.final_error:+.3f}"),
    )
    assert "does not apply" not in summary(contents)


def test_a_run_that_does_not_has_reasons_instead(make_contents, make_report_run):
    contents = make_contents(make_report_run("kl", steps=200, method="kl_cov"))
    (row,) = run_rows(contents)
    assert row[4:] == ("-",) * 8
    lines = summary(contents).splitlines()
    place = lines.index("kl: the law does not apply")
    assert lines[place + 1] == "  --cov_type kl_cov acts on the entropy; the law is stated without"
    assert f"{contents.runs[0].law.result.fit.ceiling.estimate:.3f}" not in summary(contents)


def test_no_forecast_and_a_worthless_one_are_said(make_contents, make_report_run):
    short = summary(make_contents(make_report_run("short", steps=30)))
    assert "short: no forecast, the first 15% of 30 points: a forecast needs at least 10 points" in short
    contents = make_contents(make_report_run("run", steps=100))
    assert "worth nothing" not in summary(contents)
    law = contents.runs[0].law
    law = replace(law, forecast=replace(law.forecast, rmse=0.25, persistence_rmse=0.125))
    worse = summary(replace(contents, runs=(replace(contents.runs[0], law=law),)))
    assert "run: the forecast is worth nothing, its RMSE is 0.250, that of the last mean going on 0.125\n" in worse


def test_the_comparison_names_runs_and_what_it_is_worth(make_contents, make_report_run):
    runs = [make_report_run("a", steps=100), make_report_run("b", steps=100, seed=1, method="kl_cov")]
    contents = make_contents(*runs, sizes={"a": 1e9, "b": 1e10}, extrapolate_to=1e11)
    text = summary(contents)
    assert f"same a and b in all 2 runs: p {contents.same.result.p_value:.3f};" in text
    assert "  the law does not apply to b: the comparison is of lines, not of laws\n" in text
    assert "\n  a minus b: a " in text
    # of two sizes the change for ten times the parameters is the difference itself
    a = [run.law.result.fit.a.estimate for run in contents.runs]
    assert f"change for ten times the parameters: a {number(a[1] - a[0])}, b " in text
    assert f"\n  at 100B parameters: a {number(2 * a[1] - a[0])} [no interval]" in text


def test_a_forecast_of_few_points_says_that_its_interval_is_too_narrow(make_contents, make_report_run):
    said = "the forecast is fitted to {} points only: below about 30 its interval is too narrow"
    # 15 % of 199 are 29 points, of 200 are 30
    assert f"run: {said.format(29)}\n" in summary(make_contents(make_report_run("run", steps=199)))
    assert "too narrow" not in summary(make_contents(make_report_run("run", steps=200)))


def test_lines_to_which_the_law_does_not_apply_have_no_common_numbers(make_contents, make_report_run):
    runs = [make_report_run(name, seed=seed, method="kl_cov") for seed, name in enumerate("ab")]
    lines = summary(make_contents(*runs, sizes={"a": 1e9, "b": 1e10}, extrapolate_to=1e11)).splitlines()
    assert lines[-2:] == [
        "same coefficients: not tested, the law applies to none of them",
        "against model size: no line, the law applies to none of them",
    ]
    mixed = make_contents(make_report_run("c", seed=2), runs[0], sizes={"a": 1e9, "c": 1e10})
    said = "  the law does not apply to a: the trend is of lines, not of laws"
    assert summary(mixed).splitlines()[-1] == said


@pytest.mark.parametrize(("share", "text"), [(0.15, "15"), (0.999, "99.9"), (0.07, "7"), (0.0001, "0.01")])
def test_a_share_keeps_its_digits(make_contents, make_report_run, share, text):
    assert percent(share) == text
    contents = make_contents(make_report_run("run"), forecast_share=share)
    assert f"forecast from the first {text}% of the points" in summary(contents)
    assert f"forecast from the first {text} % of the points" in asked(contents.options)


def test_many_pairs_are_counted(make_contents, make_report_run):
    contents = make_contents(*(make_report_run(f"run{seed}", seed=seed) for seed in range(5)))
    lines = summary(contents).splitlines()
    assert sum(" minus " in line for line in lines) == 6
    assert lines[-1] == "  4 more pairs with --export"
