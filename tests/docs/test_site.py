"""The site builds without a warning and without a network, and every page is in its menu."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import yaml

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("material") is None, reason="needs requirements-docs.txt (mkdocs-material)"
)


class Resources(HTMLParser):
    """URLs that a browser loads by itself; links that a reader may follow are none."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if tag == "link" and values.get("rel") != "canonical":
            self.urls.append(values["href"])
        elif tag != "a":
            self.urls += [values[name] for name in ("src", "srcset", "data", "poster") if values.get(name)]


@pytest.fixture(scope="module")
def site(repository, tmp_path_factory):
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    no_network = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    env = os.environ | no_network | {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def hooks(repository):
    spec = importlib.util.spec_from_file_location("site_hooks", repository / "docs" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_an_included_file_lead_into_the_site_or_are_text(hooks):
    text = "# Title\n## A\n[a](docs/x.md#y) [b](README.md) [c](https://d) [e](#f)\n"
    assert hooks.as_section(text) == "## A\n[a](x.md#y) b [c](https://d) [e](#f)\n"


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        # five words are a sentence, four are not
        ("<td>one two three four five</td>", '<td class="prose">one two three four five</td>'),
        ("<td>0.377 [0.209, above 0.5]</td>", "<td>0.377 [0.209,&nbsp;above&nbsp;0.5]</td>"),
        (
            '<td style="text-align: right;">a <code>b</code> c d e</td>',
            '<td class="prose" style="text-align: right;">a <code><span class="whole">b</span></code> c d e</td>',
        ),
        ("<code>--a 1</code>", '<code><span class="whole">--a</span> 1</code>'),
        # 33 characters may break after their dots, 32 may not
        (f"<code>a.b.{'c' * 29}</code>", f"<code>a.<wbr>b.<wbr>{'c' * 29}</code>"),
        (f"<code>a.b.{'c' * 28}</code>", f'<code><span class="whole">a.b.{"c" * 28}</span></code>'),
        ("<pre><code>a <b>x</b></code></pre>", "<pre><code>a <b>x</b></code></pre>"),
    ],
)
def test_html_is_marked_for_the_style_sheet(hooks, html, shown):
    assert hooks.on_page_content(html) == shown


@pytest.mark.slow
def test_every_page_is_built(site, pages, repository):
    expected = {page.path.relative_to(repository / "docs") for page in pages if page.name.startswith("docs/")}
    assert {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")} - expected == {
        (site / "404.md").relative_to(site)
    }
    assert not list(site.rglob("*.py"))


@pytest.mark.slow
def test_a_browser_loads_nothing_from_elsewhere(site):
    for path in site.rglob("*.html"):
        resources = Resources()
        resources.feed(path.read_text(encoding="utf-8"))
        assert resources.urls, path
        for url in resources.urls:
            assert not re.match(r"(https?:)?//", url), f"{path.name} loads {url}"
    for path in site.rglob("*.css"):
        found = re.findall(r"(?:@import|url\()\s*['\"]?((?:https?:)?//[^'\")]+)", path.read_text(encoding="utf-8"))
        assert not found, f"{path.name} loads {found}"


def test_every_page_is_in_the_menu(repository, pages):
    def files(entry):
        if isinstance(entry, str):
            yield entry
        else:
            for child in entry.values() if isinstance(entry, dict) else entry:
                yield from files(child)

    text = (repository / "mkdocs.yml").read_text(encoding="utf-8")
    menu = sorted(files(yaml.safe_load(text[text.index("\nnav:") :])["nav"]))
    assert menu == sorted(page.name.removeprefix("docs/") for page in pages if page.name.startswith("docs/"))
