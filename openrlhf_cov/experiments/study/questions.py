"""Answer the questions of a study with intervals from its runs; "not enough data" is an answer, too (pure)."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from openrlhf_cov.experiments.study.answer import (
    AGAINST,
    NOT_ENOUGH,
    Answer,
    Runs,
    differs,
    finished_runs,
    lacks_interval,
    listed,
    rule,
    shown,
    verdict,
)
from openrlhf_cov.experiments.study.run_results import DIGITS, Floats, Result, score_of
from openrlhf_cov.experiments.study.seed_estimates import FEWEST, PERCENT, difference_of_means, mean_over_seeds
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.experiments.study.study_law import law, theory
from openrlhf_cov.experiments.study.table_rows import NUMBERS, PASS_AT, MethodRow, mean_number, paired
from openrlhf_cov.utils.command import flags_of, setting

# Share of its first entropy of the first token below which a run has collapsed.
COLLAPSED_BELOW = 0.1
MIDDLE = 0.5
# Fractions of training used as collapse cut-offs. Conclusions use the second; the first shows how sensitive they are.
PARTS = (0.25, MIDDLE)
HEAD_OF_COLLAPSE = ("learning rate", "collapsed by step", "measure", "collapsed", "not collapsed", "difference")
# Accuracy by which a run that has diverged ends below its base policy.
DIVERGED_BELOW = 0.02
# Nats by which targets may differ by rounding.
TARGETS_AGREE = 1e-3
LEARNING_RATE = "--actor.adam.lr"
# Methods with a random reward cannot learn; a low end is neither a collapse nor a divergence there.
RANDOM_REWARD = "--random_reward"
# Numbers that the trainer and the lab both have.
AGREEING = ("accuracy", "pass@8", "reward", "entropy", "mean first-token entropy", "length")


def answers(spec: Spec, results: Sequence[Result], rows: Sequence[MethodRow]) -> list[Answer]:
    """Return the answers to all questions that the spec raises, in the order of the page.

    Args:
        spec: The study, without a sweep.
        results: Its finished runs, from none to all. A question with too few runs is answered by ``NOT_ENOUGH``.
        rows: The rows of the main table, ``main_rows(spec, results)``.
    """
    runs = finished_runs(spec, results)
    found = [
        cost_of_collapse(spec, results),
        who_ends_higher(rows),
        scope(spec, runs),
        held_target(runs),
        law(spec, runs),
        theory(runs),
        learning_rates(spec, results),
        cost(rows),
    ]
    return [each for each in found if each is not None]


def cost_of_collapse(spec: Spec, results: Sequence[Result]) -> Answer:
    """Compare runs that collapsed early with those that did not, at equal learning rates.

    Args:
        spec: The study. Methods with a random reward are left out.
        results: Its finished runs; those of tuning count, too.
    """
    question = "Does collapse cost accuracy or pass@k?"
    words = words_of(spec)
    of_methods = [each for each in results if each.run.method in words]
    by_rate: dict[float, list[Result]] = {}
    for each in of_methods:
        if has_collapsed(each) is not None:
            rate = rate_of((*words[each.run.method], *each.run.configuration))
            by_rate.setdefault(rate, []).append(each)
    told = [each for group in by_rate.values() for each in group]
    lost = [each for each in told if has_collapsed(each)]
    counts = (
        f"In {len(lost)} of {len(told)} runs, tuning included, the first-token entropy fell below "
        f"{COLLAPSED_BELOW:.0%} of its initial value in the first half of the run"
    )
    rows = []
    said = []
    for (rate, group), by in itertools.product(sorted(by_rate.items()), PARTS):
        place = f"{rate:g}" if math.isfinite(rate) else "the default"
        groups = [[each for each in group if has_collapsed(each, by) is kind] for kind in (True, False)]
        if not groups[0]:
            continue
        steps = "/".join(sorted({f"{each.evaluations.steps[-1] * by:g}" for each in group}))
        for name in ("accuracy", f"pass@{PASS_AT[-1]}"):
            found = [[NUMBERS[name](each) for each in kind] for kind in groups]
            apart = difference_of_means(found[0], found[1])
            means = (f"{shown(mean_number(name, kind))} of {len(kind)}" for kind in groups)
            rows.append((place, steps, name, *means, shown(apart, signed=True)))
            if by == MIDDLE and math.isfinite(apart.estimate):
                said.append(f"at learning rate {place}, {name} {verdict(apart, 'is lower', 'is higher')}")
    if not said:
        text = f"{NOT_ENOUGH}: {counts[0].lower()}{counts[1:]}. A comparison needs two runs of each kind at one rate."
        return Answer(question, text, HEAD_OF_COLLAPSE if rows else (), tuple(rows))
    methods = Counter(each.run.method for each in lost)
    whose = ", ".join(f"{method} {count}" for method, count in methods.items())
    text = (
        f"{counts} ({whose}). Compared with the other runs, {', '.join(said)}. "
        "This is a comparison of runs, not an experiment on collapse. Runs that share a seed count separately."
    )
    return Answer(question, text, HEAD_OF_COLLAPSE, tuple(rows))


def has_collapsed(result: Result, by: float = MIDDLE) -> bool | None:
    """Return True if an evaluation in the first part of a run finds a collapse.

    A collapse is an entropy of the first token of a response, on the frozen prompts, below ``COLLAPSED_BELOW`` of its
    value at the first evaluation. Late in a run a policy that has learned the task has a low entropy, too.

    Args:
        result: The run.
        by: End of the first part, as a share of the steps.

    Returns:
        True or False; None if that part has fewer than two evaluations, or one without this entropy.
    """
    steps = result.evaluations.steps
    entropy = result.evaluations.column("entropy/position_0")
    early = entropy[steps <= steps[-1] * by]
    # A fall needs a beginning and one later evaluation.
    if len(early) < 2 or not np.isfinite(early).all():
        return None
    return bool(early.min() < COLLAPSED_BELOW * early[0])


def who_ends_higher(rows: Sequence[MethodRow]) -> Answer:
    """Say which methods differ from the first on the same seeds: mean entropy, final accuracy and final pass@k."""
    question = "Which methods keep entropy, and do they end higher at equal tuning?"
    names = ("mean first-token entropy", "accuracy", f"pass@{PASS_AT[-1]}")
    others = [row for row in rows[1:] if row.pairs >= 2]
    if not others:
        return Answer(question, f"{NOT_ENOUGH}: no method shares two finished seeds with {rows[0].method}.")
    said = []
    for name, words in zip(names, ("first-token entropy", "accuracy", names[2]), strict=True):
        seen = [(row.method, row.differences[name]) for row in others if differs(row.differences[name])]
        above = [method for method, apart in seen if apart.estimate > 0]
        below = [method for method, apart in seen if apart.estimate < 0]
        said.append(f"Higher {words} than {rows[0].method}: {listed(above)}. Lower: {listed(below)}.")
        equal = [row.method for row in others if lacks_interval(row.differences[name])]
        if equal:
            said.append(f"The same difference in every seed, so without an interval: {listed(equal)}.")
    text = " ".join(said)
    counts = f"A difference counts if {rule()}; no other one does."
    return Answer(question, f'{text} {counts} The intervals are in "{AGAINST}".')


def scope(spec: Spec, runs: Runs) -> Answer | None:
    """Compare methods with the method whose configuration they take.

    Args:
        spec: The study.
        runs: Finished runs of its methods. Differences are paired by seed.

    Returns:
        The answer; None for a study in which no method has ``at``.
    """
    if all(each.at is None for each in spec.methods):
        return None
    question = "What does a change of one setting do, such as selection per micro-batch?"
    rows = []
    said = []
    for method in spec.methods:
        if method.at is None:
            continue
        first = runs[method.name]
        second = runs[method.at]
        found = {
            name: paired(NUMBERS[name], first, second) for name in ("mean first-token entropy", "accuracy", "pass@8")
        }
        pairs = len(set(first) & set(second))
        if pairs < FEWEST:
            continue
        rows.append((method.name, method.at, str(pairs), *(shown(each, signed=True) for each in found.values())))
        said.append(
            f"{method.name} compared with {method.at}: accuracy {verdict(found['accuracy'], 'lower', 'higher')}"
        )
    if not rows:
        return Answer(question, f"{NOT_ENOUGH}: no such pair of methods has two finished seeds.")
    head = ("method", "compared with", "seeds", "mean first-token entropy", "accuracy", "pass@8")
    return Answer(question, "; ".join(said) + ".", head, tuple(rows))


def held_target(runs: Runs) -> Answer | None:
    """Measure how far entropies stay from the target of the closed loops; None for a study without a closed loop."""
    targets = [target_of(each) for of_method in runs.values() for each in of_method.values() if follows_target(each)]
    if not targets:
        return None
    question = "How well is the target entropy held?"
    # Methods follow one target, but their runs may have different lengths; the longest one has all its steps.
    longest = max(targets, key=len)
    same = all(np.allclose(each, longest[: len(each)], atol=TARGETS_AGREE, equal_nan=True) for each in targets)
    if not same:
        return Answer(question, f"{NOT_ENOUGH}: methods have different targets.")
    rows = []
    for name, of_method in runs.items():
        gaps = [longest[: len(each.metrics)] - each.metrics.column("entropy/mean") for each in of_method.values()]
        if not gaps:
            continue
        distance = mean_over_seeds([np.nanmean(abs(gap)) for gap in gaps])
        signed = mean_over_seeds([np.nanmean(gap) for gap in gaps])
        still = mean_over_seeds([100 * unchanged_share(each) for each in of_method.values()], PERCENT)
        rows.append((name, str(len(gaps)), shown(distance, 3), shown(signed, 3, signed=True), shown(still, 0)))
    text = (
        "Means over the steps in nats: the absolute distance of a rollout's entropy from the target, also of methods "
        "without a closed loop, and target minus entropy. The last column is the share of steps after which the "
        f"controlled value did not change in its first {DIGITS} digits: it was at a bound, the entropy was within the "
        "band, or a gate was closed."
    )
    head = ("method", "runs", "distance from target", "target minus entropy", "value unchanged, %")
    return Answer(question, text, head, tuple(rows))


def follows_target(result: Result) -> bool:
    """Return True for a run with a closed loop."""
    return "control/gap" in result.metrics.columns


def target_of(result: Result) -> Floats:
    """Return the target entropy (n,) at each step of a run with a closed loop."""
    return result.metrics.column("control/gap") + result.metrics.column("entropy/mean")


def unchanged_share(result: Result) -> float:
    """Return the share of steps that are off the target and leave the controlled value as it is; NaN without one.

    Values are rounded as packed runs are, so that a run from a folder has the same share as the run from a file.
    """
    if not follows_target(result):
        return math.nan
    value = np.array([float(f"{each:.{DIGITS}g}") for each in result.metrics.column("control/value")])
    gap = result.metrics.column("control/gap")
    return float(((np.diff(value) == 0) & (gap[:-1] != 0)).mean())


def learning_rates(spec: Spec, results: Sequence[Result]) -> Answer:
    """Return the final validation accuracy of all runs, by method and learning rate, and which runs diverged.

    Args:
        spec: The study. Methods with a random reward are left out.
        results: Its finished runs; those of tuning count, too. Runs without a learning rate among their flags do not.
    """
    question = "At which learning rate does each method diverge?"
    words = words_of(spec)
    starts = [each.evaluations.column("greedy")[0] for each in results if each.evaluations.steps[0] == 0]
    mean_start = float(np.mean(starts)) if starts else math.nan
    ends: dict[str, dict[float, list[float]]] = {name: {} for name in words}
    diverged: Counter[tuple[str, float]] = Counter()
    for each in (result for result in results if result.run.method in words):
        rate = rate_of((*words[each.run.method], *each.run.configuration))
        if math.isfinite(rate):
            end = score_of(each).last
            ends[each.run.method].setdefault(rate, []).append(end)
            # Each seed may have a base policy of its own.
            start = each.evaluations.column("greedy")[0] if each.evaluations.steps[0] == 0 else mean_start
            diverged[each.run.method, rate] += bool(end < start - DIVERGED_BELOW)
    ends = {method: by_rate for method, by_rate in ends.items() if by_rate}
    rates = sorted({rate for by_rate in ends.values() for rate in by_rate})
    if not rates or not starts:
        return Answer(
            question, f"{NOT_ENOUGH}: no finished run has a learning rate and an evaluation of its base policy."
        )
    rows = []
    worst = []
    apart = []
    first, of_first = next(iter(ends.items()))
    for method, by_rate in ends.items():
        shares = []
        for rate in rates:
            of_method = by_rate.get(rate, [])
            failed = diverged[method, rate]
            shares.append(f"{np.mean(of_method):.2f} ({failed} of {len(of_method)})" if of_method else "")
            if failed:
                worst.append(f"{method} at {rate:g} ({failed} of {len(of_method)})")
            difference = difference_of_means(of_method, of_first.get(rate, []))
            if differs(difference):
                apart.append(f"{method} at {rate:g} ({shown(difference, signed=True)})")
        rows.append((method, *shares))
    text = (
        f"A run has diverged if it ends more than {DIVERGED_BELOW} below its own base policy (mean {mean_start:.2f}); "
        f"the table counts such runs in brackets. Diverged: {listed(worst)}. Different from {first} at the same rate, "
        f"tuning included: {listed(apart)}. Configurations on the same seeds count separately, so these intervals are "
        "too narrow."
    )
    return Answer(question, text, ("method", *(f"{rate:g}" for rate in rates)), tuple(rows))


def words_of(spec: Spec) -> dict[str, tuple[str, ...]]:
    """Return the flags of each method, without the controls that have a random reward."""
    return {
        method.name: (*spec.words, *method.words)
        for method in spec.methods
        if setting(flags_of(method.words), RANDOM_REWARD) is None
    }


def rate_of(words: Sequence[str]) -> float:
    """Return the last learning rate in the words of a command line; NaN without one."""
    rate = setting(flags_of(words), LEARNING_RATE)
    return math.nan if rate is None else float(rate)


def cost(rows: Sequence[MethodRow]) -> Answer:
    """Return the seconds per step. In the lab they are CPU seconds, which other work disturbs less than a clock."""
    question = "What does each method cost?"
    known = [row for row in rows if row.seeds]
    if not known:
        return Answer(question, f"{NOT_ENOUGH}: no run is finished.")
    table = [
        (row.method, str(len(row.seeds)), shown(row.numbers["seconds"], 3), shown(row.differences["seconds"], 3, True))
        for row in known
    ]
    dear = [row.method for row in known[1:] if row.differences["seconds"].low > 0]
    text = f"Slower than {rows[0].method}: {listed(dear)}."
    return Answer(question, text, ("method", "runs", "seconds per step", "difference"), tuple(table))


def agreement(ours: Runs, others: Runs) -> Answer:
    """Compare the runs of methods through the whole trainer with those in the lab.

    Args:
        ours: Runs of the study of the whole trainer.
        others: Runs of the study in the lab. Methods of one name are compared; means are unpaired.
    """
    question = "Do the trainer and the lab agree?"
    rows = []
    differing = []
    compared = 0
    for method, runs in ours.items():
        for name in AGREEING:
            groups = (runs.values(), others.get(method, {}).values())
            first, second = ([NUMBERS[name](each) for each in group] for group in groups)
            apart = difference_of_means(first, second)
            if not math.isfinite(apart.estimate):
                continue
            compared += 1
            means = (f"{shown(mean_number(name, group))} of {len(group)}" for group in groups)
            rows.append((method, name, *means, shown(apart, signed=True)))
            if differs(apart):
                differing.append(f"{method}: {name}")
    if not rows:
        return Answer(question, f"{NOT_ENOUGH}: no method has two finished seeds in both.")
    text = f"Of {compared} differences, these count: {listed(differing)}. A difference counts if {rule()}."
    return Answer(question, text, ("method", "measure", "trainer", "lab", "difference"), tuple(rows))
