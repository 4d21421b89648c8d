import json

import pytest

from openrlhf_cov.analysis.report.export import SCHEMA, export_text


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


@pytest.fixture
def contents(make_contents, make_report_run):
    runs = [
        make_report_run("holds", steps=100),
        make_report_run("kl", steps=100, seed=1, method="kl_cov", warnings=("metrics.jsonl: cut",)),
        make_report_run("bare", steps=3, only=["reward"]),
    ]
    return make_contents(*runs, sizes={"holds": 1e9, "kl": 2e9}, extrapolate_to=4e9)


def test_the_numbers_of_the_law(contents):
    written = json.loads(export_text(contents), parse_constant=refuse)
    holds, kl, bare = written["runs"]
    fit = contents.runs[0].law.result.fit
    assert written["schema"] == SCHEMA
    assert holds["law"]["applies"] is True
    assert holds["law"]["fit"]["ceiling"] == {
        "estimate": fit.ceiling.estimate,
        "low": fit.ceiling.low,
        "high": fit.ceiling.high,
        "level": 0.95,
    }
    slope = fit.slope_at(contents.runs[0].entropy.last)
    assert holds["law"]["slope"] == {"entropy": contents.runs[0].entropy.last} | vars(slope)
    assert bare["law"]["slope"] is None
    found = contents.runs[0].law.forecast
    names = ("rmse", "final_error", "in_band_frac", "persistence_rmse")
    assert {name: holds["law"]["forecast"][name] for name in names} == {name: getattr(found, name) for name in names}
    assert holds["law"]["forecast"]["fit"]["points"] == 15
    assert holds["law"]["no_forecast"] is None
    assert [reason["code"] for reason in kl["law"]["reasons"]] == ["intervention"]
    assert kl["warnings"] == ["metrics.jsonl: cut"]
    assert bare["law"]["fit"] is None
    assert bare["law"]["points"] == 0
    assert bare["law"]["no_forecast"]
    assert bare["entropy"] == {"first": None, "last": None}


def test_what_is_said_across_runs(contents):
    written = json.loads(export_text(contents), parse_constant=refuse)
    assert written["settings_that_differ"]["--cov_type"] == {"holds": "none", "kl": "kl_cov", "bare": "none"}
    same = written["same_coefficients"]
    assert same["runs"] == ["holds", "kl"]
    assert same["law_does_not_apply_to"] == ["kl"]
    assert same["p_value"] == contents.same.result.p_value
    assert [(each["first"], each["second"]) for each in same["differences"]] == [("holds", "kl")]
    sizes = written["against_size"]
    assert sizes["sizes"] == {"holds": 1e9, "kl": 2e9}
    assert sizes["law_does_not_apply_to"] == ["kl"]
    assert sizes["a"]["slope"] == contents.sizes.trend.a.slope
    assert sizes["a"]["sd"] is None  # two sizes make the line, nothing is left to say how far off it is
    assert sizes["extrapolation"]["ceiling"]["low"] is None


def test_theory_and_covariance(contents):
    holds, _, bare = json.loads(export_text(contents), parse_constant=refuse)["runs"]
    check = contents.runs[0].theory[0].check
    assert holds["theory"][0]["pairs"] == check.pairs == 99
    assert holds["theory"][0]["correlation"]["estimate"] == check.correlation.estimate
    assert holds["theory"][0]["positive_cov_frac"] == 1.0
    assert bare["theory"][1] == {"theorem": 2, "reason": contents.runs[2].theory[1].reason}
    assert holds["covariance_bands"][0]["first_step"] == 1
    # columns 2^0 ... 2^-5, the same in every step
    assert list(holds["covariance_bands"][0]["means"].values()) == [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]
    accuracy = holds["covariance_by_accuracy"]
    assert accuracy["means"]["high"]["estimate"] == pytest.approx(0.08, abs=1e-3)
    assert holds["weighted_covariance_by_accuracy"] is None
    assert holds["group_correlation"]["estimate"] == pytest.approx(1.0)
    assert accuracy["means"]["mid"]["estimate"] is None
    assert bare["covariance_by_accuracy"] is None
