"""Hooks of MkDocs.

contributing.md ends with CONTRIBUTING.md of the repository. Flags do not break at their dashes, dotted names break at
their dots, and cells of tables with a sentence are marked, for assets/site.css.
"""

import re
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
INCLUDED = {"contributing.md": "CONTRIBUTING.md"}

WHOLE = re.compile(r"--[\w.…-]+|(?<=>)[^\s<]{1,32}(?=<)")
CODE = re.compile(r"<pre.*?</pre>|<code>[^<]*</code>", re.S)
CELL = re.compile(r"<td([^>]*)>(.*?)</td>", re.S)
TAG = re.compile(r"<[^>]+>")
INTERVAL = re.compile(r"\[[^\[\]<>]{1,24}\]")
# A cell with at least so many words is prose: it needs a width that can be read. Numbers and names do not.
WORDS_OF_PROSE = 5
# A dotted name that is longer than this many characters may break after a dot.
LONGEST_NAME = 32


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """The page's Markdown; of the links in the included file those to docs/ stay, as links inside the site."""
    path = REPOSITORY / INCLUDED.get(page.file.src_uri, "")
    return f"{markdown}\n{as_section(path.read_text(encoding='utf-8'))}" if path.is_file() else markdown


def as_section(text: str) -> str:
    """The text of a file of the repository without its title, for a page of the site."""
    text = re.sub(r"\A# .*\n", "", text)
    text = re.sub(r"\[([^\]]*)\]\((?!docs/|https?://|#)[^)]*\)", r"\1", text)
    return text.replace("](docs/", "](")


def on_page_content(html: str, **kwargs: Any) -> str:
    """Return the page's HTML with marks for assets/site.css: spans in inline code, and cells with prose."""
    html = CODE.sub(lambda code: code[0] if code[0].startswith("<pre") else with_spans(code[0]), html)
    return CELL.sub(lambda cell: marked(*cell.groups()), html)


def marked(attributes: str, content: str) -> str:
    """Return a cell of a table, with the class ``prose`` if it has a sentence; intervals do not break."""
    is_prose = len(TAG.sub("", content).split()) >= WORDS_OF_PROSE
    mark = ' class="prose"' if is_prose else ""
    content = INTERVAL.sub(lambda interval: interval[0].replace(" ", "&nbsp;"), content)
    return f"<td{mark}{attributes}>{content}</td>"


def with_spans(code: str) -> str:
    """Return inline code with its flags and short words in spans, and with places to break in long dotted names.

    ``<code>--a 1</code>`` becomes ``<code><span class="whole">--a</span> 1</code>``.
    """
    name = TAG.sub("", code)
    if len(name) > LONGEST_NAME and " " not in name and not name.startswith("--"):
        return code.replace(".", ".<wbr>")
    return WHOLE.sub(lambda word: f'<span class="whole">{word[0]}</span>', code)
