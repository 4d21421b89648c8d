"""What a finished run is told by: ``summary.json``, ``summary.md`` and ``report.html`` in its folder."""

from pathlib import Path

from openrlhf_cov.evaluation.records import read_problems, read_responses, read_settings
from openrlhf_cov.evaluation.report import report_page
from openrlhf_cov.evaluation.samples import group_samples
from openrlhf_cov.evaluation.summary import Summary, summarize, write_summary
from openrlhf_cov.evaluation.tables import markdown
from openrlhf_cov.utils.json_lines import write_lines

MARKDOWN_FILE = "summary.md"
REPORT_FILE = "report.html"


def write_results(folder: Path) -> Summary:
    """Write or replace the three files of a finished run, from its records alone; the scores for the terminal.

    Raises UsageError where the folder has no run, or one whose responses are not all there.
    """
    settings, problems, responses = read_settings(folder), read_problems(folder), read_responses(folder)
    summary = summarize(settings, problems, responses)
    write_summary(folder, summary)
    write_lines(folder / MARKDOWN_FILE, [markdown(summary)])
    write_lines(folder / REPORT_FILE, [report_page(summary, group_samples(settings, problems, responses))])
    return summary
