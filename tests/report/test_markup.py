import math

import pytest

from openrlhf_cov.report.markup import Cell, facts, figure_frame, folded, items, paragraphs, section, table


@pytest.mark.parametrize(
    ("cell", "key"),
    [(Cell("a"), "a"), (Cell("1.2 %", 0.012), "0.012"), (Cell("-", math.nan), ""), (Cell("7", 7), "7.0")],
)
def test_what_a_cell_is_sorted_by(cell, key):
    assert cell.key == key


def test_everything_is_escaped(hostile):
    html = table([hostile], [[Cell(hostile, kind="yes"), Cell("1", hostile)]], hostile, sorts=True)
    html += paragraphs([hostile]) + facts([(hostile, hostile)]) + items([hostile]) + folded(hostile, "")
    html += section("law", hostile, "") + figure_frame("law", hostile, hostile, hostile)
    assert "<script" not in html
    assert "<img" not in html
    assert "<!--" not in html
    assert 'onerror="' not in html


def test_rows_have_headings_and_tables_a_name():
    html = table(["run", "R²"], [[Cell("a"), Cell("0.9", 0.9, "yes")]], "All runs", sorts=True)
    assert 'role="region" aria-label="All runs" tabindex="0"' in html
    assert '<th scope="col"><button type="button">R²</button></th>' in html
    assert '<th scope="row" data-value="a">a</th><td class="yes" data-value="0.9">0.9</td>' in html
    assert "<button" not in table(["run"], [], "All runs")


def test_a_number_stays_with_its_percent_sign():
    assert paragraphs(["15 % < 20 %"], "small") == '<p class="small">15&nbsp;% &lt; 20&nbsp;%</p>'
    assert facts([("a %", "1 %")]) == "<dt>a %</dt><dd>1&nbsp;%</dd>"


def test_a_long_heading_has_room():
    assert 'class="long"' not in table(["run"], [[Cell("x" * 12)]], "")
    assert 'class="long"' in table(["run"], [[Cell("x" * 13)]], "")
