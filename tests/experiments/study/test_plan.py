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
    return Score(0.9 if "3e-4" in run.cell else 0.5, 0.5 if "0.1" in run.cell else 0.4)


def test_tuning_comes_first_and_goes_round_the_arms(spec):
    made, scores = play(spec, by_rate)
    assert [(run.arm, run.stage) for run in made[:3]] == [("GRPO", SCREEN), ("KL-Cov", SCREEN), ("GRPO", SCREEN)]
    # 4 + 2 cells, 2 finalists of either arm, 3 fresh seeds of three arms
    assert [run.stage for run in made] == [SCREEN] * 6 + [FINAL] * 4 + [REPORT] * 9
    assert [run.arm for run in made[-3:]] == ["by micro-batch"] * 3  # tier 2
    assert [(run.arm, run.seed) for run in made[10:14]] == [("GRPO", 0), ("KL-Cov", 0), ("GRPO", 1), ("KL-Cov", 1)]
    assert len(made) == len(set(made)) == number_of_runs(spec) == len(all_runs(spec, scores))
    assert len({run.folder for run in made}) == len(made)


def test_the_point_is_the_best_mean_of_all_seeds_of_tuning(spec):
    def worth(run):
        if "0.1" in run.cell and "3e-4" in run.cell:  # best on the first seed, worst on the second
            return Score(1.0 if run.seed == 100 else 0.0, 0.5)
        return by_rate(run)

    made, scores = play(spec, worth)
    assert chosen(spec, spec.arms[0], scores) == ("--actor.adam.lr", "3e-4", "--actor.eps_clip_low_high", "0.2", "0.2")
    finalists = {run.cell for run in made if (run.arm, run.stage) == ("GRPO", FINAL)}
    assert finalists == {cell for cell in spec.arms[0].cells if "3e-4" in cell}
    assert chosen(spec, spec.arms[2], scores) == chosen(spec, spec.arms[1], scores) == ("--actor.adam.lr", "3e-4")


def test_equal_accuracy_is_decided_by_the_area(spec):
    _, scores = play(spec, lambda run: Score(0.9, 0.6 if "0.2" in run.cell else 0.5))
    assert chosen(spec, spec.arms[0], scores)[-1] == "0.2"


def test_nothing_is_chosen_before_tuning_is_complete(spec):
    made, scores = play(spec, by_rate)
    last = [run for run in made if run.arm == "GRPO" and run.stage == FINAL][-1]
    missing = {run: score for run, score in scores.items() if run != last}
    assert chosen(spec, spec.arms[0], missing) is None
    assert last in runs_due(spec, missing)
    assert chosen(spec, spec.arms[0], {}) is None


def test_one_cell_is_not_tuned(spec):
    alone = replace(spec, arms=(replace(spec.arms[0], cells=((),)),))
    assert [run.stage for run in runs_due(alone, {})] == [REPORT] * 3
    assert number_of_runs(alone) == 3
    assert str(runs_due(alone, {})[0].folder) == "report/GRPO/point/seed-0"


def test_a_run_that_failed_holds_no_later_tier_up(spec):
    scores = {}
    failed = set()
    order = []
    while due := runs_due(spec, scores, failed):
        order.append(due[0])
        if due[0].arm == "GRPO" and due[0].stage == "screen" and not failed:
            failed.add(due[0])
        else:
            scores[due[0]] = Score(0.5, 0.5)
    assert {run.arm for run in order} == {"GRPO", "KL-Cov", "by micro-batch"}  # the third is of tier 2
    assert not any(run.arm == "GRPO" and run.stage == "report" for run in order)  # whose point cannot be chosen


def test_folders_are_plain_names():
    run = StudyRun("KL/Cov: ../x", SCREEN, ("--actor.adam.lr", "3e-4"), 7)
    assert str(run.folder) == "tuning/KL_Cov_.._x/actor.adam.lr_3e-4/seed-7"
