"""The table of a task that a seed learns or does not: how many, how fast, with which entropy (pure)."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from openrlhf_cov.evaluation.pairing import holm
from openrlhf_cov.experiments.lab.early_stop import DECISION_ENTROPY, SOLVED_FROM
from openrlhf_cov.experiments.study.answer import Answer, Runs, finished_runs, shown
from openrlhf_cov.experiments.study.run_plan import has_learned
from openrlhf_cov.experiments.study.run_results import Result, hard_accuracy, score_of
from openrlhf_cov.experiments.study.seed_estimates import (
    SHARE,
    UNBOUNDED,
    has_spread,
    mean_difference,
    mean_over_seeds,
    paired_p_value,
    share_of_seeds,
    smallest_detectable_effect,
)
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.experiments.study.sweeps import runs_of
from openrlhf_cov.experiments.study.table_rows import accuracy, mean_number

MOST_SAMPLES = 32
# Numbers of an evaluation that are shares, in the order of the table.
SHARES = ("greedy", "sampled", f"pass@{MOST_SAMPLES}")
BASE_POLICY = "base policy"
# Kind of the questions on which the verifier accepts the habit of the base policy.
HABIT = "habit"
LEARNED = "learned"
ACCURACY = "accuracy"
MOST_PASS = f"pass@{MOST_SAMPLES}"
ENTROPY = "entropy of the decision token"
# Headings of the first columns; those of the comparison with the first method follow.
HEAD = ("method", LEARNED, "share of seeds", f"steps to {SOLVED_FROM:.0%}", ACCURACY, "pass@1", MOST_PASS, ENTROPY)
# Heading of a further column, of tasks whose questions have several correct answers.
DISTINCT = "different correct answers"


def headroom_runs(spec: Spec, results: Sequence[Result]) -> Runs | None:
    """Return one finished run of each method and seed, of a study whose spec says when a task is learned.

    Args:
        spec: The study.
        results: Its finished runs, from none to all.

    Returns:
        Method -> seed -> run. Of a bisection, these are the runs with which every seed begins, so all methods have
        the same value of the flag. None for a study without ``learned``, and for one with another sweep.
    """
    if spec.learned is None:
        return None
    if spec.sweep is None:
        return finished_runs(spec, results)
    if not spec.sweep.bisect:
        return None
    first = spec.sweep.first_of_bisection
    return {method.name: runs_of(spec, method, results)[first] for method in spec.methods}


def headroom_answer(spec: Spec, results: Sequence[Result]) -> Answer | None:
    """Return the table of how many seeds learn, how fast and with which entropy.

    Args:
        spec: The study.
        results: Its finished runs, from none to all.

    Returns:
        The answer; None for a study of which ``headroom_runs`` has none.
    """
    runs = headroom_runs(spec, results)
    if runs is None:
        return None
    known = {method: found for method, found in runs.items() if found}
    base = base_policy_row(spec, known)
    first = spec.methods[0].name
    baseline = known.get(first, {})
    # Differences in accuracy to the first method, for each seed that both methods have.
    differences = {
        method: [accuracy(result) - accuracy(baseline[seed]) for seed, result in found.items() if seed in baseline]
        for method, found in known.items()
        if method != first
    }
    p_values = {method: paired_p_value(values) for method, values in differences.items() if len(values) >= 2}
    # Corrected over all methods that are compared, because each comparison is one more chance of a false positive. A
    # method whose differences have no spread has no p-value. It counts as a p-value of 1: the correction of the other
    # methods must not depend on how many methods happen to have no spread.
    corrected = dict(zip(p_values, holm([1.0 if math.isnan(p) else p for p in p_values.values()]), strict=True))
    has_distinct = any("distinct_correct" in each.evaluations.columns for of in known.values() for each in of.values())
    rows = [base] if base else []
    for method, found in known.items():
        values = differences.get(method, [])
        comparison = ("", "", "")
        if method in corrected:
            tests = (corrected[method], smallest_detectable_effect(values))
            cells = (f"{tests[0]:.3f}", f"{tests[1]:.2f}") if has_spread(values) else ("-", "-")
            comparison = (shown(mean_difference(values), signed=True), *cells)
        rows.append((method, *_learned(spec, list(found.values())), *_numbers(list(found.values())), *comparison))
        if has_distinct:
            rows[-1] += (_distinct(found.values(), -1),)
    if base and has_distinct:
        rows[0] += (_distinct(first_of_each_policy(spec, known).values(), 0),)
    question = "How many seeds learn the task, how fast, and with which entropy?"
    text = (
        f"A seed has learned the task if its accuracy after the last step is at least {spec.learned:g} on the "
        "validation questions that the habit of the base policy does not answer. The interval of the share of such "
        f"seeds is exact (Clopper and Pearson). Steps to {SOLVED_FROM:.0%} of these questions are the median over "
        "seeds, at the resolution of the evaluations. Accuracy (greedy) and pass@k are of the test. The entropy is "
        "that of the token that decides between answers, in nats on frozen prompts after the last step. Differences "
        "are of accuracy, paired by seed (Student's t); p-values are corrected for the number of methods (Holm). A "
        "dash stands where a method has the same difference in every seed, from which no error can be estimated. The "
        "smallest detectable difference is that of one t-test without Holm's correction, which finds it in 80 % of "
        "such studies; with the correction, it is found less often. The row of the base policy is of the validation "
        "questions before the first step."
    )
    if spec.sweep is not None:
        value = " ".join(spec.sweep.first_of_bisection)
        question = f"With {value}, how many seeds learn the task, how fast, and with which entropy?"
        text = f"The search of every seed begins with {value}; these are the runs with it. {text}"
    if has_distinct:
        text += " Different correct answers are those among the samples of a validation question in an evaluation."
    head = (*HEAD, f"minus {spec.methods[0].name}", "p (Holm)", "smallest detectable, one test")
    head += (DISTINCT,) if has_distinct else ()
    return Answer(question, text, head, tuple(rows))


def pass_rate_answer(spec: Spec, results: Sequence[Result]) -> Answer | None:
    """Return the accuracy of each method by the kind of the question, beside the pass rate of the base policy.

    Args:
        spec: The study.
        results: Its finished runs, from none to all.

    Returns:
        The answer, whose first row is the pass rate. None for a study of which ``headroom_runs`` has none, and for a
        task whose questions are of one kind.
    """
    known = {method: found for method, found in (headroom_runs(spec, results) or {}).items() if found}
    policies = first_of_each_policy(spec, known)
    if not policies:
        return None
    kinds = sorted(set(next(iter(policies.values())).kinds))
    if len(kinds) < 2:
        return None
    initial = {
        kind: float(np.mean([each.evaluations.column(f"sampled/{kind}")[0] for each in policies.values()]))
        for kind in kinds
    }
    kinds.sort(key=lambda kind: -initial[kind])
    rows = [(BASE_POLICY, *(f"{initial[kind]:.3f}" for kind in kinds))]
    for method, found in known.items():
        means = (np.mean([accuracy_of_kind(each, kind) for each in found.values()]) for kind in kinds)
        rows.append((method, *(f"{mean:.2f}" for mean in means)))
    text = (
        "The columns are the kinds of questions, from easy to hard. The row of the base policy is its pass rate, the "
        "share of its samples that are correct before the first step. The other rows are the mean greedy accuracy "
        "over seeds in the test."
    )
    if HABIT in kinds:
        text += " The verifier accepts the habit of the base policy on the questions of the first column."
    return Answer(
        "How accurate is each method by the initial pass rate of a question?", text, ("method", *kinds), tuple(rows)
    )


def accuracy_of_kind(result: Result, kind: str) -> float:
    """Return the greedy accuracy in the test on the questions of one kind; NaN where the test has none."""
    right = result.greedy[np.array(result.kinds) == kind]
    return float(right.mean()) if len(right) else math.nan


def base_policy_row(spec: Spec, runs: Runs) -> tuple[str, ...] | None:
    """Return the row of the base policies, from the evaluations before the first step.

    Each base policy counts once, although all runs of its seeds evaluate it.

    Args:
        spec: The study, by whose ``base_policies`` seeds share a base policy.
        runs: Finished runs of its methods.

    Returns:
        The cells of the row; None if no run was evaluated before its first step.
    """
    by_policy = first_of_each_policy(spec, runs)
    if not by_policy:
        return None

    def mean(name: str) -> str:
        columns = [each.evaluations.columns.get(name) for each in by_policy.values()]
        bounds = SHARE if name in SHARES else UNBOUNDED
        return shown(mean_over_seeds([column[0] for column in columns if column is not None], bounds))

    cells = (
        *(mean(name) for name in SHARES),
        mean(decision_column(next(iter(by_policy.values())))),
    )
    return (BASE_POLICY, "", "", "", *cells, "", "", "")


def first_of_each_policy(spec: Spec, runs: Runs) -> dict[int, Result]:
    """Return one run of each base policy that evaluated it before its first step."""
    by_policy: dict[int, Result] = {}
    for found in runs.values():
        for seed, result in found.items():
            if result.evaluations.steps[0] == 0:
                by_policy.setdefault(seed % spec.base_policies, result)
    return by_policy


def _distinct(results: Iterable[Result], place: int) -> str:
    """Return the mean number of different correct answers in the evaluation at ``place``, 0 or -1."""
    columns = [each.evaluations.columns.get("distinct_correct") for each in results]
    return shown(mean_over_seeds([column[place] for column in columns if column is not None]))


def decision_column(result: Result) -> str:
    """Return the name of the entropy of the decision token, which is the first token in older runs."""
    return DECISION_ENTROPY if DECISION_ENTROPY in result.evaluations.columns else "entropy/position_0"


def steps_to(result: Result, share: float = SOLVED_FROM) -> float:
    """Return the first evaluated step at which a run solves enough of the questions that need exploration.

    Args:
        result: The run.
        share: Greedy accuracy on these questions, from 0 to 1, that must be reached.

    Returns:
        The step; infinity if no evaluation reaches the accuracy.
    """
    [reached] = np.nonzero(hard_accuracy(result) >= share)
    return float(result.evaluations.steps[reached[0]]) if len(reached) else math.inf


def _learned(spec: Spec, found: Sequence[Result]) -> tuple[str, str, str]:
    successes = sum(has_learned(spec, score_of(each)) for each in found)
    steps = sorted(steps_to(each) for each in found)
    # The upper median, so that half of the seeds were not slower only if that is a number.
    median = steps[len(steps) // 2]
    limit = max(int(each.evaluations.steps[-1]) for each in found)
    return (
        f"{successes} of {len(found)}",
        shown(share_of_seeds(successes, len(found))),
        f"{median:.0f}" if math.isfinite(median) else f"more than {limit}",
    )


def _numbers(found: Sequence[Result]) -> tuple[str, ...]:
    entropies = [each.evaluations.column(decision_column(each))[-1] for each in found]
    shares = (mean_number(name, found) for name in ("accuracy", "pass@1", f"pass@{MOST_SAMPLES}"))
    return tuple(shown(each) for each in (*shares, mean_over_seeds(entropies)))
