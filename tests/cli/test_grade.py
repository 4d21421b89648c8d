import json

import pytest

from openrlhf_cov.cli import grade
from openrlhf_cov.rewards import sources
from openrlhf_cov.rewards.pool import WorkerDied

ROWS = [
    {"response": r"so \boxed{5}", "answer": "5"},
    {"response": r"so \boxed{6}", "answer": "5"},
    {"response": "so 5", "answer": "5"},
    {"response": r"so \boxed{\parallel}", "answer": "5"},
    {"response": r"so \boxed{\frac{2}{4}}", "answer": "0.5"},
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    return path


def test_counts_by_status_and_the_slowest_rows(tmp_path, capsys):
    assert grade.main([str(write(tmp_path / "rows.jsonl", ROWS))]) == 0
    lines = capsys.readouterr().out.splitlines()
    # 5 rows: lines 1 and 5 are correct, 2 is incorrect, 3 has no box, 4 is no formula that is known
    assert lines[:5] == [
        "status       responses   share",
        "correct              2   40.0%",
        "incorrect            1   20.0%",
        "no_answer            1   20.0%",
        "unparsable           1   20.0%",
    ]
    assert lines[6].startswith("slowest")
    assert sorted(line.split()[1] for line in lines[7:]) == ["1", "2", "3", "4", "5"]


def test_a_machine_that_cannot_grade_is_one_line(tmp_path, capsys, monkeypatch):
    def grade_label(*_, prompt):
        raise WorkerDied("no worker could be started: [Errno 24] Too many open files")

    monkeypatch.setattr(sources, "grade_label", grade_label)
    assert grade.main([str(write(tmp_path / "rows.jsonl", ROWS))]) == 1
    assert "Too many open files" in capsys.readouterr().err.splitlines()[-1]


def test_every_grade_is_written_if_asked(tmp_path):
    output = tmp_path / "grades.jsonl"
    assert grade.main([str(write(tmp_path / "rows.jsonl", ROWS)), "--output", str(output)]) == 0
    grades = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["correct"] for record in grades] == [True, False, False, False, True]
    assert [record["line"] for record in grades] == [1, 2, 3, 4, 5]
    assert grades[4]["answer"] == r"\frac{2}{4}"


@pytest.mark.slow
def test_the_grader_is_that_of_the_flag(tmp_path, capsys):
    path = str(write(tmp_path / "rows.jsonl", [{"response": r"so \boxed{3+2}", "answer": "5"}]))
    for name, status in (("strict", "unparsable"), ("published", "correct")):
        assert grade.main([path, "--reward_grader", name]) == 0
        assert f"{status:<10}           1  100.0%" in capsys.readouterr().out


def test_flags_of_the_reward_apply(tmp_path, capsys):
    rows = [{"text": "#### 72", "gold": "... #### 72", "source": "gsm8k"}]
    path = str(write(tmp_path / "rows.jsonl", rows))
    keys = ["--response_key", "text", "--label_key", "gold"]
    assert grade.main([path, *keys, "--reward_format", "gsm8k", "--reward_source", "row"]) == 0
    assert "correct              1  100.0%" in capsys.readouterr().out


class TestCompare:
    ROWS = (*ROWS, {"response": r"so \boxed{3+2}", "answer": 5})

    def test_what_each_grader_accepts_and_where_they_differ(self, tmp_path, capsys):
        path, output = str(write(tmp_path / "rows.jsonl", self.ROWS)), tmp_path / "grades.jsonl"
        assert grade.main([path, "--compare", "--output", str(output)]) == 0
        lines = capsys.readouterr().out.splitlines()
        # lines 1 and 5 are correct for both, 3+2 is a computation left undone
        assert lines[lines.index("grader         accepts   share") :] == [
            "grader         accepts   share",
            "strict               2   33.3%",
            "published            3   50.0%",
            "differ               1   16.7%",
            "",
            "correct by published alone:",
            "line 6: 3+2, label 5",
        ]
        grades = [json.loads(line) for line in output.read_text().splitlines()]
        assert [(each["correct"], each["published"]) for each in grades][-2:] == [(True, True), (False, True)]
        assert grades[-1]["status"] == "unparsable"

    @pytest.mark.parametrize("flags", [("--compare",), ("--reward_grader", "published")])
    def test_without_math_verify_it_says_what_to_install(self, tmp_path, capsys, no_math_verify, flags):
        path = str(write(tmp_path / "rows.jsonl", ROWS))
        assert grade.main([path, *flags]) == 2
        assert capsys.readouterr().err.endswith(" is not installed: pip install math-verify==0.9.0\n")
        assert grade.main([path]) == 0  # strict needs none


def test_thinking_that_the_prompt_opened(tmp_path, capsys):
    rows = [
        {"response": r"Maybe \boxed{1}. But wait", "answer": "1", "prompt": "assistant\n<think>\n"},
        {"response": r"<think>Maybe \boxed{1}. But wait", "answer": "1"},
        {"response": r"\boxed{2}</think>\boxed{1}", "answer": "1", "prompt": [{"role": "user", "content": "?"}]},
    ]
    path = str(write(tmp_path / "rows.jsonl", rows))
    assert grade.main([path]) == 0
    counts = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines()[1:3]}
    assert counts == {"no_answer": "2", "correct": "1"}
    assert grade.main([path, "--thinking_markers", "[THINK]", "[/THINK]"]) == 0
    assert "correct              3  100.0%" in capsys.readouterr().out
