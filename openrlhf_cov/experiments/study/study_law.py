"""R = -a exp(H) + b and the theorems of the paper (arXiv 2505.22617) on the runs of a study (pure)."""

import math

from openrlhf_cov.analysis.law import LawFit, LawPoints, fit_law, forecast
from openrlhf_cov.analysis.theory import check_theorem
from openrlhf_cov.experiments.study.answer import NOT_ENOUGH, Answer, Runs, differs, listed, shown
from openrlhf_cov.experiments.study.run_results import Result
from openrlhf_cov.experiments.study.seed_estimates import CORRELATION, SHARE, mean_difference, mean_over_seeds
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.experiments.study.table_rows import NUMBERS, paired

# The paper forecasts from the first 15 % of a run, too (its Figure 5).
FORECAST_FROM = 0.15
# Bootstrap resamples of one run's fit. Few suffice, because intervals here are over seeds.
RESAMPLES = 400


def law(spec: Spec, runs: Runs) -> Answer:
    """Fit R = -a exp(H) + b to each run, forecast its end from its start, and compare it with the baseline's line.

    Args:
        spec: The study, whose first method is the baseline.
        runs: Finished runs of its methods. A seed is compared with the baseline's run of the same seed.
    """
    question = "Does R = −a·exp(H) + b hold, and how well does it forecast?"
    # By seed: a run is compared with the line of the baseline's run that saw the same prompts.
    base = {seed: fitted(each) for seed, each in runs[spec.methods[0].name].items()}
    base = {seed: fit for seed, fit in base.items() if fit}
    if len(base) < 2:
        return Answer(question, f"{NOT_ENOUGH}: fewer than two finished runs of {spec.methods[0].name}.")
    rows = []
    moved = []
    along = []
    for method in spec.methods:
        fits = [fit for each in runs[method.name].values() if (fit := fitted(each))]
        if len(fits) < 2:
            continue
        errors = [ahead for each in runs[method.name].values() if (ahead := forecast_errors(each))]
        shift = mean_difference([off_line(each, base[s]) for s, each in runs[method.name].items() if s in base])
        entropy = paired(NUMBERS["entropy"], runs[method.name], runs[spec.methods[0].name])
        r2 = mean_over_seeds([fit.r2 for fit in fits], SHARE)
        ends = [mean_over_seeds([pair[place] for pair in errors]) for place in (0, 1)]
        is_first = method is spec.methods[0]
        rows.append(
            (
                method.name,
                str(len(fits)),
                shown(r2),
                *(map(shown, ends)),
                "" if is_first else shown(shift, signed=True),
            )
        )
        if not is_first and differs(shift):
            moved.append(method.name)
        elif not is_first and differs(entropy):
            along.append(method.name)
    r2 = mean_over_seeds([fit.r2 for fit in base.values()])
    slope = mean_over_seeds([fit.a.estimate for fit in base.values()])
    if slope.low > 0:
        holds = "reward rises as entropy is spent"
    elif slope.high < 0:
        holds = "reward falls as entropy is spent"
    else:
        holds = "the interval does not show whether reward rises or falls as entropy is spent"
    text = (
        f"For {spec.methods[0].name}, a is {shown(slope)} ({holds}), and the law explains {r2.estimate:.0%} of the "
        f"variance of the reward. Methods whose reward differs from this line at equal entropy: {listed(moved)}. "
        f"Methods on the line with another entropy: {listed(along)}. The forecast uses the first {FORECAST_FROM:.0%} "
        "of a run; the last column but one is the error of repeating the last reward seen."
    )
    head = (
        "method",
        "runs",
        "R²",
        "forecast RMSE",
        "RMSE of repeating the reward",
        "distance from the line",
    )
    return Answer(question, text, head, tuple(rows))


def points(result: Result) -> LawPoints:
    """Return entropy and reward of the training batches."""
    table = result.metrics
    return LawPoints.of(table.steps, table.column("entropy/mean"), table.column("reward"))


def fitted(result: Result) -> LawFit | None:
    """Return the law of a run; None where it has too few points or an entropy that does not vary."""
    try:
        return fit_law(points(result), resamples=RESAMPLES)
    except ValueError:
        return None


def forecast_errors(result: Result) -> tuple[float, float] | None:
    """Return the errors (RMSE) of the forecast and of repeating the last reward; None with too few points."""
    try:
        ahead = forecast(points(result), FORECAST_FROM, resamples=RESAMPLES)
    except ValueError:
        return None
    return ahead.rmse, ahead.persistence_rmse


def off_line(result: Result, line: LawFit) -> float:
    """Return the mean of a run's rewards minus those of another run's line at equal entropies.

    Args:
        result: The run, whose training batches are compared.
        line: The law that was fitted to the other run.
    """
    found = points(result)
    return float((found.reward - line.reward_at(found.entropy)).mean())


def theory(runs: Runs) -> Answer:
    """Return Spearman's correlation of predicted and measured entropy change over the steps."""
    question = "Does −ΔH follow the covariance (Theorems 1 and 2)?"
    rows = []
    positive = [0, 0]
    negative: list[str] = []
    for name, of_method in runs.items():
        found = [
            mean_over_seeds(
                [
                    check_theorem(each.metrics, number, resamples=RESAMPLES).correlation.estimate
                    for each in of_method.values()
                ],
                CORRELATION,
            )
            for number in (1, 2)
        ]
        if not math.isfinite(found[0].low):
            continue
        rows.append((name, str(len(of_method)), *map(shown, found)))
        for place, correlation in enumerate(found):
            positive[place] += correlation.low > 0
            if correlation.high < 0:
                negative.append(f"{name} (Theorem {place + 1})")
    if not rows:
        return Answer(question, f"{NOT_ENOUGH}: no method has two finished seeds.")
    text = (
        f"The rank correlation over single steps is positive (interval above 0) for {positive[0]} of {len(rows)} "
        f"methods by Theorem 1 and for {positive[1]} by Theorem 2. Negative: {listed(negative)}. Correlations over "
        "single steps are low because the prompts of a step differ from those of the next."
    )
    return Answer(question, text, ("method", "runs", "correlation, Theorem 1", "correlation, Theorem 2"), tuple(rows))
