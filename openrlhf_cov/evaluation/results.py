"""Write the results of a finished run: ``summary.json``, ``summary.md``, ``report.html``, ``differences.jsonl``."""

from pathlib import Path

from openrlhf_cov.evaluation.evaluation_page import evaluation_page
from openrlhf_cov.evaluation.response_records import (
    DIFFERENCES_FILE,
    read_problems,
    read_responses,
    read_settings,
    write_records,
)
from openrlhf_cov.evaluation.samples import group_samples
from openrlhf_cov.evaluation.summary import Summary, summarize, write_summary
from openrlhf_cov.evaluation.tables import markdown
from openrlhf_cov.utils.json_lines import write_lines

MARKDOWN_FILE = "summary.md"
REPORT_FILE = "report.html"


def write_results(folder: Path) -> Summary:
    """Write or replace the files of a finished run, from its records alone, and return its summary.

    ``differences.jsonl`` exists only where both graders graded a benchmark.

    Raises:
        UsageError: The folder has no run, or responses are missing.
    """
    settings = read_settings(folder)
    problems = read_problems(folder)
    responses = read_responses(folder)
    summary = summarize(settings, problems, responses)
    write_summary(folder, summary)
    write_lines(folder / MARKDOWN_FILE, [markdown(summary)])
    samples = group_samples(settings, problems, responses)
    write_lines(folder / REPORT_FILE, [evaluation_page(summary, samples)])
    if any(each.published for each in summary.benchmarks):
        write_records(folder / DIFFERENCES_FILE, [line for each in samples for line in each.differences])
    else:
        (folder / DIFFERENCES_FILE).unlink(missing_ok=True)  # of a grading before this one
    return summary
