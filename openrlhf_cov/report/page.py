"""``report.html``: one page with everything a report says, interactive, that needs neither network nor other files."""

import base64
import hashlib
import re
from html import escape
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from openrlhf_cov.report import sections
from openrlhf_cov.report.charts import curve_charts, evaluation_charts, law_chart, missing_charts, run_key, size_chart
from openrlhf_cov.report.contents import Contents, Options
from openrlhf_cov.report.markup import chart_frame, figure_frame, paragraphs, section
from openrlhf_cov.report.plotly_figure import Chart, Json, line_of, short_names
from openrlhf_cov.report.run_charts import RUN_CHARTS, run_charts
from openrlhf_cov.report.text import percent
from openrlhf_cov.report.token_view import run_tokens, tokens_per_step
from openrlhf_cov.report.words import share
from openrlhf_cov.utils.json_lines import embedded, write_lines

PIECES = Path(__file__).parent / "assets"
SCRIPTS = ("charts.js", "tokens.js", "report.js")
"""Parts of the page's own script, in their order."""
FULL_WIDTH = ("law",)
"""Charts of a run that take the whole width."""


def write_page(contents: Contents, path: Path) -> None:
    """Write the page to a file."""
    write_lines(path, [report_page(contents).rstrip("\n")])


def report_page(contents: Contents) -> str:
    """The page as HTML.

    Text of runs is escaped or stands in JSON that the page's script turns into plain text nodes; a content policy
    allows the page's two scripts by their hashes, and no network. Plotly sets styles, which the policy has to allow.
    """
    plotly, script = script_text(get_plotlyjs()), script_text("".join(_piece(name) for name in SCRIPTS))
    overview, evaluations = overview_charts(contents), evaluation_charts(contents.runs)
    of_runs = [run_charts(run, contents.options) for run in contents.runs]
    kinds = [name for name in RUN_CHARTS if any(chart.name == name for charts in of_runs for chart in charts)]
    shown = [
        ("law", "Law", sections.law_section(contents)),
        ("runs", "Runs", sections.runs_section(contents)),
        ("comparison", "Across runs", sections.comparison_section(contents)),
        ("curves", "Curves", _curves(contents, overview, bool(evaluations))),
        ("one", "One run", _one_run(contents, kinds)),
        ("tokens", "Tokens", _tokens(contents)),
        ("settings", "Settings", sections.settings_section(contents)),
    ]
    payload = {
        "charts": {chart.name: chart.figure() for chart in overview},
        "evaluations": [chart.figure() | _words(chart) | {"title": chart.title} for chart in evaluations],
        "kinds": kinds,
        "runs": _runs(contents, of_runs),
    }
    parts = {
        "hashes": " ".join(f"'{script_hash(each)}'" for each in (plotly, script)),
        "title": escape(contents.title),
        "asked": escape(asked(contents.options)),
        "style": _piece("report.css"),
        "nav": "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, body in shown if body),
        "sections": "\n".join(body for _, _, body in shown),
        "data": embedded(payload),
        "plotly": plotly,
        "script": script,
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _piece("report.html"))
    return page.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair cannot be written


def asked(options: Options) -> str:
    """What the report was asked for."""
    fit = "Huber's robust fit" if options.robust else "least squares"
    forecast = f"forecast from the first {percent(options.forecast_share)} % of the points"
    return f"R is {options.metric}; {fit}; {share(options.level)} intervals; {forecast}."


def script_text(source: str) -> str:
    """A script as it can stand in HTML, whose parser takes CR LF as LF and ends the element at ``</script``."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"</(?=script)", r"<\\/", source, flags=re.IGNORECASE).replace("<!--", "<\\!--")


def script_hash(script: str) -> str:
    """What a content policy calls an inline script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()


def overview_charts(contents: Contents) -> list[Chart]:
    """Charts with a line per run; of a single run the law is among its own."""
    charts = curve_charts(contents)
    across = [law_chart(contents) if len(contents.runs) > 1 else None, size_chart(contents)]
    return [*charts[:1], *(chart for chart in across if chart), *charts[1:]]


def _words(chart: Chart) -> Json:
    return {"note": chart.note, "description": chart.description}


def _runs(contents: Contents, of_runs: list[list[Chart]]) -> list[dict[str, Any]]:
    labels = short_names([run.name for run in contents.runs])
    most = tokens_per_step(contents.runs)
    return [
        {
            "name": run.name,
            "label": labels[place],
            "style": {"legendgroup": run_key(place), "mode": "lines", "line": line_of(place)},
            "charts": {chart.name: chart.figure() | _words(chart) for chart in of_runs[place]},
            "tokens": run_tokens(run, most),
        }
        for place, run in enumerate(contents.runs)
    ]


def _curves(contents: Contents, charts: list[Chart], evaluations: bool) -> str:
    several = len(contents.runs) > 1
    chips = '<div id="chips" role="group" aria-label="Show and hide runs"></div>' if several else ""
    frames = [chart_frame(chart, shared_legend=chart.name != "size") for chart in charts]
    if evaluations:
        select = '<div class="controls"><label>Number <select id="evaluation"></select></label></div>'
        frames.append(figure_frame("evaluations", "Evaluations", shared_legend=True, controls=select))
    missing = missing_charts(contents) + ([] if evaluations else ["Evaluations"])
    notes = [f"Without values in the logs: {', '.join(missing)}."] if missing else []
    body = chips + f'<div class="charts">{"".join(frames)}</div>' + paragraphs(notes) + NO_SCRIPT
    return section("curves", "Curves of all runs" if several else "Curves", body)


def _one_run(contents: Contents, kinds: list[str]) -> str:
    several = len(contents.runs) > 1
    select = f'<div class="controls">{RUN_CHOICE}</div>' if several else ""
    frames = "".join(figure_frame(name, RUN_CHARTS[name], wide=name in FULL_WIDTH) for name in kinds)
    tables = "".join(
        f'<div data-run="{place}">{sections.band_table(run)}{sections.accuracy_table(run)}</div>'
        for place, run in enumerate(contents.runs)
    )
    body = f'{select}<div class="charts">{frames}</div>{tables}{NO_SCRIPT}'
    return section("one", "One run in detail" if several else "In detail", body)


def _tokens(contents: Contents) -> str:
    """Empty where no run has token files."""
    if not any(run.token_files for run in contents.runs):
        return ""
    choice = f'<div class="controls">{RUN_CHOICE}</div>' if len(contents.runs) > 1 else ""
    return section("tokens", "Tokens of the highest covariance", choice + _piece("tokens.html") + NO_SCRIPT)


RUN_CHOICE = '<label>Run <select class="run-choice"></select></label>'
NO_SCRIPT = '<noscript><p class="note">This part needs JavaScript.</p></noscript>'


def _piece(name: str) -> str:
    return (PIECES / name).read_text(encoding="utf-8")
