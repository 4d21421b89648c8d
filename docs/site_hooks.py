"""Hooks of MkDocs: contributing.md ends with CONTRIBUTING.md of the repository; flags do not break at their dashes."""

import re
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
INCLUDED = {"contributing.md": "CONTRIBUTING.md"}

WHOLE = re.compile(r"--[\w.…-]+|(?<=>)[^\s<]{1,32}(?=<)")
CODE = re.compile(r"<pre.*?</pre>|<code>[^<]*</code>", re.S)


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
    """The page's HTML with every flag and every single word in inline code in a span, for assets/site.css."""
    return CODE.sub(lambda code: code[0] if code[0].startswith("<pre") else with_spans(code[0]), html)


def with_spans(code: str) -> str:
    """``<code>--a 1</code>`` -> ``<code><span class="whole">--a</span> 1</code>``"""
    return WHOLE.sub(lambda word: f'<span class="whole">{word[0]}</span>', code)
