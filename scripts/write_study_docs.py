"""Write docs/study/, its figures, the figure of README.md and the tables of docs/methods/index.md.

The sources are ``studies/results/`` and the specs. In docs/methods/index.md, the text between the comments
"equal tuning" and "end of equal tuning" is replaced.
"""

import math
import re
from pathlib import Path

import numpy as np

from openrlhf_cov.analysis.pages.chart import STEPS, Axis, Chart, Look, Mark, Panel, bands, look_of
from openrlhf_cov.analysis.pages.picture import write_pictures
from openrlhf_cov.experiments.study.answer import AGAINST, Runs, finished_runs
from openrlhf_cov.experiments.study.document import Document, Section, document, markdown, markdown_table
from openrlhf_cov.experiments.study.questions import agreement
from openrlhf_cov.experiments.study.run_results import Result, unpack
from openrlhf_cov.experiments.study.seed_estimates import mean_over_seeds
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.experiments.study.spec_file import read_spec

ROOT = Path(__file__).resolve().parents[1]
RESULTS, SPECS = ROOT / "studies" / "results", ROOT / "studies"
PAGES, FIGURES = ROOT / "docs" / "study", ROOT / "docs" / "assets" / "study"
README_FIGURES, README_STUDY = ROOT / "docs" / "assets", "demo_compare"
METHODS = ROOT / "docs" / "methods" / "index.md"
TABLE = re.compile(r"(?<=<!-- equal tuning -->\n).*?(?=<!-- end of equal tuning -->)", re.DOTALL)
# Studies of the table: with eight updates per rollout, and strictly on-policy.
TUNED = (
    ("commands", "commands_methods", "commands_surrogates"),
    ("commands_one_update", "commands_methods_one_update"),
)
TUNED_COLUMNS = {
    "accuracy at 50 %": "accuracy at 50 %",
    "accuracy": "final accuracy",
    "mean first-token entropy": "mean entropy",
}
# A difference of less than this is no more than one question of a test.
LEAST_DIFFERENCE = 0.005
# Legend of the figure of README.md, by method of the study. The settings are those of studies/demo_compare.yaml.
OVERVIEW_NAMES = {"Clip-Cov": "Clip-Cov (5 %, no upper bound)", "KL-Cov": "KL-Cov (one token per update)"}
# Charts that a page shows.
SHOWN = ("test", "first_token_entropy", "pass_at_k")
# A study with this ending ran on the whole trainer; the study without it ran in the lab.
WHOLE_TRAINER = "_ray"


def names() -> list[str]:
    """Return the studies that have published runs."""
    return sorted(path.name.removesuffix(".jsonl.xz") for path in RESULTS.glob("*.jsonl.xz"))


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


def shown(content: Document) -> list:
    """Return the charts of a study that its page shows."""
    return [chart for chart in content.charts if chart.name in SHOWN]


def page(name: str, content: Document) -> str:
    """Return the page of one study as Markdown."""
    pictures = "".join(f"![{chart.title}](../assets/study/{name}/{chart.name}.svg)\n\n" for chart in shown(content))
    source = (
        f"`python scripts/write_study_docs.py` writes this page from `studies/results/{name}.jsonl.xz`; the spec is "
        f"`studies/{name}.yaml`. [Study](../study.md#answers) summarises all studies."
    )
    title, rest = markdown(content).split("\n", 1)
    return f"{title}\n\n{source}\n{rest}\n{beside(name)}{pictures}".rstrip() + "\n"


def with_tables(text: str) -> str:
    """Return docs/methods/index.md with its table of all methods at equal tuning brought up to date."""
    return TABLE.sub(lambda _: f"\n{tuned_table()}\n\n", text)


def tuned_table() -> str:
    """Return the differences from GRPO at equal tuning as Markdown: one method a row, both numbers of updates."""
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
    heads = ["method", *(f"{head}, {when}" for when in ("8 updates", "on-policy") for head in TUNED_COLUMNS.values())]
    lines = [heads, ["---"] * len(heads)]
    none = ["–"] * len(TUNED_COLUMNS)
    lines += [
        [method, *found[0].get(method, none), *found[1].get(method, none)] for method in {**found[0], **found[1]}
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
        name = OVERVIEW_NAMES.get(method, method)
        results = list(of_method.values())
        steps = results[0].evaluations.steps
        found = [
            mean_over_seeds(column) for column in np.array([each.evaluations.column(number) for each in results]).T
        ]
        low = [each.low for each in found]
        high = [min(each.high, highest) for each in found]
        marks += bands(steps, low, high, Look(look_of(place).color, opacity=0.18), group=name)
        marks.append(Mark("line", look_of(place), steps, [each.estimate for each in found], name=name))
    return tuple(marks)


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for each in names():
        found = content_of(each)
        write_pictures(shown(found), FIGURES / each, ("svg",))
        (PAGES / f"{each}.md").write_text(page(each, found), encoding="utf-8")
    write_pictures([overview(finished_runs(*results_of(README_STUDY)))], README_FIGURES, ("svg",))
    METHODS.write_text(with_tables(METHODS.read_text(encoding="utf-8")), encoding="utf-8")
