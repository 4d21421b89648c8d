import re

import pytest
from html_page import Page
from plotly.offline import get_plotlyjs

from openrlhf_cov.analysis.report.report_page import report_page


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


def test_the_page_holds_all_sections_and_charts(page):
    ids = page.ids()
    assert len(set(ids)) == len(ids)
    sections = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert sections == ["curves", "runs", "method", "tokens", "evaluation", "law"]
    charts = [name.removeprefix("chart-") for name in ids if name.startswith("chart-")]
    assert charts == [
        *("curves", "selection", "methods", "gradient", "sampling", "bands", "accuracy", "phases", "scores"),
        *("law_of_all", "model_size", "law", "theorem1", "theorem2", "fall"),
    ]
    data = page.data
    assert {*data["charts"], *data["kinds"]} == set(charts)
    assert [sorted(run["charts"]) for run in data["runs"]] == [sorted(data["kinds"])] * 2 + [["law"]]
    assert [run["name"] for run in data["runs"]] == ["none", "kl_cov", "foreign"]
    assert [run["tokens"] and run["tokens"]["steps"][0]["step"] for run in data["runs"]] == [20, None, None]
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= set(ids)


@pytest.mark.slow
def test_a_section_is_not_named_after_what_is_not_in_it(make_contents, make_report_run):
    times = ["timing/generation", "timing/step_total"]
    foreign = report_page(make_contents(make_report_run("verl", only=["reward", "entropy/mean", *times])))
    sections = re.findall(r"<h2[^>]*>([^<]*)</h2>", foreign)
    assert "Time" in sections
    assert "Covariances and time" not in foreign
    # Covariances of the top tokens without a time of any phase.
    covariances = report_page(make_contents(make_report_run("short", only=["reward", "entropy/mean", "cov/mean"])))
    sections = re.findall(r"<h2[^>]*>([^<]*)</h2>", covariances)
    assert "Covariances" in sections
    assert "Covariances and time" not in sections


def test_the_page_needs_no_network_and_allows_its_scripts_alone(page):
    page.check_policy()
    assert page.scripts[1] == get_plotlyjs()
    assert "Plotly.react" in page.scripts[2]


@pytest.mark.slow
def test_no_placeholder_is_left_and_none_of_a_run_is_filled(page, page_of, make_report_run):
    name = "{{ data }} {% if %} {{ title }}"
    assert f"<h1>{name}</h1>" in page_of(make_report_run(name)).text
    assert not re.search(r"\{\{|\{%", page.text.replace(get_plotlyjs(), "").replace(page.scripts[2], ""))


@pytest.mark.slow
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


@pytest.mark.slow
def test_half_a_surrogate_pair_does_no_harm(page_of, make_report_run):
    assert "<h1>a?b</h1>" in page_of(make_report_run("a\ud800b")).text


@pytest.mark.slow
def test_a_single_run_has_no_choice_of_runs(page_of, make_report_run):
    page = page_of(make_report_run("a", only=["reward", "entropy/mean"]))
    assert not {"chips", "tokens", "evaluation", "method"} & set(page.ids())
    assert "run-choice" not in [attributes.get("class") for _, attributes in page.tags]
    assert [*page.data["charts"], *page.data["kinds"]] == ["curves", "law"]
    assert page.data["evaluations"] == []
    assert "Problems in the files" not in page.text


# --- sections


def test_numbers_of_the_law_are_there_for_the_runs_that_it_describes(three, page):
    head, none, kl_cov, foreign = page.section("law").rows[:4]
    fit = three.runs[0].law.result.fit
    row = dict(zip(head, none, strict=True))
    assert row["ceiling"] == f"{fit.ceiling.estimate:.3f} [{fit.ceiling.low:.3f}, {fit.ceiling.high:.3f}]"
    assert (row["theorem 1"], row["theorem 2"]) == ("1.000", "-1.000")
    assert set(kl_cov[1:-2]) == {"-"}
    assert foreign[head.index("a")] != "-"
    assert foreign[-2:] == ["-", "-"]


def test_settings_that_differ_and_all_of_them_folded(page):
    found = page.section("runs")
    assert found.rows[4:] == [["setting", "none", "kl_cov", "foreign"], ["--cov_type", "none", "kl_cov", "not known"]]
    assert found.text.count("<details>") == 2
    assert "<dt>--actor.adam.lr</dt><dd>5e-7</dd>" in found.text
    assert "<dt>--logger.wandb.key</dt><dd>***</dd>" in found.text
    assert "abc123" not in page.text


def test_tables_of_a_run(page):
    none, foreign = (page.section("method").text.split(f'data-run="{place}"')[1] for place in (0, 2))
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
