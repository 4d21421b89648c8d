"""The page of an evaluation in a real browser: what it shows, its search, and that no response runs as code."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape

import pytest
from processes import HANGS

from openrlhf_cov.analysis.pages import html as pages
from openrlhf_cov.evaluation.evaluation_page import evaluation_page
from openrlhf_cov.evaluation.summary import summarize

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")]

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"

DRIVER = """
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const ids = (where) => [...byId(where).querySelectorAll(".problem .name")].map((node) => node.lastChild.textContent);
const steps = async () => {
  const seen = { highlights: ids("highlights"), all: ids("problems"), count: byId("count").textContent };
  const set = async (id, value, event) => {
    byId(id).value = value;
    byId(id).dispatchEvent(new Event(event));
    await wait(300);
    return ids("problems");
  };
  seen.more = byId("more").textContent;
  byId("more").click();
  seen.afterMore = [ids("problems").length, byId("more").hidden];
  seen.mixed = await set("outcome", "mixed", "change");
  seen.truncated = await set("outcome", "truncated", "change");
  await set("outcome", "", "change");
  seen.benchmark = await set("benchmark", "math500", "change");
  await set("benchmark", "", "change");
  seen.special = await set("query", "(A.B*", "input");
  seen.found = await set("query", "OWNED", "input");
  const problem = byId("problems").querySelector(".problem");
  seen.before = problem.querySelectorAll(".sample, pre").length;
  problem.open = true;
  await wait(50);
  problem.querySelector(".sample").open = true;
  await wait(50);
  seen.text = problem.querySelector("pre").textContent;
  seen.marks = [...problem.querySelectorAll("pre mark")].map((node) => node.textContent);
  seen.images = document.images.length;
  seen.scripts = document.scripts.length;
  seen.title = document.title;
  seen.overflow = document.documentElement.scrollWidth - innerWidth;
  const shapes = (plot) => plot.querySelectorAll(".js-line, .point").length;
  seen.charts = [...document.querySelectorAll(".plot")].map((plot) => shapes(plot) > 0);
  seen.problems = document.body.dataset.problems || "";
  document.body.append(make("output", "", JSON.stringify(seen)));
};
steps();
"""


@pytest.fixture(scope="module")
def seen(make_evaluation, tmp_path_factory):
    """What the driver saw: the script is the page's own with steps behind it, under the page's policy."""
    folder = tmp_path_factory.mktemp("page")
    run = make_evaluation({"aime24": ["1 2", "1 1", "2 3"], "math500": ["1"] * 60})

    def text(response):
        special = {("aime24-0", 0): HOSTILE, ("aime24-2", 0): "is (a.b* here?"}
        cut = (response.id, response.sample) == ("aime24-1", 1)
        return replace(response, text=special.get((response.id, response.sample), "x" * 3000), truncated=cut)

    run = run.having(text)
    with pytest.MonkeyPatch.context() as patch:
        whole = pages.source
        patch.setattr(pages, "source", lambda name: whole(name) + (DRIVER if name == "evaluation.js" else ""))
        html = evaluation_page(summarize(run.settings, run.problems, run.responses), run.samples)
    (folder / "report.html").write_text(html)
    command = f"{BROWSER} --headless --no-sandbox --disable-gpu --window-size=390,1800 --virtual-time-budget=20000"
    command += f" --user-data-dir={folder}/profile --dump-dom file://{folder}/report.html"
    dom = subprocess.run(command.split(), capture_output=True, text=True, timeout=HANGS, check=True).stdout
    (output,) = re.findall(r"<output>(.*)</output>", dom)
    return json.loads(unescape(output))


def test_the_list_shows_everything_in_pages(seen):
    assert seen["highlights"] == ["aime24-0"]
    assert seen["count"] == "63 of 63 problems"
    assert seen["all"] == [*(f"aime24-{n}" for n in range(3)), *(f"math500-{n}" for n in range(47))]
    assert seen["more"] == "Show 13 more of 13"
    assert seen["afterMore"] == [63, True]


def test_filters(seen):
    assert seen["mixed"] == ["aime24-0"]
    assert seen["truncated"] == ["aime24-1"]
    assert seen["benchmark"] == [f"math500-{n}" for n in range(50)]


def test_the_search_takes_the_query_as_it_is_in_any_case(seen):
    assert seen["special"] == ["aime24-2"]
    assert seen["found"] == ["aime24-0"]
    assert seen["marks"] == ["owned", "owned"]


def test_responses_appear_when_they_are_opened_and_are_text(seen):
    assert seen["before"] == 0
    assert seen["text"] == HOSTILE
    assert (seen["images"], seen["scripts"]) == (0, 3)
    assert seen["title"] == "Evaluation of models/tiny"


def test_a_phone_needs_no_sideways_scrolling(seen):
    assert seen["overflow"] <= 0


def test_charts_are_drawn_without_an_error(seen):
    assert seen["charts"] == [True, True, True]  # a curve and a histogram, and a histogram of single samples
    assert seen["problems"] == ""
