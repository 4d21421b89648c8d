"""Writes docs/study.md, its figures and a table of docs/methods/index.md from ``studies/results/`` and the specs.

What stands between the comments "results NAME", or "differences NAME", and "end of NAME" is replaced, and what stands
between "agreement NAME OTHER" and "end of agreement".
"""

import re
from pathlib import Path

from openrlhf_cov.pages.picture import write_pictures
from openrlhf_cov.study.answer import finished_runs
from openrlhf_cov.study.document import AGAINST, Document, Section, document, markdown, markdown_table
from openrlhf_cov.study.questions import agreement
from openrlhf_cov.study.results import Result, unpack
from openrlhf_cov.study.spec import Spec, read_spec

ROOT = Path(__file__).resolve().parents[1]
PAGE, FIGURES = ROOT / "docs" / "study.md", ROOT / "docs" / "assets" / "study"
METHODS = ROOT / "docs" / "methods" / "index.md"
PLACE = re.compile(r"(?<=<!-- results )(\w+) -->\n.*?(?=<!-- end of \1 -->)", re.DOTALL)
TABLE = re.compile(r"(?<=<!-- differences )(\w+) -->\n.*?(?=<!-- end of \1 -->)", re.DOTALL)
BESIDE = re.compile(r"(?<=<!-- agreement )(\w+) (\w+) -->\n.*?(?=<!-- end of agreement -->)", re.DOTALL)
SHOWN = ("test", "first_token_entropy", "pass_at_k")
"""Charts that the page shows."""


def results_of(name: str) -> tuple[Spec, list[Result]]:
    """A study and its published runs."""
    return read_spec(ROOT / "studies" / f"{name}.yaml"), list(
        unpack(ROOT / "studies" / "results" / f"{name}.jsonl.xz")
    )


def content_of(name: str) -> Document:
    """What the published results of a study say."""
    return document(*results_of(name))


def beside(ours: str, others: str) -> str:
    """Two studies side by side."""
    answer = agreement(*(finished_runs(*results_of(name)) for name in (ours, others)))
    table = markdown_table(Section(answer.question, (), answer.head, answer.rows))
    return f"{ours} {others} -->\n\n### {answer.question}\n\n{answer.text}\n\n" + "\n".join(table) + "\n\n"


def written(name: str, content: Document) -> str:
    """The part of the page about one study."""
    charts = [chart for chart in content.charts if chart.name in SHOWN]
    pictures = "".join(f"![{chart.title}](assets/study/{name}/{chart.name}.svg)\n\n" for chart in charts)
    return f"{name} -->\n\n{markdown(content)}\n{pictures}"


def rewritten(page: str) -> str:
    """A page with its results as they should be."""
    page = BESIDE.sub(lambda match: beside(*match.groups()), page)
    page = PLACE.sub(lambda match: written(match[1], content_of(match[1])), page)
    return TABLE.sub(lambda match: f"{match[1]} -->\n\n{differences(content_of(match[1]))}\n\n", page)


def differences(content: Document) -> str:
    """Each arm against the first."""
    (section,) = (each for each in content.sections if each.title == AGAINST)
    return "\n".join(markdown_table(section))


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for each in PLACE.findall(text):
        shown = [chart for chart in content_of(each).charts if chart.name in SHOWN]
        write_pictures(shown, FIGURES / each, ("svg",))
    for path in (PAGE, METHODS):
        path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
