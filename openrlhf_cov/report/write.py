"""Writes a report: the figures and the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openrlhf_cov.report.build import build_contents
from openrlhf_cov.report.contents import Contents, Options
from openrlhf_cov.report.reading import read_runs

PAGE = "report.html"
FIGURES = "figures"
FORMATS = ("svg", "png")


@dataclass(frozen=True)
class Written:
    """What was written; ``left_out`` says of each figure that has nothing to show why."""

    page: Path | None
    figures: tuple[Path, ...]
    left_out: tuple[str, ...]


def write_report(
    runs: Sequence[Path],
    output: Path,
    *,
    options: Options | None = None,
    mapping: Mapping[str, str] | str | None = None,
) -> Path:
    """Read the runs, write figures and page into the folder ``output``; the path of the page."""
    contents = build_contents(read_runs(runs, mapping), options or Options())
    write_files(contents, output)
    return output / PAGE


def write_files(
    contents: Contents, output: Path, *, formats: Sequence[str] = FORMATS, with_page: bool = True, processes: int = 1
) -> Written:
    """``output/figures/NAME.FORMAT`` of each figure with something to show, and ``output/report.html``.

    ``processes`` draw the figures; above 1, guard the main module of a script (multiprocessing).
    """
    from openrlhf_cov.report.figures import write_figures  # matplotlib and plotly take a second each

    output.mkdir(parents=True, exist_ok=True)
    figures, left_out = write_figures(contents, output / FIGURES, formats, processes=processes)
    if with_page:
        from openrlhf_cov.report.page import write_page

        write_page(contents, output / PAGE)
    return Written(output / PAGE if with_page else None, figures, left_out)
