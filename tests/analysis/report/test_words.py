import math
from dataclasses import replace

import numpy as np
import pytest
from texts import missing

from openrlhf_cov.analysis.across import SameCoefficients
from openrlhf_cov.analysis.report.contents import Ends, SameSection, TheorySection
from openrlhf_cov.analysis.report.words import (
    arrow,
    early_facts,
    forecast_sentence,
    law_facts,
    law_row,
    number,
    same_sentence,
    share,
    size_text,
    summary,
    theory_sentence,
)
from openrlhf_cov.analysis.table import Table
from openrlhf_cov.analysis.theory import TheoryCheck
from openrlhf_cov.utils.estimates import Interval


@pytest.fixture(scope="module")
def run(make_contents, make_report_run):
    return make_contents(make_report_run("run", steps=200)).runs[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0 %"), (0.15, "15 %"), (0.995, "100 %"), (0.0012, "0.12 %"), (0.0841, "8.4 %"), (math.nan, "-")],
)
def test_shares(value, expected):
    assert share(value) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 0.5, "above 0 as predicted"),
        (-0.1, 0.5, "not distinguishable from 0"),
        (-0.5, -0.1, "against the theorem"),
        (math.nan, math.nan, "[no interval]"),
    ],
)
def test_theory(low, high, expected):
    nothing = np.zeros(0)
    signs = Interval(0.62, 0.5, 0.7, 0.95)
    check = TheoryCheck(1, 39, Interval(0.3, low, high, 0.95), signs, 0.55, 1.0, nothing, nothing)
    said = theory_sentence(TheorySection(1, check, "", nothing, nothing))
    assert [each for each in (expected, "39 pairs", "62 %", "55 %", "100 %") if each not in said] == []
    unchecked = TheorySection(2, None, "the log has no entropy/delta", nothing, nothing)
    assert missing(theory_sentence(unchecked), "Theorem 2", "the log has no entropy/delta") == []


def test_same_coefficients():
    def same(p, unfit=()):
        return same_sentence(SameSection(("a", "b"), unfit, SameCoefficients(p, 1.0, 0.3, 0.8, ()), ""))

    assert missing(same(0.04), "not share", "p 0.040") == []
    assert "a = 0.300, b = 0.8" in same(0.06)
    assert "does not apply to b" in same(0.04, ("b",))
    assert "one fit only" in same_sentence(SameSection(("a",), (), None, "one fit only"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0.0, "0.000"), (0.12345, "0.123"), (-0.5, "-0.500"), (0.012345, "0.0123"), (12.5, "12.500")],
        *[(1234.5, "1.23e+03"), (1e-6, "1e-06"), (math.nan, "-"), (math.inf, "-")],
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_an_arrow_needs_two_values():
    assert arrow(Ends(0.25, 640.517)) == "0.250 -> 640.5"
    assert arrow(Ends(5.0, 5.0)) == "5.000"  # a run of one step has not changed
    assert arrow(Ends(math.nan, math.nan)) == "-"


@pytest.mark.parametrize(
    ("size", "text"), [(7e9, "7B"), (1.5e9, "1.5B"), (494e6, "494M"), (1e12, "1T"), (2e3, "2K"), (12, "12")]
)
def test_sizes(size, text):
    assert size_text(size) == text


def test_a_run_that_follows_the_law_has_its_numbers(make_contents, make_report_run):
    contents = make_contents(make_report_run("holds", steps=200))
    run = contents.runs[0]
    fit, found, early = run.law.result.fit, run.law.forecast, run.law.early
    assert law_row(run) == (
        *("holds", f"{fit.a.estimate:.3f}", f"{fit.b.estimate:.3f}"),
        f"{fit.ceiling.estimate:.3f} [{fit.ceiling.low:.3f}, {fit.ceiling.high:.3f}]",
        number(fit.slope_at(run.entropy.last).estimate),
        *(f"{fit.r2:.3f}", number(fit.rmse), number(found.rmse), f"{found.final_error:+.3f}"),
    )
    # H is near 0.05 + exp(-6 t). Levels of 4 of 200 points: 0.956 of exp(-6 t) at the start, at 1/12 0.647, at 1/3
    # 0.144, 0 at the end; so of the fall 0.32 and 0.85. R goes with exp(H): 2.735, 2.008, 1.214, 1.054; 0.43 and 0.90
    assert (*early.drop, *early.gain) == pytest.approx((0.32, 0.85, 0.43, 0.90), abs=0.03)
    assert [value for _, value in early_facts(run)] == [
        ", ".join(f"{100 * each:.0f} %" for each in values) for values in (early.drop, early.gain)
    ]
    assert "does not apply" not in summary(contents)


def test_a_run_that_does_not_has_reasons_instead(make_contents, make_report_run):
    contents = make_contents(make_report_run("kl", steps=200, method="kl_cov"))
    lines = summary(contents).splitlines()
    place = lines.index("kl: the law does not apply.")
    assert lines[place + 1].startswith("  - --cov_type kl_cov acts on the entropy")
    assert f"{contents.runs[0].law.result.fit.ceiling.estimate:.3f}" not in summary(contents)


def test_no_forecast_and_a_worthless_one_are_said(make_contents, make_report_run):
    short = summary(make_contents(make_report_run("short", steps=30)))
    assert missing(short, "short: no forecast", "15 % of 30 points", "at least 6 points") == []
    contents = make_contents(make_report_run("run", steps=100))
    assert "worth nothing" not in summary(contents)
    law = contents.runs[0].law
    law = replace(law, forecast=replace(law.forecast, rmse=0.25, persistence_rmse=0.125))
    worse = summary(replace(contents, runs=(replace(contents.runs[0], law=law),)))
    (line,) = (line for line in worse.splitlines() if "worth nothing" in line)
    assert "0.250" in line
    assert "0.125" in line


@pytest.mark.slow
def test_lines_to_which_the_law_does_not_apply_are_not_compared(make_contents, make_report_run):
    runs = [make_report_run(name, seed=seed, method="kl_cov") for seed, name in enumerate("ab")]
    text = summary(make_contents(*runs, sizes={"a": 1e9, "b": 1e10}, extrapolate_to=1e11))
    assert "No trend in model size" in text
    assert "share one a" not in text
    one = make_contents(make_report_run("c", seed=2), runs[0], sizes={"a": 1e9, "c": 1e10})
    assert "share one a" not in summary(one)
    assert "The law does not apply to a" in summary(one)


def test_errors_are_in_percent_only_where_the_bound_of_an_accuracy_is_in_force(make_contents, make_report_run):
    share = make_report_run("share", steps=200)
    columns = share.training.columns | {"reward": 10 * share.training.column("reward")}
    other = replace(share, training=Table(share.training.steps, columns))
    contents = make_contents(share, other)
    percent, plain = ((dict(law_facts(run)), forecast_sentence(run.law, contents.options)) for run in contents.runs)
    assert percent[0]["RMSE"].endswith(" %")
    assert "(paper: 0.9 % and 0.5 % in math" in percent[1]
    # This R exceeds 1, so it is no accuracy, although the option has its default of 1.
    assert contents.options.highest_reward == 1.0
    assert "%" not in plain[0]["RMSE"]
    assert "paper" not in plain[1]
    assert number(contents.runs[1].law.forecast.rmse) in plain[1]


def test_points_with_independent_noise_are_worth_nearly_all_of_them(run):
    # The intervals come from 50 means of four points, which are worth at most about 50 independent ones.
    assert run.law.accepted.independent_points == 200
    assert dict(law_facts(run))["points"] == "200"
