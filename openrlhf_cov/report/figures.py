"""All pictures of a report."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import repeat
from pathlib import Path

from matplotlib.figure import Figure

from openrlhf_cov.report.across_figures import coefficients_figure, size_figure
from openrlhf_cov.report.contents import Contents
from openrlhf_cov.report.curve_figures import curve_figure
from openrlhf_cov.report.curves import LENGTH, PROGRESS, SAMPLING, SELECTION
from openrlhf_cov.report.law_figure import law_figure
from openrlhf_cov.report.run_figures import accuracy_figure, bands_figure, timing_figure
from openrlhf_cov.report.style import house_style, save
from openrlhf_cov.report.theory_figure import theory_figure

FIGURES: Mapping[str, Callable[[Contents], Figure | str]] = {
    PROGRESS.name: partial(curve_figure, figure=PROGRESS),
    "law": law_figure,
    "coefficients": coefficients_figure,
    "model_size": size_figure,
    "covariance_bands": bands_figure,
    "entropy_change": theory_figure,
    SELECTION.name: partial(curve_figure, figure=SELECTION),
    SAMPLING.name: partial(curve_figure, figure=SAMPLING),
    LENGTH.name: partial(curve_figure, figure=LENGTH),
    "timing": timing_figure,
    "covariance_by_accuracy": accuracy_figure,
}
"""By the name of the file: what draws it, or says why there is nothing to draw."""


def write_figures(
    contents: Contents, folder: Path, formats: Sequence[str], *, processes: int = 1
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The files written, and ``NAME: why`` of every figure that has nothing to show; by so many processes."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = _in_processes(contents, folder, formats, processes) if processes > 1 else {}
    drawn |= _write(contents, folder, formats, [name for name in FIGURES if name not in drawn])
    written = [path for name in FIGURES if not isinstance(drawn[name], str) for path in drawn[name]]
    return tuple(written), tuple(f"{name}: {drawn[name]}" for name in FIGURES if isinstance(drawn[name], str))


def _in_processes(
    contents: Contents, folder: Path, formats: Sequence[str], processes: int
) -> dict[str, list[Path] | str]:
    """What ``_write`` gives of all figures; nothing where the operating system gives or leaves us no processes."""
    parts = [list(FIGURES)[start::processes] for start in range(min(processes, len(FIGURES)))]
    try:
        with ProcessPoolExecutor(len(parts)) as pool:
            found = pool.map(_write, repeat(contents), repeat(folder), repeat(formats), parts)
            return {name: files for part in found for name, files in part.items()}
    except (BrokenProcessPool, OSError):
        return {}


def _write(
    contents: Contents, folder: Path, formats: Sequence[str], names: Sequence[str]
) -> dict[str, list[Path] | str]:
    """The files of each figure, or why it has nothing to show."""
    written = {}
    with house_style():
        for name in names:
            figure = FIGURES[name](contents)
            written[name] = figure if isinstance(figure, str) else save(figure, folder, name, formats)
    return written
