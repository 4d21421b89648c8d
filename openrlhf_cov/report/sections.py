"""Sections of the page that are read without a script: the law, the table of runs, settings, comparisons (pure)."""

from collections.abc import Sequence
from html import escape

from openrlhf_cov.analysis.theory import PAPER_BANDS
from openrlhf_cov.report.contents import Contents, Ends, Options, RunReport, SizeSection
from openrlhf_cov.report.curves import BAND_CURVES
from openrlhf_cov.report.markup import Cell, facts, folded, items, paragraphs, section, table
from openrlhf_cov.report.text import arrow, extrapolation_line, number, size_text, with_interval
from openrlhf_cov.report.words import (
    duration,
    error_of,
    forecast_sentence,
    law_facts,
    law_sentence,
    same_sentence,
    theory_sentence,
)
from openrlhf_cov.utils.text_table import NONE

OPEN_CARDS = 4
"""Runs up to which what the law says of each is not folded."""

HINT = (
    "R = −a exp(H) + b: reward R is bought with token entropy H (Cui et al. 2025, arXiv:2505.22617). With no entropy "
    "left R reaches its ceiling, −a + b. dR/dH is what a nat of entropy costs in reward."
)
HEAD = (
    *("run", "steps", "time", "reward", "entropy", "law", "ceiling", "dR/dH at the end", "R²", "RMSE"),
    *("forecast RMSE", "forecast at the end", "theorem 1", "theorem 2"),
)
"""Columns of the table of runs."""


def law_section(contents: Contents) -> str:
    """What the law says of each run, in words and numbers."""
    cards = '<div class="cards">' + "\n".join(_card(run, contents.options) for run in contents.runs) + "</div>"
    if len(contents.runs) > OPEN_CARDS:
        applies = [run for run in contents.runs if run.law.result.verdict.applies]
        said = f"The law applies to {len(applies)} of {len(contents.runs)} runs; the table below has its numbers."
        cards = paragraphs([said], "") + folded("What it says of each run, in words", cards)
    return section("law", "The entropy law", paragraphs([HINT], "hint") + paragraphs(contents.notes) + cards)


def _card(run: RunReport, options: Options) -> str:
    verdict = run.law.result.verdict
    said = [f'<p class="verdict">{escape(law_sentence(run, options))}</p>']
    if verdict.applies:
        said.append(f'<dl class="facts">{facts(law_facts(run, options))}</dl>')
    else:
        said.append(items(reason.text for reason in verdict.reasons))
    more = [forecast_sentence(run.law, options)] if verdict.applies else []
    more += [theory_sentence(theory) for theory in run.theory if theory.check is not None]
    if not any(theory.check for theory in run.theory):
        more.append("Theory: not to be checked, the log has no predicted changes of entropy.")
    said.append(paragraphs(more, "small"))
    applies = " applies" if verdict.applies else ""
    return f'<article class="card{applies}"><h3>{escape(run.name)}</h3>{"".join(said)}</article>'


def runs_section(contents: Contents) -> str:
    """The table of all runs, and what was odd about their files."""
    rows = [_row(run, contents.options) for run in contents.runs]
    caption = "From start to end: reward, entropy. Of the theorems: rank correlation. A click on a heading sorts."
    found = table(HEAD, rows, caption, sorts=True)
    odd = [f"{run.name}: {warning}" for run in contents.runs for warning in run.warnings]
    if odd:
        found += f'<div class="warning" role="note"><p>About the files:</p>{items(odd)}</div>'
    return section("runs", "Runs", found)


def _row(run: RunReport, options: Options) -> list[Cell]:
    law, verdict = run.law, run.law.result.verdict
    start = [
        Cell(run.name),
        Cell(f"{run.step_count:,}", run.step_count),
        Cell(duration(run.seconds), run.seconds),
        _ends_cell(run.reward),
        _ends_cell(run.entropy),
        Cell("applies", kind="yes") if verdict.applies else Cell("does not apply", kind="no"),
    ]
    theory = [Cell(NONE, float("nan"))] * (2 - len(run.theory))
    for each in run.theory:
        correlation = each.check.correlation if each.check else None
        shown = (number(correlation.estimate), correlation.estimate) if correlation else (NONE, float("nan"))
        theory.append(Cell(*shown))
    fit = law.result.fit
    if fit is None or not verdict.applies:
        return [*start, *[Cell(NONE, float("nan"))] * 6, *theory]
    slope = run.slope.estimate if run.slope else float("nan")
    numbers = [fit.ceiling.estimate, slope, fit.r2]
    texts = [with_interval(fit.ceiling), number(slope), number(fit.r2)]
    errors = [fit.rmse, law.forecast.rmse if law.forecast else float("nan")]
    errors.append(law.forecast.final_error if law.forecast else float("nan"))
    cells = [Cell(text, value) for text, value in zip(texts, numbers, strict=True)]
    return [*start, *cells, *(Cell(error_of(error, options), error) for error in errors), *theory]


def _ends_cell(found: Ends) -> Cell:
    return Cell(arrow(found).replace("->", "→"), found.last)


def comparison_section(contents: Contents) -> str:
    """Same coefficients, and the trend against model size; empty where there is neither."""
    parts = []
    same = contents.same
    if same is not None:
        parts.append(paragraphs([same_sentence(same)], ""))
        if same.result is not None and len(same.unfit) < len(same.names):
            rows = [
                [
                    Cell(f"{same.names[each.first]} − {same.names[each.second]}"),
                    *(Cell(with_interval(getattr(each, name))) for name in ("a", "b", "ceiling")),
                ]
                for each in same.result.differences
            ]
            pairs = table(
                ("difference", "a", "b", "ceiling"), rows, "Differences of the coefficients, by pairs of runs"
            )
            parts.append(pairs if len(rows) <= 3 else folded(f"The {len(rows)} differences, by pairs of runs", pairs))
    if contents.sizes is not None:
        parts.append(_size_words(contents.sizes))
    return section("comparison", "The law across runs", "\n".join(parts)) if parts else ""


def _size_words(sizes: SizeSection) -> str:
    if sizes.trend is None:
        return paragraphs([f"No trend in model size: {sizes.reason}."], "")
    span = f"{len(sizes.names)} runs from {size_text(min(sizes.sizes))} to {size_text(max(sizes.sizes))}"
    lines = [f"Against the logarithm of model size, {span}, a, b and the ceiling are fitted by a line each."]
    if sizes.unfit:
        lines.append(f"The law does not apply to {', '.join(sizes.unfit)}, whose coefficients mean little.")
    if sizes.extrapolation is not None:
        lines.append(f"Extrapolated {extrapolation_line(sizes.extrapolation)}.")
    return paragraphs(lines, "")


def settings_section(contents: Contents) -> str:
    """Settings that differ as a table, all of each run folded."""
    runs = contents.runs
    parts = []
    if contents.settings:
        parts.append(f'<div class="settings">{_differences(contents)}</div>')
    elif len(runs) > 1:
        parts.append(paragraphs(["No setting that is known differs between the runs."], ""))
    known = [_all_settings(run) for run in runs if run.settings]
    parts += known if len(known) <= OPEN_CARDS else [folded("All settings, run by run", "".join(known))]
    unknown = [run.name for run in runs if not run.settings]
    if unknown:
        parts.append(paragraphs([f"The settings of {', '.join(unknown)} are not known: their logs have none."]))
    return section("settings", "Settings", "\n".join(parts))


def _differences(contents: Contents) -> str:
    """A row per setting, or per run where these are many."""
    caption = "Settings that differ between the runs; – where a run leaves the default."
    flags, names = [each.flag for each in contents.settings], [run.name for run in contents.runs]
    cells = [
        [Cell(_shown(value, run)) for value, run in zip(each.values, contents.runs, strict=True)]
        for each in contents.settings
    ]
    if len(names) > OPEN_CARDS:
        cells = [list(row) for row in zip(*cells, strict=True)]
        return table(("run", *flags), [[Cell(name), *row] for name, row in zip(names, cells, strict=True)], caption)
    return table(("setting", *names), [[Cell(flag), *row] for flag, row in zip(flags, cells, strict=True)], caption)


def _all_settings(run: RunReport) -> str:
    pairs = [(flag, _shown(value, run)) for flag, value in sorted(run.settings.items())]
    return folded(f"All settings of {run.name}", f'<dl class="facts">{facts(pairs)}</dl>')


def _shown(value: str | None, run: RunReport) -> str:
    if not run.settings:
        return "not known"
    return "–" if value is None else value


def band_table(run: RunReport) -> str:
    """Table 1 of the paper over the training of a run; empty without covariances."""
    if not run.stage_bands:
        return ""
    curves = [each for each in BAND_CURVES if each.column in run.series]
    rows = [
        [_span(stage.first_step, stage.last_step), *(Cell(number(stage.means[each.column])) for each in curves)]
        for stage in run.stage_bands
    ]
    rows.append([Cell("paper, Qwen2.5-7B, step 1"), *(Cell(number(PAPER_BANDS[each.column])) for each in curves)])
    head = ("steps", *(each.label for each in curves))
    return table(head, rows, f"Mean covariance of the top tokens over the training of {run.name} (paper, table 1)")


def _span(first: int, last: int) -> Cell:
    return Cell(f"{first:,}" if first == last else f"{first:,} to {last:,}")


def accuracy_table(run: RunReport) -> str:
    """Covariance by accuracy of the prompts, means over the run; empty where it was not logged."""
    kinds = [("responses", run.accuracy), ("tokens", run.token_accuracy)]
    rows = [
        [Cell(f"of {kind}"), *_accuracy_cells(found.means, found.easy_minus_hard)] for kind, found in kinds if found
    ]
    head = ("covariance", "hard", "medium", "easy", "easy − hard")
    caption = f"Covariance by accuracy of the prompts of {run.name}, mean over the run (paper, Fig. 8)"
    return table(head, rows, caption) if rows else ""


def _accuracy_cells(means: dict, apart) -> Sequence[Cell]:
    return [Cell(with_interval(each)) for each in (*(means[group] for group in ("low", "mid", "high")), apart)]
