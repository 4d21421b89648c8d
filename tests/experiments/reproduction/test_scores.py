import json

import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.reproduction.paper_scores import scores_of


def test_scores_by_hand(tmp_path):
    # 4 problems, 3 greedily right: 75 %; of 2 samples each 2 + 1 + 0 + 0 = 3 of 8 right: 37.5 %, some for 2 of 4: 50 %
    run = tmp_path / "grpo"
    run.mkdir()
    test = {"kinds": ["a"] * 4, "greedy": [1, 1, 1, 0], "right": [2, 1, 0, 0], "samples": 2}
    (run / "test.json").write_text(json.dumps(test))
    head, row = scores_of([run])
    assert head.split() == ["run", "problems", "greedy", "avg@2", "pass@2"]
    assert row.split() == ["grpo", "4", "75.0", "37.5", "50.0"]


def test_a_run_without_its_test_is_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"holds no test\.json, which a finished run of the lab has"):
        scores_of([tmp_path])


def test_a_damaged_test_is_one_line_with_its_field(tmp_path):
    (tmp_path / "test.json").write_text(json.dumps({"kinds": ["a"], "greedy": ["1"], "right": [0], "samples": 2}))
    with pytest.raises(UsageError, match=r"test\.json: greedy\[0\]: must be a valid integer; got '1'"):
        scores_of([tmp_path])
