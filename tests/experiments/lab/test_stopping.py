import pytest

from openrlhf_cov.cli import lab
from openrlhf_cov.experiments.lab.early_stop import outcome_of
from openrlhf_cov.experiments.study.run_results import read_run
from openrlhf_cov.utils.json_lines import read_json

SHORT = (
    *("--task", "two_peaks", "--rollout.batch_size", "256", "--rollout.n_samples_per_prompt", "2", "--updates", "1"),
    *("--steps", "9", "--eval.steps", "2", "--eval.n_samples_per_prompt", "1", "--test_samples", "1"),
)


@pytest.mark.parametrize(
    ("evaluation", "outcome"),
    [
        ({"greedy": 0.95, "decision_entropy": 0.5}, "solved"),
        ({"greedy": 0.94, "decision_entropy": 0.5}, None),
        ({"greedy": 0.94, "decision_entropy": 0.019}, "collapsed"),
        ({"greedy": 0.96, "decision_entropy": 0.0}, "solved"),
        # the shortcut is no solution
        ({"greedy": 0.96, "greedy_hard": 0.5, "decision_entropy": 0.5}, None),
        ({"greedy": 0.4, "greedy_hard": 0.0, "decision_entropy": 0.01}, "collapsed"),
        ({"greedy": 0.4}, None),
    ],
)
def test_the_outcome_of_an_evaluation(evaluation, outcome):
    assert outcome_of(evaluation) == outcome


@pytest.mark.slow
def test_a_run_ends_at_the_second_evaluation_in_a_row(tmp_path, monkeypatch, capsys):
    from openrlhf_cov.experiments.lab import training as loop

    # Evaluations follow steps 1, 2, 4, 6 and 8. The first and the second say different things.
    outcomes = iter(["solved", None, "collapsed", "collapsed"])
    monkeypatch.setattr(loop, "outcome_of", lambda evaluation: next(outcomes))
    output = tmp_path / "run"
    words = ["--output", str(output), "--base_policies", str(tmp_path / "base"), *SHORT]
    assert lab.main([*words, "--stop_early"]) == 0
    result = read_run(output, evaluated=(0, 1, 2, 4, 6, 8, 9))
    assert result.evaluations.steps.tolist() == [0, 1, 2, 4, 6]
    assert result.metrics.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert read_json(output / "result.json")["stopped_at"] == 6
    # It is complete, and another command would be another run.
    capsys.readouterr()
    assert lab.main([*words, "--stop_early"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert lab.main(words) == 2
    assert "does not hold this run" in capsys.readouterr().err


def test_a_share_of_the_shortcut_needs_its_task(tmp_path, capsys):
    words = ["--output", str(tmp_path / "run"), "--task", "tail", "--shortcut_share", "0.2"]
    assert lab.main(words) == 2
    assert "--shortcut_share has no effect with --task tail" in capsys.readouterr().err
    assert lab.main([*words[:2], "--task", "shortcut", "--shortcut_share", "1.2"]) == 2
    assert "--shortcut_share 1.2: must be from 0 to 1" in capsys.readouterr().err
