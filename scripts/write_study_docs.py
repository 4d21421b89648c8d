"""Writes docs/study.md, its figures and a table of docs/methods/index.md from ``studies/results/`` and the specs.

What stands between the comments "results NAME", or "differences NAME", and "end of NAME" is replaced.
"""

import re
from pathlib import Path

from openrlhf_cov.pages.picture import write_pictures
from openrlhf_cov.study.document import AGAINST, Document, document, markdown, markdown_table
from openrlhf_cov.study.results import unpack
from openrlhf_cov.study.spec import read_spec

ROOT = Path(__file__).resolve().parents[1]
PAGE, FIGURES = ROOT / "docs" / "study.md", ROOT / "docs" / "assets" / "study"
METHODS = ROOT / "docs" / "methods" / "index.md"
PLACE = re.compile(r"(?<=<!-- results )(\w+) -->\n.*?(?=<!-- end of \1 -->)", re.DOTALL)
TABLE = re.compile(r"(?<=<!-- differences )(\w+) -->\n.*?(?=<!-- end of \1 -->)", re.DOTALL)
SHOWN = ("test", "deciding_entropy", "pass_at_k")
"""Charts that the page shows."""


def content_of(name: str) -> Document:
    """What the published results of a study say."""
    results = list(unpack(ROOT / "studies" / "results" / f"{name}.jsonl.xz"))
    return document(read_spec(ROOT / "studies" / f"{name}.yaml"), results)


def written(name: str, content: Document) -> str:
    """The part of the page about one study."""
    charts = [chart for chart in content.charts if chart.name in SHOWN]
    pictures = "".join(f"![{chart.title}](assets/study/{name}/{chart.name}.svg)\n\n" for chart in charts)
    return f"{name} -->\n\n{markdown(content)}\n{pictures}"


def rewritten(page: str) -> str:
    """A page with its results as they should be."""
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
