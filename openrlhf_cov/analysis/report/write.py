"""Writing a report: the figures and the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openrlhf_cov.analysis.report.build_contents import build_contents, read_runs
from openrlhf_cov.analysis.report.contents import Contents, Options
from openrlhf_cov.utils.json_lines import write_lines

PAGE = "report.html"
FIGURES = "figures"
FORMATS = ("svg", "png")


@dataclass(frozen=True)
class Written:
    """The files that were written; ``page`` is None without a page."""

    page: Path | None
    figures: tuple[Path, ...]


def write_report(runs: Sequence[Path], output: Path) -> Path:
    """Read runs and write their report.

    Args:
        runs: Folders of runs, or logs of other trainers.
        output: Folder for the figures and the page; it is created.

    Returns:
        The path of the page.

    Raises:
        UsageError: A run cannot be read.
    """
    write_files(build_contents(read_runs(runs), Options()), output)
    return output / PAGE


def write_files(
    contents: Contents, output: Path, *, formats: Sequence[str] = FORMATS, with_page: bool = True
) -> Written:
    """Write the figures and the page of a report and return their paths.

    A figure is ``output/figures/NAME.FORMAT``, and the page ``output/report.html``. Figures with nothing to show are
    left out.

    Args:
        contents: The contents of the report.
        output: The folder; it is created.
        formats: Formats of the figures, of ``FORMATS``.
        with_page: False to write the figures only.

    Raises:
        OSError: A file cannot be written.
    """
    # matplotlib takes a second to import.
    from openrlhf_cov.analysis.pages.picture import write_pictures
    from openrlhf_cov.analysis.report.charts import pictures
    from openrlhf_cov.analysis.report.report_page import report_page

    output.mkdir(parents=True, exist_ok=True)
    figures = write_pictures(pictures(contents), output / FIGURES, formats)
    if with_page:
        write_lines(output / PAGE, [report_page(contents)])
    return Written(output / PAGE if with_page else None, figures)
