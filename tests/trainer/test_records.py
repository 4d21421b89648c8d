"""Samples on their way to the rank that trains on them: the same after they were joined, sent and cut apart."""

import math
import pickle
from dataclasses import fields, replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from openrlhf_cov.trainer.records import MicroBatch, RankSamples, TrainSample

OPTIONAL = ("proxy", "discriminator_mean", "base_log_probs", "values", "rollout_log_probs", "image_inputs")


def make_sample(number, length, present=OPTIONAL, score=1.0):
    """A sample of ``length`` tokens whose tensors are all different."""
    generator = torch.Generator().manual_seed(number)
    tensors = {
        name: torch.randn(length - 1, generator=generator)
        for name in ("log_probs", "entropy", "advantages", "returns", *OPTIONAL[:-1])
        if name not in OPTIONAL or name in present
    }
    return TrainSample(
        sample_id=number,
        score=score,
        abstained=number % 3 == 1,
        tokens=torch.randint(0, 99, (length,), generator=generator),
        action_mask=torch.rand(length - 1, generator=generator) < 0.7,
        image_inputs={"pixel_values": torch.full((1, 2), number)} if "image_inputs" in present else None,
        **tensors,
    )


def assert_equal(one, other):
    for field in fields(TrainSample):
        value, expected = getattr(one, field.name), getattr(other, field.name)
        assert type(value) is type(expected), field.name
        if isinstance(value, Tensor):
            assert value.dtype == expected.dtype
            assert torch.equal(value, expected), field.name
        elif field.name == "image_inputs" and value is not None:
            assert torch.equal(value["pixel_values"], expected["pixel_values"])
        else:
            assert value == expected or (math.isnan(value) and math.isnan(expected)), field.name


@given(
    lengths=st.lists(st.integers(1, 9), max_size=12),
    present=st.sets(st.sampled_from(OPTIONAL)),
    scores=st.lists(st.sampled_from([0.0, 1.0, math.nan]), min_size=12, max_size=12),
)
def test_a_share_gives_back_what_it_was_made_of(lengths, present, scores):
    samples = [
        make_sample(number, length, present, score)
        for number, (length, score) in enumerate(zip(lengths, scores, strict=False))
    ]
    found = pickle.loads(pickle.dumps(RankSamples.of(samples))).samples()  # as it is sent
    assert len(found) == len(samples)
    for one, other in zip(found, samples, strict=True):
        assert_equal(one, other)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), present=st.sets(st.sampled_from(OPTIONAL)))
def test_a_micro_batch_is_its_padded_samples(lengths, present):
    samples = [make_sample(number, length, present) for number, length in enumerate(lengths)]
    batch = MicroBatch.of(samples).to("cpu")
    width = max(lengths)
    assert batch.sample_ids.tolist() == list(range(len(lengths)))
    assert batch.tokens.shape == batch.attention_mask.shape == (len(lengths), width)
    assert batch.action_mask.dtype == torch.bool
    for row, (sample, length) in enumerate(zip(samples, lengths, strict=True)):
        assert batch.attention_mask[row].tolist() == [1] * length + [0] * (width - length)
        for name in ("tokens", "action_mask", "log_probs", "advantages", "returns", *OPTIONAL[2:-1]):
            tensor, expected = getattr(batch, name), getattr(sample, name)
            if expected is None:
                assert tensor is None
                continue
            assert torch.equal(tensor[row, : len(expected)], expected), name
            assert not tensor[row, len(expected) :].any()
    assert len(batch.image_inputs) == (len(lengths) if "image_inputs" in present else 0)


def test_samples_without_images_beside_others():
    samples = [make_sample(0, 3), replace(make_sample(1, 3), image_inputs=None), make_sample(2, 3)]
    assert [int(each["pixel_values"][0, 0]) for each in MicroBatch.of(samples).image_inputs] == [0, 2]
    assert [each.image_inputs is None for each in RankSamples.of(samples).samples()] == [False, True, False]
