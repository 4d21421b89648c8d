"""The questions that a study answers, with intervals from its runs; "no" and "not enough data" are answers (pure)."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_cov.analysis.law import LawFit, LawPoints, fit_law, forecast
from openrlhf_cov.analysis.theory import check_theorem
from openrlhf_cov.study.estimates import difference_of_means, mean_over_seeds
from openrlhf_cov.study.plan import chosen
from openrlhf_cov.study.results import Result, score_of
from openrlhf_cov.study.rows import NUMBERS, PASS_AT, ArmRow, main_rows, paired, report_runs
from openrlhf_cov.study.spec import Spec
from openrlhf_cov.utils.estimates import Interval

COLLAPSED_BELOW = 0.1
"""Share of its first entropy of the first token below which a run has collapsed."""
SHOWN = 0.005
"""Difference of two arms that a table of two digits shows; one question that all seeds have right is none."""
FORECAST_FROM = 0.15
RESAMPLES = 400
"""Of a run's fit, whose own interval is not used: what counts here is the spread over seeds."""
LEARNING_RATE = "--actor.adam.lr"
RANDOM_REWARD = "--random_reward"
"""Of arms that cannot learn: what ends low there has neither collapsed nor diverged."""
NOT_ENOUGH = "Not enough data"

AGREEING = ("accuracy", "pass@8", "reward", "entropy", "deciding entropy", "length")
"""Numbers that the trainer and the laboratory both have."""

Runs = Mapping[str, dict[int, Result]]
"""The finished runs of each arm's point with fresh seeds, by seed."""


@dataclass(frozen=True)
class Answer:
    """A question, what the runs say in a sentence or some, and the numbers behind it as rows of a table."""

    question: str
    text: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def answers(spec: Spec, results: Sequence[Result]) -> list[Answer]:
    """All of them, in the order in which they are asked."""
    runs = finished_runs(spec, results)
    rows = main_rows(spec, results)
    return [
        cost_of_collapse(spec, results),
        who_ends_higher(rows),
        scope(spec, runs),
        law(spec, runs),
        theory(runs),
        learning_rates(spec, results),
        cost(rows),
    ]


def finished_runs(spec: Spec, results: Sequence[Result]) -> Runs:
    """The runs that are reported."""
    scores = {each.run: score_of(each) for each in results}
    return {arm.name: report_runs(arm, chosen(spec, arm, scores), results) for arm in spec.arms}


def cost_of_collapse(spec: Spec, results: Sequence[Result]) -> Answer:
    """Runs that lost their entropy early against those that did not, tuning included, at equal learning rates."""
    question = "Does collapse cost accuracy or pass@k?"
    words = words_of(spec)
    results = [each for each in results if each.run.arm in words and has_collapsed(each) is not None]
    by_rate: dict[float, tuple[list[Result], list[Result]]] = {}
    for each in results:
        lost, kept = by_rate.setdefault(rate_of((*words[each.run.arm], *each.run.cell)), ([], []))
        (lost if has_collapsed(each) else kept).append(each)
    counts = (
        f"In {sum(len(lost) for lost, _ in by_rate.values())} of {len(results)} runs, tuning included, the entropy of "
        f"the first token was below {COLLAPSED_BELOW:.0%} of its beginning by the middle of the run"
    )
    rows, said = [], []
    for rate, groups in sorted(by_rate.items()):
        if min(map(len, groups)) < 2:
            continue
        place = f"{rate:g}" if math.isfinite(rate) else "the default"
        for name in ("accuracy", f"pass@{PASS_AT[-1]}"):
            found = [[NUMBERS[name](each) for each in group] for group in groups]
            apart = difference_of_means(found[0], found[1])
            means = (f"{shown(mean_over_seeds(group))} of {len(group)}" for group in found)
            rows.append((place, name, *means, shown(apart, signed=True)))
            said.append(f"at {place} {name} {verdict(apart, 'is lower', 'is higher')}")
    if not rows:
        return Answer(question, f"{NOT_ENOUGH}: {counts.lower()}; a comparison needs two of either kind at one rate.")
    arms = Counter(each.run.arm for lost, _ in by_rate.values() for each in lost)
    of_arms = ", ".join(f"{arm} {count}" for arm, count in arms.items())
    said_of = f"Against the others {', '.join(said)}"
    text = f"{counts} ({of_arms}). {said_of}. This compares runs, it is no experiment on collapse."
    return Answer(question, text, ("learning rate", "", "collapsed", "others", "difference"), tuple(rows))


def has_collapsed(result: Result) -> bool | None:
    """True if an evaluation in the first half of the run finds the entropy of the first token of a response, on the
    frozen prompts, below ``COLLAPSED_BELOW`` of where it began; None without an evaluation between its ends. Later a
    policy that has learned the task is sure, too.
    """
    steps, entropy = result.evaluations.steps, result.evaluations.column("entropy/position_0")
    early = entropy[steps <= steps[-1] / 2]
    if len(early) < 2 or not np.isfinite(early).all():
        return None
    return bool(early.min() < COLLAPSED_BELOW * early[0])


def who_ends_higher(rows: Sequence[ArmRow]) -> Answer:
    """Which arms differ from the first on the same seeds: entropy over the run, accuracy and pass@k at its end."""
    question = "Which methods keep entropy, and do they end higher at equal tuning?"
    names = ("deciding entropy", "accuracy", f"pass@{PASS_AT[-1]}")
    others = [row for row in rows[1:] if row.pairs >= 2]
    if not others:
        return Answer(question, f"{NOT_ENOUGH}: no arm shares two finished seeds with {rows[0].arm}.")
    said = []
    for name, words in zip(
        names, ("more entropy of the first token", "higher accuracy", f"higher {names[2]}"), strict=True
    ):
        seen = [(row.arm, row.differences[name]) for row in others if differs(row.differences[name])]
        above = [arm for arm, apart in seen if apart.estimate > 0]
        below = [arm for arm, apart in seen if apart.estimate < 0]
        said.append(f"{words} than {rows[0].arm}: {listed(above)}; less: {listed(below)}")
    text = ". ".join(each[0].upper() + each[1:] for each in said) + ". All others: no difference that the seeds show."
    return Answer(question, f"{text} Intervals stand against the baseline, above.")


def scope(spec: Spec, runs: Runs) -> Answer:
    """Arms that differ from the one whose point they take in nothing but their flags."""
    question = "Does exact global selection differ from selection by micro-batch? And other changes of one arm?"
    rows, said = [], []
    for arm in (each for each in spec.arms if each.at is not None):
        first, second = runs[arm.name], runs[arm.at or ""]
        found = {name: paired(NUMBERS[name], first, second) for name in ("deciding entropy", "accuracy", "pass@8")}
        if not math.isfinite(found["accuracy"].low):
            continue
        pairs = len(set(first) & set(second))
        rows.append((arm.name, arm.at or "", str(pairs), *(shown(each, signed=True) for each in found.values())))
        said.append(f"{arm.name} against {arm.at}: accuracy {verdict(found['accuracy'], 'lower', 'higher')}")
    if not rows:
        return Answer(question, f"{NOT_ENOUGH}: no such pair of arms has two finished seeds.")
    head = ("arm", "against", "seeds", "deciding entropy", "accuracy", "pass@8")
    return Answer(question, "; ".join(said) + ".", head, tuple(rows))


def law(spec: Spec, runs: Runs) -> Answer:
    """R = -a exp(H) + b of each run, how far its first part forecasts the rest, and whose line its points lie on."""
    question = "Does R = −a·exp(H) + b hold, with which forecast error, and do methods move the line or the point?"
    base = {seed: fitted(each) for seed, each in runs[spec.arms[0].name].items()}
    base = {seed: fit for seed, fit in base.items() if fit}
    if len(base) < 2:
        return Answer(question, f"{NOT_ENOUGH}: fewer than two finished runs of {spec.arms[0].name}.")
    rows, moved, along = [], [], []
    for arm in spec.arms:
        fits = [fit for each in runs[arm.name].values() if (fit := fitted(each))]
        if len(fits) < 2:
            continue
        errors = [ahead for each in runs[arm.name].values() if (ahead := forecast_errors(each))]
        shift = mean_over_seeds([off_line(each, base[s]) for s, each in runs[arm.name].items() if s in base])
        entropy = paired(NUMBERS["entropy"], runs[arm.name], runs[spec.arms[0].name])
        r2 = mean_over_seeds([fit.r2 for fit in fits])
        ends = [mean_over_seeds([pair[place] for pair in errors]) for place in (0, 1)]
        is_first = arm is spec.arms[0]
        rows.append(
            (arm.name, str(len(fits)), shown(r2), *(map(shown, ends)), "" if is_first else shown(shift, signed=True))
        )
        if not is_first and differs(shift):
            moved.append(arm.name)
        elif not is_first and differs(entropy):
            along.append(arm.name)
    r2 = mean_over_seeds([fit.r2 for fit in base.values()])
    slope = mean_over_seeds([fit.a.estimate for fit in base.values()])
    holds = "reward rises as entropy is spent" if slope.low > 0 else "reward does not rise as entropy is spent"
    text = (
        f"On {spec.arms[0].name} a is {shown(slope)} ({holds}) and the law describes {r2.estimate:.0%} of the "
        f"variance of the reward. Off its line, at equal entropy: {listed(moved)}; elsewhere on it: {listed(along)}."
    )
    head = (
        "arm",
        "runs",
        "R²",
        f"forecast error from {FORECAST_FROM:.0%}",
        "of repeating the last reward",
        "off the line",
    )
    return Answer(question, text, head, tuple(rows))


def points(result: Result) -> LawPoints:
    """Entropy and reward of the training batches."""
    table = result.metrics
    return LawPoints.of(table.steps, table.column("entropy/mean"), table.column("reward"))


def fitted(result: Result) -> LawFit | None:
    """The law of a run; None where it has too few points or an entropy that does not vary."""
    try:
        return fit_law(points(result), resamples=RESAMPLES)
    except ValueError:
        return None


def forecast_errors(result: Result) -> tuple[float, float] | None:
    """Errors (root mean square) of the forecast and of repeating the last reward; None with too few points."""
    try:
        ahead = forecast(points(result), FORECAST_FROM, resamples=RESAMPLES)
    except ValueError:
        return None
    return ahead.rmse, ahead.persistence_rmse


def off_line(result: Result, line: LawFit) -> float:
    """Mean distance of a run's rewards from another run's line at their entropies."""
    found = points(result)
    return float((found.reward - line.reward_at(found.entropy)).mean())


def theory(runs: Runs) -> Answer:
    """Spearman's correlation of predicted and measured change of entropy, step by step."""
    question = "Does −ΔH follow the covariance (theorems 1 and 2)?"
    rows, follows, against = [], [], []
    for name, of_arm in runs.items():
        found = [
            mean_over_seeds(
                [
                    check_theorem(each.metrics, number, resamples=RESAMPLES).correlation.estimate
                    for each in of_arm.values()
                ]
            )
            for number in (1, 2)
        ]
        if not math.isfinite(found[0].low):
            continue
        rows.append((name, str(len(of_arm)), *map(shown, found)))
        for number, each in enumerate(found, 1):
            (follows if each.low > 0 else against if each.high < 0 else []).append(f"{name} (theorem {number})")
    if not rows:
        return Answer(question, f"{NOT_ENOUGH}: no arm has two finished seeds.")
    text = (
        f"Step by step it does, with an interval above 0: {listed(follows)}; the other way: {listed(against)}. "
        "Single steps count, in which other prompts are most of the change."
    )
    return Answer(question, text, ("arm", "runs", "correlation, theorem 1", "correlation, theorem 2"), tuple(rows))


def learning_rates(spec: Spec, results: Sequence[Result]) -> Answer:
    """Validation accuracy at the end of every run, tuning included, by arm and learning rate."""
    question = "At which learning rate does each method diverge?"
    words = words_of(spec)
    starts = [each.evaluations.column("greedy")[0] for each in results if each.evaluations.steps[0] == 0]
    ends: dict[str, dict[float, list[float]]] = {name: {} for name in words}
    for each in (result for result in results if result.run.arm in words):
        rate = rate_of((*words[each.run.arm], *each.run.cell))
        if math.isfinite(rate):
            ends[each.run.arm].setdefault(rate, []).append(score_of(each).last)
    ends = {arm: by_rate for arm, by_rate in ends.items() if by_rate}
    rates = sorted({rate for by_rate in ends.values() for rate in by_rate})
    if not rates or not starts:
        return Answer(question, f"{NOT_ENOUGH}: no finished run names its rate and has evaluated its base policy.")
    start = float(np.mean(starts))
    rows, worst, apart = [], [], []
    first, of_first = next(iter(ends.items()))
    for arm, by_rate in ends.items():
        shares = []
        for rate in rates:
            of_arm = by_rate.get(rate, [])
            failed = sum(end < start - 0.02 for end in of_arm)
            shares.append(f"{np.mean(of_arm):.2f} ({failed} of {len(of_arm)})" if of_arm else "")
            if failed:
                worst.append(f"{arm} at {rate:g} ({failed} of {len(of_arm)})")
            difference = difference_of_means(of_arm, of_first.get(rate, []))
            if differs(difference):
                apart.append(f"{arm} at {rate:g} ({shown(difference, signed=True)})")
        rows.append((arm, *shares))
    text = (
        f"A run that ends below the {start:.2f} of its base policy has diverged; in brackets how many. "
        f"That happened: {listed(worst)}. Other than {first} at the same rate, tuning included: {listed(apart)}; "
        "other cells on the same seeds are counted as runs of their own, which makes intervals narrow."
    )
    return Answer(question, text, ("arm", *(f"{rate:g}" for rate in rates)), tuple(rows))


def words_of(spec: Spec) -> dict[str, tuple[str, ...]]:
    """The flags of each arm but the controls with a random reward."""
    return {arm.name: (*spec.words, *arm.words) for arm in spec.arms if RANDOM_REWARD not in arm.words}


def rate_of(words: Sequence[str]) -> float:
    """The learning rate in the words of a command line, the last one; NaN without."""
    rates = [value for flag, value in itertools.pairwise(words) if flag == LEARNING_RATE]
    return float(rates[-1]) if rates else math.nan


def cost(rows: Sequence[ArmRow]) -> Answer:
    """Seconds of a step; in the laboratory of the CPU, which others on the machine disturb less than a clock."""
    question = "What does each method cost?"
    known = [row for row in rows if row.seeds]
    if not known:
        return Answer(question, f"{NOT_ENOUGH}: no run is finished.")
    table = [
        (row.arm, str(len(row.seeds)), shown(row.numbers["seconds"], 3), shown(row.differences["seconds"], 3, True))
        for row in known
    ]
    dear = [row.arm for row in known[1:] if row.differences["seconds"].low > 0]
    text = f"More time for a step than {rows[0].arm}: {listed(dear)}."
    return Answer(question, text, ("arm", "runs", "seconds of a step", "difference"), tuple(table))


def agreement(ours: Runs, others: Runs) -> Answer:
    """The runs of two studies whose arms have the same names: those of the whole trainer and of the laboratory."""
    question = "Do the trainer and the laboratory agree?"
    rows, differing, compared = [], [], 0
    for arm, runs in ours.items():
        for name in AGREEING:
            first, second = ([NUMBERS[name](each) for each in of.values()] for of in (runs, others.get(arm, {})))
            apart = difference_of_means(first, second)
            if not math.isfinite(apart.low):
                continue
            compared += 1
            means = (f"{shown(mean_over_seeds(group))} of {len(group)}" for group in (first, second))
            rows.append((arm, name, *means, shown(apart, signed=True)))
            if differs(apart):
                differing.append(f"{arm}: {name}")
    if not rows:
        return Answer(question, f"{NOT_ENOUGH}: no arm has two finished seeds in both.")
    text = f"Of {compared} differences these have an interval without 0: {listed(differing)}."
    return Answer(question, text, ("arm", "", "trainer", "laboratory", "difference"), tuple(rows))


def differs(apart: Interval) -> bool:
    """True of a difference whose interval is without 0, and large enough to be seen in a table."""
    return apart.low * apart.high > 0 and abs(apart.estimate) >= SHOWN


def verdict(apart: Interval, below: str, above: str) -> str:
    """In words what an interval of a difference says."""
    if not math.isfinite(apart.low):
        return "cannot be told"
    word = (above if apart.estimate > 0 else below) if differs(apart) else "shows no difference"
    return f"{word} ({shown(apart, signed=True)})"


def shown(value: Interval, digits: int = 2, signed: bool = False) -> str:
    """0.80 [0.71, 0.89]; without an interval the estimate alone, "-" without an estimate."""
    sign = "+" if signed else ""
    if not math.isfinite(value.estimate):
        return "-"
    if not math.isfinite(value.low):
        return f"{value.estimate:{sign}.{digits}f}"
    return f"{value.estimate:{sign}.{digits}f} [{value.low:{sign}.{digits}f}, {value.high:{sign}.{digits}f}]"


def listed(names: Sequence[str]) -> str:
    """Names with commas, or none."""
    return ", ".join(names) or "none"
