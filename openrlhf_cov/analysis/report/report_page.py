"""``report.html``: one page with everything a report says, interactive, that needs neither network nor other files."""

from collections.abc import Sequence
from typing import Any

from openrlhf_cov.analysis.pages.chart import Chart, look_of
from openrlhf_cov.analysis.pages.html import Cell, render
from openrlhf_cov.analysis.pages.plot import figure
from openrlhf_cov.analysis.report.charts import evaluation_charts, labels, overview_charts, run_key
from openrlhf_cov.analysis.report.contents import Contents, Ends, Options, RunReport
from openrlhf_cov.analysis.report.curves import BAND_CURVES
from openrlhf_cov.analysis.report.run_charts import RUN_CHARTS, run_charts
from openrlhf_cov.analysis.report.token_view import run_tokens, tokens_per_step
from openrlhf_cov.analysis.report.words import (
    EARLY_HEADS,
    arrow,
    duration,
    early_cells,
    error_of,
    forecast_sentence,
    law_facts,
    law_sentence,
    number,
    percent,
    r_and_h,
    same_sentence,
    share,
    size_lines,
    theory_sentence,
    with_interval,
)
from openrlhf_cov.analysis.theory import PAPER_BANDS
from openrlhf_cov.utils.estimates import LEVEL
from openrlhf_cov.utils.text_table import NONE

SCRIPTS = ("tokens.js", "report.js")
OPEN_CARDS = 4
"""Runs up to which what the law says of each is not folded."""
HEAD = (
    *("run", "steps", "time", "reward", "entropy", "law", "ceiling", "dR/dH at the end", "R²", "RMSE"),
    *("forecast RMSE", "forecast at the end", "theorem 1", "theorem 2", *EARLY_HEADS),
)
"""Columns of the table of runs."""
NOTHING = Cell(NONE, float("nan"))

Table = tuple[Sequence[str], list[list[Cell]], str]
"""Head, rows and caption."""


def report_page(contents: Contents) -> str:
    """The page as HTML; the law, its numbers and all tables can be read without a script."""
    options, runs = contents.options, contents.runs
    charts, missing = overview_charts(contents)
    evaluations = evaluation_charts(contents)
    of_runs = [run_charts(run, options) for run in runs]
    drawn = {chart.name for each in of_runs for chart in each}
    kinds = {name: title for name, title in RUN_CHARTS.items() if name in drawn}
    sections = {
        "law": "Law",
        "runs": "Runs",
        "comparison": "Across runs" if contents.same or contents.sizes else "",
        "curves": "Curves",
        "one": "One run",
        "tokens": "Tokens" if any(run.token_files for run in runs) else "",
        "settings": "Settings",
    }
    data = {
        "charts": {chart.name: figure(chart) for chart in charts},
        "evaluations": list(map(figure, evaluations)),
        "kinds": list(kinds),
        "runs": _drawn_runs(contents, of_runs),
    }
    return render(
        "report.html",
        data,
        SCRIPTS,
        title=contents.title,
        asked=asked(options),
        sections={name: title for name, title in sections.items() if title},
        notes=contents.notes,
        cards=[_card(run, options) for run in runs],
        folds=len(runs) > OPEN_CARDS,
        open_cards=OPEN_CARDS,
        run_head=HEAD,
        run_rows=[run_row(run, options) for run in runs],
        warnings=[f"{run.name}: {warning}" for run in runs for warning in run.warnings],
        same=[same_sentence(contents.same)] if contents.same else [],
        differences=difference_rows(contents),
        sizes=size_lines(contents.sizes) if contents.sizes else [],
        charts=charts,
        evaluations=evaluations,
        missing=missing + ([] if evaluations else ["Evaluations"]),
        kinds=kinds,
        runs=[
            {"name": run.name, "tables": [*band_table(run), *accuracy_table(run)], "settings": _settings(run)}
            for run in runs
        ],
        settings=settings_table(contents),
    )


def _drawn_runs(contents: Contents, charts: Sequence[Sequence[Chart]]) -> list[dict[str, Any]]:
    """What the scripts of the page draw of each run."""
    most = tokens_per_step(contents.runs)
    return [
        {
            "name": run.name,
            "label": label,
            "style": _style(place),
            "charts": {chart.name: figure(chart) for chart in charts[place]},
            "tokens": run_tokens(run, most),
        }
        for place, (run, label) in enumerate(zip(contents.runs, labels(contents), strict=True))
    ]


def asked(options: Options) -> str:
    """What the report was asked for."""
    fit = "Huber's robust fit" if options.robust else "least squares"
    forecast = f"forecast from the first {percent(options.forecast_share)} % of the points"
    return f"R is {r_and_h(options)}; {fit}; {share(LEVEL)} intervals; {forecast}."


def _style(place: int) -> dict[str, Any]:
    """What the legend of runs shows of a run, as of a line."""
    look = look_of(place)
    return {"legendgroup": run_key(place), "mode": "lines", "line": {"color": look.color, "dash": look.dash}}


def _card(run: RunReport, options: Options) -> dict[str, Any]:
    """What the law says of a run, in words and numbers."""
    verdict = run.law.result.verdict
    more = [forecast_sentence(run.law, options)] if verdict.applies else []
    more += [theory_sentence(theory) for theory in run.theory if theory.check is not None]
    if not any(theory.check for theory in run.theory):
        more.append("Theory: not to be checked, the log has no predicted changes of entropy.")
    return {
        "name": run.name,
        "applies": verdict.applies,
        "sentence": law_sentence(run, options),
        "facts": law_facts(run, options),
        "reasons": [reason.text for reason in verdict.reasons],
        "more": more,
    }


def run_row(run: RunReport, options: Options) -> list[Cell]:
    """One row of ``HEAD``; no number of the law where it does not apply."""
    law, verdict = run.law, run.law.result.verdict
    start = [
        Cell(run.name),
        Cell(f"{run.step_count:,}", run.step_count),
        Cell(duration(run.seconds), run.seconds),
        _ends_cell(run.reward),
        _ends_cell(run.entropy),
        Cell("applies", kind="yes") if verdict.applies else Cell("does not apply", kind="no"),
    ]
    correlations = [theory.check.correlation.estimate if theory.check else float("nan") for theory in run.theory]
    theory = [Cell(number(each), each) for each in correlations]
    theory += [NOTHING] * (2 - len(theory))
    theory += [
        Cell(text, each[0]) for text, each in zip(early_cells(run), (law.early.drop, law.early.gain), strict=True)
    ]
    fit = law.result.fit
    if fit is None or not verdict.applies:
        return [*start, *[NOTHING] * 6, *theory]
    slope = run.slope.estimate if run.slope else float("nan")
    errors = [fit.rmse, *((law.forecast.rmse, law.forecast.final_error) if law.forecast else [float("nan")] * 2)]
    numbers = [Cell(number(each), each) for each in (slope, fit.r2)]
    ceiling = Cell(with_interval(fit.ceiling), fit.ceiling.estimate)
    return [*start, ceiling, *numbers, *(Cell(error_of(error, options), error) for error in errors), *theory]


def _ends_cell(found: Ends) -> Cell:
    return Cell(arrow(found).replace("->", "→"), found.last)


def difference_rows(contents: Contents) -> list[list[Cell]]:
    """Differences of the coefficients by pairs of runs; none where the law applies to none."""
    same = contents.same
    if same is None or same.result is None or len(same.unfit) == len(same.names):
        return []
    return [
        [
            Cell(f"{same.names[each.first]} − {same.names[each.second]}"),
            *(Cell(with_interval(getattr(each, name))) for name in ("a", "b", "ceiling")),
        ]
        for each in same.result.differences
    ]


def settings_table(contents: Contents) -> Table | None:
    """Settings that differ: a row per setting, or per run where these are many."""
    if not contents.settings:
        return None
    caption = "Settings that differ between the runs; – where the command of a run does not name one."
    table = [
        [each.flag, *(_shown(value, run) for value, run in zip(each.values, contents.runs, strict=True))]
        for each in contents.settings
    ]
    table.insert(0, ["setting", *(run.name for run in contents.runs)])
    if len(contents.runs) > OPEN_CARDS:
        table = [list(column) for column in zip(*table, strict=True)]
        table[0][0] = "run"
    head, *rows = table
    return head, [list(map(Cell, row)) for row in rows], caption


def _settings(run: RunReport) -> list[tuple[str, str]]:
    return [(flag, _shown(value, run)) for flag, value in sorted(run.settings.items())]


def _shown(value: str | None, run: RunReport) -> str:
    if not run.settings:
        return "not known"
    return "–" if value is None else value


def band_table(run: RunReport) -> list[Table]:
    """Table 1 of the paper over the training of a run; none without covariances."""
    if not run.stage_bands:
        return []
    curves = [each for each in BAND_CURVES if each.column in run.series]
    stages = [(_span(stage.first_step, stage.last_step), stage.means) for stage in run.stage_bands]
    stages.append(("paper, Qwen2.5-7B, step 1", PAPER_BANDS))
    rows = [[Cell(name), *(Cell(number(means[each.column])) for each in curves)] for name, means in stages]
    head = ("steps", *(each.label for each in curves))
    return [(head, rows, f"Mean covariance of the top tokens over the training of {run.name} (paper, table 1)")]


def _span(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def accuracy_table(run: RunReport) -> list[Table]:
    """Covariance by accuracy of the prompts, means over the run; none where it was not logged."""
    rows = [
        [Cell(title), *map(Cell, map(with_interval, (*found.means.values(), found.easy_minus_hard)))]
        for title, found in run.accuracy.items()
    ]
    head = ("covariance", "hard", "medium", "easy", "easy − hard")
    caption = f"Covariance by accuracy of the prompts of {run.name}, mean over the run (paper, Fig. 8)"
    return [(head, rows, caption)] if rows else []
