"""The comparison without its trainings."""

import json
import sys

import pytest

from openrlhf_cov.cli import demo, demo_compare


def put_run(folder, entropy, accuracy):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        {"step": step, "entropy/mean": h, "rollout/reward_mean": r, "reward": r}
        for step, (h, r) in enumerate(zip(entropy, accuracy, strict=True), start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_table_by_hand(tmp_path):
    put_run(tmp_path / "none", [0.8, 9.0, 0.5, 0.4, 0.3, 0.2, 0.1], [0.25, 9.0, 0.5, 0.5, 0.5, 0.5, 0.5])
    put_run(tmp_path / "kl_cov", [0.8, 0.4], [0.25, 0.75])
    before = {"accuracy_greedy": 0.5, "accuracy_sampled": 0.25}
    after = {
        "none": {"accuracy_greedy": 0.75, "accuracy_sampled": 0.625},
        "kl_cov": {"accuracy_greedy": 1.0, "accuracy_sampled": 0.5},
    }
    text = demo_compare.table(before, after, tmp_path, tmp_path / "report.html", 61.4)
    assert [" ".join(line.split()) for line in text.splitlines() if line] == [
        "before none kl_cov",
        "held-out accuracy, greedy 50.0% 75.0% 100.0%",
        "held-out accuracy, temperature 1 25.0% 62.5% 50.0%",
        # the last five steps of the first run: (0.5 + 0.4 + 0.3 + 0.2 + 0.1) / 5; both of the second: (0.8 + 0.4) / 2
        "entropy, nats per token 0.800 0.300 0.600",
        "training accuracy 25.0% 50.0% 50.0%",
        demo_compare.ONE_SEED,
        "wall time 61 s",
        f"runs {tmp_path}",
        f"report {tmp_path / 'report.html'}",
    ]


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """A comparison whose trainings write a file; the list of (method, folder, KL coefficient) that were asked for."""
    asked = []

    def train_and_score(method, steps, task, output, kl_coef):
        asked.append((method, output, kl_coef))
        put_run(output, [0.5 - 0.01 * step for step in range(steps)], [0.1] * steps)
        return {"accuracy_greedy": 0.5, "accuracy_sampled": 0.5}

    monkeypatch.setattr(demo, "make_task", lambda folder, name: None)
    monkeypatch.setattr(demo, "score", lambda *_: {"accuracy_greedy": 0.5, "accuracy_sampled": 0.5})
    monkeypatch.setattr(demo, "train_and_score", train_and_score)
    return asked


def run_main(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["demo_compare", *map(str, flags)])
    return demo_compare.main()


@pytest.mark.slow
def test_three_methods_are_trained_alike_and_reported_together(monkeypatch, trained, tmp_path, capsys):
    run_main(monkeypatch, "--steps", 6, "--folder", tmp_path / "task", "--output", tmp_path / "out")
    assert trained == [(method, tmp_path / "out" / method, 0.0) for method in ("none", "clip_cov", "kl_cov")]
    page = tmp_path / "out" / "report" / "report.html"
    assert f"report     {page}" in capsys.readouterr().out
    assert all(method in page.read_text() for method in demo.METHOD_FLAGS)


def test_an_output_in_use_is_one_line(monkeypatch, trained, tmp_path, capsys):
    (tmp_path / "out" / "none").mkdir(parents=True)
    assert run_main(monkeypatch, "--folder", tmp_path / "task", "--output", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"demo_compare: error: --output {tmp_path / 'out'} is not empty")
    assert trained == []
