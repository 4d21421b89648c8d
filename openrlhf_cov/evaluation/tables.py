"""A summary as people read it: tables for the terminal, Markdown and the page (pure)."""

import json
from collections.abc import Sequence

from openrlhf_cov.evaluation.response_records import PROMPT_TOO_LONG
from openrlhf_cov.evaluation.scores import RESAMPLES
from openrlhf_cov.evaluation.summary import STATUSES, BenchmarkSummary, Summary
from openrlhf_cov.utils.estimates import LEVEL, Interval
from openrlhf_cov.utils.terminal import printable
from openrlhf_cov.utils.text_table import NONE, Row, aligned

# Columns of ``score_rows``.
SCORES = (
    *("benchmark", "problems", "samples", "avg@K", f"{LEVEL:.0%} interval"),
    *("pass@K", "maj@K", "tokens", "truncated", "no answer"),
)
# Columns of ``grader_rows``.
GRADERS = (
    *("benchmark", "responses", "strict", f"{LEVEL:.0%} interval"),
    *("published", f"{LEVEL:.0%} interval", "differ"),
)
# Columns of ``count_rows``.
COUNTS = ("benchmark", "responses", *(status.replace("_", " ") for status in STATUSES), "tokens in all", "surprisal")

FOOTNOTES = (
    "avg@K, the interval, pass@K and maj@K are in percent; K is the number of samples per problem. tokens is the mean "
    "length of a response; truncated and no answer are shares of all responses.",
    f"The interval holds {LEVEL:.0%} of {RESAMPLES:,} bootstrap resamples of the problems, all samples of a problem "
    "kept together: what other problems of this kind might give. It says nothing about another training seed, and "
    "below some 30 problems it is too narrow.",
    "pass@K is the unbiased estimate, maj@K the vote of all samples, grouped by mathematical equality. Where K is no "
    "power of two, the column shows the largest one below it.",
    "All scores are by the grader strict. published is avg@K by both graders: an answer that Math-Verify accepts is "
    "correct as well, for comparison with published tables. differ counts the responses on which the two disagree; "
    "differences.jsonl has them.",
)


def score_rows(summary: Summary) -> list[Row]:
    """Return one row of ``SCORES`` per benchmark, and one with the mean where there is one."""
    rows = [_scores(benchmark) for benchmark in summary.benchmarks]
    if summary.mean_avg_at_k is not None:
        rows.append(("mean", "", "", percent(summary.mean_avg_at_k), *[""] * 6))
    return rows


def grader_rows(summary: Summary) -> list[Row]:
    """Return one row of ``GRADERS`` per benchmark that both graders graded, and one with the means."""
    rows = [
        (
            each.name,
            f"{each.problems * each.samples:,}",
            *(percent(each.avg_at_k.estimate), percent_interval(each.avg_at_k)),
            *(percent(each.published.estimate), percent_interval(each.published)),
            f"{each.differing:,}",
        )
        for each in summary.benchmarks
        if each.published is not None
    ]
    if summary.mean_avg_at_k is not None and summary.mean_published is not None:
        rows.append(("mean", "", percent(summary.mean_avg_at_k), "", percent(summary.mean_published), "", ""))
    return rows


def count_rows(summary: Summary) -> list[Row]:
    """Return one row of ``COUNTS`` per benchmark: how grading went, and what the responses cost."""
    return [
        (
            each.name,
            f"{each.problems * each.samples:,}",
            *(f"{each.statuses[status]:,}" for status in STATUSES),
            f"{each.total_tokens:,}",
            NONE if each.surprisal is None else f"{each.surprisal:.3f}",
        )
        for each in summary.benchmarks
    ]


def notes(summary: Summary) -> list[str]:
    """Return what a reader of these scores has to know, one line each; empty if nothing went wrong."""
    lines = []
    for each in summary.benchmarks:
        if not each.complete:
            lines.append(f"{each.name}: the first {each.problems} problems only; not comparable with the whole")
        if each.ungradable:
            lines.append(
                f"{each.name}: the gold answer of {each.ungradable} problems cannot be read; responses to them count "
                "as incorrect"
            )
        if count := each.statuses[PROMPT_TOO_LONG]:
            lines.append(
                f"{each.name}: {count:,} responses are empty because the prompt left no room; they count as incorrect"
            )
        if count := each.statuses["timeout"]:
            lines.append(f"{each.name}: {count:,} responses count as incorrect because grading them took too long")
    if summary.mean_avg_at_k is not None:
        lines.append("mean: the plain mean of avg@K, every benchmark weighs the same")
    return lines


def setting_rows(summary: Summary) -> list[tuple[str, str]]:
    """Return name and value of each setting of a run but its model; benchmarks that were sampled alike share a row."""
    how = summary.settings
    template = how.template
    if how.chat_template_kwargs:
        template += f" with {json.dumps(how.chat_template_kwargs)}"
    longest = "as the endpoint allows" if how.max_model_len is None else f"{how.max_model_len:,} tokens"
    return [
        ("protocol", how.protocol),
        ("prompt template", template),
        ("seed", str(how.seed)),
        ("answer format", how.reward_format),
        ("prompt and response", longest),
        ("precision", how.dtype or NONE),
        ("model sha256", how.model_sha256 or NONE),
        *(("sampling", text) for text in _sampling(summary)),
        ("versions", ", ".join(f"{name} {version}" for name, version in how.packages.items()) or NONE),
    ]


def table(summary: Summary) -> str:
    """Return the scores and the notes for a terminal."""
    lines = [printable(f"{summary.settings.model}, protocol {summary.settings.protocol}"), ""]
    lines += aligned([SCORES, *score_rows(summary)])
    if rows := grader_rows(summary):
        lines += ["", *aligned([GRADERS, *rows])]
    return "\n".join([*lines, *([""] if notes(summary) else []), *map(printable, notes(summary))])


def markdown(summary: Summary) -> str:
    """Return the text of ``summary.md``."""
    lines = [f"# Evaluation of {summary.settings.model}", "", *_markdown_table(SCORES, score_rows(summary)), ""]
    if rows := grader_rows(summary):
        lines += [*_markdown_table(GRADERS, rows), ""]
    lines += [f"- {note}" for note in notes(summary)]
    lines += ["", "## Grading", "", *_markdown_table(COUNTS, count_rows(summary)), ""]
    lines += ["## Settings", "", *_markdown_table(("setting", "value"), setting_rows(summary)), ""]
    lines += ["The prompt:", "", *(f"    {line}" for line in summary.settings.template_text.split("\n"))]
    return "\n".join([*lines, "", "## Reading the table", "", *(f"- {note}" for note in FOOTNOTES)])


def percent(score: float) -> str:
    """Return a score in percent: 21.2."""
    return f"{100 * score:.1f}"


def percent_interval(interval: Interval) -> str:
    """Return the bounds of an interval in percent: 14.1 to 29.8."""
    return f"{percent(interval.low)} to {percent(interval.high)}"


def _scores(benchmark: BenchmarkSummary) -> Row:
    responses = benchmark.problems * benchmark.samples
    largest = max(benchmark.pass_at_k)
    passed = percent(benchmark.pass_at_k[largest].estimate)
    if largest != benchmark.samples:
        passed = f"pass@{largest} {passed}"
    return (
        benchmark.name,
        f"{benchmark.problems:,}" if benchmark.complete else f"first {benchmark.problems:,}",
        str(benchmark.samples),
        percent(benchmark.avg_at_k.estimate),
        percent_interval(benchmark.avg_at_k),
        passed if benchmark.samples > 1 else NONE,
        NONE if benchmark.maj_at_k is None else percent(benchmark.maj_at_k),
        f"{benchmark.mean_tokens:,.0f}",
        f"{benchmark.truncated_frac:.1%}",
        f"{benchmark.statuses['no_answer'] / responses:.1%}",
    )


def _sampling(summary: Summary) -> list[str]:
    alike: dict[str, list[str]] = {}
    for each in summary.settings.benchmarks:
        how = f"temperature {each.temperature:g}, top_p {each.top_p:g}, at most {each.max_tokens:,} tokens"
        alike.setdefault(how, []).append(f"{each.name} (version {each.version})")
    return [f"{how}: {', '.join(names)}" for how, names in alike.items()]


def _markdown_table(head: Row, rows: Sequence[Row]) -> list[str]:
    rule = ("---", *["--:"] * (len(head) - 1)) if len(head) > 2 else ("---", "---")
    return ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in (head, rule, *rows)]
