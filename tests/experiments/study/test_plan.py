from dataclasses import replace

from openrlhf_cov.experiments.study.run_plan import (
    FINAL,
    REPORT,
    SCREEN,
    Score,
    StudyRun,
    all_runs,
    chosen,
    number_of_runs,
    runs_due,
)


def play(spec, worth):
    """All runs in the order in which one worker makes them, with accuracies by ``worth`` (run)."""
    scores, made = {}, []
    while due := runs_due(spec, scores):
        made.append(due[0])
        scores[due[0]] = worth(due[0])
    return made, scores


def by_rate(run):
    """The higher learning rate is better, and the narrower clip a little."""
    return Score(0.9 if "3e-4" in run.configuration else 0.5, 0.5 if "0.1" in run.configuration else 0.4)


def test_tuning_comes_first_and_goes_round_the_arms(spec):
    made, scores = play(spec, by_rate)
    assert [(run.method, run.stage) for run in made[:3]] == [("GRPO", SCREEN), ("KL-Cov", SCREEN), ("GRPO", SCREEN)]
    # 4 + 2 configurations, 2 finalists of either method, 3 fresh seeds of three methods
    assert [run.stage for run in made] == [SCREEN] * 6 + [FINAL] * 4 + [REPORT] * 9
    assert [run.method for run in made[-3:]] == ["by micro-batch"] * 3  # tier 2
    assert [(run.method, run.seed) for run in made[10:14]] == [("GRPO", 0), ("KL-Cov", 0), ("GRPO", 1), ("KL-Cov", 1)]
    assert len(made) == len(set(made)) == number_of_runs(spec) == len(all_runs(spec, scores))
    assert len({run.folder for run in made}) == len(made)


def test_the_point_is_the_best_mean_of_all_seeds_of_tuning(spec):
    def worth(run):
        if "0.1" in run.configuration and "3e-4" in run.configuration:  # best on the first seed, worst on the second
            return Score(1.0 if run.seed == 100 else 0.0, 0.5)
        return by_rate(run)

    made, scores = play(spec, worth)
    assert " ".join(chosen(spec, spec.methods[0], scores)) == "--actor.adam.lr 3e-4 --actor.eps_clip_low_high 0.2 0.2"
    finalists = {run.configuration for run in made if (run.method, run.stage) == ("GRPO", FINAL)}
    assert finalists == {configuration for configuration in spec.methods[0].configurations if "3e-4" in configuration}
    for method in spec.methods[1:]:
        assert chosen(spec, method, scores) == ("--actor.adam.lr", "3e-4")


def test_equal_accuracy_is_decided_by_the_area(spec):
    _, scores = play(spec, lambda run: Score(0.9, 0.6 if "0.2" in run.configuration else 0.5))
    assert chosen(spec, spec.methods[0], scores)[-1] == "0.2"


def test_nothing_is_chosen_before_tuning_is_complete(spec):
    made, scores = play(spec, by_rate)
    last = [run for run in made if run.method == "GRPO" and run.stage == FINAL][-1]
    missing = {run: score for run, score in scores.items() if run != last}
    assert chosen(spec, spec.methods[0], missing) is None
    assert last in runs_due(spec, missing)
    assert chosen(spec, spec.methods[0], {}) is None


def test_one_cell_is_not_tuned(spec):
    alone = replace(spec, methods=(replace(spec.methods[0], configurations=((),)),))
    assert [run.stage for run in runs_due(alone, {})] == [REPORT] * 3
    assert number_of_runs(alone) == 3
    assert str(runs_due(alone, {})[0].folder) == "report/GRPO/point/seed-0"


def test_a_run_that_failed_holds_no_later_tier_up(spec):
    scores = {}
    failed = set()
    order = []
    while due := runs_due(spec, scores, failed):
        order.append(due[0])
        if due[0].method == "GRPO" and due[0].stage == "screen" and not failed:
            failed.add(due[0])
        else:
            scores[due[0]] = Score(0.5, 0.5)
    assert {run.method for run in order} == {"GRPO", "KL-Cov", "by micro-batch"}  # the third is of tier 2
    assert not any(run.method == "GRPO" and run.stage == "report" for run in order)  # none can be selected for it


def test_folders_are_plain_names():
    run = StudyRun("KL/Cov: ../x", SCREEN, ("--actor.adam.lr", "3e-4"), 7)
    assert str(run.folder) == "tuning/KL_Cov_.._x/actor.adam.lr_3e-4/seed-7"
