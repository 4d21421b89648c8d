import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from openrlhf_cov import report
from openrlhf_cov.report.contents import Options
from openrlhf_cov.report.page import PIECES, SCRIPTS, asked, report_page, script_hash, script_text, write_page


class Page(HTMLParser):
    """Tags with their attributes, text inside of scripts, and all other text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.words, self.in_script = [], [], [], False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
            self.in_script = True

    def handle_endtag(self, tag):
        self.in_script = self.in_script and tag != "script"

    def handle_data(self, data):
        if self.in_script:
            self.scripts[-1] += data
        else:
            self.words.append(data)

    @property
    def data(self):
        return json.loads(self.scripts[0])

    def ids(self):
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]

    def policy(self):
        (found,) = (each["content"] for _, each in self.tags if each.get("http-equiv") == "Content-Security-Policy")
        return found


@pytest.fixture(scope="module")
def run_with_tokens(make_report_run, write_tokens, token_records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_tokens(folder, 20, token_records())
    return make_report_run("none", path=folder)


@pytest.fixture(scope="module")
def two(make_contents, make_report_run, run_with_tokens):
    return make_contents(run_with_tokens, make_report_run("kl_cov", seed=1, method="kl_cov"))


@pytest.fixture(scope="module")
def page(two):
    return Page(report_page(two))


def test_the_page_holds_all_sections_and_charts(page):
    ids = page.ids()
    assert len(set(ids)) == len(ids)
    assert {"law", "runs", "comparison", "curves", "one", "tokens", "settings"} <= set(ids)
    charts = [name.removeprefix("chart-") for name in ids if name.startswith("chart-")]
    assert charts == [
        *("reward_and_entropy", "law_of_all", "selection", "sampling", "response_length", "evaluations"),
        *("law", "bands", "theorem1", "theorem2", "accuracy", "phases"),
    ]
    data = page.data
    assert [*data["charts"], "evaluations", *data["kinds"]] == charts
    assert [sorted(run["charts"]) for run in data["runs"]] == [sorted(data["kinds"])] * 2
    assert [run["name"] for run in data["runs"]] == ["none", "kl_cov"]
    assert [run["tokens"] and run["tokens"]["steps"][0]["step"] for run in data["runs"]] == [20, None]
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_numbers_of_the_law_need_no_script(two, page):
    words = " ".join(page.words)
    fit = two.runs[0].law.result.fit
    assert f"{fit.ceiling.estimate:.3f}" in words
    assert "The law does not apply here:" in words
    assert [tag for tag, _ in page.tags].count("noscript") == 3


def test_no_placeholder_is_left_and_none_of_a_run_is_filled(two, make_contents, make_report_run):
    text = report_page(make_contents(make_report_run("{{data}} {{title}}")))
    assert "<h1>{{data}} {{title}}</h1>" in text
    own = report_page(two).replace(get_plotlyjs(), "")
    assert not re.search(r"\{\{\w+\}\}", own)


def test_the_page_needs_no_network(page):
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "base", "object", "embed", "form"), tag
        assert not attributes.keys() & {"src", "action", "background", "style", "onclick"}, (tag, attributes)
        assert attributes.get("href", "#").startswith("#")
    css = (PIECES / "report.css").read_text()
    assert "url(" not in css
    assert "@import" not in css


def test_the_policy_allows_the_two_scripts_and_no_network(page):
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.scripts[1:]]
    assert len(hashes) == 2
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    assert page.policy() == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'"
    )


def test_the_script_makes_text_only():
    script = "".join((PIECES / name).read_text() for name in SCRIPTS)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser", script
    )


def test_plotly_is_embedded_once_and_whole(page):
    assert page.scripts[1] == get_plotlyjs()
    assert "Plotly.react" in page.scripts[2]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a\r\nb\rc", "a\nb\nc"),
        ('"</script>" + "</SCRIPT>"', '"<\\/script>" + "<\\/SCRIPT>"'),
        ('"<!--"', '"<\\!--"'),
        ("a </b> c", "a </b> c"),
    ],
)
def test_scripts_as_html_keeps_them(source, expected):
    assert script_text(source) == expected
    assert Page(f"<script>{expected}</script>").scripts == [expected]


def test_hash_by_hand():
    # printf 'alert(1)' | openssl dgst -sha256 -binary | base64
    assert script_hash("alert(1)") == "sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI="


def test_text_of_runs_is_never_markup(make_contents, make_report_run, write_tokens, token_records, tmp_path, hostile):
    def report(name, path, text, tokens):
        write_tokens(path, 20, tokens)
        fields = {"path": path, "settings": {f"--{text}": text}, "warnings": (text,)}
        contents = make_contents(make_report_run(name, **fields), make_report_run("b", settings={"--x": text}))
        return Page(report_page(contents))

    harmless = report("a", tmp_path / "a", "plain", token_records())
    found = report(hostile, tmp_path / "b", hostile, token_records(hostile=True))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in harmless.tags]
    assert found.data["runs"][0]["name"] == hostile
    assert found.data["runs"][0]["tokens"]["steps"][0]["passages"][0][0] == hostile
    assert hostile in "".join(found.words)


def test_half_a_surrogate_pair_does_no_harm(make_contents, make_report_run, tmp_path):
    contents = make_contents(make_report_run("a\ud800b"))
    assert "<h1>a?b</h1>" in report_page(contents)
    write_page(contents, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == report_page(contents)


def test_a_single_run_has_no_choice_of_runs(make_contents, make_report_run):
    page = Page(report_page(make_contents(make_report_run("a", only=["reward", "entropy/mean"]))))
    assert not {"chips", "comparison", "tokens", "evaluation"} & set(page.ids())
    assert "run-choice" not in [attributes.get("class") for _, attributes in page.tags]
    assert [*page.data["charts"], *page.data["kinds"]] == ["reward_and_entropy", "law"]
    assert page.data["evaluations"] == []
    assert any("Without values in the logs" in word for word in page.words)


def test_what_was_asked_for():
    assert (
        asked(Options()) == "R is reward; least squares; 95 % intervals; forecast from the first 15 % of the points."
    )
    assert asked(Options(metric="<x>", robust=True)).startswith("R is <x>; Huber's robust fit;")


def test_the_pieces_are_installed_with_the_package():
    setup = Path(report.__file__).parents[2] / "setup.py"
    assert '"openrlhf_cov.report": ["assets/*"]' in setup.read_text(encoding="utf-8")
    assert {path.name for path in PIECES.iterdir()} == {"report.html", "report.css", "tokens.html", *SCRIPTS}
