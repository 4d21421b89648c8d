import json
import math
import os
import time

import torch
from texts import missing

from openrlhf_cov.utils.metrics_log import MetricsLog, read_metrics


def steps(path):
    return [line["step"] for line in read_metrics(path)]


def test_each_line_can_be_read_at_once(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    log = MetricsLog(path)
    for step in (1, 2, 3):
        before = time.time()
        log.write(step, {"cov/mean": step / 4, "samples": 7})
        *_, last = path.read_text(encoding="utf-8").splitlines()
        line = json.loads(last)
        assert before - 1e-3 <= line.pop("time") <= time.time() + 1e-3
        assert line == {"step": step, "cov/mean": step / 4, "samples": 7}
        assert steps(path) == list(range(1, step + 1))


def test_a_line_is_on_disk_before_write_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(1, {"a": 1.0})
    assert synced == [log.path.stat().st_size]


def test_nan_and_infinities_become_null_and_what_is_no_number_is_left_out(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    no_numbers = {"generated_samples": ["text", 1.0], "flag": True, "tensor": torch.ones(2), "none": None}
    log.write(1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.0} | no_numbers)
    (line,) = read_metrics(log.path)
    assert line == {"step": 1, "time": line["time"], "a": None, "b": None, "c": None, "d": 0.0}
    assert "NaN" not in log.path.read_text()
    assert "Infinity" not in log.path.read_text()


def test_every_cut_of_a_line_is_left_out(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(1, {"a": 1.0})
    whole = log.path.read_text()
    for length in range(len(whole) - 1):  # all but the newline
        log.path.write_text(whole + whole[:length])
        assert steps(log.path) == [1]


def test_a_resumed_run_has_neither_gap_nor_duplicate(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = MetricsLog(path)
    for step in range(1, 8):
        first.write(step, {"run": 1})
    path.write_text(path.read_text() + '{"step": 8, "ti')  # killed while writing
    resumed = MetricsLog(path, resumed_step=5)  # the last checkpoint
    assert steps(path) == [1, 2, 3, 4, 5]
    for step in range(6, 10):
        resumed.write(step, {"run": 2})
    assert [(line["step"], line["run"]) for line in read_metrics(path)] == [
        *((step, 1) for step in range(1, 6)),
        *((step, 2) for step in range(6, 10)),
    ]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["metrics.jsonl", "metrics.jsonl.bak"]
    *whole, cut = (tmp_path / "metrics.jsonl.bak").read_text().splitlines()
    assert [json.loads(line)["step"] for line in whole] == [6, 7]
    assert cut == '{"step": 8, "ti'


def test_nothing_is_lost_however_often_a_run_starts_again(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    for run in range(3):
        MetricsLog(path).write(3, {"run": run})
    assert [line["run"] for line in read_metrics(path)] == [2]
    assert {file.name: steps(file) for file in tmp_path.iterdir()} == {
        "metrics.jsonl": [3],
        "metrics.jsonl.bak": [3],
        "metrics.jsonl.bak2": [3],
    }
    assert [read_metrics(tmp_path / f"metrics.jsonl.bak{n}")[0]["run"] for n in ("", "2")] == [0, 1]
    for record, backup in zip(caplog.records, ("bak", "bak2"), strict=True):
        assert missing(record.getMessage(), str(path), "1 lines", "after 0", f"metrics.jsonl.{backup}") == []


def test_a_log_that_ends_where_the_run_resumes_stays_as_it_is(tmp_path):
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).write(5, {"a": 1.0})
    path.write_text(path.read_text().rstrip("\n"))  # killed before the end of the line
    MetricsLog(path, resumed_step=5).write(6, {"a": 2.0})
    assert steps(path) == [5, 6]
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_written_for_a_step_is_found_again(tmp_path):
    log = MetricsLog(tmp_path / "eval.jsonl")
    assert log.values_of(1) is None  # no file yet
    log.write(1, {"a": 1.0})
    log.write(3, {"a": 0.5, "b": math.nan, "n": 7})
    assert log.values_of(1) == {"a": 1.0}
    assert log.values_of(2) is None
    assert log.values_of(3) == {"a": 0.5, "n": 7}
