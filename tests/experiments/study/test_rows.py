import math
from dataclasses import replace

import numpy as np
import pytest

from openrlhf_cov.analysis.table import Table
from openrlhf_cov.experiments.study.run_plan import FINAL, REPORT, SCREEN, StudyRun
from openrlhf_cov.experiments.study.table_rows import half_way, main_rows, seconds, tuning_rows, worst_kind

POINT = ("--actor.adam.lr", "3e-4")


@pytest.fixture
def tuned(spec, make_result):
    """All runs of tuning: the higher learning rate wins for both methods."""
    runs = []
    for method in spec.methods[:2]:
        for configuration in method.configurations:
            accuracy = (0.9 if "3e-4" in configuration else 0.5) - 0.1 * ("0.2" in configuration)
            runs.append(make_result(StudyRun(method.name, SCREEN, configuration, 100), accuracy))
            if "3e-4" in configuration or method.name == "KL-Cov":
                runs.append(make_result(StudyRun(method.name, FINAL, configuration, 101), accuracy))
    return runs


def reported(make_result, method, configuration, accuracies, **more):
    return [
        make_result(StudyRun(method, REPORT, configuration, seed), value, **more)
        for seed, value in enumerate(accuracies)
    ]


def test_the_main_table_by_hand(spec, make_result, tuned):
    clip = (*POINT, "--actor.eps_clip_low_high", "0.1", "0.1")
    results = [
        *tuned,
        *reported(make_result, "GRPO", clip, [0.7, 0.8, 0.9]),
        *reported(make_result, "KL-Cov", POINT, [0.8, 1.0], entropy=0.8, cpu=0.2),
        # A configuration that was not selected.
        make_result(StudyRun("GRPO", REPORT, spec.methods[0].configurations[0], 0), 0.0),
    ]
    grpo, kl_cov, third = main_rows(spec, results)
    assert grpo.selected == clip
    assert grpo.seeds == (0, 1, 2)
    accuracy = grpo.numbers["accuracy"]
    # Mean 0.8, s = 0.1, t(2) = 4.30265, half width 0.248414: 0.551586 to 1.048414, cut at 1.
    assert (accuracy.estimate, accuracy.low, accuracy.high) == pytest.approx((0.8, 0.551586, 1.0), abs=1e-6)
    assert grpo.questions.estimate == pytest.approx(0.8)
    # differences 0.1 and 0.2: mean 0.15, s = 0.0707107, t(1) = 12.7062, half width 0.635310
    difference = kl_cov.differences["accuracy"]
    assert kl_cov.pairs == 2
    assert (difference.estimate, difference.low, difference.high) == pytest.approx((0.15, -0.48531, 0.78531), abs=1e-5)
    # over questions, of the two seeds that both have: (8 - 7 + 10 - 8) / 2 of 10
    assert kl_cov.apart.estimate == pytest.approx(0.15)
    assert kl_cov.apart.low < 0.15 < kl_cov.apart.high
    assert (grpo.apart.estimate, grpo.apart.low, grpo.apart.high) == (0.0, 0.0, 0.0)
    assert grpo.numbers["selected"].estimate == pytest.approx(2.0)  # percent
    # the mean first-token entropy of the table falls from 2 to 1 and to 1.6: means 1.5 and 1.8
    assert kl_cov.differences["mean first-token entropy"].estimate == pytest.approx(0.3)
    assert kl_cov.numbers["seconds"].estimate == pytest.approx(0.2)
    # 22 of 64 samples right is 7/10 of 32: 1 - 42/64
    assert reported(make_result, "GRPO", clip, [0.7])[0].right.tolist() == [22] * 10
    assert grpo.numbers["pass@1"].estimate == pytest.approx((22 + 25 + 28) / 3 / 64)
    # the curve has the last accuracy at step 20 of 40; its questions are of one kind
    assert grpo.numbers["half-way"].estimate == pytest.approx(0.8)
    assert math.isnan(grpo.numbers["worst kind"].estimate)
    assert third.selected == POINT
    assert third.seeds == ()
    assert math.isnan(third.numbers["accuracy"].estimate)


def test_the_middle_of_a_run_and_the_kind_that_is_worst(make_result):
    result = make_result(StudyRun("GRPO", REPORT, POINT, 0), 0.7)
    result.evaluations.columns["greedy"] = np.array([0.4, 0.6, 0.7])
    assert half_way(result) == 0.6
    odd = replace(result, evaluations=Table(np.array([0, 15, 40]), result.evaluations.columns))
    assert math.isnan(half_way(odd))  # no evaluation in step 20
    # seven right ones first: three of "a" are right, four of the seven of "b"
    assert worst_kind(replace(result, kinds=("a",) * 3 + ("b",) * 7)) == pytest.approx(4 / 7)


def test_seconds_are_those_of_the_cpu_where_they_are_known(make_result):
    result = make_result(StudyRun("GRPO", REPORT, POINT, 0), 1.0, cpu=0.25)
    assert seconds(result) == 0.25
    del result.metrics.columns["timing/cpu"]
    assert math.isnan(seconds(result))
    result.metrics.columns["timing/step_total"] = np.array([9.0, *[2.0] * 39])
    assert seconds(result) == 2.0  # the median


def test_tuning_is_reported_by_configuration(spec, tuned):
    rows = tuning_rows(spec, tuned)
    assert [row.method for row in rows] == ["GRPO"] * 4 + ["KL-Cov"] * 2
    assert [row.is_chosen for row in rows] == [False, False, True, False, False, True]
    assert {seed: score.last for seed, score in rows[-1].scores.items()} == {100: 0.9, 101: 0.9}
    assert not any(row.is_chosen for row in tuning_rows(spec, tuned[:3]))


def test_without_a_run_every_row_says_so(spec):
    for row in main_rows(spec, []):
        assert (row.selected, row.seeds, row.pairs) == (None, (), 0)
