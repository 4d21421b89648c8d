import json

import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.report.tokens import find_token_files, read_tokens
from openrlhf_cov.utils.json_lines import write_lines


def test_files_in_the_order_of_their_steps(tmp_path):
    folder = tmp_path / "cov_tokens"
    folder.mkdir()
    for name in ("step_20.jsonl", "step_3.jsonl", "step_4.tmp", "notes.txt"):
        (folder / name).write_text("")
    assert [(file.step, file.path.name) for file in find_token_files(tmp_path)] == [
        (3, "step_3.jsonl"),
        (20, "step_20.jsonl"),
    ]
    assert find_token_files(tmp_path / "nowhere") == ()


def test_what_the_training_writes_can_be_read(tmp_path):
    records = [{"token": " né\n", "cov": 3.5, "before": "a\u2028b"}, {"token": "", "cov": -1.0, "before": "\r"}]
    path = tmp_path / "step_1.jsonl"
    write_lines(path, [json.dumps(record, ensure_ascii=False) for record in records])  # as trainer/token_dump.py does
    assert read_tokens(path) == records


@pytest.mark.parametrize("line", ['{"token": "a", "cov"', "[1]", '{"token": "a"}', '{"cov": 1.0}'])
def test_a_broken_file_is_refused(tmp_path, line):
    path = tmp_path / "step_1.jsonl"
    path.write_text(json.dumps({"token": "a", "cov": 1.0}) + "\n" + line + "\n")
    with pytest.raises(UsageError, match=r"step_1\.jsonl, line 2"):
        read_tokens(path)
