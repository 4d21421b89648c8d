"""The file with the state of the sampler: it holds every state, and reading it runs no code."""

import json
import math
import os
import pickle
from dataclasses import fields

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from openrlhf_cov.trainer.records import Group, Sample
from openrlhf_cov.trainer.rollout.sampler_state_file import STRUCTURE, read_state, write_state


def same(one, other):
    """Return True if two states are equal, NaN included, with the same types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, (Sample, Group)):
        return all(same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


def sample(**given):
    tokens = torch.arange(5)
    return Sample(tokens, torch.tensor([False, True, True, False]), "prompt", **({"label": "7"} | given))


VALUES = [
    {"answer": [1, 2.5, None, True, {"deep": ["ü", "\ud800"]}], "": {}},
    {1: "a", False: "b", 0.5: "c"},
    (1, (2, [3])),
    10**30,
    math.nan,
    -math.inf,
    b"\x00\xff",
    {"tensor": "0"},
    {"Sample": {"tokens": 1}},
    torch.linspace(-1, 1, 12).view(3, 4).to(torch.bfloat16),
    torch.linspace(-1, 1, 12).view(3, 4).T,
    torch.tensor(1.5),
    torch.zeros(0, 3),
    np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::2],
    np.float64(0.5),
    ["x" * 100_000],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value!r:.30}")
def test_a_value_comes_back(tmp_path, value):
    group = Group([sample(label=value, images=[value], image_inputs={"pixel_values": value})], [1.0], 3, 2)
    write_state(tmp_path / "x", {"groups": [group], "value": value})
    found = read_state(tmp_path / "x")
    wanted = value.item() if isinstance(value, np.generic) else value
    assert same(found["value"], wanted)
    (read,) = found["groups"][0].samples
    assert same(read.label, wanted)
    assert same(read.image_inputs["pixel_values"], wanted)


def test_the_state_of_a_sampler_comes_back(tmp_path):
    shared = torch.linspace(-1, 1, 8)
    samples = [sample(rollout_log_probs=shared[:4], metrics={"m": math.nan}), sample(rollout_log_probs=shared[4:])]
    state = {
        "groups": [Group(samples, (1.0, 0.0), 6, 4)],
        "pass_rate": [(3, 8)],
        "counts": {"kept": 3},
        "step": 5,
        "episode": 0,
        "place": 12,
        "is_over": False,
    }
    write_state(tmp_path / "x", state)
    assert same(read_state(tmp_path / "x"), state)


def test_an_image_comes_back(tmp_path):
    image = pytest.importorskip("PIL.Image").new("RGB", (3, 2), (1, 2, 3))
    write_state(tmp_path / "x", [image])
    (found,) = read_state(tmp_path / "x")
    assert (found.size, found.mode, found.tobytes()) == (image.size, image.mode, image.tobytes())


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, lambda: 0, np.array(["x"], dtype=object), {(1, 2): 3}])
def test_another_value_is_refused_with_its_place(tmp_path, value):
    with pytest.raises(TypeError, match=r"state/groups/1.* which a checkpoint cannot hold"):
        write_state(tmp_path / "x", {"groups": [1, value]})


class Run:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("write", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_reading_runs_no_code(tmp_path, write):
    write({"groups": [Run(tmp_path / "ran")]}, tmp_path / "x")
    with pytest.raises(ValueError, match="no state of a sampler"):
        read_state(tmp_path / "x")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "structure",
    [
        {"os.system": "ls"},
        {"tensor": "5"},
        {"tensor": ["x"]},
        {"dict": 5},
        {"dict": [[[1], 2]]},
        {"Sample": {"tokens": 1}},
        {"Sample": {"unknown": 1}},
        {"image": "AAAA"},
        {"bytes": "?"},
        {"a": 1, "b": 2},
        {},
    ],
)
def test_a_structure_that_was_not_written_is_refused(tmp_path, structure):
    text = json.dumps(structure).encode()
    save_file({STRUCTURE: torch.frombuffer(bytearray(text), dtype=torch.uint8)}, tmp_path / "x")
    with pytest.raises(ValueError, match="no state of a sampler"):
        read_state(tmp_path / "x")


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"\xff" * 8 + b"{}", b"[" * 10_000])
def test_a_damaged_file_is_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match="no state of a sampler"):
        read_state(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        read_state(tmp_path / "missing")
