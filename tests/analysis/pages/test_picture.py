import numpy as np
import pytest
from matplotlib.collections import PathCollection

from openrlhf_cov.analysis.pages.chart import Axis, Chart, Look, Mark, Panel, bands, look_of
from openrlhf_cov.analysis.pages.picture import draw, write_pictures

X = np.arange(100.0)


def line(place=0, **fields):
    return Mark("line", look_of(place), X, X * place, **({"name": f"line {place}"} | fields))


def chart_of(*panels, **fields):
    return Chart("name", "title", panels, **fields)


@pytest.fixture
def two():
    return chart_of(
        Panel((line(0), line(1)), title="a"), Panel((line(2), *bands(X, X, X + 1, Look("red"))), title="b")
    )


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.slow
@pytest.mark.parametrize("formats", [["svg", "png"], ["png"], ["png", "svg"]])
def test_every_format_whatever_is_written_before(two, tmp_path, formats):
    written = write_pictures([two], tmp_path / "new", formats)
    assert [path.name for path in written] == [f"name.{each}" for each in formats]
    found = (tmp_path / "new" / "name.png").read_bytes()
    assert found.startswith(b"\x89PNG")
    # two panels of 4.2 inches at 130 dots; the width is bytes 16 to 20 of the file
    assert int.from_bytes(found[16:20], "big") == 1092


@pytest.mark.slow
def test_the_same_chart_gives_the_same_svg(two, tmp_path):
    texts = [write_pictures([two], tmp_path / folder, ["svg"])[0].read_text() for folder in "ab"]
    assert texts[0] == texts[1]
    assert "<?xml" in texts[0]
    assert "<dc:date>" not in texts[0]


def test_many_names_are_counted_in_the_legend():
    figure = draw(chart_of(Panel(tuple(line(place) for place in range(20)))))
    assert labels(figure) == [*(f"line {place}" for place in range(12)), "8 more"]


def test_stacks_stand_on_each_other():
    marks = tuple(Mark("stack", Look("red"), X, np.full(100, height)) for height in (50.0, 30.0, 20.0))
    axes = draw(chart_of(Panel(marks, y=Axis(ends=(0.0, 60.0))))).axes[0]
    tops = [area.get_paths()[0].vertices[:, 1].max() for area in axes.collections]
    assert tops == [50.0, 80.0, 100.0]
    assert axes.get_ylim() == (0.0, 60.0)


@pytest.mark.parametrize("along", ["x", "y"])
def test_dots_have_whiskers_and_may_be_hollow(along):
    one = np.array([1.0])
    mark = Mark("dots", Look("red", hollow=True), one, one, one - 0.5, one + 2.0, whiskers=along)
    axes = draw(chart_of(Panel((mark,)))).axes[0]
    (whisker,) = axes.get_lines()
    assert np.ravel(getattr(whisker, f"get_{along}data")()).tolist() == [0.5, 3.0]
    (dots,) = (each for each in axes.collections if isinstance(each, PathCollection))
    assert dots.get_facecolor().tolist() == [[1.0, 1.0, 1.0, 1.0]]


@pytest.mark.parametrize(("lowest", "scale"), [(1.0, "log"), (0.0, "symlog"), (-1.0, "symlog")])
def test_a_logarithmic_axis_takes_what_is_not_above_0(lowest, scale):
    mark = Mark("line", Look("red"), [1, 2], [lowest, 10.0])
    axes = draw(chart_of(Panel((mark,), y=Axis(log=True)))).axes[0]
    assert axes.get_yscale() == scale
