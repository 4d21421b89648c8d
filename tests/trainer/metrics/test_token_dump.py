import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.models.rollout import RolloutTokens
from openrlhf_cov.trainer.metrics.token_dump import merge_records, token_records, top_tokens, write_records

entries = st.tuples(st.floats(-9, 9, width=32), st.booleans())


@given(rows=st.lists(st.lists(entries, min_size=4, max_size=4), min_size=1, max_size=5), count=st.integers(1, 25))
def test_top_tokens_against_sorting(rows, count):
    cov, mask = torch.tensor(rows, dtype=torch.float32).unbind(2)
    tokens = [(r, c) for r in range(len(rows)) for c in range(4) if mask[r, c]]
    expected = sorted(tokens, key=lambda token: (-cov[token].item(), token))[:count]
    assert top_tokens(cov, mask, count).tolist() == [list(token) for token in expected]


def rollout(log_probs, mask, ids):
    log_probs = torch.tensor(log_probs)
    return RolloutTokens(
        log_probs, log_probs + 5, log_probs * 2, torch.tensor(mask), torch.ones(len(ids)), torch.tensor(ids)
    )


def spell(ids):
    return "".join(chr(ord("a") + i) for i in ids)


def test_a_record_by_hand():
    # sequence "abcdef": prompt "abc", then three actions; the last three of its five predicted tokens are columns 2..4
    tokens = rollout([[0.0, 0.0, -1.0, -2.0, -3.0]], [[0, 0, 1, 1, 1]], [5])
    cov = torch.tensor([[9.0, 9.0, 0.5, 2.5, -1.0]])
    selected = torch.tensor([[0, 0, 0, 1, 0]]).bool()
    (record,) = token_records(tokens, cov, selected, [([0, 1, 2, 3, 4, 5], 5)], 4, 1, spell)
    assert record == {
        "token": "e", "token_id": 4, "position": 4, "sample_id": 5, "prompt_id": 1,
        "log_prob": -2.0, "entropy": 3.0, "advantage": -4.0, "cov": 2.5, "selected": True,
        "before": "abcd", "after": "f",
    }  # fmt: skip


def test_an_infinite_covariance_is_no_record():
    tokens = rollout([[-1.0, -2.0]], [[1, 1]], [0])
    cov = torch.tensor([[math.inf, 1.0]])
    records = token_records(tokens, cov, cov > 9, [([0, 1, 2], 2)], 8, 2, spell)
    assert [record["cov"] for record in merge_records([records], 2)] == [1.0]


def test_context_is_twenty_tokens_on_either_side():
    n = 60
    tokens = rollout([[-1.0] * n], [[1] * n], [0])
    cov = torch.arange(float(n))[None] * -torch.ones(1, n)
    cov[0, 30] = 1.0
    decoded = []
    token_records(tokens, cov, cov > 0, [(list(range(n + 1)), n)], 8, 1, lambda ids: decoded.append(ids) or "")
    assert decoded == [[31], list(range(11, 31)), list(range(32, 52))]  # column 30 is position 31


def test_ranks_merge_to_the_same_file_in_any_order():
    def record(cov, sample_id, position):
        return {"cov": cov, "sample_id": sample_id, "position": position}

    first, second = [record(3.0, 1, 4), record(1.0, 1, 2)], [record(3.0, 0, 9), record(2.0, 2, 2)]
    expected = [record(3.0, 0, 9), record(3.0, 1, 4), record(2.0, 2, 2)]
    assert merge_records([first, second], 3) == merge_records([second, [], first], 3) == expected


def test_a_file_appears_complete(tmp_path):
    path = tmp_path / "cov_tokens" / "step_4.jsonl"
    write_records(path, [{"token": "é\n"}, {"token": "b"}])
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == [
        {"token": "é\n"},
        {"token": "b"},
    ]
    with pytest.raises(ValueError, match="JSON compliant"):
        write_records(path, [{"cov": math.nan}])
    assert len(path.read_text().splitlines()) == 2  # the file of before
    assert [file.name for file in path.parent.iterdir()] == ["step_4.jsonl"]
