from dataclasses import replace

import numpy as np
import pytest

from openrlhf_cov.analysis.table import Table
from openrlhf_cov.experiments.study.document import document, markdown, page
from openrlhf_cov.experiments.study.headroom import headroom_answer, pass_rate_answer, steps_to
from openrlhf_cov.experiments.study.run_plan import REPORT, StudyRun
from openrlhf_cov.experiments.study.spec_file import spec_of


@pytest.fixture
def spec():
    methods = [
        {"name": "GRPO"},
        {"name": "pass@k", "flags": "--method passk"},
        {"name": "PSR", "flags": "--method psr"},
    ]
    return spec_of(
        {"title": "Tail", "task": "tail", "seeds": [0, 1, 2], "base_policies": 2, "learned": 0.9, "arms": methods}
    )


@pytest.fixture
def results(make_result):
    """Test accuracies of three seeds for each method, and curves of the hard questions."""
    runs = []
    of_method = {
        "GRPO": ([0.5, 0.6, 0.7], [(0.3, 0.5)] * 3),
        "pass@k": ([0.7, 0.7, 0.7], [(0.95, 0.96), (0.6, 0.97), (0.6, 0.9)]),
        "PSR": ([0.5, 0.6, 0.7], [(0.96, 0.96)] * 3),
    }
    for method, (accuracies, curves) in of_method.items():
        for seed, (accuracy, (middle, end)) in enumerate(zip(accuracies, curves, strict=True)):
            result = make_result(StudyRun(method, REPORT, (), seed), accuracy)
            columns = dict(result.evaluations.columns)
            columns["greedy_hard"] = np.array([0.0, middle, end])
            columns["decision_entropy"] = np.array([1.0 + seed % 2, 0.5, 0.25])
            columns["sampled"] = np.array([0.2 + 0.2 * (seed % 2), 0.5, 0.5])
            runs.append(result.__class__(**(vars(result) | {"evaluations": Table(np.array([0, 20, 40]), columns)})))
    return runs


def test_the_table_by_hand(spec, results):
    answer = headroom_answer(spec, results)
    base, grpo, passk, psr = answer.rows
    # Two base policies: entropies 1 and 2, sampled accuracies 0.2 and 0.4.
    assert base[0] == "base policy"
    assert base[4].startswith("0.40")
    assert base[5].startswith("0.30 [")
    assert base[7].startswith("1.50 [")
    # No seed of GRPO learns: of 3, 1 - 0.025^(1/3) = 0.708.
    assert grpo[:4] == ("GRPO", "0 of 3", "0.00 [0.00, 0.71]", "more than 40")
    assert grpo[8:] == ("", "", "")
    # 0.96, 0.97 and 0.90 all reach 0.9; 0.95 is reached at 20, at 40 and never: the median is 40.
    assert passk[:4] == ("pass@k", "3 of 3", "1.00 [0.29, 1.00]", "40")
    assert passk[7].startswith("0.25")
    # Differences 0.2, 0.1, 0.0: p = 1 - sqrt(3 / 5) = 0.225, twice as large for two comparisons; the smallest
    # detectable difference is 5.6535 * 0.1 / sqrt(3) = 0.33.
    assert passk[8].startswith("+0.10 [")
    assert passk[9:] == ("0.451", "0.33")
    assert psr[3] == "20"
    # The differences of PSR have no spread, so they show neither an interval nor a p-value.
    assert psr[8:] == ("+0.00", "-", "-")


def test_equal_differences_have_no_p_value(spec, make_result):
    accuracies = {"GRPO": (0.3, 0.3, 0.3), "pass@k": (1.0, 1.0, 1.0), "PSR": (0.5, 0.6, 0.7)}
    runs = [
        make_result(StudyRun(method, REPORT, (), seed), accuracy)
        for method, by_seed in accuracies.items()
        for seed, accuracy in enumerate(by_seed)
    ]
    for each in runs:
        each.evaluations.columns["greedy_hard"] = each.evaluations.columns["greedy"]
    *_, passk, psr = headroom_answer(spec, runs).rows
    assert passk[8:] == ("+0.70", "-", "-")
    # Differences 0.2, 0.3 and 0.4: t = 5.19615, p = 1 - t / sqrt(2 + t^2) = 0.03509. Both methods were compared, so
    # Holm's correction doubles it.
    assert psr[9] == "0.070"


def test_steps_to_a_share(results):
    assert steps_to(results[3], 0.95) == 20
    assert steps_to(results[3], 0.0) == 0
    assert steps_to(results[0], 0.95) == float("inf")


@pytest.mark.slow
def test_the_page_has_the_table_only_where_the_spec_says_what_is_learned(spec, results):
    whole = document(spec, results)
    assert "| base policy |" in markdown(whole)
    page(whole)
    assert headroom_answer(spec, []).rows == ()
    other = spec_of({"title": "t", "task": "tail", "seeds": [0], "arms": [{"name": "GRPO"}]})
    assert headroom_answer(other, results) is None


def test_different_correct_answers_are_a_column_where_a_task_has_them(spec, results):
    assert headroom_answer(spec, results).head[-1] == "smallest detectable, one test"
    for number, result in enumerate(results):
        # The base policy of even seeds has 8 and that of odd ones 6; in the end there are 1, 2, ...
        start = 8.0 - 2 * (result.run.seed % 2)
        result.evaluations.columns["distinct_correct"] = np.array([start, 4.0, 1.0 + number // 3])
    answer = headroom_answer(spec, results)
    assert answer.head[-1] == "different correct answers"
    assert [row[-1][:4] for row in answer.rows] == ["7.00", "1.00", "2.00", "3.00"]
    assert {len(row) for row in answer.rows} == {len(answer.head)}


def test_a_bisection_has_the_table_of_its_first_value(make_result):
    sweep = {"grid": {"--shortcut_share": [0.1, 0.2, 0.3]}, "bisect": True}
    methods = [{"name": "GRPO"}, {"name": "pass@k", "flags": "--method passk"}]
    content = {"title": "t", "task": "shortcut", "seeds": [0, 1], "learned": 0.5, "sweep": sweep, "arms": methods}
    swept = spec_of(content)
    accuracies = {("GRPO", "0.2"): 0.1, ("GRPO", "0.1"): 0.9, ("pass@k", "0.2"): 0.9, ("pass@k", "0.3"): 0.1}
    runs = [
        make_result(StudyRun(method, REPORT, ("--shortcut_share", share), seed), accuracy)
        for (method, share), accuracy in accuracies.items()
        for seed in (0, 1)
    ]
    answer = headroom_answer(swept, runs)
    assert "--shortcut_share 0.2" in answer.question
    _, grpo, passk = answer.rows
    assert grpo[:2] == ("GRPO", "0 of 2")
    assert passk[:2] == ("pass@k", "2 of 2")
    assert passk[8].startswith("+0.80")
    # A map of all settings has no first value.
    every = spec_of(content | {"sweep": {"grid": {"--actor.adam.lr": [1e-4, 1e-3]}}})
    assert headroom_answer(every, runs) is None
    assert pass_rate_answer(every, runs) is None


def test_accuracy_by_the_initial_pass_rate(spec, results):
    assert pass_rate_answer(spec, results) is None  # questions of one kind
    kinds = ("c",) * 4 + ("b",) * 6
    runs = []
    for each in results:
        # Base policies of even and odd seeds.
        start = 0.1 + 0.1 * (each.run.seed % 2)
        columns = each.evaluations.columns | {
            "sampled/b": np.array([start, 0.5, 0.5]),
            "sampled/c": np.array([0.01, 0.5, 0.5]),
        }
        runs.append(replace(each, kinds=kinds, evaluations=Table(each.evaluations.steps, columns)))
    answer = pass_rate_answer(spec, runs)
    assert answer.head == ("method", "b", "c")
    base, grpo, *_ = answer.rows
    # (0.1 + 0.2) / 2, each base policy once although seeds 0 and 2 share the first.
    assert base == ("base policy", "0.150", "0.010")
    # Seeds with 5, 6 and 7 of ten questions answer the first ones: all 4 of kind c; 1, 2 and 3 of the 6 of kind b.
    assert grpo == ("GRPO", "0.33", "1.00")
