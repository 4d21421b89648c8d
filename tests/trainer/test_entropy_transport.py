"""From the rank that scores a sample, over the controller, to the replay buffer of the rank that trains on it."""

from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ppo_utils import NaiveReplayBuffer
from openrlhf.trainer.ppo_utils.experience import Experience, balance_experiences
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from openrlhf_cov.trainer.experience_maker import CovExperienceMaker
from openrlhf_cov.trainer.ray.ppo_actor import CovPolicyActor


def scored(sequences, lengths):
    """A micro-batch of upstream's experience; prompts of one token, padded on the right."""
    attention_mask = (torch.arange(sequences.shape[1]) < torch.tensor(lengths)[:, None]).long()
    return Experience(
        sequences=sequences,
        attention_mask=attention_mask,
        action_mask=attention_mask[:, 1:],
        total_length=torch.tensor(lengths),
        info={"sample_id": sequences[:, 0]},
    )


@pytest.mark.parametrize("balanced", [False, True])
def test_entropies_follow_their_sample_to_the_rank_that_trains_on_it(monkeypatch, balanced):
    # the entropy of an action is a tenth of its token; two ranks score micro-batches of different width
    micro_batches = [
        scored(torch.tensor([[0, 11, 12, 13, 14], [1, 21, 22, 0, 0]]), [5, 3]),
        scored(torch.tensor([[2, 31, 32], [3, 41, 0]]), [3, 2]),
    ]
    entropies = [batch.sequences[:, 1:] / 10 for batch in micro_batches]
    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", lambda self, samples: samples)
    monkeypatch.setattr("openrlhf.trainer.ppo_utils.experience_maker.ray.get", lambda refs: refs)
    taken = [[{"entropy": each, "proxy": -each}] for each in entropies]
    maker = object.__new__(CovExperienceMaker)
    maker.args = SimpleNamespace(
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=2),
    )
    maker.actor_model_group = SimpleNamespace(async_run_method=lambda method_name: taken)
    experiences = maker.make_experience(micro_batches)
    if balanced:  # --train.dynamic_batch_enable
        experiences = balance_experiences(experiences, maker.args)
    ids = []
    for experience in experiences:
        actor = object.__new__(CovPolicyActor)
        actor.trainer = SimpleNamespace(replay_buffer=NaiveReplayBuffer(1))
        actor.append(experience)
        for sample in actor.trainer.replay_buffer.items:
            ids.append(int(sample.sequences[0]))
            assert sample.entropy.tolist() == (sample.sequences[1:] / 10).tolist()
            assert sample.proxy.tolist() == (-sample.entropy).tolist()
            assert "entropy" not in sample.info
            assert "proxy" not in sample.info
    assert sorted(ids) == [0, 1, 2, 3]
    assert (ids == [0, 1, 2, 3]) is not balanced


def test_every_scored_micro_batch_is_taken_once():
    actor = object.__new__(CovPolicyActor)
    actor.scored = ["first", "second"]
    assert actor.take_scored() == ["first", "second"]
    assert actor.take_scored() == []
