"""Runs side by side: their scores, how sure their differences are, and the paper's scores beside them (pure)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation import paper
from openrlhf_cov.evaluation.benchmarks import BENCHMARKS, PROTOCOLS
from openrlhf_cov.evaluation.response_records import GRADED_BY, GRADING_PACKAGES, BenchmarkSettings, RunSettings
from openrlhf_cov.evaluation.samples import BenchmarkSamples
from openrlhf_cov.evaluation.scores import (
    PairedDifference,
    Statistic,
    avg_at_k,
    bootstrap_interval,
    paired_difference,
    pass_at_k,
)
from openrlhf_cov.utils.estimates import Interval

# Schema version: increase it when a field is removed or changes its meaning.
SCHEMA = 1

# A difference whose p-value is above this after Holm's correction is noise.
ALPHA = 0.05


# Names of a benchmark and a run.
Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A finished run under the name that the tables give it."""

    name: str
    settings: RunSettings
    samples: Sequence[BenchmarkSamples]

    def of(self, benchmark: str) -> BenchmarkSamples | None:
        """Return the samples of a benchmark; None if the run does not have it."""
        return next((each for each in self.samples if each.settings.name == benchmark), None)


@dataclass(frozen=True, kw_only=True)
class RunDifference:
    """Score of a run minus that of the first run, on the same problems; see ``paired_difference``."""

    interval: Interval
    p_value: float
    # Corrected for all differences of the comparison.
    p_holm: float
    # The interval contains 0, or ``p_holm`` is above ``ALPHA``.
    noise: bool


@dataclass(frozen=True, kw_only=True)
class RunScore:
    """One run on one benchmark."""

    run: str
    problems: int
    samples: int
    # None: the run has fewer samples than the metric needs.
    score: Interval | None
    # None for the first run, and where ``reason`` is given.
    difference: RunDifference | None
    # Why there is no score or no difference.
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class BenchmarkComparison:
    """The scores of one benchmark: those of the runs that evaluated it, and those of the paper's methods."""

    name: str
    scores: tuple[RunScore, ...]
    # By method, as fractions; without intervals.
    published: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of ``compare``."""

    metric: str
    runs: tuple[str, ...]
    models: tuple[str, ...]
    against: str | None
    benchmarks: tuple[BenchmarkComparison, ...]
    # What makes the scores less comparable, one line each.
    notes: tuple[str, ...]
    # Who says which responses are correct.
    grader: str = "strict"
    schema: int = SCHEMA


def compare(
    runs: Sequence[ComparedRun], metric: str = "avg", against: str | None = None, grader: str = "strict"
) -> Comparison:
    """Return the comparison of runs on every benchmark, each run with the first one.

    Differences are taken where both runs have the same problems of the same version; K may differ.

    Args:
        runs: The runs, the base first.
        metric: ``avg`` or ``pass@k``.
        against: Name of rows of the paper to add, or None.
        grader: Grader by which samples are correct.

    Raises:
        UsageError: There is one run and no ``against``, the metric is unknown or not published for ``against``, or no
            benchmark has enough samples for the metric.
    """
    k = parse_metric(metric)
    if len(runs) < 2 and against is None:
        raise UsageError("one run alone compares with nothing; name a second one, or --against")
    if k is not None and against is not None:
        raise UsageError(f"--against {against} has avg only, the paper gives no {metric}")
    names = list(dict.fromkeys(each.settings.name for run in runs for each in run.samples))
    reasons, pairs = _pair(runs, names, k)
    differences = judge(pairs)
    benchmarks = [
        BenchmarkComparison(
            name=name,
            scores=tuple(
                _score(run.name, samples, k, differences.get((name, run.name)), reasons.get((name, run.name)))
                for run in runs
                if (samples := run.of(name)) is not None
            ),
            published=paper.published(against, name) if against and _is_in_paper(runs, name) else {},
        )
        for name in names
    ]
    if all(score.score is None for each in benchmarks for score in each.scores):
        raise UsageError(f"--metric {metric}: no benchmark of these runs has {k} samples")
    notes = [note for run in runs for note in (*_missing(run, names), *_other_settings(runs[0], run))]
    return Comparison(
        metric=metric,
        runs=tuple(run.name for run in runs),
        models=tuple(run.settings.model for run in runs),
        against=against,
        benchmarks=tuple(benchmarks),
        notes=(*notes, *(_paper_notes(runs, grader) if against else [])),
        grader=grader,
    )


def parse_metric(metric: str) -> int | None:
    """Return the k of ``pass@k``; None for ``avg``.

    Raises:
        UsageError: The metric is none of the two, or k has more than six digits.
    """
    if metric == "avg":
        return None
    if match := re.fullmatch(r"pass@([1-9][0-9]{0,5})", metric):
        return int(match[1])
    raise UsageError(f"--metric {metric}: a metric is avg or, for example, pass@8")


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values after Holm's step-down correction, in their order (Holm 1979).

    With p_1 <= ... <= p_m, the i-th smallest becomes max over j <= i of min(1, (m - j + 1) p_j): calling those of at
    most alpha real errs anywhere with a probability of at most alpha.

    Args:
        p_values: The m p-values of all differences that are judged together.
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def judge(pairs: dict[Key, PairedDifference]) -> dict[Key, RunDifference]:
    """Return the differences with Holm's p-values over all of them, and which are noise."""
    corrected = holm([pair.p_value for pair in pairs.values()])
    return {
        key: RunDifference(
            interval=pair.difference,
            p_value=pair.p_value,
            p_holm=p_holm,
            noise=pair.difference.low <= 0.0 <= pair.difference.high or p_holm > ALPHA,
        )
        for (key, pair), p_holm in zip(pairs.items(), corrected, strict=True)
    }


def incomparable(run: BenchmarkSettings, first: BenchmarkSettings | None, k: int | None) -> str | None:
    """Return why the score of a run cannot be paired with that of the first run; None if it can.

    Args:
        run: Settings of the benchmark in the run.
        first: Settings of the same benchmark in the first run; None if that did not evaluate it.
        k: The k of ``pass@k``; None for ``avg``.
    """
    if k is not None and run.samples < k:
        return f"fewer than {k} samples"
    if first is None or (k is not None and first.samples < k):
        return "the first run has no score"
    if run.version != first.version:
        return f"version {run.version}, the first run has version {first.version}"
    if run.problems != first.problems:
        limited = "" if run.complete and first.complete else " (--limit)"
        return f"{run.problems:,} problems, the first run has {first.problems:,}{limited}"
    if run.sha256 != first.sha256:
        return "other problems than in the first run (their sha256 differs)"
    return None


def _pair(
    runs: Sequence[ComparedRun], names: Sequence[str], k: int | None
) -> tuple[dict[Key, str], dict[Key, PairedDifference]]:
    """Compare each later run with the first one, benchmark by benchmark.

    Returns:
        Why a run cannot be compared, and the differences of the runs that can; both by benchmark and run.
    """
    reasons = {}
    pairs = {}
    for name, run in product(names, runs[1:]):
        mine = run.of(name)
        base = runs[0].of(name)
        if mine is None:
            continue
        reason = incomparable(mine.settings, base and base.settings, k)
        if base and reason is None:
            pairs[name, run.name] = paired_difference(mine.correct, base.correct, _statistic(k))
        else:
            reasons[name, run.name] = reason
    return reasons, pairs


def _score(
    run: str, samples: BenchmarkSamples, k: int | None, difference: RunDifference | None, reason: str | None
) -> RunScore:
    how = samples.settings
    few = k is not None and how.samples < k
    return RunScore(
        run=run,
        problems=how.problems,
        samples=how.samples,
        score=None if few else bootstrap_interval(samples.correct, _statistic(k)),
        difference=difference,
        reason=f"fewer than {k} samples" if few else reason,
    )


def _statistic(k: int | None) -> Statistic:
    return avg_at_k if k is None else partial(pass_at_k, k=k)


def _missing(run: ComparedRun, benchmarks: Iterable[str]) -> list[str]:
    """Return the benchmarks that a run did not evaluate or evaluated in part, one line each."""
    limited = [each.settings for each in run.samples if not each.settings.complete]
    notes = [f"{run.name}: {how.name}: the first {how.problems:,} problems only" for how in limited]
    if left_out := [name for name in benchmarks if run.of(name) is None]:
        notes.append(f"{run.name}: did not evaluate {', '.join(left_out)}")
    return notes


def _other_settings(first: ComparedRun, run: ComparedRun) -> list[str]:
    """Return the settings that move scores and in which a run differs from the first one, one line each."""
    changes = []
    if run.settings.template_text != first.settings.template_text:
        changes.append(("another prompt template", run.settings.template, first.settings.template))
    for name in (*GRADED_BY, "chat_template_kwargs", "max_model_len", "dtype"):
        values = getattr(run.settings, name), getattr(first.settings, name)
        if values[0] != values[1]:
            changes.append((name, *values))
    for name in GRADING_PACKAGES:
        versions = run.settings.packages.get(name), first.settings.packages.get(name)
        if versions[0] != versions[1] and None not in versions:
            changes.append((f"graded by another version of {name}", *versions))
    for mine in run.samples:
        if base := first.of(mine.settings.name):
            for name in ("temperature", "top_p", "max_tokens", "grader"):
                values = getattr(mine.settings, name), getattr(base.settings, name)
                if values[0] != values[1]:
                    changes.append((f"{mine.settings.name}: {name}", *values))
    return [f"{run.name}: {what}: {value}, where {first.name} has {other}" for what, value, other in changes]


def _paper_notes(runs: Sequence[ComparedRun], grader: str) -> list[str]:
    notes = [
        f"paper: {paper.SOURCE}; it gives no intervals and no seeds, and its average is not the mean of its columns"
    ]
    for run in runs:
        of_paper = [each.settings for each in run.samples if _is_of_paper(each.settings)]
        template = PROTOCOLS["paper"].template
        if of_paper and run.settings.template != template:
            notes.append(f"{run.name}: prompt template {run.settings.template}, the protocol paper has {template}")
        for how in of_paper:
            usual = BENCHMARKS[how.name].sampling
            if (how.samples, how.temperature) != (usual.samples, usual.temperature):
                notes.append(
                    f"{run.name}: {how.name}: {how.samples} samples at temperature {how.temperature:g}, the paper has "
                    f"{usual.samples} at {usual.temperature:g}"
                )
            if how.top_p != usual.top_p and how.temperature > 0:  # a greedy response does not depend on it
                notes.append(f"{run.name}: {how.name}: top_p {how.top_p:g}, the paper has {usual.top_p:g}")
            if how.max_tokens != usual.max_tokens:
                notes.append(
                    f"{run.name}: {how.name}: at most {how.max_tokens:,} tokens, the paper has {usual.max_tokens:,}"
                )
    if grader == "strict":
        notes.append("paper: it was graded more leniently than by the grader strict; add --grader published")
    names = {each.settings.name for run in runs for each in run.samples}
    columns = {paper.COLUMN_OF.get(name) for name in names}
    notes += [f"paper: {note}" for name, note in paper.OTHER.items() if name in names]
    notes += [f"paper: it does not say which problems its {name} are" for name in paper.UNCERTAIN if name in columns]
    return notes


def _is_of_paper(how: BenchmarkSettings) -> bool:
    """Return True for a benchmark of the paper; a user's own file may have the same name."""
    return how.name in paper.COLUMN_OF and how.version == BENCHMARKS[how.name].version


def _is_in_paper(runs: Sequence[ComparedRun], name: str) -> bool:
    return any(_is_of_paper(samples.settings) for run in runs if (samples := run.of(name)) is not None)
