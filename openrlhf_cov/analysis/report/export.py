"""The numbers of a report as strict JSON, for scripts; docs/report.md describes the fields (pure)."""

import json
import math
from dataclasses import asdict
from typing import Any

from openrlhf_cov.analysis.report.contents import Contents, RunReport, SameSection, SizeSection, TheorySection
from openrlhf_cov.analysis.report.curves import ACCURACY_CURVES
from openrlhf_cov.utils.estimates import LEVEL

# Schema version: increase it when a field is removed or changes its meaning.
SCHEMA = 1
# In the order of ``ACCURACY_CURVES``.
ACCURACY_FIELDS = ("weighted_covariance_by_accuracy", "covariance_by_accuracy", "token_covariance_by_accuracy")


def export_text(contents: Contents) -> str:
    """Return the record as JSON that any parser reads: NaN and infinities are null."""
    return json.dumps(_finite(record(contents)), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def record(contents: Contents) -> dict[str, Any]:
    """Return the numbers of a report, without what is for drawing alone."""
    options = contents.options
    return {
        "schema": SCHEMA,
        "options": {
            "metric": options.metric,
            "entropy": options.entropy,
            "method": options.method,
            "forecast_share": options.forecast_share,
            "highest_reward": options.highest_reward,
            "level": LEVEL,
        },
        "runs": [_run(run) for run in contents.runs],
        "settings_that_differ": {
            setting.flag: dict(zip([run.name for run in contents.runs], setting.values, strict=True))
            for setting in contents.settings
        },
        "same_coefficients": _same(contents.same) if contents.same else None,
        "against_size": _sizes(contents.sizes) if contents.sizes else None,
        "notes": list(contents.notes),
    }


def _run(run: RunReport) -> dict[str, Any]:
    return {
        "name": run.name,
        "path": str(run.path),
        "steps": run.step_count,
        "last_step": run.last_step,
        "seconds": run.seconds,
        "entropy": asdict(run.entropy),
        "reward": asdict(run.reward),
        "law": _law(run),
        "theory": [_theory(section) for section in run.theory],
        "covariance_bands": [asdict(stage) for stage in run.stage_bands],
        "group_correlation": asdict(run.group_correlation) if run.group_correlation else None,
        **{
            name: asdict(run.accuracy[title]) if title in run.accuracy else None
            for name, title in zip(ACCURACY_FIELDS, ACCURACY_CURVES, strict=True)
        },
        "settings": dict(run.settings),
        "warnings": list(run.warnings),
    }


def _law(run: RunReport) -> dict[str, Any]:
    law = run.law
    forecast = None
    if law.forecast:
        names = ("rmse", "final_error", "in_band_frac", "persistence_rmse")
        forecast = {"fit": law.forecast.fit.record(), **{name: getattr(law.forecast, name) for name in names}}
    return {
        **law.result.record(),
        "slope": {"entropy": run.entropy.last, **asdict(run.slope)} if run.slope else None,
        "points": law.point_count,
        "early": asdict(law.early),
        "forecast": forecast,
        "no_forecast": law.no_forecast or None,
    }


def _theory(section: TheorySection) -> dict[str, Any]:
    if section.check is None:
        return {"theorem": section.theorem, "reason": section.reason}
    names = ("pairs", "chance_agreement", "positive_cov_frac")
    intervals = {name: asdict(getattr(section.check, name)) for name in ("correlation", "sign_agreement")}
    return {"theorem": section.theorem} | {name: getattr(section.check, name) for name in names} | intervals


def _same(same: SameSection) -> dict[str, Any]:
    head = {"runs": list(same.names), "law_does_not_apply_to": list(same.unfit)}
    if same.result is None:
        return head | {"reason": same.reason}
    differences = [
        asdict(each) | {"first": same.names[each.first], "second": same.names[each.second]}
        for each in same.result.differences
    ]
    names = ("p_value", "statistic", "a", "b")
    return head | {name: getattr(same.result, name) for name in names} | {"differences": differences}


def _sizes(sizes: SizeSection) -> dict[str, Any]:
    head = {"sizes": dict(zip(sizes.names, sizes.sizes, strict=True)), "law_does_not_apply_to": list(sizes.unfit)}
    if sizes.trend is None:
        return head | {"reason": sizes.reason}
    lines = {
        name: {part: getattr(getattr(sizes.trend, name), part) for part in ("intercept", "slope", "sd")}
        for name in ("a", "b", "ceiling")
    }
    return head | lines | {"extrapolation": asdict(sizes.extrapolation) if sizes.extrapolation else None}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
