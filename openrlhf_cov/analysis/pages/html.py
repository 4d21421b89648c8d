"""One HTML file that needs neither network nor other files, from a template of ``templates/``.

Text is escaped by the templates or stands in JSON, which the page's scripts turn into plain text nodes. A content
policy allows the page's own scripts by their hashes, and no network. Plotly sets styles, which it has to allow.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

TEMPLATES = Path(__file__).parent / "templates"
# Scripts of every page.
SHARED_SCRIPTS = ("page.js", "charts.js")
# Characters of a row's heading beyond which it gets more room, and breaks.
LONG_HEADING = 12


@dataclass(frozen=True)
class Cell:
    """Text of a table and what it is sorted by: a number, NaN last, or the text."""

    text: str
    value: float | str | None = None
    kind: str = ""

    @property
    def key(self) -> str:
        """The text by which the page sorts the cell; "" for NaN."""
        if isinstance(self.value, float | int):
            return "" if math.isnan(self.value) else repr(float(self.value))
        return self.text if self.value is None else self.value


def render(template: str, data: Any, scripts: Sequence[str], **values: Any) -> str:
    """Return a page as HTML.

    Args:
        template: Name of a file of ``templates/``.
        data: What the scripts of the page draw; anything that JSON takes, without NaN.
        scripts: Names of the scripts that draw it, beside those of every page.
        values: The values of the template.
    """
    from plotly.offline import get_plotlyjs

    texts = [script_text(get_plotlyjs()), script_text("".join(map(source, (*SHARED_SCRIPTS, *scripts))))]
    page = _environment().get_template(template).render(
        scripts=[Markup(text) for text in texts],
        hashes=Markup(" ".join(f"'{script_hash(text)}'" for text in texts)),
        style=Markup(source("page.css")),
        data=Markup(embedded(data)),
        **values,
    )  # fmt: skip
    return page.encode("utf-8", "replace").decode("utf-8").rstrip("\n")  # half a surrogate pair cannot be written


def source(name: str) -> str:
    """Return a style or script as it stands in its file."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def prose(text: str) -> Markup:
    """Return a text that may be wrapped, escaped, in which a number stays with its percent sign."""
    return Markup(str(escape(text)).replace(" %", "&nbsp;%"))


def embedded(payload: Any) -> str:
    """Return JSON that can stand in a script element: without ``<`` nothing ends the element or starts a comment."""
    return json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def script_text(source: str) -> str:
    """Return a script as it can stand in HTML, whose parser ends the element at ``</script`` and takes CR LF as LF."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"</(?=script)", r"<\\/", source, flags=re.IGNORECASE).replace("<!--", "<\\!--")


def script_hash(script: str) -> str:
    """Return the hash by which a content security policy allows an inline script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()


@cache
def _environment() -> Environment:
    """Return the environment of the templates, which keeps those that it has compiled."""
    options = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    found = Environment(loader=FileSystemLoader(TEMPLATES), **options)
    found.filters["prose"] = prose
    found.globals["long_heading"] = LONG_HEADING
    return found
