import math
from dataclasses import replace

import numpy as np
import pytest

from openrlhf_cov.analysis.across import SameCoefficients
from openrlhf_cov.analysis.report.contents import Options, SameSection, TheorySection
from openrlhf_cov.analysis.report.report_page import asked
from openrlhf_cov.analysis.report.words import (
    duration,
    ends,
    error_of,
    forecast_sentence,
    law_facts,
    law_sentence,
    number,
    percent,
    run_rows,
    same_sentence,
    share,
    size_text,
    summary,
    theory_sentence,
    with_interval,
)
from openrlhf_cov.analysis.theory import TheoryCheck
from openrlhf_cov.utils.estimates import Interval


@pytest.fixture(scope="module")
def run(make_contents, make_report_run):
    return make_contents(make_report_run("run", steps=200)).runs[0]


@pytest.fixture(scope="module")
def restrained(make_contents, make_report_run):
    return make_contents(make_report_run("run", method="kl_cov")).runs[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0 %"), (0.15, "15 %"), (0.995, "100 %"), (0.0012, "0.12 %"), (0.0841, "8.4 %"), (math.nan, "-")],
)
def test_shares(value, expected):
    assert share(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (59.4, "0 min 59 s"),
        (59.6, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (7199, "2 h 00 min"),
        (172_800, "2 d 0 h"),
        (180_000, "2 d 2 h"),
        (math.nan, "-"),
    ],
)
def test_durations(seconds, expected):
    assert duration(seconds) == expected


def test_errors_are_percent_where_the_reward_is_a_share():
    assert error_of(0.0091, Options()) == "0.9 %"
    assert error_of(-0.005, Options()) == "-0.5 %"
    assert error_of(0.0091, Options(highest_reward=None)) == "0.0091"


def test_ends():
    assert ends(Interval(0.5, 0.25, 0.75, 0.95)) == "0.250 to 0.750"
    assert ends(Interval(0.5, math.nan, math.nan, 0.95)) == "-"


def test_what_is_said_of_a_run_that_follows_the_law(run):
    fit = run.law.result.fit
    low, high = fit.ceiling.low, fit.ceiling.high
    assert law_sentence(run, Options()) == (
        f"The law describes this run. With no entropy left, reward would reach {fit.ceiling.estimate:.3f} "
        f"({low:.3f} to {high:.3f}); it ended at {run.reward.last:.3f}."
    )
    facts = dict(law_facts(run, Options()))
    assert facts["ceiling, R at H = 0"] == f"{fit.ceiling.estimate:.3f}, 95 % interval {low:.3f} to {high:.3f}"
    assert facts["R²"] == f"{fit.r2:.3f}"
    slope = -fit.a.estimate * math.exp(run.entropy.last)
    (value,) = [value for name, value in facts.items() if name.startswith("dR/dH")]
    assert value.startswith(f"{slope:.3f} [")


def test_independent_points_are_named_where_they_are_fewer(run):
    def points(effective):
        fit = replace(run.law.result.fit, effective_points=effective)
        law = replace(run.law, result=replace(run.law.result, fit=fit))
        return dict(law_facts(replace(run, law=law), Options()))["points"]

    assert points(40.4) == "200, worth 40 independent ones"
    assert points(200.0) == "200"


def test_a_run_that_does_not_has_no_numbers(restrained):
    assert restrained.law.result.fit is not None
    assert law_facts(restrained, Options()) == []
    assert law_sentence(restrained, Options()) == "The law does not apply here:"


def test_the_forecast_as_the_paper_reports_it(run):
    found = replace(run.law.forecast, rmse=0.0123, final_error=-0.004, in_band_frac=0.93, persistence_rmse=0.2)
    law = replace(run.law, forecast=found)
    assert forecast_sentence(law, Options()) == (
        "Fitted to the first 15 % (30 of 200 points), the law misses the rest by an RMSE of 1.2 % and the last "
        "point by 0.4 % (paper: 0.9 % and 0.5 % in math, 1.2 % and 1.9 % in code); 93 % of the later points lie in "
        "its 95 % interval. Repeating "
        "the last level known would have missed by 20.0 %."
    )
    few = replace(found, fit=replace(found.fit, points=29))
    assert forecast_sentence(replace(law, forecast=few), Options()).endswith(
        "by 20.0 %. Fitted to 29 points only: below about 30 its interval is too narrow."
    )
    useless = replace(law, forecast=replace(found, persistence_rmse=0.01))
    assert forecast_sentence(useless, Options()).endswith("by 1.0 %: this forecast is worth nothing.")
    assert "paper" not in forecast_sentence(law, Options(highest_reward=5.0))
    assert forecast_sentence(replace(law, forecast=None, no_forecast="too short"), Options()) == (
        "No forecast: too short."
    )


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 0.5, "0.300 [0.100, 0.500] over 39 pairs of steps, above 0 as predicted;"),
        (-0.1, 0.5, "0.300 [-0.100, 0.500] over 39 pairs of steps, not told from 0;"),
        (-0.5, -0.1, "0.300 [-0.500, -0.100] over 39 pairs of steps, below 0, against the theorem;"),
        (math.nan, math.nan, "0.300 [no interval] over 39 pairs of steps;"),
    ],
)
def test_theory(low, high, expected):
    nothing = np.zeros(0)
    signs = Interval(0.62, 0.5, 0.7, 0.95)
    check = TheoryCheck(1, 39, Interval(0.3, low, high, 0.95), signs, 0.55, 1.0, nothing, nothing)
    said = theory_sentence(TheorySection(1, check, "", nothing, nothing))
    assert said.startswith("Theorem 1 (policy gradient): rank correlation of predicted and measured ΔH " + expected)
    assert said.endswith("same sign in 62 %, by chance 55 %; covariance above 0 in 100 % of steps.")
    missing = TheorySection(2, None, "the log has no entropy/delta", nothing, nothing)
    assert theory_sentence(missing) == "Theorem 2 (natural policy gradient): the log has no entropy/delta."


def test_same_coefficients():
    def same(p, unfit=()):
        return same_sentence(SameSection(("a", "b"), unfit, SameCoefficients(p, 1.0, 0.3, 0.8, ()), ""))

    assert same(0.04) == "The runs do not share one a and one b (p 0.040)."
    assert same(0.06).startswith("Nothing speaks against one a and one b for these runs (p 0.060): a = 0.300, b = 0.8")
    assert same(0.04, ("b",)).endswith(" The law does not apply to b, whose coefficients mean little.")
    unknown = same_sentence(SameSection(("a",), (), None, "one fit only"))
    assert unknown == "Whether the runs share their coefficients cannot be said: one fit only."


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
    early = contents.runs[0].law.early
    assert row[0:2] == ("holds", "200")
    assert row[4:] == (
        *(f"{fit.a.estimate:.3f}", f"{fit.b.estimate:.3f}"),
        f"{fit.ceiling.estimate:.3f} [{fit.ceiling.low:.3f}, {fit.ceiling.high:.3f}]",
        number(fit.slope_at(contents.runs[0].entropy.last).estimate),
        *(f"{fit.r2:.3f}", number(fit.rmse), number(found.rmse), f"{found.final_error:+.3f}"),
        *(", ".join(f"{each:.0%}".replace("%", " %") for each in values) for values in (early.drop, early.gain)),
    )
    # H is near 0.05 + exp(-6 t). Levels of 4 of 200 points: 0.956 of exp(-6 t) at the start, at 1/12 0.647, at 1/3
    # 0.144, 0 at the end; so of the fall 0.32 and 0.85. R goes with exp(H): 2.735, 2.008, 1.214, 1.054; 0.43 and 0.90
    assert (*early.drop, *early.gain) == pytest.approx((0.32, 0.85, 0.43, 0.90), abs=0.03)
    assert "does not apply" not in summary(contents)


def test_a_run_that_does_not_has_reasons_instead(make_contents, make_report_run):
    contents = make_contents(make_report_run("kl", steps=200, method="kl_cov"))
    (row,) = run_rows(contents)
    assert row[4:12] == ("-",) * 8
    lines = summary(contents).splitlines()
    place = lines.index("kl: the law does not apply")
    assert lines[place + 1] == "  --cov_type kl_cov acts on the entropy; the law is stated without"
    assert f"{contents.runs[0].law.result.fit.ceiling.estimate:.3f}" not in summary(contents)


def test_no_forecast_and_a_worthless_one_are_said(make_contents, make_report_run):
    short = summary(make_contents(make_report_run("short", steps=30)))
    assert "short: no forecast, the first 15% of 30 points: a forecast needs at least 6 points" in short
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
    assert f"one a and one b for these runs (p {contents.same.result.p_value:.3f})" in text
    assert text.count("The law does not apply to b, whose coefficients mean little.\n") == 2
    assert "\n  a minus b: a " in text
    # of two sizes the change for ten times the parameters is the difference itself
    a = [run.law.result.fit.a.estimate for run in contents.runs]
    assert f"change for ten times the parameters: a {number(a[1] - a[0])}, b " in text
    assert f"\nExtrapolated at 100B parameters: a {number(2 * a[1] - a[0])} [no interval]" in text


def test_a_forecast_of_few_points_says_that_its_interval_is_too_narrow(make_contents, make_report_run):
    said = "the forecast is fitted to {} points only: below about 30 its interval is too narrow"
    # 15 % of 199 are 29 points, of 200 are 30
    assert f"run: {said.format(29)}\n" in summary(make_contents(make_report_run("run", steps=199)))
    assert "too narrow" not in summary(make_contents(make_report_run("run", steps=200)))


def test_lines_to_which_the_law_does_not_apply_have_no_common_numbers(make_contents, make_report_run):
    runs = [make_report_run(name, seed=seed, method="kl_cov") for seed, name in enumerate("ab")]
    lines = summary(make_contents(*runs, sizes={"a": 1e9, "b": 1e10}, extrapolate_to=1e11)).splitlines()
    assert lines[-2:] == [
        "Whether the runs share their coefficients cannot be said: the law applies to none of them.",
        "No trend in model size: the law applies to none of them.",
    ]
    mixed = make_contents(make_report_run("c", seed=2), runs[0], sizes={"a": 1e9, "c": 1e10})
    said = "The law does not apply to a, whose coefficients mean little."
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
