"""Write docs/study/, its figures, the figure of README.md, and the numbers of docs/study.md.

The sources are ``studies/results/`` and the specs. Runs that are not finished are left out, and the pages say how many
are. In docs/study.md, the text between the comments "numbers NAME" and "end of NAME" is replaced.
"""

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from openrlhf_cov.analysis.pages.chart import FAINT, STEPS, Axis, Chart, Look, Mark, Panel, bands, look_of
from openrlhf_cov.analysis.pages.picture import write_pictures
from openrlhf_cov.experiments.study import study_numbers
from openrlhf_cov.experiments.study.answer import AGAINST, NOT_ENOUGH, Runs, finished_runs, rule
from openrlhf_cov.experiments.study.answer import shown as shown_number
from openrlhf_cov.experiments.study.document import (
    HOW,
    WHAT,
    Document,
    Section,
    document,
    markdown_section,
    markdown_table,
)
from openrlhf_cov.experiments.study.entropy_drop_page import drop_document, drop_row
from openrlhf_cov.experiments.study.forecast_page import forecast_document, runs_by_setting, study_errors
from openrlhf_cov.experiments.study.lab_runs import LabStudy
from openrlhf_cov.experiments.study.mechanism_page import mechanism_chart, mechanism_section
from openrlhf_cov.experiments.study.questions import agreement
from openrlhf_cov.experiments.study.ray_runs import RayStudy
from openrlhf_cov.experiments.study.run_results import Result, unpack
from openrlhf_cov.experiments.study.seed_estimates import SHARE, UNBOUNDED, Bounds, mean_over_seeds
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.experiments.study.spec_file import read_spec
from openrlhf_cov.experiments.study.study_numbers import Finished
from openrlhf_cov.experiments.study.study_summary import joined
from openrlhf_cov.experiments.study.sweeps import critical_panel
from openrlhf_cov.experiments.study.table_rows import main_rows

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "studies" / "results"
SPECS = ROOT / "studies"
PAGES = ROOT / "docs" / "study"
FIGURES = ROOT / "docs" / "assets" / "study"
README_FIGURES = ROOT / "docs" / "assets"
README_STUDY = "demo_compare"
# The page that compares the methods at equal tuning.
EQUAL_TUNING = "equal_tuning"
# Its studies: with eight updates per rollout, and strictly on-policy.
TUNED = (
    ("commands", "commands_methods", "commands_surrogates"),
    ("commands_one_update", "commands_methods_one_update"),
)
HALF_WAY = "half-way"
ENTROPY = "mean first-token entropy"
TUNED_UPDATES = ("eight updates per rollout", "on-policy")
# Methods with a color of their own in the figure of docs/study_commands.md.
NAMED_METHODS = ("PSR", "pass@k training", "entropy advantage", "Clip-Cov", "KL-Cov", "NSR", "CW-GRPO")
TUNED_CAPTION = (
    "Dots are means over eight seeds with 95 % intervals; an interval right of zero means that the method learns "
    "faster than GRPO."
)
TUNED_COLUMNS = {
    HALF_WAY: "accuracy at 50 %",
    "accuracy": "final accuracy",
    ENTROPY: "mean entropy",
}
TUNED_TITLE = "Methods at equal tuning"
TUNED_ABOUT = (
    "Each value is the mean difference from GRPO on the commands task, with eight fresh seeds after tuning the "
    "learning rate and the main setting. An asterisk marks a difference of at least 0.005 whose 95 % interval "
    "excludes zero. Mean entropy is that of the decision token, averaged over the run, in nats. A dash means that the "
    "method was not run. The task is small, with five tokens per response, and GRPO ends at 0.98, so final accuracy "
    "leaves no room for a gain."
)
# A difference of less than this is no more than one question of a test.
LEAST_DIFFERENCE = 0.005
# Paragraphs that every study has. Its page has a link to docs/run_study.md instead, which explains the tables.
EXPLANATIONS = (*HOW, WHAT)
# Sections with long tables, which are folded.
FOLDED = ("What the updates did", "Tuning", "By study")
# Section whose table repeats a column of the main one.
COST = "What does each method cost?"
# Charts that a page shows.
SHOWN = ("test", "first_token_entropy", "pass_at_k", "map")
# A study with this ending ran on the whole trainer; the study without it ran in the lab.
WHOLE_TRAINER = "_ray"
STUDY = ROOT / "docs" / "study.md"
NUMBERS = re.compile(r"(?<=<!-- numbers )(\w+) -->\n.*?(?=<!-- end of \1 -->)", re.DOTALL)
# Studies behind docs/study.md. Each may lack results.
SHORTCUT = "shortcut"
LEARNING_RATES = "learning_rate_map"
MECHANISM = "mechanism"
BANDIT = "two_peaks"
# Results of ``scripts/make_entropy_drops.py``, which is not a study.
DROPS = "entropy_drops"
FORECASTS = "forecasts"
# Seeds below which a study is no part of the forecasts.
FEWEST_SEEDS = 3
# No part of the forecasts either: 15 % of its 40 steps are six, the fewest that a fit takes.
SHORT_RUNS = BANDIT
# Rows of the list of docs/study.md: what studies are about, and their names. Those without results are listed, too.
LISTED = {
    "the shortcut": (SHORTCUT, LEARNING_RATES, "model_size", MECHANISM),
    "other tasks": ("tail", "graph_paths", BANDIT),
    "commands, eight updates": ("commands", "commands_methods", "commands_surrogates"),
    "commands, one update": ("commands_one_update", "commands_methods_one_update"),
    "equal tuning": (EQUAL_TUNING,),
    "defaults and scope": ("methods", "scope", "random_drop", "divergence"),
    "matched entropy": ("matched_first_token", "matched_entropy"),
    "addition": ("addition", "addition_methods"),
    "through Ray": ("commands_ray", "addition_ray"),
    "`make demo-compare`; SmolLM2-135M": ("demo_compare", "smollm2"),
    "law and theorems": (FORECASTS, DROPS),
}
# Where each further page of docs/study/ comes from.
SOURCES = {
    EQUAL_TUNING: ", ".join(f"`studies/results/{name}.jsonl.xz`" for studies in TUNED for name in studies),
    FORECASTS: "the reward and the entropy of all runs in `studies/results/`",
    DROPS: f"`studies/results/{DROPS}.jsonl.xz` and `studies/results/{MECHANISM}.jsonl.xz`",
}


def names() -> list[str]:
    """Return the studies that have published runs."""
    found = (path.name.removesuffix(".jsonl.xz") for path in RESULTS.glob("*.jsonl.xz"))
    return sorted(name for name in found if name != DROPS)


@cache  # several pages read the runs of one study
def results_of(name: str) -> tuple[Spec, list[Result]]:
    """Return a study and its published runs, those that have the flags of the study."""
    spec = read_spec(SPECS / f"{name}.yaml")
    study = (RayStudy if spec.engine == "ray" else LabStudy)(spec, SPECS, SPECS)
    return spec, list(unpack(RESULTS / f"{name}.jsonl.xz", study.asked))


def content_of(name: str) -> Document:
    """Return the document of a study from its published runs."""
    return document(*results_of(name))


def beside(name: str) -> list[Section]:
    """Return the comparison of the whole trainer with the lab; nothing for a study of the lab."""
    if not name.endswith(WHOLE_TRAINER):
        return []
    twins = (name, name.removesuffix(WHOLE_TRAINER))
    answer = agreement(*(finished_runs(*results_of(each)) for each in twins))
    return [Section(answer.question, (answer.text,), answer.head, answer.rows)]


def shown(name: str, content: Document) -> list:
    """Return the charts of a study that its page shows."""
    charts = [chart for chart in content.charts if chart.name in SHOWN]
    if name == MECHANISM:
        return [mechanism_chart(finished_runs(*results_of(name))), *charts]
    if name == SHORTCUT:
        panel = critical_panel(*results_of(name))
        return [Chart("critical", "Critical share of each method", (panel,)), *charts] if panel else charts
    return charts


def explained(name: str) -> list[Section]:
    """Return a section that only this study has: what happens to the names of skills, or the theorems in the bandit.

    Most studies have none.
    """
    if name == MECHANISM:
        return [mechanism_section(finished_runs(*results_of(name)))]
    return [theorems_in_the_bandit()] if name == BANDIT else []


def theorems_in_the_bandit() -> Section:
    """Return how well each prediction of the entropy's fall follows the measured one, by the page of the falls."""
    [table] = entropy_drops().sections
    [row] = [each for each in table.rows if each[0].startswith(BANDIT)]
    # The first two columns are the name and the number of the runs, and the last is about other falls.
    predictions = zip(table.head[2:-1], row[2:-1], strict=True)
    # A dash is a prediction without a correlation: the drift is 0 in every step.
    found = joined([f"{prediction} {value}" for prediction, value in predictions if value != "-"])
    text = (
        "The theorems assume a table of logits and one update of a rollout. In runs of this bandit that record the "
        "fall of the entropy in each step (GRPO, 60 steps of one update), the rank correlations of the predicted with "
        f"the measured fall are {found}. Networks have lower ones: [falls of the entropy](entropy_drops.md)."
    )
    return Section("How well do the theorems hold in the bandit?", (text,))


def settings_of_methods(name: str) -> Section:
    """Return the flags of each method of a study, beside the flags of all its runs."""
    rows = []
    for method in read_spec(SPECS / f"{name}.yaml").methods:
        inherited = f"those of {method.at}, and " if method.at else ""
        rows.append((method.name, inherited + (" ".join(method.words) or "none")))
    return Section("Settings of the methods", (), ("method", "flags"), tuple(rows))


def page(name: str, content: Document) -> str:
    """Return the page of one study as Markdown."""
    spec = f"studies/{name}.yaml"
    packed = f"studies/results/{name}.jsonl.xz"
    source = (
        f"`python scripts/write_study_docs.py` writes this page from `{packed}`; the spec is `{spec}`. "
        f"`openrlhf-cov study {spec} --unpack {packed} --page` writes all tables and charts. "
        "[How to read the tables](../run_study.md#how-to-read-the-tables) explains their columns, and "
        "[Study](../study.md) summarises all studies."
    )
    sections = (*content.sections, *beside(name), *explained(name), settings_of_methods(name))
    return page_of(name, replace(content, sections=sections, charts=tuple(shown(name, content))), source)


def page_of(name: str, content: Document, source: str) -> str:
    """Return a page of docs/study/: the result first, then the figures, then the tables.

    Args:
        name: Name of the page.
        content: Its text, tables and charts.
        source: Sentences on where the numbers are from.
    """
    paragraphs = [f"# {content.title}", content.summary, content.about, source]
    for chart in content.charts:
        paragraphs += [f"![{chart.title}](../assets/study/{name}/{chart.name}.svg)"]
        # A caption belongs to the pages about several studies; other pages explain their charts in the text.
        paragraphs += [chart.note] if chart.note and name in SOURCES else []
    paragraphs += [section for each in content.sections if (section := section_of(each))]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def section_of(section: Section) -> str:
    """Return a section as Markdown: without what other pages say, and folded if it is long; "" if it has no answer."""
    paragraphs = tuple(each for each in section.paragraphs if each not in EXPLANATIONS)
    if not section.rows and all(each.startswith(NOT_ENOUGH) for each in paragraphs):
        return ""
    rows = () if section.title == COST else section.rows
    heading, _, *lines = markdown_section(replace(section, paragraphs=paragraphs, rows=rows))
    body = "\n".join(lines).rstrip()
    if section.title in FOLDED:
        return f'<details markdown="1">\n<summary>{section.title}</summary>\n\n{body}\n\n</details>'
    return f"{heading}\n\n{body}"


def further_pages() -> dict[str, Document]:
    """Return the pages of docs/study/ that are about several studies, by name."""
    return {EQUAL_TUNING: tuned_document(), FORECASTS: forecasts(), DROPS: entropy_drops()}


@cache
def forecasts() -> Document:
    """Return the forecasts of the ends of all lab runs, but for those of ``SHORT_RUNS``."""
    found = []
    for name in names():
        spec, results = results_of(name)
        if name == SHORT_RUNS or spec.engine == "ray":
            continue
        runs = runs_by_setting(spec, results)
        seeds = {seed for settings in runs.values() for of_setting in settings for seed in of_setting}
        if len(seeds) >= FEWEST_SEEDS:
            found.append(study_errors(name, spec.task, runs))
    return forecast_document(found)


@cache
def entropy_drops() -> Document:
    """Return the predicted and measured falls of the entropy, by task and by method."""
    by_task: dict[str, list[Result]] = {}
    for result in unpack(RESULTS / f"{DROPS}.jsonl.xz"):
        by_task.setdefault(f"{result.run.method}, GRPO, 1 update", []).append(result)
    rows = [drop_row(name, results) for name, results in by_task.items()]
    of_methods = finished_runs(*results_of(MECHANISM)) if MECHANISM in names() else {}
    rows += [
        drop_row(f"shortcut, {name}, 4 updates", list(runs.values())) for name, runs in of_methods.items() if runs
    ]
    return drop_document(rows)


def further_page(name: str, content: Document) -> str:
    """Return a page of docs/study/ that is about several studies."""
    return page_of(name, content, f"`python scripts/write_study_docs.py` writes this page from {SOURCES[name]}.")


def finished(name: str) -> Finished:
    """Return the finished runs of a study, none if it has no published ones."""
    if name in names():
        return Finished(name, *results_of(name))
    return Finished(name, read_spec(SPECS / f"{name}.yaml"), [])


def main_figure() -> Chart:
    """Return the figure of docs/study.md."""
    return study_numbers.figure(finished(SHORTCUT), finished(LEARNING_RATES), finished(MECHANISM))


def links() -> str:
    """Return the list of all studies as a table, with links to the pages of those that have results."""
    known = {*names(), *SOURCES}
    lines = ["| about | studies |", "|---|---|"]
    for about, studies in LISTED.items():
        cells = (f"[`{name}`](study/{name}.md)" if name in known else f"`{name}`" for name in studies)
        lines.append(f"| {about} | {', '.join(cells)} |")
    return "\n".join(lines)


def with_numbers(text: str) -> str:
    """Return docs/study.md with its numbers brought up to date."""
    shortcut = finished(SHORTCUT)
    learning_rates = finished(LEARNING_RATES)
    mechanism = finished(MECHANISM)
    parts = {
        "answer": study_numbers.answer(shortcut, learning_rates),
        "figure": study_numbers.said_of_figure(shortcut, learning_rates, mechanism),
        "table": "\n".join(markdown_table(study_numbers.table(shortcut, learning_rates))),
        "mechanism": "\n".join(markdown_table(study_numbers.mechanism_numbers(mechanism))),
        "drops": study_numbers.said_of_drops(entropy_drops()),
        "links": links(),
    }
    return NUMBERS.sub(lambda match: f"{match[1]} -->\n\n{parts[match[1]]}\n\n", text)


@cache
def tuned_cells() -> tuple[dict[str, dict[str, str]], ...]:
    """Return the differences from GRPO at equal tuning, with eight updates and with one: method -> number -> cell."""
    found = []
    for studies in TUNED:
        cells: dict[str, dict[str, str]] = {}
        for name in studies:
            for row in main_rows(*results_of(name))[1:]:
                if "random reward" not in row.method:
                    cells[row.method] = {
                        each: shown_number(row.differences[each], signed=True) for each in TUNED_COLUMNS
                    }
        found.append(cells)
    return tuple(found)


def tuned_rows() -> dict[str, list[str]]:
    """Return the differences from GRPO at equal tuning by method: those with eight updates, then those with one."""
    found = [
        {method: [starred(row[head]) for head in TUNED_COLUMNS] for method, row in cells.items()}
        for cells in tuned_cells()
    ]
    none = ["–"] * len(TUNED_COLUMNS)
    methods = {**found[0], **found[1]}
    return {method: [*found[0].get(method, none), *found[1].get(method, none)] for method in methods}


def tuned_document() -> Document:
    """Return the page that compares the methods at equal tuning, with both numbers of updates."""
    heads = [f"{head}, {when}" for when in ("8 updates", "on-policy") for head in TUNED_COLUMNS.values()]
    rows = tuple((method, *cells) for method, cells in tuned_rows().items())
    section = Section(AGAINST, (), ("method", *heads), rows)
    return Document(TUNED_TITLE, TUNED_ABOUT, (section,), (tuned_chart(),), tuned_summary())


def tuned_summary() -> str:
    """Return which methods end higher than GRPO at equal tuning, and which are ahead at 50 % of training."""
    higher = [method for found in tuned_cells() for method in gains(found, "accuracy")]
    first = f"{joined(higher)} end higher than GRPO" if higher else "No method ends with a higher accuracy than GRPO"
    off_policy, on_policy = (joined(list(gains(found, HALF_WAY).values())) for found in tuned_cells())
    return (
        f"{first}. With eight updates per rollout, {off_policy} are ahead at 50 % of training. On-policy, {on_policy} "
        f"are ahead. Numbers in brackets are differences from GRPO; a difference counts if {rule('eight seeds')}."
    )


def gains(found: dict[str, dict[str, str]], number: str) -> dict[str, str]:
    """Return the methods with a number above GRPO's, the largest difference first: method -> "method (+0.12)"."""
    cells = {method: starred(row[number]) for method, row in found.items()}
    above = [method for method, cell in cells.items() if cell.startswith("+") and cell.endswith("*")]
    above.sort(key=lambda method: -ends_of(found[method][number])[0])
    return {method: f"{method} ({cells[method].rstrip('*')})" for method in above}


def tuned_chart() -> Chart:
    """Return accuracies at 50 % of training minus GRPO's, with intervals; a panel for each number of updates."""
    cells = tuned_cells()
    speed = {method: ends_of(row[HALF_WAY])[0] for found in reversed(cells) for method, row in found.items()}
    methods = sorted(speed, key=lambda method: speed[method])
    ticks: dict[float, str] = {place: method for place, method in enumerate(methods, start=1)}
    y = Axis(ticks=ticks, ends=(0.4, len(ticks) + 0.6))
    panels = []
    for title, found in zip(TUNED_UPDATES, cells, strict=True):
        places = [place for place, method in ticks.items() if method in found]
        middle, low, high = zip(*(ends_of(found[ticks[place]][HALF_WAY]) for place in places), strict=True)
        # A mean without an interval gets whiskers of no length.
        low = np.where(np.isnan(low), middle, low)
        high = np.where(np.isnan(high), middle, high)
        look = Look("#0072b2", marker="circle", size=7.0)
        marks = (Mark("dots", look, middle, places, low=low, high=high, whiskers="x"),)
        panels.append(Panel(marks, Axis("accuracy at 50 %, minus GRPO", zero=True), y, title))
    return Chart(
        EQUAL_TUNING, "Accuracy at 50 % of training, minus GRPO", tuple(panels), note=TUNED_CAPTION, shared="y",
        columns=2, row=1.0 + 0.2 * len(ticks),
    )  # fmt: skip


def speed_and_entropy() -> Chart:
    """Return the figure of docs/study_commands.md: what methods gain in speed against the entropy that they keep."""
    panels = []
    for title, found in zip(TUNED_UPDATES, tuned_cells(), strict=True):
        points = {method: [ends_of(row[head])[0] for head in (ENTROPY, HALF_WAY)] for method, row in found.items()}
        others = [point for method, point in points.items() if method not in NAMED_METHODS]
        marks = [Mark("dots", Look(FAINT, marker="circle"), *zip(*others, strict=True), name="other methods")]
        for place, method in enumerate(NAMED_METHODS):
            look = look_of(place, size=9.0)
            marks.append(Mark("dots", look, *([end] for end in points[method]), name=method))
        x = Axis("mean entropy of the decision token, minus GRPO (nats)", zero=True)
        panels.append(Panel(tuple(marks), x, Axis("accuracy at 50 %, minus GRPO", zero=True), title))
    return Chart("study_commands", "", tuple(panels), columns=2, shared="y", row=3.2)


def ends_of(cell: str) -> tuple[float, float, float]:
    """Return the estimate and the ends of the interval of "+0.10 [+0.07, +0.14]"; NaN ends without an interval."""
    middle, *ends = (float(each) for each in re.findall(r"[-+]?\d+\.\d+", cell))
    low, high = ends or (math.nan, math.nan)
    return middle, low, high


def starred(cell: str) -> str:
    """Return the estimate of "+0.10 [+0.07, +0.14]", with an asterisk if the interval excludes zero.

    Estimates that are smaller than ``LEAST_DIFFERENCE`` when rounded get none.
    """
    middle, low, high = ends_of(cell)
    is_difference = low * high > 0 and abs(middle) >= LEAST_DIFFERENCE
    return f"{middle:+.2f}".replace("-", "−") + "*" * is_difference


def overview(runs: Runs) -> Chart:
    """Return the two-panel figure of README.md: accuracy and entropy by step, with a band over seeds for each method.

    Args:
        runs: Finished runs of a study, by method and seed. All runs of a study are evaluated at the same steps.
    """
    panels = (
        Panel(curves(runs, "greedy", bounds=SHARE), STEPS, Axis(share=True), "accuracy, validation problems"),
        Panel(curves(runs, "entropy/position_0"), STEPS, Axis(), "entropy of the decision token (nats)"),
    )
    return Chart("overview", "", panels, columns=2)


def curves(runs: Runs, number: str, bounds: Bounds = UNBOUNDED) -> tuple[Mark, ...]:
    """Return a line (mean over seeds) and a band (95 % interval over seeds) of one evaluation number per method.

    Args:
        runs: Finished runs of a study, by method and seed.
        number: Name of an evaluation number.
        bounds: Lowest and highest possible value of the number, at which the bands end.
    """
    marks: list[Mark] = []
    for place, (method, of_method) in enumerate(runs.items()):
        results = list(of_method.values())
        steps = results[0].evaluations.steps
        found = [
            mean_over_seeds(column, bounds)
            for column in np.array([each.evaluations.column(number) for each in results]).T
        ]
        low = [each.low for each in found]
        high = [each.high for each in found]
        marks += bands(steps, low, high, Look(look_of(place).color, opacity=0.18), group=method)
        marks.append(Mark("line", look_of(place), steps, [each.estimate for each in found], name=method))
    return tuple(marks)


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for each in names():
        found = content_of(each)
        write_pictures(shown(each, found), FIGURES / each, ("svg",))
        (PAGES / f"{each}.md").write_text(page(each, found), encoding="utf-8")
    for each, found in further_pages().items():
        write_pictures(found.charts, FIGURES / each, ("svg",))
        (PAGES / f"{each}.md").write_text(further_page(each, found), encoding="utf-8")
    write_pictures([main_figure(), speed_and_entropy()], FIGURES, ("svg",))
    STUDY.write_text(with_numbers(STUDY.read_text(encoding="utf-8")), encoding="utf-8")
    write_pictures([overview(finished_runs(*results_of(README_STUDY)))], README_FIGURES, ("svg",))
