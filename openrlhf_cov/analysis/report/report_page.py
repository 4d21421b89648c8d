"""``report.html``: one interactive page that needs neither network nor other files."""

from collections.abc import Sequence
from typing import Any

from openrlhf_cov.analysis.pages.chart import Chart, look_of
from openrlhf_cov.analysis.pages.html import Cell, render
from openrlhf_cov.analysis.pages.plot import figure
from openrlhf_cov.analysis.report.charts import labels, page_charts, run_key
from openrlhf_cov.analysis.report.contents import Contents, Ends, Options, RunReport, main_score
from openrlhf_cov.analysis.report.curves import BAND_CURVES
from openrlhf_cov.analysis.report.run_charts import detail_charts, law_charts
from openrlhf_cov.analysis.report.token_view import run_tokens, tokens_per_step
from openrlhf_cov.analysis.report.words import (
    LAW_HEAD,
    arrow,
    asked,
    compares,
    forecast_sentence,
    law_facts,
    law_row,
    law_sentence,
    number,
    same_sentence,
    share,
    size_lines,
    theory_sentence,
    with_interval,
)
from openrlhf_cov.analysis.theory import PAPER_BANDS
from openrlhf_cov.utils.text_table import NONE, duration

SCRIPTS = ("tokens.js", "report.js")
# Runs up to which the page does not fold the words about each run.
OPEN_CARDS = 4
RUN_HEAD = ("run", "steps", "time", "reward", "entropy", "length", "selected")

# Head, rows and caption.
Table = tuple[Sequence[str], list[list[Cell]], str]


def report_page(contents: Contents) -> str:
    """Return the page as HTML; all numbers, words and tables can be read without a script."""
    options = contents.options
    runs = contents.runs
    charts = page_charts(contents)
    details = [detail_charts(run) for run in runs]
    laws = [law_charts(run, options) for run in runs]
    has_details = any(details)
    # A section of the page and its title, in order. Those of ``present`` are left out where they would be empty.
    sections = {
        "curves": "Curves",
        "runs": "Runs" if len(runs) > 1 else "The run",
        "method": _method_title(charts.method, details),
        "tokens": "Tokens",
        "evaluation": "Evaluation",
        "law": "The entropy law",
    }
    present = {
        "method": bool(charts.method) or has_details,
        "tokens": any(run.token_files for run in runs),
        "evaluation": charts.scores is not None,
    }
    overview = [charts.overview] if charts.overview else []
    scores = [charts.scores] if charts.scores else []
    shared = [*overview, *charts.method, *scores, *charts.law]
    run_head, run_rows = run_table(contents)
    data = {
        "charts": {chart.name: figure(chart) for chart in shared},
        "evaluations": list(map(figure, charts.numbers)),
        "kinds": [chart.name for chart in [*_kinds(details), *_kinds(laws)]],
        "runs": _drawn_runs(contents, [[*one, *other] for one, other in zip(details, laws, strict=True)]),
    }
    return render(
        "report.html",
        data,
        SCRIPTS,
        title=contents.title,
        about=_about(contents),
        asked=asked(options),
        sections={name: title for name, title in sections.items() if present.get(name, True)},
        curves=overview,
        method=charts.method,
        details=_kinds(details),
        scores=scores,
        more_numbers=bool(charts.numbers),
        law_charts=charts.law,
        law_details=_kinds(laws),
        notes=[f"{note}." for note in contents.notes],
        cards=[_card(run, options) for run in runs],
        open_cards=OPEN_CARDS,
        run_head=run_head,
        run_rows=run_rows,
        law_head=(*LAW_HEAD, "theorem 1", "theorem 2"),
        law_rows=[_law_cells(run) for run in runs],
        warnings=[f"{run.name}: {warning}" for run in runs for warning in run.warnings],
        same=[same_sentence(contents.same)] if contents.same and compares(contents) else [],
        differences=difference_rows(contents),
        sizes=size_lines(contents.sizes) if contents.sizes else [],
        runs=[
            {
                "name": run.name,
                "tables": [*band_table(run), *accuracy_table(run)],
                "settings": sorted(run.settings.items()),
            }
            for run in runs
        ],
        settings=settings_table(contents),
    )


def _about(contents: Contents) -> str:
    """Return one line under the title: how long the runs are, and where reward and entropy went."""
    run, *others = contents.runs
    if others:
        counts = sorted({each.step_count for each in contents.runs})
        steps = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        return f"{len(contents.runs)} runs of {steps} global steps. Click a name to show or hide a run."
    parts = ["1 global step" if run.step_count == 1 else f"{run.step_count:,} global steps"]
    parts += [duration(run.seconds)] if run.seconds > 0 else []
    for name, found in (("reward", run.reward), ("entropy", run.entropy)):
        text = _ends_cell(found).text
        if text != NONE:
            parts.append(f"{name} {text}")
    return ", ".join(parts)


def _method_title(method: Sequence[Chart], details: Sequence[Sequence[Chart]]) -> str:
    """Return the title of the section about the method; some logs have covariances only, or times only."""
    if method:
        return "What the method did"
    kinds = {chart.name for chart in _kinds(details)}
    if "phases" not in kinds:
        return "Covariances"
    return "Covariances and time" if len(kinds) > 1 else "Time"


def _kinds(charts: Sequence[Sequence[Chart]]) -> list[Chart]:
    """Return one chart of each name that a run has."""
    found: dict[str, Chart] = {}
    # Backwards, so that the chart of the first run that has one is kept.
    for of_run in reversed(charts):
        for chart in of_run:
            found[chart.name] = chart
    return list(found.values())


def _drawn_runs(contents: Contents, charts: Sequence[Sequence[Chart]]) -> list[dict[str, Any]]:
    """Return what the scripts of the page draw of each run."""
    most = tokens_per_step([run.token_files for run in contents.runs])
    drawn = []
    for place, (run, label) in enumerate(zip(contents.runs, labels(contents), strict=True)):
        look = look_of(place)
        line = {"color": look.color, "dash": look.dash}
        drawn.append(
            {
                "name": run.name,
                "label": label,
                # The line of the run in the legend of runs.
                "style": {"legendgroup": run_key(place), "mode": "lines", "line": line},
                "charts": {chart.name: figure(chart) for chart in charts[place]},
                "tokens": run_tokens(run.token_files, most),
            }
        )
    return drawn


def _card(run: RunReport, options: Options) -> dict[str, Any]:
    """Return what the law says about a run, in words and numbers."""
    applies = run.law.accepted is not None
    reasons = [reason.text for reason in run.law.result.verdict.reasons]
    more = [forecast_sentence(run.law, options)] if applies else []
    more += [theory_sentence(theory) for theory in run.theory if theory.check is not None]
    return {
        "name": run.name,
        "applies": applies,
        "sentence": law_sentence(run, options),
        "summary": "Numbers" if applies else "Why",
        "facts": law_facts(run),
        "reasons": reasons,
        "more": more,
    }


def run_table(contents: Contents) -> tuple[tuple[str, ...], list[list[Cell]]]:
    """Return head and rows of the table of runs, without the columns that no run has a value for."""
    score = main_score(contents.runs)
    rows = [
        [
            Cell(run.name),
            Cell(f"{run.step_count:,}", run.step_count),
            Cell(duration(run.seconds) if run.seconds > 0 else NONE, run.seconds),
            *map(_ends_cell, (run.reward, run.entropy, run.length)),
            Cell(share(run.selected) if run.selected > 0 else NONE, run.selected),
            _ends_cell(run.score_ends(score)),
        ]
        for run in contents.runs
    ]
    head = (*RUN_HEAD, score)
    # A column that holds nothing but dashes is left out, with its heading.
    kept = [place for place in range(len(head)) if any(row[place].text != NONE for row in rows)]
    return tuple(head[place] for place in kept), [[row[place] for place in kept] for row in rows]


def _law_cells(run: RunReport) -> list[Cell]:
    correlations = [theory.check.correlation.estimate if theory.check else float("nan") for theory in run.theory]
    return [*map(Cell, law_row(run)), *(Cell(number(each), each) for each in correlations)]


def _ends_cell(found: Ends) -> Cell:
    return Cell(arrow(found).replace("->", "→"), found.last)


def difference_rows(contents: Contents) -> list[list[Cell]]:
    """Return the differences of the coefficients by pairs of runs; none if the law describes fewer than two runs."""
    same = contents.same
    if same is None or same.result is None or not compares(contents):
        return []
    return [
        [
            Cell(f"{same.names[each.first]} − {same.names[each.second]}"),
            *(Cell(with_interval(interval)) for interval in (each.a, each.b, each.ceiling)),
        ]
        for each in same.result.differences
    ]


def settings_table(contents: Contents) -> Table | None:
    """Return the settings that differ: a row per setting, or per run where there are many runs."""
    if not contents.settings:
        return None
    caption = "Settings that differ between the runs; – means that the command of the run does not name the setting."
    table = [
        [each.flag, *(_shown(value, run) for value, run in zip(each.values, contents.runs, strict=True))]
        for each in contents.settings
    ]
    # The table with its heading, so that it can be turned: runs become rows where they are many.
    table.insert(0, ["setting", *(run.name for run in contents.runs)])
    if len(contents.runs) > OPEN_CARDS:
        table = [list(column) for column in zip(*table, strict=True)]
        table[0][0] = "run"
    head, *rows = table
    return head, [list(map(Cell, row)) for row in rows], caption


def _shown(value: str | None, run: RunReport) -> str:
    if not run.settings:
        return "not known"
    return "–" if value is None else value


def band_table(run: RunReport) -> list[Table]:
    """Return table 1 of the paper for this run, in a list; an empty list without covariances."""
    if not run.stage_bands:
        return []
    curves = [each for each in BAND_CURVES if each.column in run.series]
    stages = [(_span(stage.first_step, stage.last_step), stage.means) for stage in run.stage_bands]
    stages.append(("paper, Qwen2.5-7B, step 1", PAPER_BANDS))
    rows = [[Cell(name), *(Cell(number(means[each.column])) for each in curves)] for name, means in stages]
    head = ("steps", *(each.label for each in curves))
    return [(head, rows, f"Mean covariance of the top tokens of {run.name} (paper, table 1)")]


def _span(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def accuracy_table(run: RunReport) -> list[Table]:
    """Return the covariance by accuracy of the prompts, in a list; an empty list where it was not logged."""
    rows = [
        [Cell(title), *map(Cell, map(with_interval, (*found.means.values(), found.easy_minus_hard)))]
        for title, found in run.accuracy.items()
    ]
    head = ("covariance", "hard", "medium", "easy", "easy − hard")
    caption = f"Covariance by accuracy of the prompts of {run.name}, mean over the run (paper, figure 8)"
    return [(head, rows, caption)] if rows else []
