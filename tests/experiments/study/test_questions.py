from dataclasses import replace

import numpy as np
from texts import missing

from openrlhf_cov.analysis.table import Table
from openrlhf_cov.experiments.study.answer import NOT_ENOUGH, differs, verdict
from openrlhf_cov.experiments.study.questions import (
    agreement,
    answers,
    cost_of_collapse,
    has_collapsed,
    held_target,
    learning_rates,
    rate_of,
    scope,
    unchanged_share,
    who_ends_higher,
    words_of,
)
from openrlhf_cov.experiments.study.run_plan import REPORT, StudyRun
from openrlhf_cov.experiments.study.run_results import pack, unpack
from openrlhf_cov.experiments.study.seed_estimates import difference_of_means
from openrlhf_cov.experiments.study.spec_file import spec_of
from openrlhf_cov.experiments.study.table_rows import main_rows


def test_without_runs_every_question_says_so(spec):
    for answer in answers(spec, [], main_rows(spec, [])):
        assert answer.text.startswith(NOT_ENOUGH)
        assert answer.rows == ()


def test_collapsed_runs_are_compared_with_the_others_of_their_learning_rate(spec, make_result):
    # 0.05 of 1.0 is below a tenth; accuracies .4 .5 .5 against .9 .8 1.0: -0.43, far outside of what chance does
    fast, slow = (next(c for c in spec.method("GRPO").configurations if rate_of(c) == rate) for rate in (3e-4, 1e-4))

    def runs(values, entropy, configuration=fast):
        return [make_result(StudyRun("GRPO", "report", configuration, i + round(20 * entropy)), a, entropy)
                for i, a in enumerate(values)]  # fmt: skip

    lost, kept = runs((0.4, 0.5, 0.5), 0.05), runs((0.9, 0.8, 1.0), 0.5)
    assert [has_collapsed(each) for each in (*lost, *kept)] == [True] * 3 + [False] * 3
    answer = cost_of_collapse(spec, [*lost, *kept])
    assert "3 of 6 runs" in answer.text
    assert "(GRPO 3)" in answer.text
    assert "at learning rate 0.0003, accuracy is lower (-0.43 [" in answer.text
    assert cost_of_collapse(spec, lost).text.startswith(NOT_ENOUGH)
    assert cost_of_collapse(spec, [*lost, *runs((0.9, 0.8, 1.0), 0.5, slow)]).text.startswith(NOT_ENOUGH)
    same = cost_of_collapse(spec, [*lost, *runs((0.4, 0.5, 0.5), 0.5)])
    assert "accuracy shows no difference (+0.00 [" in same.text


def test_flags_are_found_in_every_spelling_that_a_parser_takes(spec):
    # argparse takes --flag=value and the beginning of a flag, and of two values the last one.
    for words in (["--actor.adam.lr", "3e-4"], ["--actor.adam.lr=3e-4"], ["--actor.adam", "3e-4"]):
        assert rate_of(words) == 3e-4
    assert rate_of(["--actor.adam.lr", "1e-4", "--actor.adam.lr=3e-4"]) == 3e-4
    assert np.isnan(rate_of(["--steps", "5"]))
    # A control with a random reward is left out of the comparisons.
    methods = [replace(spec.methods[0], words=("--random_rew",)), *spec.methods[1:]]
    assert spec.methods[0].name not in words_of(replace(spec, methods=tuple(methods)))


def test_entropy_that_is_gone_only_at_the_end_is_no_collapse(make_result):
    result = make_result(StudyRun("GRPO", "report", (), 0), 1.0, entropy=0.5)
    result.evaluations.columns["entropy/position_0"][-1] = 0.01
    assert not has_collapsed(result)
    result.evaluations.columns["entropy/position_0"][1] = 0.01
    assert has_collapsed(result)


def test_collapse_cannot_be_told_from_the_ends_of_a_run(spec, make_result):
    result = make_result(StudyRun("GRPO", "report", spec.method("GRPO").configurations[0], 0), 1.0, entropy=0.01)
    for kept in ([0, 2], [2]):
        ends = Table(result.evaluations.steps[kept], {n: v[kept] for n, v in result.evaluations.columns.items()})
        assert has_collapsed(replace(result, evaluations=ends)) is None
    assert "0 of 0 runs" in cost_of_collapse(spec, [replace(result, evaluations=ends)]).text


def test_rates_are_told_from_runs_that_are_reported_too(spec, make_result):
    at = ("--actor.adam.lr", "1e-3")
    runs = [make_result(StudyRun("GRPO", REPORT, at, seed), value) for seed, value in enumerate((0.1, 0.2, 0.9))]
    answer = learning_rates(spec, runs)
    assert answer.rows == (("GRPO", "0.40 (2 of 3)"),)  # below the 0.4 where all begin
    assert "GRPO at 0.001 (2 of 3)" in answer.text
    late = [replace(each, evaluations=Table(np.array([40]), {"greedy": np.array([0.1])})) for each in runs]
    assert learning_rates(spec, late).text.startswith(NOT_ENOUGH)  # nobody knows where they began


def test_a_run_diverges_from_its_own_base_policy(spec, make_result):
    at = ("--actor.adam.lr", "1e-3")
    results = []
    # The mean of the base policies is 0.35: the first run ends above its own and below that, the second the other way.
    for seed, (start, end) in enumerate([(0.2, 0.3), (0.5, 0.4)]):
        result = make_result(StudyRun("GRPO", REPORT, at, seed), end)
        result.evaluations.columns["greedy"][0] = start
        results.append(result)
    assert learning_rates(spec, results).rows == (("GRPO", "0.35 (1 of 2)"),)
    assert learning_rates(spec, results[:1]).rows == (("GRPO", "0.30 (0 of 1)"),)


def test_controls_that_cannot_learn_neither_collapse_nor_diverge(content, make_result):
    content["arms"].append({"name": "toss of a coin", "flags": "--random_reward", "at": "GRPO"})
    at = ("--actor.adam.lr", "3e-4")
    runs = [make_result(StudyRun("toss of a coin", REPORT, at, seed), 0.1, 0.01) for seed in range(3)]
    runs += [make_result(StudyRun("GRPO", REPORT, at, seed), 0.9) for seed in range(3)]
    assert learning_rates(spec_of(content), runs).rows == (("GRPO", "0.90 (0 of 3)"),)
    assert "0 of 3 runs" in cost_of_collapse(spec_of(content), runs).text


def test_a_difference_that_no_table_shows_is_none():
    # Welch's interval is narrow and excludes 0.
    spread = np.array([-1e-4, 0.0, 1e-4])
    small = difference_of_means(1.0 + spread, 0.999 + spread)
    assert small.low > 0
    assert not differs(small)
    assert differs(difference_of_means(1.0 + spread, 0.99 + spread))
    # Without spread, there is no interval that could exclude 0.
    equal = difference_of_means([1.0] * 3, [0.9] * 3)
    assert not differs(equal)
    assert verdict(equal, "lower", "higher") == "has no interval (+0.10)"
    assert verdict(difference_of_means([1.0] * 3, [1.0] * 3), "lower", "higher") == "shows no difference (+0.00)"
    assert not differs(difference_of_means([1.0, 0.0], [0.5, 0.2]))


def test_two_studies_side_by_side(make_runs):
    # accuracies .5 .6 .7 and .5 .6 .7 are alike; .9 .9 .8 is 0.27 higher, s 0.1 and 0.0577: Welch's half width 0.20
    ours = make_runs(
        GRPO=[dict(accuracy=a) for a in (0.5, 0.6, 0.7)], CISPO=[dict(accuracy=a) for a in (0.9, 0.9, 0.8)]
    )
    others = make_runs(
        GRPO=[dict(accuracy=a) for a in (0.5, 0.6, 0.7)], CISPO=[dict(accuracy=a) for a in (0.5, 0.6, 0.7)]
    )
    answer = agreement(ours, others)
    assert "CISPO: accuracy" in answer.text
    assert "A difference counts if its 95 % interval excludes zero and its size is at least 0.005." in answer.text
    assert "GRPO" not in answer.text
    assert answer.rows[0][:4] == ("GRPO", "accuracy", "0.60 [0.35, 0.85] of 3", "0.60 [0.35, 0.85] of 3")
    assert agreement(ours, {}).text.startswith(NOT_ENOUGH)


def test_a_method_that_ends_higher_is_named(spec, make_result):
    runs = []
    for method, better in (("GRPO", 0.0), ("KL-Cov", 0.3)):
        configuration = spec.method(method).configurations[0]
        for seed in (100, 101):
            stage = "screen" if seed == 100 else "final"
            runs += [make_result(StudyRun(method, stage, each, seed), 0.9 - 0.1 * (each != configuration))
                     for each in spec.method(method).configurations]  # fmt: skip
        for seed in range(3):
            # Differences of accuracy are 0.3, 0.4 and 0.2, those of the entropy 1.01, 1.00 and 0.99 of the first.
            accuracy = 0.5 + better + 0.1 * (seed == (1 if better else 2))
            entropy = 0.3 + better * (1.01 - 0.01 * seed)
            runs.append(make_result(StudyRun(method, REPORT, configuration, seed), accuracy, entropy=entropy))
    answer = who_ends_higher(main_rows(spec, runs))
    assert missing(answer.text, "Higher accuracy than GRPO: KL-Cov", "Lower: none") == []
    assert "Higher first-token entropy than GRPO: KL-Cov" in answer.text
    assert "without an interval" not in answer.text
    ends = {"GRPO": 0.5, "KL-Cov": 0.8}
    equal = [make_result(each.run, ends[each.run.method]) if each.run.stage == REPORT else each for each in runs]
    assert "without an interval: KL-Cov" in who_ends_higher(main_rows(spec, equal)).text
    by_flag = scope(spec, {"GRPO": {}, "KL-Cov": {}, "by micro-batch": {}})
    assert by_flag.text.startswith(NOT_ENOUGH)


def test_an_arm_that_stands_another_rate_than_the_first_does_is_named(spec, make_result):
    # at 3e-4 the configurations of GRPO end at .1 and .2, those of KL-Cov at .8 and .9: +0.70; at 1e-4 all end alike
    ends = {"GRPO": (0.1, 0.2), "KL-Cov": (0.8, 0.9)}
    runs = []
    for method, values in ends.items():
        for configuration in spec.method(method).configurations:
            for seed, value in zip((100, 101), values, strict=True):
                stage = "screen" if seed == 100 else "final"
                runs.append(
                    make_result(
                        StudyRun(method, stage, configuration, seed), value if rate_of(configuration) == 3e-4 else 0.5
                    )
                )
    text = learning_rates(spec, runs).text
    assert "included: KL-Cov at 0.0003 (+0.70 [" in text
    assert "at 0.0001 (" not in text


def test_collapse_is_told_by_a_quarter_of_a_run_too(spec, make_result):
    # evaluated at steps 0, 10, 20 and 40: two are gone by 10, one by 20, two not before the end
    def run(seed, entropies, accuracy):
        result = make_result(StudyRun("GRPO", "report", spec.method("GRPO").configurations[0], seed), accuracy)
        curve = {"greedy": np.full(4, accuracy), "entropy/position_0": np.array(entropies)}
        return replace(result, evaluations=Table(np.array([0, 10, 20, 40]), curve))

    gone = [run(seed, (1.0, 0.05, 0.05, 0.05), 0.2) for seed in (0, 1)] + [run(2, (1.0, 0.5, 0.05, 0.05), 0.8)]
    kept = [run(seed, (1.0, 0.5, 0.5, 0.05), accuracy) for seed, accuracy in ((3, 0.9), (4, 1.0))]
    assert [has_collapsed(each, 0.25) for each in (*gone, *kept)] == [True, True, False, False, False]
    rows = cost_of_collapse(spec, [*gone, *kept]).rows
    counts = {row[:3]: [cell.split(" of ")[1] for cell in row[3:5]] for row in rows}
    assert counts["0.0001", "10", "accuracy"] == ["2", "3"]
    assert counts["0.0001", "20", "accuracy"] == ["3", "2"]
    means = {row[1]: row[3].split()[0] for row in rows if row[2] == "accuracy"}
    assert means == {"10": "0.20", "20": "0.40"}  # (.2 + .2 + .8) / 3


def test_it_is_said_how_well_a_target_is_held(make_runs):
    # 40 entropies from 1 to 0.2, target 0.6: the mean of |0.8 (i - 19.5) / 39| is 0.8 * 10 / 39 = 0.205;
    # from 1 to 0.6: 0.2 above. The value stays after 20 of 39 steps.
    runs = make_runs(GRPO=[dict(accuracy=0.5, entropy=0.6)] * 2, CISPO=[dict(accuracy=0.5, entropy=0.2)] * 2)
    assert held_target(runs) is None
    for each in runs["CISPO"].values():
        columns = each.metrics.columns
        columns |= {"control/gap": 0.6 - columns["entropy/mean"], "control/value": np.minimum(np.arange(40.0), 19)}
    plain, controlled = held_target(runs).rows
    assert plain == ("GRPO", "2", "0.200 [0.200, 0.200]", "-0.200 [-0.200, -0.200]", "-")
    assert controlled[2].startswith("0.205")
    assert abs(float(controlled[3].split()[0])) < 0.0005
    assert controlled[4].startswith("51 ")
    for each in runs["CISPO"].values():
        each.metrics.columns["control/gap"][: 3 + each.run.seed] += 1
    assert held_target(runs).text.startswith(NOT_ENOUGH)  # not one target


def test_a_study_without_arms_at_the_point_of_others_is_not_asked_about_them(content):
    def asked():
        spec = spec_of(content)
        return len(answers(spec, [], main_rows(spec, [])))

    before = asked()
    del content["arms"][2]
    assert asked() == before - 1


def test_a_packed_run_has_the_same_share_of_unchanged_values(make_result, tmp_path):
    run = make_result(StudyRun("loop", REPORT, (), 0), 0.5)
    # The value moves in every step, by less than the digits that a packed run keeps.
    run.metrics.columns["control/value"] = 0.1234 + 2e-6 * np.arange(len(run.metrics))
    run.metrics.columns["control/gap"] = np.full(len(run.metrics), 1e-3)
    file = tmp_path / "runs.jsonl.xz"
    pack([run], file, lambda _: [])
    [packed] = unpack(file)
    assert unchanged_share(packed) == unchanged_share(run) > 0.9
