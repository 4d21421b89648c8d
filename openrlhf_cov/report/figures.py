"""All pictures of a report."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
    contents: Contents, folder: Path, formats: Sequence[str]
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The files written, and ``NAME: why`` of every figure that has nothing to show."""
    folder.mkdir(parents=True, exist_ok=True)
    written, left_out = [], []
    with house_style():
        for name, draw in FIGURES.items():
            figure = draw(contents)
            if isinstance(figure, str):
                left_out.append(f"{name}: {figure}")
            else:
                written += save(figure, folder, name, formats)
    return tuple(written), tuple(left_out)
