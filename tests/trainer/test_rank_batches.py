from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils import NaiveReplayBuffer
from openrlhf.trainer.ppo_utils.experience import Experience, balance_experiences
from openrlhf.trainer.ray.launcher import RayActorGroup

from openrlhf_cov.trainer import rank_batches
from openrlhf_cov.trainer.rank_batches import balanced_in_parts


def experience(first, lengths):
    """A micro-batch of samples ``first``, ``first + 1``, … of these lengths, prompts of one token."""
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    numbers = torch.arange(first, first + len(lengths))
    return Experience(
        sequences=mask * (numbers[:, None] * 100 + torch.arange(max(lengths))),
        attention_mask=mask,
        action_mask=mask[:, 1:],
        advantages=mask[:, 1:] * torch.rand(len(lengths), 1),
        total_length=torch.tensor(lengths),
        prompts=[f"prompt {number}" for number in numbers],
        info={"sample_id": numbers, "entropy": [torch.full((max(lengths) - 1,), float(n)) for n in numbers]},
    )


def replayed(experiences, ranks, monkeypatch):
    """What lies in the replay buffer of each rank after upstream's group has dealt the experiences out."""
    sent = []
    actor = SimpleNamespace(execute_batch=SimpleNamespace(remote=lambda name, chunk, start, end: sent.append(chunk)))
    group = object.__new__(RayActorGroup)
    group._actor_handlers, group.duplicate_actors = [actor] * ranks, 1
    monkeypatch.setattr("openrlhf.trainer.ray.launcher.ray.put", lambda chunk: chunk)
    group.async_run_method_batch(method_name="append", experience=experiences)
    buffers = [NaiveReplayBuffer(1) for _ in range(ranks)]
    for buffer, chunk in zip(buffers, sent, strict=True):
        for each in chunk["experience"]:
            buffer.append(each)
    return [buffer.items for buffer in buffers]


def flags(ranks):
    return SimpleNamespace(
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=ranks),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
    )


@given(st.lists(st.integers(2, 30), min_size=1, max_size=70), st.integers(1, 5), st.integers(1, 4), st.integers(1, 9))
def test_every_rank_gets_the_samples_of_upstream_in_their_order(lengths, ranks, size, part):
    ranks = min(ranks, len(lengths))

    def batches():
        torch.manual_seed(0)
        return [experience(first, lengths[first : first + size]) for first in range(0, len(lengths), size)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_batches, "SAMPLES", part)
        ours = replayed(balanced_in_parts(batches(), flags(ranks)), ranks, patch)
        upstream = replayed(balance_experiences(batches(), flags(ranks)), ranks, patch)
    for mine, others in zip(ours, upstream, strict=True):
        assert len(mine) == len(others)
        for sample, other in zip(mine, others, strict=True):
            assert sample.prompts == other.prompts
            for name in ("sequences", "attention_mask", "action_mask", "advantages", "total_length"):
                assert torch.equal(getattr(sample, name), getattr(other, name)), name
            for name in ("sample_id", "entropy"):
                assert torch.equal(sample.info[name], other.info[name]), name


def test_a_long_sample_widens_those_of_its_part_alone():
    # 2 ranks x 16 samples, each rank in two parts; the only long one makes one part of four wide
    parts = balanced_in_parts([experience(0, [30, *[3] * 31])], flags(2))
    assert sorted(part.sequences.shape for part in parts) == [(8, 3), (8, 3), (8, 3), (8, 30)]
    # a number of each sample is one tensor of its part; what has a length of its own is a list
    assert all(part.info["sample_id"].shape == (8,) and isinstance(part.info["entropy"], list) for part in parts)
