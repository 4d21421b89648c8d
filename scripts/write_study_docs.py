"""Writes docs/study/, its figures and the tables of docs/methods/index.md from ``studies/results/`` and the specs.

Of the latter page what stands between the comments "differences NAME" and "end of NAME" is replaced.
"""

import re
from pathlib import Path

from openrlhf_cov.analysis.pages.picture import write_pictures
from openrlhf_cov.experiments.study.answer import finished_runs
from openrlhf_cov.experiments.study.document import AGAINST, Document, Section, document, markdown, markdown_table
from openrlhf_cov.experiments.study.questions import agreement
from openrlhf_cov.experiments.study.run_results import Result, unpack
from openrlhf_cov.experiments.study.spec import Spec, read_spec

ROOT = Path(__file__).resolve().parents[1]
RESULTS, SPECS = ROOT / "studies" / "results", ROOT / "studies"
PAGES, FIGURES = ROOT / "docs" / "study", ROOT / "docs" / "assets" / "study"
METHODS = ROOT / "docs" / "methods" / "index.md"
TABLE = re.compile(r"(?<=<!-- differences )(\w+) -->\n.*?(?=<!-- end of \1 -->)", re.DOTALL)
SHOWN = ("test", "first_token_entropy", "pass_at_k")
"""Charts that a page shows."""
WHOLE_TRAINER = "_ray"
"""Ends the name of a study whose twin without it is of the laboratory."""


def names() -> list[str]:
    """Studies that have published runs."""
    return sorted(path.name.removesuffix(".jsonl.xz") for path in RESULTS.glob("*.jsonl.xz"))


def results_of(name: str) -> tuple[Spec, list[Result]]:
    """A study and its published runs."""
    return read_spec(SPECS / f"{name}.yaml"), list(unpack(RESULTS / f"{name}.jsonl.xz"))


def content_of(name: str) -> Document:
    """What the published results of a study say."""
    return document(*results_of(name))


def beside(name: str) -> str:
    """The whole trainer and the laboratory, of a study that is of the former; else nothing."""
    if not name.endswith(WHOLE_TRAINER):
        return ""
    twins = (name, name.removesuffix(WHOLE_TRAINER))
    answer = agreement(*(finished_runs(*results_of(each)) for each in twins))
    table = markdown_table(Section(answer.question, (), answer.head, answer.rows))
    return f"## {answer.question}\n\n{answer.text}\n\n" + "\n".join(table) + "\n\n"


def shown(content: Document) -> list:
    """Its charts that are shown."""
    return [chart for chart in content.charts if chart.name in SHOWN]


def page(name: str, content: Document) -> str:
    """The page about one study."""
    pictures = "".join(f"![{chart.title}](../assets/study/{name}/{chart.name}.svg)\n\n" for chart in shown(content))
    source = (
        f"`python scripts/write_study_docs.py` writes this page from `studies/results/{name}.jsonl.xz`; the spec is "
        f"`studies/{name}.yaml`, and [what all of them say](../study.md#answers) stands elsewhere."
    )
    title, rest = markdown(content).split("\n", 1)
    return f"{title}\n\n{source}\n{rest}\n{beside(name)}{pictures}".rstrip() + "\n"


def with_tables(text: str) -> str:
    """A page with its tables as they should be."""
    return TABLE.sub(lambda match: f"{match[1]} -->\n\n{differences(content_of(match[1]))}\n\n", text)


def differences(content: Document) -> str:
    """Each arm against the first."""
    (section,) = (each for each in content.sections if each.title == AGAINST)
    return "\n".join(markdown_table(section))


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for each in names():
        found = content_of(each)
        write_pictures(shown(found), FIGURES / each, ("svg",))
        (PAGES / f"{each}.md").write_text(page(each, found), encoding="utf-8")
    METHODS.write_text(with_tables(METHODS.read_text(encoding="utf-8")), encoding="utf-8")
