"""Files of recorded rollouts: what is written is read again bit by bit, and any other file is refused in one line."""

import json
import math
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, safe_open, save_file

from openrlhf_cov.data import rollout_files
from openrlhf_cov.data.rollout_files import (
    RecordedSample,
    RolloutFileError,
    RolloutHeader,
    RolloutRecord,
    check_steps,
    read_header,
    read_rollout,
    recorded_steps,
    rollout_path,
    tokenizer_digest,
    write_rollout,
)

HEADER = RolloutHeader(
    step=3, samples_per_prompt=2, prompts_per_step=2, tokenizer="abc", metrics={"sampling/kept": 0.1}
)


def sample(number, length=4, **given):
    fields = {
        "tokens": torch.arange(length) + 100_000 * number,
        "action_mask": torch.arange(length - 1) > 0,
        "sample_id": number,
        "log_probs": torch.linspace(-1, 0, length - 1) / 3,
        "prompt": f"prompt {number // 2}",
        "prompt_number": 7 + number // 2,
        "source": "maths",
        "reward": 1 / 3,
        "score": 1.0,
        "metrics": {"reward/error_frac": 0.0},
    }
    return RecordedSample(**{**fields, **given})


def four(**given):
    return RolloutRecord(HEADER, [sample(number, 3 + number, **given) for number in (2, 3, 0, 1)])


@pytest.fixture
def path(tmp_path):
    return rollout_path(tmp_path, 3)


def same(one, other):
    for name, value in vars(one).items():
        found = getattr(other, name)
        if isinstance(value, torch.Tensor):
            assert found.dtype == value.dtype
            assert torch.equal(found, value), name
        elif isinstance(value, float) and math.isnan(value):
            assert math.isnan(found)
        else:
            assert found == value, name


def test_a_record_is_read_as_it_was_written(path):
    record = four()
    write_rollout(path, record)
    found = read_rollout(path)
    assert found.header == read_header(path) == HEADER
    assert [each.sample_id for each in found.samples] == [2, 3, 0, 1]
    for one, other in zip(record.samples, found.samples, strict=True):
        same(one, other)


def test_what_a_sample_may_lack_and_numbers_without_a_value(path):
    given = [
        {"log_probs": None, "reward": None, "score": None, "truncated": True},
        {"log_probs": None, "reward": 0.0, "score": math.nan, "abstained": True, "prompt": "ü"},
    ]
    record = replace(four(), samples=[sample(number, **each) for number, each in enumerate(given)])
    write_rollout(path, record)
    for one, other in zip(record.samples, read_rollout(path).samples, strict=True):
        same(one, other)


def test_numbers_of_torch_and_numpy_are_numbers(path):
    record = replace(four(), samples=[sample(0, reward=torch.tensor(0.25)), sample(1, score=np.float32(2))])
    write_rollout(path, record)
    found = read_rollout(path).samples
    assert (found[0].reward, found[1].score) == (0.25, 2.0)


def test_a_file_replaces_the_old_one_and_leaves_nothing_beside_it(path):
    write_rollout(path, four())
    write_rollout(path, replace(four(), header=replace(HEADER, tokenizer="new")))
    assert read_header(path).tokenizer == "new"
    assert [each.name for each in path.parent.iterdir()] == ["step_000003.safetensors"]


def test_log_probs_of_some_samples_only_are_not_written(path):
    with pytest.raises(ValueError, match="1 of 2 samples have log_probs; all of them or none must"):
        write_rollout(path, RolloutRecord(HEADER, [sample(0), sample(1, log_probs=None)]))
    assert not path.exists()


def test_steps_of_a_folder(tmp_path):
    assert recorded_steps(tmp_path / "none") == []
    for step in (1, 2, 10, 1_000_000):
        write_rollout(rollout_path(tmp_path, step), four())
    (tmp_path / "step_000004.safetensors.bak").touch()
    (tmp_path / ".step_000004.safetensors.tmp").touch()
    assert recorded_steps(tmp_path) == [1, 2, 10, 1_000_000]


def test_a_gap_between_steps_is_refused(tmp_path):
    with pytest.raises(RolloutFileError, match="it has no recorded rollouts"):
        check_steps(tmp_path)
    for step in (1, 2, 4):
        write_rollout(rollout_path(tmp_path, step), four())
    with pytest.raises(RolloutFileError, match=r"step_000003.safetensors is missing, but step_000004.safetensors is"):
        check_steps(tmp_path)
    rollout_path(tmp_path, 4).unlink()
    assert check_steps(tmp_path) == [1, 2]


class Tokenizer:
    def __init__(self, **vocabulary):
        self.vocabulary = vocabulary

    def get_vocab(self):
        return self.vocabulary


def test_a_digest_is_that_of_the_ids_of_all_texts():
    digest = tokenizer_digest(Tokenizer(a=0, b=1))
    assert tokenizer_digest(Tokenizer(b=1, a=0)) == digest
    assert tokenizer_digest(Tokenizer(a=1, b=0)) != digest
    assert tokenizer_digest(Tokenizer(a=0, b=1, c=2)) != digest


# What others may have written.


def parts(path):
    """Return (tensors, header) of a good file, to be changed."""
    write_rollout(path, four())
    with safe_open(path, framework="pt") as file:
        return dict(load_file(path)), dict(file.metadata())


def refusal(path):
    with pytest.raises(RolloutFileError) as caught:
        read_rollout(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert len(message.splitlines()) == 1
    return message.removeprefix(f"{path}: ")


def test_no_file_and_no_regular_file(path):
    assert refusal(path) == "no such file"
    path.mkdir()
    assert "it is not a regular file" in refusal(path)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"format": "pt"}, "its format is 'pt', not 'openrlhf_cov.rollout'"),
        ({"version": "2"}, "its format has version '2'; this program reads 1"),
        ({"samples_per_prompt": "3"}, "4 samples are no multiple of 3 per prompt"),
        ({"step": "9" * 5000}, "step is '999"),
        ({"tokenizer": None}, "its header has no tokenizer"),
        ({"metrics": "[" * 100_000}, "values are nested too deep"),
        ({"metrics": '{"a": "b"}'}, "metrics: a: must be a valid number; got 'b'"),
    ],
)
def test_headers_that_are_refused(path, entries, reason):
    tensors, header = parts(path)
    header = {name: value for name, value in (header | entries).items() if value is not None}
    save_file(tensors, path, header)
    assert reason in refusal(path)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"tokens": None}, "tokens"),
        ({"tokens": torch.zeros(5, dtype=torch.int32)}, "tokens has 5 entries; the lengths of the samples ask for 18"),
        ({"tokens": torch.full((18,), -1, dtype=torch.int32)}, "a token id is negative"),
        ({"tokens": torch.zeros(18)}, "tokens must be torch.int32; it is torch.float32"),
        ({"action_mask": torch.zeros(7, 2, dtype=torch.bool)}, "action_mask must have 1 dimension; it has 2"),
        ({"lengths": torch.tensor([18, 0, 0, 0])}, "it has no sample, or one without a token"),
        ({"lengths": torch.tensor([2**62, 2**62, 2**62, 2**62])}, "the lengths of the samples ask for"),
        ({"lengths": torch.tensor([], dtype=torch.int64)}, "it has no sample"),
        ({"lengths": torch.ones(2**20 + 1, dtype=torch.int64)}, "it has 1,048,577 samples"),
    ],
)
def test_tensors_that_are_refused(path, tensors, reason):
    good, header = parts(path)
    save_file({name: value for name, value in (good | tensors).items() if value is not None}, path, header)
    assert reason in refusal(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"reward": "1"}, "samples[1].reward: must be a valid number; got '1'"),
        ({"score": True}, "samples[1].score: must be a valid number; got True"),
        ({"prompt": None}, "samples[1].prompt: must be a valid string; got None"),
        ({"sample_id": 1.0}, "samples[1].sample_id: must be a valid integer; got 1.0"),
        ({"sample_id": 9}, "the numbers of its samples are not 0 to 3"),
        ({"truncated": 1}, "samples[1].truncated: must be a valid boolean; got 1"),
        ({"metrics": {"a": None}}, "samples[1].metrics.a: must be a valid number; got None"),
        ({"rewrd": 1}, "samples[1].rewrd: no such field; did you mean reward?"),
    ],
)
def test_details_that_are_refused(path, change, reason):
    tensors, header = parts(path)
    details = json.loads(tensors["samples"].numpy().tobytes())
    details[1] |= change
    tensors["samples"] = torch.frombuffer(bytearray(json.dumps(details).encode()), dtype=torch.uint8)
    save_file(tensors, path, header)
    assert reason in refusal(path)


@pytest.mark.parametrize("text", [b"", b"{}", b"null", b"[1, 2, 3, 4]", b"\xff", b"[" * 100_000])
def test_json_of_another_shape_is_refused(path, text):
    tensors, header = parts(path)
    tensors["samples"] = torch.frombuffer(bytearray(text or b" "), dtype=torch.uint8)
    save_file(tensors, path, header)
    assert refusal(path)


def test_a_truncated_file_is_refused(path):
    write_rollout(path, four())
    content = path.read_bytes()
    for size in (0, 7, 100, len(content) - 1):
        path.write_bytes(content[:size])
        assert refusal(path)


def test_a_header_that_claims_more_than_the_file_holds_takes_no_memory(path):
    header = {"tokens": {"dtype": "I32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 16)
    assert refusal(path)
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    assert refusal(path)


@pytest.mark.parametrize(
    ("limit", "most", "reason"),
    [
        ("MAX_DETAILS_BYTES", 10, "bytes, more than 10"),
        ("MAX_BYTES", 20, "bytes, more than 20"),
        ("MAX_SAMPLES", 3, "it has 4 samples, more than 3"),
    ],
)
def test_what_is_too_large_is_neither_read_nor_written(path, monkeypatch, limit, most, reason):
    write_rollout(path, four())
    content = path.read_bytes()
    monkeypatch.setattr(rollout_files, limit, most)
    assert reason in refusal(path)
    with pytest.raises(ValueError, match=reason):
        write_rollout(path, four())
    assert path.read_bytes() == content


@settings(
    max_examples=2 * settings().max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(place=st.integers(0, 5000), byte=st.integers(0, 255))
def test_a_changed_byte_gives_a_record_or_one_line(path, place, byte):
    write_rollout(path, four())
    content = bytearray(path.read_bytes())
    content[place % len(content)] = byte
    path.write_bytes(content)
    try:
        samples = read_rollout(path).samples
    except RolloutFileError as error:
        message = str(error)
        assert len(message.splitlines()) == 1
    else:
        assert len(samples) == 4
