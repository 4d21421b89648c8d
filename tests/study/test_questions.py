from dataclasses import replace

import numpy as np
import pytest

from openrlhf_cov.analysis.table import Table
from openrlhf_cov.study.estimates import difference_of_means
from openrlhf_cov.study.plan import REPORT, StudyRun
from openrlhf_cov.study.questions import (
    NOT_ENOUGH,
    agreement,
    answers,
    cost_of_collapse,
    differs,
    forecast_errors,
    has_collapsed,
    law,
    learning_rates,
    off_line,
    rate_of,
    scope,
    theory,
    who_ends_higher,
)
from openrlhf_cov.study.questions import fitted as fitted_law
from openrlhf_cov.study.rows import main_rows
from openrlhf_cov.study.spec import spec_of

CELLS = {"GRPO": ("--actor.adam.lr", "3e-4"), "KL-Cov": ("--actor.adam.lr", "3e-4")}


@pytest.fixture
def arms(make_result):
    """Function (name -> settings of its three runs) -> the runs by arm and seed."""

    def make(**of_arm):
        return {
            arm: {seed: make_result(StudyRun(arm, REPORT, (), seed), **settings) for seed, settings in enumerate(runs)}
            for arm, runs in of_arm.items()
        }

    return make


def test_without_runs_every_question_says_so(spec):
    for answer in answers(spec, []):
        assert answer.text.startswith(NOT_ENOUGH)
        assert answer.rows == ()


def test_collapsed_runs_are_compared_with_the_others_of_their_learning_rate(spec, make_result):
    # 0.05 of 1.0 is below a tenth; accuracies .4 .5 .5 against .9 .8 1.0: -0.43, far outside of what chance does
    fast, slow = (next(c for c in spec.arm("GRPO").cells if rate_of(c) == rate) for rate in (3e-4, 1e-4))

    def runs(values, entropy, cell=fast):
        return [make_result(StudyRun("GRPO", "report", cell, i + round(20 * entropy)), a, entropy)
                for i, a in enumerate(values)]  # fmt: skip

    lost, kept = runs((0.4, 0.5, 0.5), 0.05), runs((0.9, 0.8, 1.0), 0.5)
    assert [has_collapsed(each) for each in (*lost, *kept)] == [True] * 3 + [False] * 3
    answer = cost_of_collapse(spec, [*lost, *kept])
    assert "3 of 6 runs" in answer.text
    assert "(GRPO 3)" in answer.text
    assert "at 0.0003 accuracy is lower (-0.43 [" in answer.text
    assert cost_of_collapse(spec, lost).text.startswith(NOT_ENOUGH)
    assert cost_of_collapse(spec, [*lost, *runs((0.9, 0.8, 1.0), 0.5, slow)]).text.startswith(NOT_ENOUGH)
    same = cost_of_collapse(spec, [*lost, *runs((0.4, 0.5, 0.5), 0.5)])
    assert "accuracy shows no difference (+0.00 [" in same.text


def test_entropy_that_is_gone_only_at_the_end_is_no_collapse(make_result):
    result = make_result(StudyRun("GRPO", "report", (), 0), 1.0, entropy=0.5)
    result.evaluations.columns["entropy/position_0"][-1] = 0.01
    assert not has_collapsed(result)
    result.evaluations.columns["entropy/position_0"][1] = 0.01
    assert has_collapsed(result)


def test_collapse_cannot_be_told_from_the_ends_of_a_run(spec, make_result):
    result = make_result(StudyRun("GRPO", "report", spec.arm("GRPO").cells[0], 0), 1.0, entropy=0.01)
    for kept in ([0, 2], [2]):
        ends = Table(result.evaluations.steps[kept], {n: v[kept] for n, v in result.evaluations.columns.items()})
        assert has_collapsed(replace(result, evaluations=ends)) is None
    assert "0 of 0 runs" in cost_of_collapse(spec, [replace(result, evaluations=ends)]).text


def test_rates_are_told_from_runs_that_are_reported_too(spec, make_result):
    at = ("--actor.adam.lr", "1e-3")
    runs = [make_result(StudyRun("GRPO", REPORT, at, seed), value) for seed, value in enumerate((0.1, 0.2, 0.9))]
    answer = learning_rates(spec, runs)
    assert answer.rows == (("GRPO", "0.40 (2 of 3)"),)  # below the 0.4 where all begin
    late = [replace(each, evaluations=Table(np.array([40]), {"greedy": np.array([0.1])})) for each in runs]
    assert learning_rates(spec, late).text.startswith(NOT_ENOUGH)  # nobody knows where they began


def test_controls_that_cannot_learn_neither_collapse_nor_diverge(content, make_result):
    content["arms"].append({"name": "toss of a coin", "flags": "--random_reward", "at": "GRPO"})
    at = ("--actor.adam.lr", "3e-4")
    runs = [make_result(StudyRun("toss of a coin", REPORT, at, seed), 0.1, 0.01) for seed in range(3)]
    runs += [make_result(StudyRun("GRPO", REPORT, at, seed), 0.9) for seed in range(3)]
    assert learning_rates(spec_of(content), runs).rows == (("GRPO", "0.90 (0 of 3)"),)
    assert "0 of 3 runs" in cost_of_collapse(spec_of(content), runs).text


def test_a_difference_that_no_table_shows_is_none():
    # Welch's interval of 1, 1, 1 and 1 - 1e-3, ... has no width and no 0
    small = difference_of_means([1.0] * 3, [0.999] * 3)
    assert small.low > 0
    assert not differs(small)
    assert differs(difference_of_means([1.0] * 3, [0.99] * 3))
    assert not differs(difference_of_means([1.0, 0.0], [0.5, 0.2]))


def test_two_studies_side_by_side(arms):
    # accuracies .5 .6 .7 and .5 .6 .7 are alike; .9 .9 .8 is 0.27 higher, s 0.1 and 0.0577: Welch's half width 0.20
    ours = arms(GRPO=[dict(accuracy=a) for a in (0.5, 0.6, 0.7)], CISPO=[dict(accuracy=a) for a in (0.9, 0.9, 0.8)])
    others = arms(GRPO=[dict(accuracy=a) for a in (0.5, 0.6, 0.7)], CISPO=[dict(accuracy=a) for a in (0.5, 0.6, 0.7)])
    answer = agreement(ours, others)
    assert "CISPO: accuracy" in answer.text
    assert "GRPO" not in answer.text
    assert answer.rows[0][:4] == ("GRPO", "accuracy", "0.60 [0.35, 0.85] of 3", "0.60 [0.35, 0.85] of 3")
    assert agreement(ours, {}).text.startswith(NOT_ENOUGH)


def test_a_method_that_ends_higher_is_named(spec, make_result):
    runs = []
    for arm, better in (("GRPO", 0.0), ("KL-Cov", 0.3)):
        cell = spec.arm(arm).cells[0]
        for seed in (100, 101):
            stage = "screen" if seed == 100 else "final"
            runs += [make_result(StudyRun(arm, stage, each, seed), 0.9 - 0.1 * (each != cell))
                     for each in spec.arm(arm).cells]  # fmt: skip
        runs += [make_result(StudyRun(arm, REPORT, cell, seed), 0.5 + better + 0.1 * (seed == 2), entropy=0.3 + better)
                 for seed in range(3)]  # fmt: skip
    answer = who_ends_higher(main_rows(spec, runs))
    assert "Higher accuracy than GRPO: KL-Cov; less: none" in answer.text
    assert "More entropy of the first token than GRPO: KL-Cov" in answer.text
    by_flag = scope(spec, {"GRPO": {}, "KL-Cov": {}, "by micro-batch": {}})
    assert by_flag.text.startswith(NOT_ENOUGH)


def test_the_law_is_found_and_its_line_moved_or_not(spec, arms):
    steady = [dict(accuracy=0.5, entropy=0.2)] * 3
    runs = arms(GRPO=steady, **{"KL-Cov": [dict(accuracy=0.5, entropy=0.6)] * 3, "by micro-batch": []})
    # the rewards lie on 0.9 - 0.2 exp(H), apart from noise of 1e-3
    fit = fitted_law(runs["GRPO"][0])
    assert fit.a.estimate == pytest.approx(0.2, abs=0.005)
    assert fit.b.estimate == pytest.approx(0.9, abs=0.01)
    assert off_line(runs["KL-Cov"][0], fit) == pytest.approx(0.0, abs=0.005)
    answer = law(spec, runs)
    assert "Off its line, at equal entropy: none; elsewhere on it: KL-Cov" in answer.text
    runs |= arms(**{"KL-Cov": [dict(accuracy=0.5, entropy=0.6, off=0.1)] * 3})
    assert "Off its line, at equal entropy: KL-Cov; elsewhere on it: none" in law(spec, runs).text
    assert off_line(runs["KL-Cov"][0], fit) == pytest.approx(0.1, abs=0.005)
    error, repeated = forecast_errors(runs["GRPO"][0])  # 15 % of 40 steps are six points, the fewest
    assert 0 < error < repeated


def test_a_change_that_follows_its_prediction_is_said(arms):
    # predictions of theorem 1 rise with the change that follows, those of theorem 2 fall: the noise is one step early
    answer = theory(arms(GRPO=[dict(accuracy=0.5)] * 3))
    assert [row[0] for row in answer.rows] == ["GRPO"]
    assert theory(arms(GRPO=[dict(accuracy=0.5)])).text.startswith(NOT_ENOUGH)


def test_a_rate_at_which_runs_end_below_their_start_is_named(spec, make_result):
    runs = [
        make_result(StudyRun("KL-Cov", "screen", cell, 100), 0.9 if cell[1] == "0.0001" else 0.1)
        for cell in spec.arms[1].cells
    ]
    answer = learning_rates(spec, runs)
    assert "KL-Cov at 0.0003 (1 of 1)" in answer.text
    assert answer.rows == (("KL-Cov", "0.90 (0 of 1)", "0.10 (1 of 1)"),)


def test_an_arm_that_stands_another_rate_than_the_first_does_is_named(spec, make_result):
    # at 3e-4 the cells of GRPO end at .1 and .2, those of KL-Cov at .8 and .9: +0.70; at 1e-4 all end alike
    ends = {"GRPO": (0.1, 0.2), "KL-Cov": (0.8, 0.9)}
    runs = []
    for arm, values in ends.items():
        for cell in spec.arm(arm).cells:
            for seed, value in zip((100, 101), values, strict=True):
                stage = "screen" if seed == 100 else "final"
                runs.append(make_result(StudyRun(arm, stage, cell, seed), value if rate_of(cell) == 3e-4 else 0.5))
    text = learning_rates(spec, runs).text
    assert "included: KL-Cov at 0.0003 (+0.70 [" in text
    assert "at 0.0001 (" not in text
