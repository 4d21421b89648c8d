import json
import math
import re

import pytest
from html_page import HOSTILE, Page
from hypothesis import example, given
from hypothesis import strategies as st

from openrlhf_cov.analysis.pages.html import TEMPLATES, Cell, _environment, embedded, script_hash, script_text, source

SCRIPTS = sorted(path.name for path in TEMPLATES.glob("*.js"))


def from_macros(call, **values):
    template = '{% import "macros.html" as m %}' + call
    return _environment().from_string(template).render(values)


@pytest.mark.parametrize(
    ("cell", "key"),
    [(Cell("a"), "a"), (Cell("1.2 %", 0.012), "0.012"), (Cell("-", math.nan), ""), (Cell("7", 7), "7.0")],
)
def test_what_a_cell_is_sorted_by(cell, key):
    assert cell.key == key


def test_everything_is_escaped():
    calls = """{{ m.table([x], [[cell, other]], x, sorts=true) }}{{ m.notes([x]) }}{{ m.facts([(x, x)]) }}
    {{ m.list([x]) }}{% call m.folded(x) %}{{ x }}{% endcall %}{% call m.section("law", x) %}{{ x }}{% endcall %}
    {{ m.figure(x, x) }}"""
    html = from_macros(calls, x=HOSTILE, cell=Cell(HOSTILE, kind="yes"), other=Cell("1", HOSTILE))
    assert not re.search(r"<script|<img|<!--|onerror=\"", html)
    assert html.count("&lt;/script&gt;") >= 12


@pytest.mark.slow
@given(value=st.recursive(st.text() | st.none() | st.integers(), st.lists))
@example(HOSTILE)
def test_embedded_json_is_the_value_and_cannot_end_its_element(value):
    assert json.loads(embedded(value)) == value
    assert "<" not in embedded(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc", "a\nb\nc"),
        ('"</script>" + "</SCRIPT>"', '"<\\/script>" + "<\\/SCRIPT>"'),
        ('"<!--"', '"<\\!--"'),
        ("a </b> c", "a </b> c"),
    ],
)
def test_scripts_as_html_keeps_them(text, expected):
    assert script_text(text) == expected
    assert Page(f"<script>{expected}</script>").scripts == [expected]


def test_hash_by_hand():
    # printf 'alert(1)' | openssl dgst -sha256 -binary | base64
    assert script_hash("alert(1)") == "sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI="


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_make_text_only(name):
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser"
    assert not re.search(forbidden, source(name))
