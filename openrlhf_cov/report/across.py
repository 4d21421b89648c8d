"""What a report says about several runs together."""

from collections.abc import Sequence

import numpy as np

from openrlhf_cov.analysis.across import SizeTrend, against_size, same_coefficients
from openrlhf_cov.report.contents import (
    Extrapolation,
    Options,
    RunReport,
    SameSection,
    Setting,
    SizeSection,
)

PLACES = frozenset(
    {
        "--address",
        "--runtime-env-json",
        "--ckpt.output_dir",
        "--ckpt.path",
        "--logger.tensorboard_dir",
        "--logger.wandb.run_name",
        "--logger.wandb.key",
    }
)
"""Flags that say where a run is and what it is called, not what it does."""
NO_LAW = "the law applies to none of them"
GRID = 33
"""Sizes at which a trend is drawn."""


def setting_differences(runs: Sequence[RunReport]) -> tuple[Setting, ...]:
    """Flags that two runs whose flags are known have set differently, by name."""
    known = [run for run in runs if run.settings]
    flags = sorted({flag for run in known for flag in run.settings} - PLACES)
    return tuple(
        Setting(flag, tuple(run.settings.get(flag) for run in runs))
        for flag in flags
        if len({run.settings.get(flag) for run in known}) > 1
    )


def same_section(runs: Sequence[RunReport]) -> SameSection | None:
    """The test of equal coefficients over all runs with a fit, if the law applies to one; None for a single run."""
    if len(runs) < 2:
        return None
    fitted = [run for run in runs if run.law.result.fit]
    names = tuple(run.name for run in fitted)
    unfit = _unfit(fitted)
    if fitted and len(unfit) == len(fitted):
        return SameSection(names, unfit, None, NO_LAW)
    try:
        result = same_coefficients([run.law.result.fit for run in fitted])
    except ValueError as error:
        return SameSection(names, unfit, None, str(error))
    return SameSection(names, unfit, result, "")


def size_section(runs: Sequence[RunReport], options: Options) -> SizeSection | None:
    """a, b and the ceiling against size, over the runs with a size and a fit; None where no size is given."""
    if not options.sizes:
        return None
    used = [run for run in runs if run.name in options.sizes and run.law.result.fit]
    names, sizes = tuple(run.name for run in used), tuple(options.sizes[run.name] for run in used)
    if used and len(_unfit(used)) == len(used):
        return SizeSection(names, _unfit(used), sizes, None, NO_LAW, (), None)
    try:
        trend = against_size(sizes, [run.law.result.fit for run in used])
    except ValueError as error:
        return SizeSection(names, _unfit(used), sizes, None, str(error), (), None)
    wanted = options.extrapolate_to
    ends = [*sizes, *([wanted] if wanted else [])]
    grid = np.geomspace(min(ends), max(ends), GRID).tolist()
    return SizeSection(
        names=names,
        unfit=_unfit(used),
        sizes=sizes,
        trend=trend,
        reason="",
        grid=tuple(_at(trend, size, options.level) for size in grid),
        extrapolation=_at(trend, wanted, options.level) if wanted else None,
    )


def _unfit(runs: Sequence[RunReport]) -> tuple[str, ...]:
    """Names of those to which the law does not apply."""
    return tuple(run.name for run in runs if not run.law.result.verdict.applies)


def _at(trend: SizeTrend, size: float, level: float) -> Extrapolation:
    return Extrapolation(size, *(getattr(trend, name).at(size, level=level) for name in ("a", "b", "ceiling")))
