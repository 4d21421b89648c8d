import re

import pytest
from html_page import Page
from plotly.offline import get_plotlyjs

from openrlhf_cov.analysis.pages.html import prose
from openrlhf_cov.analysis.report.contents import Options
from openrlhf_cov.analysis.report.report_page import HEAD, asked, report_page


@pytest.fixture(scope="module")
def page_of(make_contents):
    def make(*runs, **options):
        return Page(report_page(make_contents(*runs, **options)))

    return make


@pytest.fixture(scope="module")
def three(make_contents, make_report_run, write_tokens, token_records, tmp_path_factory):
    """The first of the runs has tokens, the law does not apply to the second, the third is of another trainer."""
    folder = tmp_path_factory.mktemp("run")
    write_tokens(folder, 20, token_records())
    runs = [
        make_report_run("none", path=folder),
        make_report_run("kl_cov", seed=1, method="kl_cov", warnings=("<line 7> is cut",)),
        make_report_run("foreign", seed=2, only=["reward", "entropy/mean"], settings={}),
    ]
    return make_contents(*runs, sizes={"none": 1e9, "foreign": 7e9}, extrapolate_to=32e9, forecast_share=0.2)


@pytest.fixture(scope="module")
def page(three):
    return Page(report_page(three))


def set_to(x):
    return {"--algo.kl.init_coef": "0", "--x": str(x)}


@pytest.fixture(scope="module")
def five(page_of, make_report_run):
    return page_of(*(make_report_run(f"r{n}", steps=30, seed=n, settings=set_to(n % 2)) for n in range(5)))


def test_the_page_holds_all_sections_and_charts(page):
    ids = page.ids()
    assert len(set(ids)) == len(ids)
    assert {"law", "runs", "comparison", "curves", "one", "tokens", "settings"} <= set(ids)
    charts = [name.removeprefix("chart-") for name in ids if name.startswith("chart-")]
    overview = ["reward_and_entropy", "law_of_all", "model_size", "selection", "methods", "gradient", "sampling"]
    overview += ["response_length", "evaluations"]
    assert charts == [*overview, "law", "bands", "theorem1", "theorem2", "fall", "accuracy", "phases"]
    data = page.data
    assert [*data["charts"], "evaluations", *data["kinds"]] == charts
    assert [sorted(run["charts"]) for run in data["runs"]] == [sorted(data["kinds"])] * 2 + [["law"]]
    assert [run["name"] for run in data["runs"]] == ["none", "kl_cov", "foreign"]
    assert [run["tokens"] and run["tokens"]["steps"][0]["step"] for run in data["runs"]] == [20, None, None]
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_the_page_needs_no_network_and_allows_its_scripts_alone(page):
    page.check_policy()
    assert page.scripts[1] == get_plotlyjs()
    assert "Plotly.react" in page.scripts[2]


def test_numbers_of_the_law_need_no_script(three, page):
    words = " ".join(page.words)
    assert f"{three.runs[0].law.result.fit.ceiling.estimate:.3f}" in words
    assert [tag for tag, _ in page.tags].count("noscript") == 3


def test_no_placeholder_is_left_and_none_of_a_run_is_filled(page, page_of, make_report_run):
    name = "{{ data }} {% if %} {{ title }}"
    assert f"<h1>{name}</h1>" in page_of(make_report_run(name)).text
    assert not re.search(r"\{\{|\{%", page.text.replace(get_plotlyjs(), "").replace(page.scripts[2], ""))


def test_text_of_runs_is_never_markup(page_of, make_report_run, write_tokens, token_records, tmp_path, hostile):
    def report(name, path, text, tokens):
        write_tokens(path, 20, tokens)
        fields = {"path": path, "settings": {f"--{text}": text}, "warnings": (text,)}
        return page_of(make_report_run(name, **fields), make_report_run("b", settings={"--x": text}))

    harmless = report("a", tmp_path / "a", "plain", token_records())
    found = report(hostile, tmp_path / "b", hostile, token_records(hostile=True))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in harmless.tags]
    assert found.data["runs"][0]["name"] == hostile
    assert found.data["runs"][0]["tokens"]["steps"][0]["passages"][0][0] == hostile
    assert hostile in "".join(found.words)


def test_half_a_surrogate_pair_does_no_harm(page_of, make_report_run):
    assert "<h1>a?b</h1>" in page_of(make_report_run("a\ud800b")).text


def test_a_single_run_has_no_choice_of_runs(page_of, make_report_run):
    page = page_of(make_report_run("a", only=["reward", "entropy/mean"]))
    assert not {"chips", "comparison", "tokens", "evaluation"} & set(page.ids())
    assert "run-choice" not in [attributes.get("class") for _, attributes in page.tags]
    assert [*page.data["charts"], *page.data["kinds"]] == ["reward_and_entropy", "law"]
    assert page.data["evaluations"] == []
    assert any("Without values in the logs" in word for word in page.words)
    assert "About the files" not in page.text


def test_what_was_asked_for():
    assert (
        asked(Options()) == "R is reward; least squares; 95 % intervals; forecast from the first 15 % of the points."
    )
    assert asked(Options(metric="<x>", robust=True)).startswith("R is <x>; Huber's robust fit;")


# --- sections


def test_the_law_in_words_or_why_not(page):
    cards = page.section("law").text.split("<article")[1:]
    assert ['class="card applies"' in card for card in cards] == [True, False, True]
    assert "With no entropy left, reward would reach" in cards[0]
    assert prose("Fitted to the first 20 %") in cards[0]
    assert "Theorem 1 (policy gradient)" in cards[0]
    assert "The law does not apply here:</p><ul><li>--cov_type kl_cov acts on the entropy" in cards[1]
    assert not re.search("would reach|Fitted to", cards[1])
    assert "Theory: not to be checked" in cards[2]


def test_many_runs_are_folded(page, five):
    assert "<details>" not in page.section("law").text
    html = five.section("law").text
    assert html.index("The law applies to") < html.index("<details>") < html.index("<article")


def test_the_table_of_runs_is_plain_html_with_keys_to_sort_by(three, page):
    found = page.section("runs")
    assert tuple(found.rows[0]) == HEAD
    none, kl_cov, foreign = (dict(zip(HEAD, row, strict=True)) for row in found.rows[1:])
    keys = [dict(zip(HEAD, row, strict=True)) for row in found.keys[1:]]
    fit = three.runs[0].law.result.fit
    assert none["reward"] == f"{three.runs[0].reward.first:.3f} → {three.runs[0].reward.last:.3f}"
    assert (none["run"], none["steps"], none["time"], none["law"]) == ("none", "60", "59 min 00 s", "applies")
    assert none["ceiling"] == f"{fit.ceiling.estimate:.3f} [{fit.ceiling.low:.3f}, {fit.ceiling.high:.3f}]"
    assert float(keys[0]["ceiling"]) == fit.ceiling.estimate
    assert none["RMSE"] == f"{100 * fit.rmse:.1f} %"
    assert (none["theorem 1"], none["theorem 2"]) == ("1.000", "-1.000")
    assert (kl_cov["law"], kl_cov["ceiling"], keys[1]["ceiling"]) == ("does not apply", "-", "")
    assert (foreign["time"], keys[2]["time"], foreign["theorem 1"]) == ("-", "", "-")
    assert foreign["law"] == "applies"
    assert "<li>kl_cov: &lt;line 7&gt; is cut</li>" in found.text


def test_settings_that_differ_and_all_of_them_folded(page):
    found = page.section("settings")
    assert found.rows == [["setting", "none", "kl_cov", "foreign"], ["--cov_type", "none", "kl_cov", "not known"]]
    assert found.text.count("<details>") == 2
    assert "<dt>--actor.adam.lr</dt><dd>5e-7</dd>" in found.text
    assert "<dt>--logger.wandb.key</dt><dd>***</dd>" in found.text
    assert "abc123" not in page.text
    assert "The settings of foreign are not known" in found.text


def test_a_setting_that_a_run_leaves_alone(page_of, make_report_run):
    runs = [make_report_run("a", settings={"--x": "1"}), make_report_run("b", settings={"--y": "2"})]
    assert page_of(*runs).section("settings").rows[1:] == [["--x", "1", "–"], ["--y", "–", "2"]]
    same = [make_report_run(name, settings={"--x": "1"}) for name in "ab"]
    assert "No setting that is known differs" in page_of(*same).text


def test_settings_of_many_runs_have_a_row_per_run(five):
    found = five.section("settings")
    assert found.rows == [["run", "--x"], ["r0", "0"], ["r1", "1"], ["r2", "0"], ["r3", "1"], ["r4", "0"]]
    assert found.text.count("<details>") == 6
    assert "<summary>All settings, run by run</summary>" in found.text


def test_comparison_of_coefficients_and_sizes(three, page, five):
    found = page.section("comparison")
    assert f"one a and one b for these runs (p {three.same.result.p_value:.3f}): a = 0.30" in found.text
    assert "The law does not apply to kl_cov" in found.text
    assert [row[0] for row in found.rows[1:]] == ["none − kl_cov", "none − foreign", "kl_cov − foreign"]
    (difference, *_) = three.same.result.differences
    assert found.rows[1][1].startswith(f"{difference.a.estimate:.3g}"[:4])
    assert "2 runs from 1B to 7B" in found.text
    assert "Extrapolated at 32B parameters: a" in found.text
    assert "<details>" not in found.text
    assert "<summary>The 10 differences, by pairs of runs</summary>" in five.section("comparison").text


def test_lines_to_which_the_law_does_not_apply_have_no_common_numbers(page_of, make_report_run):
    runs = [make_report_run(name, seed=seed, method="kl_cov") for seed, name in enumerate("ab")]
    text = page_of(*runs, sizes={"a": 1e9, "b": 7e9}, extrapolate_to=32e9).section("comparison").text
    assert "Whether the runs share their coefficients cannot be said: the law applies to none of them." in text
    assert "No trend in model size: the law applies to none of them." in text
    assert [part for part in ("a =", "(p ", "Extrapolated", "a − b") if part in text] == []
    mixed = page_of(make_report_run("c", seed=3), runs[0], sizes={"a": 1e9, "c": 7e9})
    assert "The law does not apply to a, whose coefficients mean little" in mixed.section("comparison").text


def test_sizes_without_a_trend_say_why(page_of, make_report_run):
    said = page_of(make_report_run("a"), sizes={"a": 1e9}).section("comparison").text
    assert "No trend in model size: a line in the size of models needs two different" in said


def test_tables_of_a_run(page):
    none, foreign = (page.section("one").text.split(f'data-run="{place}"')[1] for place in (0, 2))
    rows = Page(none.split('data-run="1"')[0]).rows
    assert rows[0] == ["steps", "top 0.02 %", "top 0.2 %", "top 2 %", "top 20 %", "top 50 %", "covariance, all tokens"]
    # 60 steps: the first, to a twelfth, to a third, to the end
    assert [row[0] for row in rows[1:6]] == ["1", "2 to 5", "6 to 20", "21 to 60", "paper, Qwen2.5-7B, step 1"]
    assert rows[1][1:3] == ["1.000", "0.500"]
    assert rows[5][1:] == ["5.654", "3.112", "1.385", "0.351", "0.152", "0.003"]
    assert rows[6] == ["covariance", "hard", "medium", "easy", "easy − hard"]
    assert (rows[7][0], rows[7][2]) == ("Cov(log π, A) of responses", "- [no interval]")
    assert rows[7][1].startswith(("0.02", "0.019"))
    assert Page(foreign).rows == []
