from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils import NaiveReplayBuffer
from openrlhf.trainer.ppo_utils.experience import Experience, remove_padding_in_sequences, split_experience_batch
from openrlhf.trainer.ray.launcher import RayActorGroup

from openrlhf_cov.trainer import rank_batches
from openrlhf_cov.trainer.rank_batches import balanced_in_parts, deal_updates, shuffled


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


def flags(ranks, batch_size=8, seed=1, global_step=3):
    return SimpleNamespace(
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=ranks),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
        train=SimpleNamespace(batch_size=batch_size, seed=seed),
        global_step=global_step,
    )


def rollout(lengths, size):
    torch.manual_seed(0)
    return [experience(first, lengths[first : first + size]) for first in range(0, len(lengths), size)]


@given(
    lengths=st.lists(st.integers(2, 30), min_size=1, max_size=70),
    ranks=st.integers(1, 5),
    size=st.integers(1, 4),
    part=st.integers(1, 9),
    batch_size=st.integers(1, 20),
)
def test_every_sample_reaches_one_rank_unchanged(lengths, ranks, size, part, batch_size):
    ranks = min(ranks, len(lengths))
    sent = {int(s.info["sample_id"]): s for batch in rollout(lengths, size) for s in split_experience_batch(batch)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_batches, "SAMPLES", part)
        of_ranks = replayed(balanced_in_parts(rollout(lengths, size), flags(ranks, batch_size)), ranks, patch)
    assert max(map(len, of_ranks)) - min(map(len, of_ranks)) <= 1
    arrived = [sample for samples in of_ranks for sample in samples]
    assert sorted(int(sample.info["sample_id"]) for sample in arrived) == list(range(len(lengths)))
    for sample in arrived:
        (other,) = remove_padding_in_sequences([sent[int(sample.info["sample_id"])]])
        assert sample.prompts == other.prompts
        for name in ("sequences", "attention_mask", "action_mask", "advantages", "total_length"):
            assert torch.equal(getattr(sample, name), getattr(other, name)), name
        assert torch.equal(
            sample.info["entropy"][: len(other.action_mask)], other.info["entropy"][: len(other.action_mask)]
        )


def ids_of_updates(of_ranks, batch_size):
    """The numbers of the samples of every update, as upstream's ``setup_dynamic_batch`` cuts the buffers."""
    local = batch_size // len(of_ranks)
    ids = [[int(sample.info["sample_id"]) for sample in samples] for samples in of_ranks]
    return [
        sorted(number for rank in ids for number in rank[first : first + local])
        for first in range(0, len(ids[0]), local)
    ]


def test_the_samples_of_an_update_depend_on_seed_and_step_and_on_nothing_else(monkeypatch):
    lengths = [2 + 7 * n % 29 for n in range(48)]

    def updates(ranks, size, **of_run):
        batches = rollout(lengths, size)[::-1]  # the micro-batches arrive in another order
        args = flags(ranks, batch_size=16, **of_run)
        return ids_of_updates(replayed(balanced_in_parts(batches, args), ranks, monkeypatch), batch_size=16)

    alone = updates(ranks=1, size=48)
    assert [len(update) for update in alone] == [16, 16, 16]
    for ranks in (1, 2, 4, 8):
        for size in (1, 3, 16):
            assert updates(ranks, size) == alone
    assert updates(1, 48, global_step=4) != alone
    assert updates(1, 48, seed=2) != alone


def log_normal_lengths(seed):
    """2,048 response lengths with a median of 1,100 tokens, cut at 4,096."""
    torch.manual_seed(seed)
    return torch.distributions.LogNormal(7.0, 0.9).sample((2048,)).clamp(20, 4096).long().tolist()


def updates_of(places_of_ranks, batch_size):
    local = batch_size // len(places_of_ranks)
    count = len(places_of_ranks[0]) // local
    return [[rank[n * local : (n + 1) * local] for rank in places_of_ranks] for n in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_updates_have_the_lengths_of_a_static_run(seed):
    # Sorted as upstream's balance_experiences has them: without a shuffle the first update would get the longest.
    lengths = torch.tensor(log_normal_lengths(seed), dtype=torch.float64).sort(descending=True).values
    of_ranks = deal_updates(shuffled(2048, seed, global_step=1), lengths.tolist(), ranks=8, batch_size=256)
    updates = [[lengths[places] for places in update] for update in updates_of(of_ranks, 256)]
    assert len(updates) == 8

    # A static run trains on a uniform sample without replacement: the mean length of an update of 256 of 2,048 has the
    # standard deviation sigma * sqrt((1 - 256 / 2048) / 256). Of 40 updates (5 seeds) none lies beyond 4 of them.
    deviation = float(lengths.std() * ((1 - 256 / 2048) / 256) ** 0.5)
    means = [float(torch.cat(update).mean()) for update in updates]
    assert max(abs(mean - float(lengths.mean())) for mean in means) < 4 * deviation
    # The order of the updates says nothing about their lengths; a sorted order has a correlation of -1.
    assert sorted(means, reverse=True) != means
    # Truncated responses: the number in an update is hypergeometric, with a variance below that of the binomial.
    truncated = [int((torch.cat(update) == 4096).sum()) for update in updates]
    share = sum(truncated) / 2048
    assert max(abs(count - 256 * share) for count in truncated) < 4 * (256 * share * (1 - share)) ** 0.5
    # The busiest rank of an update has at most 1.007 of the mean.
    for update in updates:
        tokens = [float(rank.sum()) for rank in update]
        assert max(tokens) <= 1.007 * sum(tokens) / 8


@pytest.mark.parametrize("seed", range(5))
def test_ranks_stay_balanced_when_all_move_their_samples_alike(seed):
    # As StepBoundaries.shuffle_next_epoch does. Measured: 1.019 of the mean at most, 1.32 with a shuffle per rank.
    lengths = log_normal_lengths(seed)
    of_ranks = deal_updates(shuffled(2048, seed, global_step=1), lengths, ranks=8, batch_size=256)
    order = shuffled(256, seed, global_step=1, epoch=1)
    assert order != shuffled(256, seed, global_step=1)
    for update in updates_of([[places[row] for row in order] for places in of_ranks], 256):
        tokens = [sum(lengths[place] for place in places) for places in update]
        assert max(tokens) <= 1.03 * sum(tokens) / 8


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_ranks_have_equally_many_samples_of_the_same_updates(ranks):
    lengths = log_normal_lengths(0)
    order = shuffled(2048, 1, 1)
    updates = updates_of(deal_updates(order, lengths, ranks, 256), 256)
    for number, update in enumerate(updates):
        assert [len(places) for places in update] == [256 // ranks] * ranks
        assert sorted(place for places in update for place in places) == sorted(
            order[256 * number : 256 * (number + 1)]
        )


def test_a_long_sample_widens_those_of_its_part_alone():
    # 2 ranks x 16 samples, each rank in two parts; the only long one makes one part of four wide
    parts = balanced_in_parts([experience(0, [30, *[3] * 31])], flags(2, batch_size=32))
    assert sorted(part.sequences.shape for part in parts) == [(8, 3), (8, 3), (8, 3), (8, 30)]
    # a number of each sample is one tensor of its part; what has a length of its own is a list
    assert all(part.info["sample_id"].shape == (8,) and isinstance(part.info["entropy"], list) for part in parts)
