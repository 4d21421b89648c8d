import os
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from openrlhf_cov.report import figures
from openrlhf_cov.report.across_figures import size_figure
from openrlhf_cov.report.curve_figures import curve_figure
from openrlhf_cov.report.curves import LENGTH, PROGRESS, SELECTION, Panel
from openrlhf_cov.report.figures import FIGURES, write_figures
from openrlhf_cov.report.style import LINE_STYLES, MOST_NAMED, house_style, save, short


@pytest.fixture
def contents(make_contents, make_report_run):
    runs = [
        make_report_run("none", steps=100),
        make_report_run("clip", steps=100, seed=1, method="clip_cov"),
        make_report_run("kl", steps=100, seed=2, method="kl_cov"),
    ]
    return make_contents(*runs, sizes={"none": 1e9, "clip": 2e9, "kl": 4e9}, extrapolate_to=8e9)


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_every_figure_is_drawn_in_every_format(contents, tmp_path):
    written, left_out = write_figures(contents, tmp_path / "figures", ("svg", "png"))
    assert left_out == ()
    assert [path.name for path in written] == [f"{name}.{each}" for name in FIGURES for each in ("svg", "png")]
    for path in written:
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if path.suffix == ".png" else b"<?xml" in start
        assert path.stat().st_size > 5000


def test_several_processes_write_the_same_files(contents, tmp_path):
    alone = write_figures(contents, tmp_path / "alone", ["svg", "png"])
    together = write_figures(contents, tmp_path / "together", ["svg", "png"], processes=3)
    assert together[1] == alone[1]
    assert [path.name for path in together[0]] == [path.name for path in alone[0]]
    for one, other in zip(*(written for written, _ in (alone, together)), strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_without_its_processes_it_draws_alone(contents, tmp_path, monkeypatch):
    here = os.getpid()
    monkeypatch.setattr(figures, "house_style", lambda: house_style() if os.getpid() == here else os._exit(9))
    written, _ = write_figures(contents, tmp_path, ["svg"], processes=2)
    assert len(written) == len(write_figures(contents, tmp_path / "alone", ["svg"])[0])


def test_the_same_report_gives_the_same_svg(contents, tmp_path):
    for name in ("law", "timing", "covariance_by_accuracy"):
        texts = []
        for folder in (tmp_path / "first", tmp_path / "second"):
            folder.mkdir(exist_ok=True)
            with house_style():
                (path,) = save(FIGURES[name](contents), folder, name, ["svg"])
            texts.append(path.read_text())
        assert texts[0] == texts[1]
        assert "<dc:date>" not in texts[0]


@pytest.mark.parametrize("formats", [["svg", "png"], ["png"], ["png", "svg"]])
def test_a_png_has_its_resolution_whatever_is_written_before(contents, tmp_path, formats):
    with house_style():
        figure = FIGURES["response_length"](contents)
        save(figure, tmp_path, "x", formats)
    # two panels of 4.2 inches at 130 dots; the width is bytes 16 to 20 of the file
    assert int.from_bytes((tmp_path / "x.png").read_bytes()[16:20], "big") == 1092


@pytest.mark.parametrize("name", FIGURES)
def test_no_text_is_clipped(contents, tmp_path, name):
    with house_style():
        figure = FIGURES[name](contents)
        save(figure, tmp_path, "x", ["png"])
        for shown in (*figure.axes, *figure.legends):
            box = shown.get_tightbbox()
            assert box.x0 > -1, shown
            assert box.y0 > -1, shown
            assert box.x1 < figure.bbox.x1 + 1, shown
            assert box.y1 < figure.bbox.y1 + 1, shown


def test_a_figure_with_nothing_to_show_is_left_out_with_a_reason(make_contents, make_report_run, tmp_path):
    contents = make_contents(make_report_run("run", only=["reward", "entropy/mean"]))
    written, left_out = write_figures(contents, tmp_path, ("png",))
    assert [path.stem for path in written] == ["reward_and_entropy", "law"]
    assert left_out == (
        "coefficients: fewer than two runs have a fit",
        "model_size: no run has a size (--size RUN=N)",
        "covariance_bands: no run has cov/top_2e-4 and the like",
        "entropy_change: the log has no entropy/delta_theorem1 and no entropy/delta",
        "selection: no run has cov/selected_frac or cov/selected_abs_log_ratio or cov/selected_ppo_kl",
        "sampling: no run has sampling/kept_frac or sampling/all_right_frac or sampling/all_wrong_frac",
        "response_length: no run has response_length or truncated",
        "timing: no run has the time of its phases",
        "covariance_by_accuracy: no run has cov/acc_low and the like",
    )
    assert set(FIGURES) == {path.stem for path in written} | {line.partition(":")[0] for line in left_out}


def test_runs_without_a_law_have_no_law_figure(make_contents, make_report_run):
    contents = make_contents(make_report_run("run", only=["reward"]))
    assert FIGURES["law"](contents) == "no run has entropy and reward of the same steps"


def test_the_curves_are_those_of_the_contents(contents):
    panel = FIGURES["response_length"](contents).axes[0]
    drawn = {line.get_color(): line for line in panel.get_lines() if line.get_linewidth() > 1}
    for run, style in zip(contents.runs, LINE_STYLES, strict=False):
        np.testing.assert_array_equal(drawn[style.color].get_ydata(), run.series["response_length"].mean)
        np.testing.assert_array_equal(drawn[style.color].get_xdata(), run.series["response_length"].steps)


def test_runs_differ_in_more_than_color():
    assert len({style.dashes for style in LINE_STYLES}) == len({style.marker for style in LINE_STYLES}) == MOST_NAMED


def test_many_runs_are_counted_in_the_legend(make_contents, make_report_run):
    runs = [make_report_run(f"run{seed}", seed=seed, only=["reward", "entropy/mean"]) for seed in range(10)]
    contents = make_contents(*runs)
    assert labels(curve_figure(contents, PROGRESS)) == [*(f"run{seed}" for seed in range(7)), "3 more runs"]
    law = FIGURES["law"](contents)
    assert len(law.axes) == 9
    assert law.get_suptitle().endswith("(9 of 10 runs)")
    assert len(FIGURES["coefficients"](contents).axes[0].get_yticks()) == 10


def test_any_name_can_be_drawn(make_contents, make_report_run, hostile, tmp_path):
    # a formula that is none, a letter that the font lacks (a warning, here an error), markup
    contents = make_contents(make_report_run(hostile, steps=60), make_report_run("$a_b^{c}$", seed=1, steps=60))
    written, _ = write_figures(contents, tmp_path, ["svg", "png"])
    assert {path.stem for path in written} >= {"law", "coefficients", "reward_and_entropy"}


def test_a_single_run_needs_no_legend(make_contents, make_report_run):
    assert curve_figure(make_contents(make_report_run("run")), PROGRESS).legends == []


def test_nothing_selected_is_no_figure(make_contents, make_report_run):
    assert curve_figure(make_contents(make_report_run("run")), SELECTION) == "no token was selected in any run"


def test_a_panel_without_a_curve_is_left_out(make_contents, make_report_run):
    contents = make_contents(make_report_run("run", only=["reward", "response_length"]))
    assert [axes.get_title() for axes in curve_figure(contents, LENGTH).axes] == ["response length (tokens)"]


def test_the_evaluation_that_is_r_is_drawn_beside_the_reward(make_contents, make_report_run):
    contents = make_contents(make_report_run("run"), metric="eval/aime24/avg@32")
    titles = [axes.get_title() for axes in curve_figure(contents, PROGRESS).axes]
    assert titles == ["reward", "entropy (nats)", "eval/aime24/avg@32"]
    assert Panel("reward", "reward") in PROGRESS.panels


def test_the_law_figure_tells_a_law_from_a_line(contents):
    none, clip, _ = FIGURES["law"](contents).axes
    assert "ceiling" in none.get_title()
    assert clip.get_title() == "clip\nthe law does not apply: intervention"
    assert len(none.collections) == 2  # points and the band
    assert len(clip.collections) == 1
    assert [line.get_linestyle() for line in clip.get_lines()] == [":"]
    assert "line, where the law does not apply" in labels(none.figure)


def test_runs_without_the_law_are_hollow_in_the_trend(contents):
    unfit = [not run.law.result.verdict.applies for run in contents.runs]
    assert unfit == [False, True, True]
    for axes in size_figure(contents).axes:
        faces = [line.get_markerfacecolor() for line in axes.lines if line.get_marker() not in ("None", "*")]
        assert [face == "white" for face in faces] == unfit


def test_a_step_that_dwarfs_the_others_is_cut(make_contents, make_report_run):
    run = make_report_run("run")
    run.training.columns["timing/generation"][0] = 5000.0
    axes = FIGURES["timing"](make_contents(run)).axes[0]
    # 95 % of the steps take 100 s, so that 1.6 times as much is shown
    assert axes.get_ylim() == (0.0, pytest.approx(160.0, rel=1e-9))
    assert axes.get_title() == "run\nup to 5.03e+03 s, cut"


def test_a_stack_is_as_high_as_the_step(make_contents, make_report_run):
    axes = FIGURES["timing"](make_contents(make_report_run("run"))).axes[0]
    tops = [collection.get_paths()[0].vertices[:, 1].max() for collection in axes.collections]
    # generation 50, updates 30, and the other 20 of 100
    assert tops == pytest.approx([50.0, 80.0, 100.0], rel=1e-12)


def test_runs_beyond_the_panels_are_counted(make_contents, make_report_run):
    contents = make_contents(*(make_report_run(f"run{seed}", seed=seed) for seed in range(5)))
    figure = FIGURES["entropy_change"](contents)
    assert len(figure.axes) == 8
    assert figure.get_suptitle().endswith("(4 of 5 runs)")


@pytest.mark.parametrize(
    ("name", "shown"), [("short", "short"), ("a" * 34, "a" * 34), ("a" * 20 + "b" * 20, "a" * 17 + "…" + "b" * 16)]
)
def test_names_are_shortened_in_their_middle(name, shown):
    assert short(name) == shown


def test_a_run_of_one_step_is_drawn(make_contents, make_report_run, tmp_path):
    contents = make_contents(make_report_run("run", steps=1))
    written, _ = write_figures(contents, tmp_path, ("svg", "png"))
    assert "reward_and_entropy" in {path.stem for path in written}


def test_odd_values_are_drawn(make_contents, make_report_run, tmp_path):
    # a constant reward, covariances that are 0, and a prediction that never changes
    run = make_report_run("run", steps=80)
    columns = dict(run.training.columns)
    for name in ("reward", "cov/mean", "cov/top_2e-4", "entropy/delta_theorem1"):
        columns[name] = np.zeros(80)
    contents = make_contents(replace(run, training=replace(run.training, columns=columns)))
    assert {"law", "covariance_bands", "entropy_change"} <= {
        path.stem for path in write_figures(contents, tmp_path, ("png",))[0]
    }
