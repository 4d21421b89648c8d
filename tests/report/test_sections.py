import re
from html.parser import HTMLParser

import pytest

from openrlhf_cov.report.sections import (
    HEAD,
    accuracy_table,
    band_table,
    comparison_section,
    law_section,
    runs_section,
    settings_section,
)


class Tables(HTMLParser):
    """Rows of all tables: the text of their cells, and what they are sorted by."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.keys = [], []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
            self.keys.append([])
        if tag in ("td", "th"):
            self.inside = True
            self.rows[-1].append("")
            self.keys[-1].append(dict(attrs).get("data-value"))

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def three(make_contents, make_report_run):
    runs = [
        make_report_run("none"),
        make_report_run("kl_cov", seed=1, method="kl_cov", warnings=("<line 7> is cut",)),
        make_report_run("foreign", seed=2, only=["reward", "entropy/mean"], settings={}),
    ]
    return make_contents(*runs, sizes={"none": 1e9, "foreign": 7e9}, extrapolate_to=32e9, forecast_share=0.2)


def text_of(html):
    return re.sub(r"<[^>]*>", " ", html)


def test_the_law_in_words_or_why_not(three):
    cards = law_section(three).split("<article")[1:]
    assert ['class="card applies"' in card for card in cards] == [True, False, True]
    assert "With no entropy left, reward would reach" in cards[0]
    assert "Fitted to the first 20&nbsp;%" in cards[0]
    assert "Theorem 1 (policy gradient)" in cards[0]
    assert "The law does not apply here:</p><ul><li>--cov_type kl_cov acts on the entropy" in cards[1]
    assert "would reach" not in cards[1]
    assert "Fitted to" not in cards[1]
    assert "Theory: not to be checked" in cards[2]


def test_many_runs_are_folded(make_contents, make_report_run):
    runs = [make_report_run(f"r{n}", steps=30, seed=n) for n in range(5)]
    assert "<details>" not in law_section(make_contents(*runs[:4]))
    html = law_section(make_contents(*runs))
    assert html.index("The law applies to") < html.index("<details>") < html.index("<article")


def test_the_table_of_runs_is_plain_html_with_keys_to_sort_by(three):
    found = Tables(runs_section(three))
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


def test_warnings_name_their_run(three, make_contents, make_report_run):
    assert "<li>kl_cov: &lt;line 7&gt; is cut</li>" in runs_section(three)
    assert "About the files" not in runs_section(make_contents(make_report_run("a")))


def test_settings_that_differ_and_all_of_them_folded(three):
    html = settings_section(three)
    rows = Tables(html).rows
    assert rows == [["setting", "none", "kl_cov", "foreign"], ["--cov_type", "none", "kl_cov", "not known"]]
    assert html.count("<details>") == 2
    assert "<dt>--actor.adam.lr</dt><dd>5e-7</dd>" in html
    assert "The settings of foreign are not known" in html


def test_a_setting_that_a_run_leaves_alone(make_contents, make_report_run):
    runs = [make_report_run("a", settings={"--x": "1"}), make_report_run("b", settings={"--y": "2"})]
    assert Tables(settings_section(make_contents(*runs))).rows[1:] == [["--x", "1", "–"], ["--y", "–", "2"]]
    same = [make_report_run(name, settings={"--x": "1"}) for name in "ab"]
    assert "No setting that is known differs" in settings_section(make_contents(*same))


def test_settings_of_many_runs_have_a_row_per_run(make_contents, make_report_run):
    runs = [make_report_run(f"r{n}", steps=30, settings={"--x": str(n % 2)}) for n in range(5)]
    html = settings_section(make_contents(*runs))
    expected = [["run", "--x"], ["r0", "0"], ["r1", "1"], ["r2", "0"], ["r3", "1"], ["r4", "0"]]
    assert Tables(html).rows == expected
    assert html.count("<details>") == 6
    assert "<summary>All settings, run by run</summary>" in html


def test_secrets_are_not_shown(make_contents, make_report_run):
    runs = [make_report_run(name, settings={"--judge.api_key": f"value {name}"}) for name in "ab"]
    html = settings_section(make_contents(*runs))
    assert "value a" not in html
    assert "<dt>--judge.api_key</dt><dd>***</dd>" in html


def test_comparison_of_coefficients_and_sizes(three, make_contents, make_report_run):
    html = comparison_section(three)
    assert f"one a and one b for these runs (p {three.same.result.p_value:.3f}): a = 0.30" in html
    assert "The law does not apply to kl_cov" in html
    rows = Tables(html).rows
    assert [row[0] for row in rows[1:]] == ["none − kl_cov", "none − foreign", "kl_cov − foreign"]
    (difference, *_) = three.same.result.differences
    assert rows[1][1].startswith(f"{difference.a.estimate:.3g}"[:4])
    assert "2 runs from 1B to 7B" in text_of(html)
    assert "Extrapolated at 32B parameters: a" in html
    assert comparison_section(make_contents(make_report_run("a"))) == ""


def test_lines_to_which_the_law_does_not_apply_have_no_common_numbers(make_contents, make_report_run):
    runs = [make_report_run(name, seed=seed, method="kl_cov") for seed, name in enumerate("ab")]
    text = text_of(comparison_section(make_contents(*runs, sizes={"a": 1e9, "b": 7e9}, extrapolate_to=32e9)))
    assert "Whether the runs share their coefficients cannot be said: the law applies to none of them." in text
    assert "No trend in model size: the law applies to none of them." in text
    assert [part for part in ("a =", "(p ", "Extrapolated", "a − b") if part in text] == []
    mixed = make_contents(make_report_run("c", seed=3), runs[0], sizes={"a": 1e9, "c": 7e9})
    assert "The law does not apply to a, whose coefficients mean little" in text_of(comparison_section(mixed))


def test_six_differences_are_folded(make_contents, make_report_run):
    html = comparison_section(make_contents(*(make_report_run(f"r{n}", seed=n) for n in range(4))))
    assert "<summary>The 6 differences, by pairs of runs</summary>" in html


def test_sizes_without_a_trend_say_why(make_contents, make_report_run):
    html = comparison_section(make_contents(make_report_run("a"), sizes={"a": 1e9}))
    assert "No trend in model size: a line in the size of models needs two different" in html


def test_table_1_over_training(three):
    rows = Tables(band_table(three.runs[0])).rows
    assert rows[0] == ["steps", "top 0.02 %", "top 0.2 %", "top 2 %", "top 20 %", "top 50 %", "covariance, all tokens"]
    # 60 steps: the first, to a twelfth, to a third, to the end
    assert [row[0] for row in rows[1:]] == ["1", "2 to 5", "6 to 20", "21 to 60", "paper, Qwen2.5-7B, step 1"]
    assert rows[1][1:3] == ["1.000", "0.500"]
    assert rows[-1][1:] == ["5.654", "3.112", "1.385", "0.351", "0.152", "0.003"]
    assert band_table(three.runs[2]) == ""


def test_covariance_by_accuracy(three):
    rows = Tables(accuracy_table(three.runs[0])).rows
    assert rows[0] == ["covariance", "hard", "medium", "easy", "easy − hard"]
    (row,) = rows[1:]
    assert row[0] == "of responses"
    assert row[1].startswith(("0.02", "0.019"))
    assert row[2] == "- [no interval]"
    assert accuracy_table(three.runs[2]) == ""
