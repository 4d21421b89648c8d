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

from openrlhf_cov.analysis.pages.chart import STEPS, Axis, Chart, Look, Mark, Panel, bands, look_of
from openrlhf_cov.analysis.pages.picture import write_pictures
from openrlhf_cov.experiments.study import study_numbers
from openrlhf_cov.experiments.study.answer import AGAINST, Runs, finished_runs
from openrlhf_cov.experiments.study.document import Document, Section, document, markdown, markdown_table
from openrlhf_cov.experiments.study.entropy_drop_page import drop_document, drop_row
from openrlhf_cov.experiments.study.forecast_page import by_task_in_short, forecast_document, study_errors
from openrlhf_cov.experiments.study.mechanism_page import mechanism_chart, mechanism_section
from openrlhf_cov.experiments.study.questions import agreement
from openrlhf_cov.experiments.study.run_results import Result, unpack
from openrlhf_cov.experiments.study.seed_estimates import mean_over_seeds
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.experiments.study.spec_file import read_spec
from openrlhf_cov.experiments.study.study_numbers import Finished
from openrlhf_cov.experiments.study.sweeps import critical_panel

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
TUNED_COLUMNS = {
    "accuracy at 50 %": "accuracy at 50 %",
    "accuracy": "final accuracy",
    "mean first-token entropy": "mean entropy",
}
TUNED_TITLE = "Methods at equal tuning"
TUNED_ABOUT = (
    "Each value is the mean difference from GRPO on the commands task, with eight fresh seeds after tuning the "
    "learning rate and the main setting. An asterisk marks a 95 % interval without zero. Mean entropy is that of the "
    "decision token, averaged over the run, in nats. A dash means that the method was not "
    "run. The task is small, with five tokens per response, and GRPO ends at 0.98, so final accuracy leaves no room "
    "for a gain."
)
# A difference of less than this is no more than one question of a test.
LEAST_DIFFERENCE = 0.005
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
# Results of ``scripts/make_entropy_drops.py``, which is not a study.
DROPS = "entropy_drops"
FORECASTS = "forecasts"
# Seeds below which a study is no part of the forecasts.
FEWEST_SEEDS = 3
# Rows of the list of docs/study.md: what studies are about, and their names. Those without results are listed, too.
LISTED = {
    "the shortcut": (SHORTCUT, LEARNING_RATES, MECHANISM),
    "rare skills and paths": ("tail", "graph_paths"),
    "commands, eight updates per rollout": ("commands", "commands_methods", "commands_surrogates"),
    "commands, one update": ("commands_one_update", "commands_methods_one_update"),
    "methods at equal tuning": (EQUAL_TUNING,),
    "defaults, scope, random tokens, learning rates": ("methods", "scope", "random_drop", "divergence"),
    "one entropy, several methods": ("matched_first_token", "matched_entropy"),
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


def results_of(name: str) -> tuple[Spec, list[Result]]:
    """Return a study and its published runs."""
    return read_spec(SPECS / f"{name}.yaml"), list(unpack(RESULTS / f"{name}.jsonl.xz"))


def content_of(name: str) -> Document:
    """Return the document of a study from its published runs."""
    return document(*results_of(name))


def beside(name: str) -> str:
    """Return the comparison of the whole trainer with the lab; nothing for a study of the lab."""
    if not name.endswith(WHOLE_TRAINER):
        return ""
    twins = (name, name.removesuffix(WHOLE_TRAINER))
    answer = agreement(*(finished_runs(*results_of(each)) for each in twins))
    table = markdown_table(Section(answer.question, (), answer.head, answer.rows))
    return f"## {answer.question}\n\n{answer.text}\n\n" + "\n".join(table) + "\n\n"


def shown(name: str, content: Document) -> list:
    """Return the charts of a study that its page shows."""
    charts = [chart for chart in content.charts if chart.name in SHOWN]
    if name == MECHANISM:
        return [mechanism_chart(finished_runs(*results_of(name))), *charts]
    if name == SHORTCUT:
        panel = critical_panel(*results_of(name))
        return [Chart("critical", "Critical share of each method", (panel,)), *charts] if panel else charts
    return charts


def explained(name: str) -> str:
    """Return the table of what happens to the names of skills, of the study that records it; else nothing."""
    if name != MECHANISM:
        return ""
    section = mechanism_section(finished_runs(*results_of(name)))
    text = "\n\n".join(section.paragraphs)
    return f"## {section.title}\n\n{text}\n\n" + "\n".join(markdown_table(section)) + "\n\n"


def page(name: str, content: Document) -> str:
    """Return the page of one study as Markdown."""
    pictures = "".join(
        f"![{chart.title}](../assets/study/{name}/{chart.name}.svg)\n\n" for chart in shown(name, content)
    )
    source = (
        f"`python scripts/write_study_docs.py` writes this page from `studies/results/{name}.jsonl.xz`; the spec is "
        f"`studies/{name}.yaml`. [Study](../study.md) summarises all studies."
    )
    title, rest = markdown(content).split("\n", 1)
    return f"{title}\n\n{source}\n{rest}\n{beside(name)}{explained(name)}{pictures}".rstrip() + "\n"


def further_pages() -> dict[str, Document]:
    """Return the pages of docs/study/ that are about several studies, by name."""
    return {EQUAL_TUNING: tuned_document(), FORECASTS: forecasts(), DROPS: entropy_drops()}


@cache
def forecasts() -> Document:
    """Return the forecasts of the ends of all lab runs without a sweep."""
    found = []
    for name in names():
        spec, results = results_of(name)
        runs = {} if spec.sweep or spec.engine == "ray" else finished_runs(spec, results)
        if max(map(len, runs.values()), default=0) >= FEWEST_SEEDS:
            found.append(study_errors(name, spec.task, runs))
    return forecast_document(found)


@cache
def entropy_drops() -> Document:
    """Return the predicted and measured falls of the entropy, by task and by method."""
    by_task: dict[str, list[Result]] = {}
    for result in unpack(RESULTS / f"{DROPS}.jsonl.xz"):
        by_task.setdefault(f"{result.run.arm}, GRPO, 1 update", []).append(result)
    rows = [drop_row(name, results) for name, results in by_task.items()]
    of_methods = finished_runs(*results_of(MECHANISM)) if MECHANISM in names() else {}
    rows += [
        drop_row(f"shortcut, {name}, 4 updates", list(runs.values())) for name, runs in of_methods.items() if runs
    ]
    return drop_document(rows)


def further_page(name: str, content: Document) -> str:
    """Return a page of docs/study/ that is about several studies."""
    source = f"`python scripts/write_study_docs.py` writes this page from {SOURCES[name]}."
    title, rest = markdown(content).split("\n", 1)
    pictures = "".join(f"![{chart.title}](../assets/study/{name}/{chart.name}.svg)\n\n" for chart in content.charts)
    return f"{title}\n\n{source}\n{rest}\n{pictures}".rstrip() + "\n"


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
        cells = (f"[`{name}`](study/{name}.md)" if name in known else f"`{name}` (no run yet)" for name in studies)
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
        "table": "\n".join(markdown_table(study_numbers.table(shortcut, learning_rates, mechanism))),
        "mechanism": "\n".join(markdown_table(study_numbers.mechanism_numbers(mechanism))),
        "drops": study_numbers.said_of_drops(entropy_drops()),
        "forecasts": "\n".join(markdown_table(early_and_late(by_task_in_short(forecasts())))),
        "links": links(),
    }
    return NUMBERS.sub(lambda match: f"{match[1]} -->\n\n{parts[match[1]]}\n\n", text)


def early_and_late(section: Section) -> Section:
    """Return the rows of the forecasts from the smallest and from the largest part of a run."""
    parts = sorted({row[1] for row in section.rows}, key=lambda part: int(part.rstrip("%")))
    return replace(section, rows=tuple(row for row in section.rows if row[1] in (parts[0], parts[-1])))


@cache
def tuned_rows() -> dict[str, list[str]]:
    """Return the differences from GRPO at equal tuning by method: those with eight updates, then those with one."""
    found: list[dict[str, list[str]]] = []
    for studies in TUNED:
        cells: dict[str, list[str]] = {}
        for name in studies:
            (section,) = (each for each in content_of(name).sections if each.title == AGAINST)
            for row in section.rows:
                by_head = dict(zip(section.head, row, strict=True))
                if "random reward" not in by_head["method"]:
                    cells[by_head["method"]] = [starred(by_head[head]) for head in TUNED_COLUMNS]
        found.append(cells)
    none = ["–"] * len(TUNED_COLUMNS)
    methods = {**found[0], **found[1]}
    return {method: [*found[0].get(method, none), *found[1].get(method, none)] for method in methods}


def tuned_document() -> Document:
    """Return the page that compares the methods at equal tuning, with both numbers of updates."""
    heads = [f"{head}, {when}" for when in ("8 updates", "on-policy") for head in TUNED_COLUMNS.values()]
    rows = tuple((method, *cells) for method, cells in tuned_rows().items())
    return Document(TUNED_TITLE, TUNED_ABOUT, (Section(AGAINST, (), ("method", *heads), rows),), ())


def starred(cell: str) -> str:
    """Return the estimate of "+0.10 [+0.07, +0.14]", with an asterisk if the interval excludes zero.

    Estimates that are smaller than ``LEAST_DIFFERENCE`` when rounded get none.
    """
    middle, low, high = (float(each) for each in re.findall(r"[-+]?\d+\.\d+", cell))
    is_difference = low * high > 0 and abs(middle) >= LEAST_DIFFERENCE
    return f"{middle:+.2f}".replace("-", "−") + "*" * is_difference


def overview(runs: Runs) -> Chart:
    """Return the two-panel figure of README.md: accuracy and entropy by step, with a band over seeds for each method.

    Args:
        runs: Finished runs of a study, by method and seed. All runs of a study are evaluated at the same steps.
    """
    panels = (
        Panel(curves(runs, "greedy", highest=1.0), STEPS, Axis(share=True), "accuracy, validation problems"),
        Panel(curves(runs, "entropy/position_0"), STEPS, Axis(), "entropy of the decision token (nats)"),
    )
    return Chart("overview", "", panels, columns=2)


def curves(runs: Runs, number: str, highest: float = math.inf) -> tuple[Mark, ...]:
    """Return a line (mean over seeds) and a band (95 % interval over seeds) of one evaluation number per method.

    Args:
        runs: Finished runs of a study, by method and seed.
        number: Name of an evaluation number.
        highest: Largest possible value of the number. Student's intervals may exceed it; the bands end there.
    """
    marks: list[Mark] = []
    for place, (method, of_method) in enumerate(runs.items()):
        results = list(of_method.values())
        steps = results[0].evaluations.steps
        found = [
            mean_over_seeds(column) for column in np.array([each.evaluations.column(number) for each in results]).T
        ]
        low = [each.low for each in found]
        high = [min(each.high, highest) for each in found]
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
    write_pictures([main_figure()], FIGURES, ("svg",))
    STUDY.write_text(with_numbers(STUDY.read_text(encoding="utf-8")), encoding="utf-8")
    write_pictures([overview(finished_runs(*results_of(README_STUDY)))], README_FIGURES, ("svg",))
