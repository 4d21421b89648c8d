"""What the controller hands to the models of a run, and what it takes from their answers."""

from dataclasses import replace

import pytest
from played_models import PlayedGroup
from scored_samples import flags, sample, scores

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.advantage_settings import AdvantageSettings
from openrlhf_cov.trainer.advantages import estimate_advantages
from openrlhf_cov.trainer.checkpoint.checkpoints import ROLLOUTS
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.records import StepResult, StepSettings

pytestmark = pytest.mark.usefixtures("played_ray")

ORDER = StepSettings(3, CovConfig(), kl_coef=0.5)


def train_samples(count=8):
    samples = [sample(i, float(i % 2), 1 + i % 3) for i in range(count)]
    args = flags()
    return estimate_advantages(
        samples, scores(samples), AdvantageSettings.of(args), StepSettings(0, CovConfig(), 0.0), args
    ).samples


def updates_of(calls):
    """Return (model, rank, order, numbers of the samples) of every update."""
    found = [(model, *arguments) for model, method, arguments in calls if method == "update"]
    return [(model, rank, order, [each.sample_id for each in share.samples()]) for model, rank, order, share in found]


POLICY = StepResult({"policy_loss": 1.0}, mean_entropy=0.5, updates=4, learning_rate=0.1)


@pytest.mark.parametrize("sleeps", [False, True])
def test_policy_and_critic_are_trained_on_their_shares(sleeps):
    calls = []
    policy = PlayedGroup("policy", 2, 1, calls, update=POLICY)
    critic = PlayedGroup("critic", 1, 1, calls, update=StepResult({"critic_loss": 2.0}))
    result = ModelGroups(flags(ds__enable_sleep=sleeps), policy, critic=critic).update(ORDER, train_samples())
    assert result == StepResult({"policy_loss": 1.0, "critic_loss": 2.0}, 0.5, 4, 0.1)
    assert updates_of(calls) == [
        ("critic", 0, ORDER, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("policy", 0, ORDER, [0, 1, 2, 3]),
        ("policy", 1, ORDER, [4, 5, 6, 7]),
    ]


def test_ranks_that_share_the_tokens_of_a_batch_get_the_same_samples(played_ray):
    calls = []
    args = flags(ds__ring_attn_size=2)
    ModelGroups(args, PlayedGroup("policy", 2, 2, calls, update=POLICY)).update(ORDER, train_samples(4))
    assert [(rank, ids) for _, rank, _, ids in updates_of(calls)] == [
        (0, [0, 1]),
        (1, [0, 1]),
        (2, [2, 3]),
        (3, [2, 3]),
    ]
    assert len(played_ray.stored) == 2  # a share is put into the store once


@pytest.mark.parametrize(("step", "models"), [(1, {"critic"}), (2, {"critic"}), (3, {"critic", "policy"})])
def test_the_critic_is_trained_alone_at_first(step, models):
    calls = []
    policy = PlayedGroup("policy", 1, 1, calls, update=POLICY)
    critic = PlayedGroup("critic", 1, 1, calls, update=StepResult({"critic_loss": 2.0}))
    groups = ModelGroups(flags(critic__freezing_steps=2), policy, critic=critic)
    result = groups.update(replace(ORDER, step=step), train_samples())
    assert {model for model, *_ in updates_of(calls)} == models
    assert (result.mean_entropy is None) is ("policy" not in models)
    assert result.metrics["critic_loss"] == 2.0


@pytest.mark.parametrize("other", ["critic", "process_reward"])
def test_a_checkpoint_of_policy_and_another_model(played_ray, other):
    calls = []
    groups = ModelGroups(flags(), PlayedGroup("policy", 2, 1, calls), **{other: PlayedGroup(other, 1, 1, calls)})
    state = {"groups": ["megabytes"]}
    states = {"global_step": 4, ROLLOUTS: state}
    groups.save("global_step4", states)
    named = {"tag": "global_step4"}
    assert calls == [
        ("policy", "save_checkpoint", {"client_states": {"global_step": 4, ROLLOUTS: state}, **named}),
        (other, "save_checkpoint", named),
    ]
    assert played_ray.stored == [state]  # once, for the one rank that fetches it
    assert states[ROLLOUTS] is state


def test_what_a_checkpoint_of_the_policy_holds_comes_from_its_first_rank():
    policy = PlayedGroup(
        "policy", 2, 1, get_checkpoint_states=lambda rank: {"rank": rank}, score_texts=lambda rank: [rank]
    )
    groups = ModelGroups(flags(), policy)
    assert groups.client_states() == {"rank": 0}
    assert groups.score_texts([[1, 2]]) == [0]


def test_the_trained_models_name_the_checkpoint_that_they_restored():
    policy, critic = PlayedGroup("policy", 2, get_restored="global_step4"), PlayedGroup("critic", get_restored=None)
    assert ModelGroups(flags(), policy).restored() == ["global_step4"]
    assert ModelGroups(flags(), policy, critic=critic).restored() == ["global_step4", None]


def test_an_error_of_any_rank_is_raised():
    def second_fails(rank):
        return OSError("rank 1") if rank == 1 else POLICY

    policy = PlayedGroup("policy", 2, update=second_fails)
    with pytest.raises(OSError, match="rank 1"):
        ModelGroups(flags(), policy).update(ORDER, train_samples())
