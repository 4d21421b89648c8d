"""Writes a report: the pictures and the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openrlhf_cov.analysis.report.assemble import build_contents, read_runs
from openrlhf_cov.analysis.report.contents import Contents, Options
from openrlhf_cov.utils.json_lines import write_lines

PAGE = "report.html"
FIGURES = "figures"
FORMATS = ("svg", "png")


@dataclass(frozen=True)
class Written:
    """What was written; ``left_out`` says of each figure that has nothing to show why."""

    page: Path | None
    figures: tuple[Path, ...]
    left_out: tuple[str, ...]


def write_report(runs: Sequence[Path], output: Path) -> Path:
    """Read the runs, write figures and page into the folder ``output``; the path of the page."""
    write_files(build_contents(read_runs(runs), Options()), output)
    return output / PAGE


def write_files(
    contents: Contents, output: Path, *, formats: Sequence[str] = FORMATS, with_page: bool = True
) -> Written:
    """``output/figures/NAME.FORMAT`` of each figure with something to show, and ``output/report.html``."""
    from openrlhf_cov.analysis.pages.picture import write_pictures  # matplotlib takes a second
    from openrlhf_cov.analysis.report.charts import pictures
    from openrlhf_cov.analysis.report.report_page import report_page

    output.mkdir(parents=True, exist_ok=True)
    charts = pictures(contents)
    left_out = tuple(f"{name}: {chart}" for name, chart in charts.items() if isinstance(chart, str))
    drawn = [chart for chart in charts.values() if not isinstance(chart, str)]
    figures = write_pictures(drawn, output / FIGURES, formats)
    if with_page:
        write_lines(output / PAGE, [report_page(contents)])
    return Written(output / PAGE if with_page else None, figures, left_out)
