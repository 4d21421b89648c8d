import importlib
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("grading")


def test_pairs_are_bare_answers_evenly_spread(benchmark, tmp_path):
    rows = [{"answer": str(n), "gold": "1", "equal": n == 1, "group": "integer"} for n in range(8)]
    others = [{"answer": "1", "gold": "1", "equal": True, "group": "hostile"}, {**rows[0], "mode": "boxed"}]
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in others + rows))
    assert benchmark.read_pairs(path, "hostile", 0) == rows
    # every second of 8 rows for a limit of 4; for one of 5 the step is 8 // 5 = 1
    assert benchmark.read_pairs(path, "hostile", 4) == rows[::2]
    assert benchmark.read_pairs(path, "hostile", 5) == rows


def test_the_table_has_each_grader_and_file(benchmark):
    rows = [
        {"answer": "1", "gold": "1", "equal": True},
        {"answer": "2", "gold": "1", "equal": False},
        {"answer": "1.0", "gold": "1", "equal": True},
        {"answer": "1 or 2", "gold": "1", "equal": False},
    ]
    graders = {
        "Math-Verify": lambda answer, gold, prompt: True,
        "strings": lambda answer, gold, prompt: answer == gold,
    }
    results = {name: benchmark.Result(by_file={"cases": benchmark.Counts()}) for name in graders}
    for name, grader in graders.items():
        benchmark.measure(results[name], "cases", grader, rows)
        results[name].seconds = 2.0 if name == "Math-Verify" else 0.5
        results[name].slowest = 0.25
    # The first accepts both wrong answers, the second refuses the correct 1.0. Four pairs take 2 s and 0.5 s.
    assert benchmark.report(results, {"cases": 4}).splitlines()[-2:] == [
        "| Math-Verify | 50.0% | 2 | 0 | 2 | 1.0 | 0.25 |",
        "| strings | 75.0% | 0 | 1 | 8 | 4.0 | 0.25 |",
    ]
