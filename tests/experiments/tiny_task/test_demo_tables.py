from pathlib import Path

import pytest
from demo_runs import LINE, put_lines, put_run

from openrlhf_cov.experiments.tiny_task.demo_run import DemoResult
from openrlhf_cov.experiments.tiny_task.demo_tables import result_table

BEFORE = {"accuracy_greedy": 0.5, "accuracy_sampled": 0.25}


def result_of(output: Path, runs: dict[str, Path], after: dict[str, dict[str, float]], seconds: float) -> DemoResult:
    page = output / "report.html"
    task = output / "task"
    return DemoResult(task=task, output=output, runs=runs, before=BEFORE, after=after, page=page, seconds=seconds)


@pytest.mark.parametrize("name", sorted(LINE.keys() - {"step"}))
def test_a_null_does_not_stop_the_table(tmp_path, name):
    put_lines(tmp_path, LINE | {name: None})
    table = result_table(result_of(tmp_path, {"kl_cov": tmp_path}, {"kl_cov": BEFORE}, 9.0))
    assert ("nan" in table) == (name != "cov/selected_frac")


def test_the_table_of_one_run_by_hand(tmp_path):
    last = LINE | {"step": 4, "entropy/mean": 0.125, "rollout/reward_mean": 0.75, "timing/step_total": 6.0}
    put_lines(tmp_path, LINE, last)
    after = {"accuracy_greedy": 1.0, "accuracy_sampled": 0.75}
    table = result_table(result_of(tmp_path, {"clip_cov": tmp_path}, {"clip_cov": after}, 99.6))
    text = " ".join(table.split())
    assert "--method clip_cov on the embedded task: 2 steps of 32 prompts x 8 samples" in text
    assert "greedy 50.0% 100.0% held-out accuracy, temperature 1 25.0% 75.0%" in text
    assert "nats per token 0.500 0.125 training accuracy 25.0% 75.0%" in text
    # 2 x 2560 tokens, generated in 2 x 1 s, in steps of 4 + 6 s
    assert "2,560 generating, 512 over the whole step wall time 100 s, 10 s of it in steps" in text
    assert f"report {tmp_path / 'report.html'}" in text


def test_the_table_of_several_methods_by_hand(tmp_path):
    runs = {
        "none": put_run(tmp_path / "none", [0.8, 9.0, 0.5, 0.4, 0.3, 0.2, 0.1], [0.25, 9.0, 0.5, 0.5, 0.5, 0.5, 0.5]),
        "kl_cov": put_run(tmp_path / "kl_cov", [0.8, 0.4], [0.25, 0.75]),
    }
    after = {
        "none": {"accuracy_greedy": 0.75, "accuracy_sampled": 0.625},
        "kl_cov": {"accuracy_greedy": 1.0, "accuracy_sampled": 0.5},
    }
    words = " ".join(result_table(result_of(tmp_path, runs, after, 61.4)).split())
    assert "before none kl_cov held-out accuracy, greedy 50.0% 75.0% 100.0%" in words
    assert "temperature 1 25.0% 62.5% 50.0%" in words
    # the last five steps of the first run: (0.5 + 0.4 + 0.3 + 0.2 + 0.1) / 5; both of the second: (0.8 + 0.4) / 2
    assert "nats per token 0.800 0.300 0.600 training accuracy 25.0% 50.0% 50.0%" in words
    assert f"wall time 61 s runs {tmp_path} report {tmp_path / 'report.html'}" in words
