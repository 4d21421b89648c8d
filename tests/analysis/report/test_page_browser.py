"""The page in headless Chromium, as it is and under its own policy, at the width of a phone and of a desk."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from openrlhf_cov.analysis.pages.chart import short_names
from openrlhf_cov.analysis.report.report_page import report_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")]

# A name without a place to break it.
FOREIGN = "foreign_" + 200 * "n"

DRIVER = """
<!DOCTYPE html><meta charset="utf-8">
<iframe id="phone" src="report.html" style="width: 390px; height: 800px"></iframe>
<iframe id="desk" src="report.html" style="width: 1440px; height: 900px"></iframe>
<script>
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const texts = (nodes) => [...nodes].map((node) => node.textContent);

async function opened(id) {
  const frame = document.getElementById(id);
  for (let i = 0; i < 400; i++) {
    const doc = frame.contentDocument;
    if (doc && doc.body && doc.body.dataset.charts) return doc;
    await wait(50);
  }
  throw new Error(`${id} is not drawn`);
}

async function look(id) {
  const doc = await opened(id);
  await wait(300);
  const plots = [...doc.querySelectorAll("figure:not([hidden]) .plot")];
  const shapes = (plot) => plot.querySelectorAll(".js-line, .point, .trace.bars path").length;
  return {
    ...doc.body.dataset,
    overflow: doc.documentElement.scrollWidth - doc.documentElement.clientWidth,
    empty: plots.filter((plot) => !shapes(plot)).map((plot) => plot.closest("figure").id),
    plots: plots.length,
    outside: plots.filter((plot) => plot.getBoundingClientRect().right > doc.documentElement.clientWidth).length,
    small: [...doc.querySelectorAll("button, select, summary, nav a")]
      .filter((node) => node.offsetParent && node.offsetHeight < 32).map((node) => node.outerHTML),
    title: doc.title,
    images: doc.images.length,
    scripts: doc.scripts.length,
  };
}

async function use() {
  const doc = await opened("desk");
  const win = document.getElementById("desk").contentWindow;
  const byId = (id) => doc.getElementById(id);
  const plots = (name) => byId(`chart-${name}`).querySelectorAll(".plot");
  const plot = (name) => plots(name)[0];
  const lines = (name) => byId(`chart-${name}`).querySelectorAll(".js-line").length;
  const seen = {};
  const set = async (node, value) => {
    node.value = value;
    node.dispatchEvent(new win.Event("change"));
    await wait(200);
  };

  const chips = byId("chips").querySelectorAll("button");
  seen.chips = texts(chips);
  const before = lines("curves");
  chips[1].click();
  await wait(200);
  seen.lines = [before, lines("curves")];
  seen.pressed = chips[1].getAttribute("aria-pressed");

  await win.Plotly.relayout(plot("curves"), { "xaxis.range[0]": 10, "xaxis.range[1]": 20 });
  await wait(200);
  seen.zoom = [plots("curves")[2].layout.xaxis.range, plot("bands").layout.xaxis.range];
  await win.Plotly.relayout(plot("bands"), { "xaxis.autorange": true });
  await wait(200);
  seen.unzoomed = plot("curves").layout.xaxis.autorange;

  const bands = byId("chart-bands").querySelectorAll(".legend button");
  seen.bands = [bands.length, lines("bands")];
  bands[0].click();
  await wait(200);
  seen.bands.push(lines("bands"));

  const table = doc.querySelector("#runs table");
  const steps = [...table.querySelectorAll("th button")].find((node) => node.textContent === "steps");
  const order = () => texts(table.querySelectorAll("tbody th"));
  seen.order = [order()];
  for (let i = 0; i < 2; i++) {
    steps.click();
    seen.order.push([steps.closest("th").getAttribute("aria-sort"), ...order()]);
  }

  const passages = () => texts(byId("passages").querySelectorAll(".text"));
  const tokens = () => [...byId("passages").querySelectorAll(".token")];
  seen.passages = passages();
  seen.marked = tokens().map((node) => [node.textContent, node.className, node.style.backgroundColor]);
  tokens()[2].click();
  seen.tip = [byId("tip").hidden, texts(byId("tip").querySelectorAll("dd"))];
  tokens()[0].focus();
  const press = (name) => new win.KeyboardEvent("keydown", { key: name, bubbles: true });
  const key = (name) => doc.activeElement.dispatchEvent(press(name));
  seen.label = doc.activeElement.getAttribute("aria-label");
  key("ArrowRight");
  seen.next = [doc.activeElement.textContent, tokens().filter((node) => node.tabIndex === 0).length];
  seen.shown = !byId("tip").hidden;
  key("Escape");
  seen.escaped = byId("tip").hidden;
  byId("selected-only").click();
  await wait(100);
  seen.selected = [passages().length, texts(tokens())];
  byId("selected-only").click();
  byId("later").click();
  seen.later = [byId("step").selectedOptions[0].textContent, byId("later").disabled, passages().length];

  const [choice, other] = doc.querySelectorAll(".run-choice");
  seen.law = texts(byId("chart-law").querySelectorAll(".legend button"));
  await set(choice, 1);
  seen.second = {
    choice: other.value,
    law: texts(byId("chart-law").querySelectorAll(".legend button")),
    tokens: [byId("token-view").hidden, byId("no-tokens").hidden],
    tables: [...doc.querySelectorAll("[data-run]")].map((node) => node.hidden),
  };
  await set(choice, 2);
  seen.third = ["law", "bands", "phases"].map((name) => byId(`chart-${name}`).hidden);
  seen.svg = (await win.Plotly.toImage(plot("law"), { format: "svg" })).slice(0, 18);
  seen.problems = doc.body.dataset.problems || "[]";
  seen.requests = win.performance.getEntriesByType("resource").length;
  return seen;
}

(async () => {
  const found = { phone: await look("phone"), desk: await look("desk") };
  found.used = await use().catch((problem) => String(problem));
  const output = document.createElement("output");
  output.textContent = JSON.stringify(found);
  document.body.append(output);
})();
</script>
"""


@pytest.fixture(scope="module")
def seen(make_contents, make_report_run, write_tokens, token_records, hostile, tmp_path_factory):
    """What was found at both widths, of three runs, the first with tokens and a name that is markup."""
    folder = tmp_path_factory.mktemp("page")
    write_tokens(folder, 20, token_records(hostile=True))
    write_tokens(folder, 40, token_records()[:1])
    contents = make_contents(
        make_report_run(hostile, path=folder),
        make_report_run("kl_cov", seed=1, steps=50, method="kl_cov"),
        make_report_run(FOREIGN, seed=2, steps=40, only=["reward", "entropy/mean"]),
        forecast_share=0.2,
    )
    (folder / "report.html").write_text(report_page(contents), encoding="utf-8")
    (folder / "driver.html").write_text(DRIVER, encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += ["--enable-logging=stderr"]
    command += ["--window-size=1500,1800", "--virtual-time-budget=60000", f"--user-data-dir={folder}/profile"]
    command += ["--dump-dom", f"file://{folder}/driver.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (output,) = re.findall(r"<output>(.*)</output>", done.stdout)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(unescape(output)) | {"console": console}


@pytest.mark.parametrize("width", ["phone", "desk"])
def test_everything_is_drawn_without_an_error_or_a_request(seen, width):
    found = seen[width]
    assert "problems" not in found
    assert (found["empty"], found["plots"]) == ([], 19)
    assert (found["charts"], found["requests"]) == ("14", "0")


@pytest.mark.parametrize("width", ["phone", "desk"])
def test_nothing_is_wider_than_the_page(seen, width):
    assert (seen[width]["overflow"], seen[width]["outside"]) == (0, 0)


def test_buttons_can_be_hit(seen):
    assert seen["phone"]["small"] == []


def test_text_of_runs_is_shown_as_text(seen, hostile):
    assert seen["phone"]["title"] == "Entropy report: 3 runs"
    assert (seen["phone"]["images"], seen["phone"]["scripts"]) == (0, 3)
    assert seen["used"]["passages"][0] == f"{hostile}␣a12b3c4"


def test_runs_are_shown_and_hidden_in_all_charts(seen, hostile):
    first, second, third = seen["used"]["chips"]
    assert (first[:8], second, third) == (hostile[:8], "kl_cov", short_names([FOREIGN])[0])
    # Reward, entropy, length, selected: values and means of the first run, values of the second, of the third only
    # reward and entropy: the others are short. Without the second run there is one line less in each panel.
    assert seen["used"]["lines"] == [14, 10]
    assert seen["used"]["pressed"] == "false"


def test_charts_by_step_zoom_together(seen):
    assert seen["used"]["zoom"] == [[10, 20], [10, 20]]
    assert seen["used"]["unzoomed"] is True


def test_a_legend_hides_a_line(seen):
    assert seen["used"]["bands"] == [6, 6, 5]


def test_the_table_sorts_up_and_down(seen, hostile):
    assert seen["used"]["order"] == [
        [hostile, "kl_cov", FOREIGN],
        ["ascending", FOREIGN, "kl_cov", hostile],
        ["descending", hostile, "kl_cov", FOREIGN],
    ]


def test_tokens_are_shaded_by_covariance(seen):
    # alpha = 0.12 + 0.58 |cov| / 4: of 4, 2 and -1 in the first passage, of 3 in the second; 0.265 is 68 / 255 there
    assert seen["used"]["marked"] == [
        ["␣a", "token selected", "rgba(213, 94, 0, 0.7)"],
        ["b", "token", "rgba(213, 94, 0, 0.41)"],
        ["c", "token negative selected", "rgba(0, 114, 178, 0.267)"],
        ["d", "token", "rgba(213, 94, 0, 0.557)"],
    ]
    assert seen["used"]["passages"][1] == "<d→>"


def test_values_of_a_token_on_tap_and_by_keys(seen):
    # covariance, entropy, advantage, log-prob, selected, position, token id
    assert seen["used"]["tip"] == [False, ["−1", "1.5", "−0.5", "−2", "yes", "10", "7"]]
    assert seen["used"]["label"] == " a, covariance 4, selected"
    assert seen["used"]["next"] == ["b", 1]
    assert (seen["used"]["shown"], seen["used"]["escaped"]) == (True, True)


def test_selected_tokens_alone_and_another_step(seen):
    assert seen["used"]["selected"] == [1, ["␣a", "c"]]
    assert seen["used"]["later"] == ["step 40", True, 1]


def test_another_run_in_detail(seen):
    assert seen["used"]["law"] == ["steps, late ones strong", "fitted line", "forecast of the first 12 points"]
    second = seen["used"]["second"]
    assert second == {
        "choice": "1",
        "law": ["steps, late ones strong", "fit, not to be relied on"],
        "tokens": [True, False],
        "tables": [True, False, True],
    }
    assert seen["used"]["third"] == [False, True, True]


def test_pictures_can_be_saved_and_nothing_else_happened(seen):
    assert seen["used"]["svg"] == "data:image/svg+xml"
    assert (seen["used"]["problems"], seen["used"]["requests"]) == ("[]", 0)
    assert seen["console"] == []
