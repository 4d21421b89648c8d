"""The scores of a finished run: computed, and written as ``summary.json``."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from openrlhf_cov.evaluation.benchmarks import BENCHMARKS
from openrlhf_cov.evaluation.response_records import (
    PROMPT_TOO_LONG,
    AskedProblem,
    Response,
    RunSettings,
)
from openrlhf_cov.evaluation.samples import BenchmarkSamples, group_samples
from openrlhf_cov.evaluation.scores import avg_at_k, bootstrap_interval, maj_at_k, pass_at_k, pass_at_powers
from openrlhf_cov.rewards.grades import Status
from openrlhf_cov.rewards.maths.grading import answers_equal
from openrlhf_cov.rewards.sources import same_choice
from openrlhf_cov.utils.estimates import Interval
from openrlhf_cov.utils.json_lines import write_lines

# Schema version: increase it when a field is removed or changes its meaning.
SCHEMA = 1

SUMMARY_FILE = "summary.json"

# Every status that a response can have.
STATUSES = (*get_args(Status), PROMPT_TOO_LONG)


@dataclass(frozen=True, kw_only=True)
class BenchmarkSummary:
    """Scores and counts of one benchmark: N problems, K samples each. Shares are fractions of all N * K responses."""

    name: str
    version: int
    title: str
    # N.
    problems: int
    # True if all problems of the benchmark were evaluated.
    complete: bool
    # K.
    samples: int
    temperature: float
    # Share of correct responses by the grader strict, as in all scores that do not name the other one; intervals are
    # those of ``openrlhf_cov.evaluation.scores.bootstrap_interval``.
    avg_at_k: Interval
    # Unbiased pass@k for k = 1, 2, 4, ... up to K.
    pass_at_k: dict[int, Interval]
    # Score of the majority vote of K samples; None for K = 1, where it is avg@k, and if a problem asks for a program.
    maj_at_k: float | None
    # Mean length of a response.
    mean_tokens: float
    # Length of all responses together.
    total_tokens: int
    truncated_frac: float
    # Responses by status of their grade, zeros included.
    statuses: dict[str, int]
    # Mean of -log p over all tokens of all responses, in nats; None without ``--log_probs``.
    surprisal: float | None
    # Problems whose gold answer the rule cannot read; every response to them counts as incorrect.
    ungradable: int
    # avg@k by the grader published; None where it did not grade every response.
    published: Interval | None = None
    # Responses on which the two graders differ.
    differing: int | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The content of ``summary.json``."""

    settings: RunSettings
    benchmarks: tuple[BenchmarkSummary, ...]
    # Plain mean of avg@k over the benchmarks; None for a single one, or if a benchmark was evaluated in part.
    mean_avg_at_k: float | None
    # The same by the grader published; None also where that did not grade every response.
    mean_published: float | None = None
    schema: int = SCHEMA


def summarize(settings: RunSettings, problems: list[AskedProblem], responses: list[Response]) -> Summary:
    """Return the scores of a finished run.

    Args:
        settings: Settings of the run.
        problems: The problems of all benchmarks; those of one benchmark stand in their order.
        responses: The responses, in any order.

    Raises:
        UsageError: Responses are missing; the message says how many.
    """
    benchmarks = tuple(map(summarize_benchmark, group_samples(settings, problems, responses)))
    has_mean = len(benchmarks) > 1 and all(benchmark.complete for benchmark in benchmarks)
    return Summary(
        settings=settings,
        benchmarks=benchmarks,
        mean_avg_at_k=_mean([each.avg_at_k for each in benchmarks]) if has_mean else None,
        mean_published=_mean([each.published for each in benchmarks]) if has_mean else None,
    )


def summarize_benchmark(samples: BenchmarkSamples) -> BenchmarkSummary:
    """Return the scores and counts of one benchmark."""
    how = samples.settings
    correct = samples.correct
    responses = samples.responses
    published = samples.published
    tokens = sum(response.tokens for response in responses)
    known = BENCHMARKS.get(how.name)
    # Programs that do the same are not the same text. With the grader "row", the source of a problem names its rule.
    rules = {how.grader}
    if how.grader == "row":
        rules = {item.problem.source.partition("/")[0].lower() for item in samples.items}
    votes = how.samples > 1 and "code" not in rules
    equal = same_choice if rules == {"choice"} else answers_equal
    return BenchmarkSummary(
        name=how.name,
        version=how.version,
        title=known.title if known and known.version == how.version else how.name,
        problems=how.problems,
        complete=how.complete,
        samples=how.samples,
        temperature=how.temperature,
        avg_at_k=bootstrap_interval(correct, avg_at_k),
        pass_at_k={k: bootstrap_interval(correct, partial(pass_at_k, k=k)) for k in pass_at_powers(correct)},
        maj_at_k=maj_at_k(samples.answers, correct, equal) if votes else None,
        mean_tokens=tokens / len(responses),
        total_tokens=tokens,
        truncated_frac=sum(response.truncated for response in responses) / len(responses),
        statuses=dict.fromkeys(STATUSES, 0) | Counter(response.status for response in responses),
        surprisal=mean_surprisal(responses),
        ungradable=len(how.ungradable),
        published=None if published is None else bootstrap_interval(published, avg_at_k),
        differing=None if published is None else len(samples.differences),
    )


def _mean(scores: list[Interval | None]) -> float | None:
    known = [score.estimate for score in scores if score]
    return sum(known) / len(known) if len(known) == len(scores) else None


def mean_surprisal(responses: list[Response]) -> float | None:
    """Return the mean of -log p over the tokens of the responses that have one, in nats; None where none has."""
    known = [(each.surprisal, each.tokens) for each in responses if each.surprisal is not None]
    tokens = sum(count for _, count in known)
    return sum(surprisal * count for surprisal, count in known) / tokens if tokens else None


def write_summary(folder: Path, summary: Summary) -> None:
    """Write or replace ``summary.json``.

    Args:
        folder: Folder of the evaluation; it must exist.
        summary: The scores.

    Raises:
        OSError: The file cannot be written.
    """
    text = json.dumps(asdict(summary), indent=2, ensure_ascii=False, allow_nan=False)
    write_lines(folder / SUMMARY_FILE, [text])
