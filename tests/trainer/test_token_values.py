"""Advantages and returns of tokens against upstream's ``RemoteExperienceMaker`` on the same samples.

Upstream's maker runs as a whole: it scores samples with the same played models, batch by batch, and computes rewards,
advantages and returns. Ours is ``openrlhf_cov.trainer.scoring.score`` and
``openrlhf_cov.trainer.advantages.estimate_advantages``.
"""

import pytest
import torch
from character_tokenizer import character_tokenizer
from hypothesis import assume, given
from hypothesis import strategies as st
from openrlhf.models.utils import masked_mean
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
from played_models import PlayedGroup, scores_by
from rank_models import Strategy
from scored_samples import flags, sample

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.returns import discounted_returns, generalised_advantages
from openrlhf_cov.trainer.advantage_settings import AdvantageSettings
from openrlhf_cov.trainer.advantages import estimate_advantages
from openrlhf_cov.trainer.metrics.step_metrics import rollout_statistics, sample_means
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.records import StepSettings
from openrlhf_cov.trainer.token_values import over_actions

pytestmark = pytest.mark.usefixtures("played_ray")

TOKENIZER = character_tokenizer()
PAD = TOKENIZER.pad_token_id
ESTIMATORS = ["gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce"]
MODELS = ["policy", "reference", "critic", "reward"]


def upstreams(samples, args, kl_coef, with_reward_model):
    """Return upstream's experiences of these samples and its statistics of the rollout."""
    rollout = [
        Experience(
            sequences=each.tokens[None],
            attention_mask=torch.ones_like(each.tokens)[None],
            action_mask=each.action_mask.long()[None],
            rewards=None if each.reward is None else torch.tensor([each.reward]),
            response_length=torch.tensor([each.response_length]),
            truncated=torch.tensor([each.truncated]),
            total_length=torch.tensor([float(len(each.tokens))]),
            info={} if each.reward is None else {"reward": torch.tensor([each.reward])},
        )
        for each in samples
    ]
    groups = groups_of(args, with_reward_model)
    maker = RemoteExperienceMaker(
        groups.policy,
        groups.critic,
        groups.reward,
        groups.reference,
        FixedKLController(kl_coef),
        Strategy(args, accumulation=1),
        TOKENIZER,
    )
    experiences = maker.make_experience_batch(rollout)
    return experiences, BasePPOTrainer._compute_rollout_stats(None, experiences)


def groups_of(args, with_reward_model):
    has_reference, has_critic = args.algo.kl.init_coef > 0, args.algo.advantage.estimator == "gae"
    ranks = args.actor.num_gpus_per_node // (args.ds.ring_attn_size * args.ds.tensor_parallel_size)
    copies = args.ds.ring_attn_size * args.ds.tensor_parallel_size
    policy, reference, critic, reward = (PlayedGroup(model, ranks, copies) for model in MODELS)
    return ModelGroups(
        args,
        policy,
        reference if has_reference else None,
        critic if has_critic else None,
        reward if with_reward_model else None,
    )


def ours(samples, args, kl_coef, with_reward_model):
    found = scores_by(samples, groups_of(args, with_reward_model), PAD)
    return estimate_advantages(samples, found, AdvantageSettings.of(args), StepSettings(0, CovConfig(), kl_coef), args)


def by_sample(experiences, name):
    """Return {place of the sample: the values of its action tokens}."""
    return {
        place: row[mask.bool()]
        for each in experiences
        for place, row, mask in zip(each.index, getattr(each, name), each.action_mask, strict=True)
    }


def masks(actions):
    """Masks of responses after prompts of at least one token; ``actions`` draws the entries after the first action."""
    return st.builds(
        lambda prompt, response: [False] * prompt + [True, *response], st.integers(0, 3), st.lists(actions, max_size=6)
    )


REWARDS = st.integers(-20, 20).map(lambda value: value / 10)


@st.composite
def steps(draw):
    """Return samples, flags and the KL coefficient of a step, and whether a reward model gives the rewards."""
    group, prompts = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    copies = draw(st.sampled_from([1, 2]))
    gamma = draw(st.sampled_from([1.0, 0.9]))
    lambd = draw(st.sampled_from([1.0, 0.95]))
    overlong = draw(st.sampled_from([None, 3]))
    # Upstream takes the observations of an agent for steps of the policy and for tokens of its turn. That makes a
    # difference with a discount, or a limit of the length.
    may_have_observations = gamma == lambd == 1.0 and overlong is None
    of_samples = masks(st.booleans() if may_have_observations else st.just(True))
    args = flags(
        draw(st.sampled_from(ESTIMATORS)),
        group=group,
        algo__advantage__gamma=gamma,
        algo__advantage__lambd=lambd,
        algo__advantage__no_std_norm=draw(st.booleans()),
        algo__kl__estimator=draw(st.sampled_from(["k1", "k2", "k3"])),
        algo__kl__use_loss=draw(st.booleans()),
        algo__kl__init_coef=draw(st.sampled_from([0.0, 0.1])),
        reward__clip_range=draw(st.sampled_from([(-10, 10), (-0.5, 0.5), None])),
        reward__overlong_buffer_len=overlong,
        reward__stop_properly_penalty_coef=draw(st.sampled_from([None, 0.5, -0.5])),
        rollout__max_new_tokens=5,
        rollout__micro_batch_size=draw(st.integers(1, 3)),
        rollout__max_tokens_per_gpu=draw(st.sampled_from([11, 40])),
        train__dynamic_batch_enable=draw(st.booleans()),
        ds__ring_attn_size=copies,
        actor__num_gpus_per_node=copies,
    )
    with_reward_model = draw(st.booleans())
    samples = [
        sample(number, None if with_reward_model else draw(REWARDS), draw(of_samples), truncated=draw(st.booleans()))
        for number in range(group * prompts)
    ]
    kl_coef = args.algo.kl.init_coef * draw(st.sampled_from([1.0, 3.0]))
    return samples, args, kl_coef, with_reward_model


@pytest.mark.slow
@given(steps())
def test_advantages_and_returns_are_those_of_upstream(step):
    samples, args, kl_coef, with_reward_model = step
    gamma = args.algo.advantage.gamma
    batch = ours(samples, args, kl_coef, with_reward_model)
    args.algo.advantage.gamma = gamma  # upstream sets it to 1 where an estimator has no use for it
    experiences, statistics = upstreams(samples, args, kl_coef, with_reward_model)

    # Where rewards are equal upstream divides what rounding leaves of their mean by that of their deviation.
    if args.algo.advantage.estimator == "group_norm":
        groups = batch.numbers["reward"].view(-1, args.rollout.n_samples_per_prompt)
        assume(((groups.amax(1) - groups.amin(1)) > 1e-3).all())
    # Where all advantages are equal so does whitening.
    if args.algo.advantage.estimator in ("gae", "reinforce", "reinforce_baseline"):
        assume(torch.cat([each.returns[each.action_mask] for each in batch.samples]).std() > 0.2)

    for name in ("advantages", "returns"):
        expected = by_sample(experiences, name)
        for place, each in enumerate(batch.samples):
            found = getattr(each, name)
            torch.testing.assert_close(found[each.action_mask], expected[place], rtol=1e-6, atol=1e-6)
            assert not found[~each.action_mask].any()

    # The numbers that are logged.
    means = sample_means(samples, batch.numbers)
    for name in ("reward", "return", "kl", "logprobs_diff", "group_reward_std"):
        values = torch.cat([each.info[name] for each in experiences])
        assert means[name] == pytest.approx(float(values.double().mean()), abs=1e-5), name
    for name in ("response_length", "truncated", "total_length"):
        values = torch.cat([getattr(each, name) for each in experiences])
        assert means[name] == pytest.approx(float(values.double().mean())), name
    found = rollout_statistics(samples, batch.numbers["reward"])
    assert found == {name: pytest.approx(value, abs=1e-5) for name, value in statistics.items()}


def test_observations_are_no_steps_of_the_policy():
    # A critic that is right: V = 1 everywhere, and the reward is 1 at the last action. Nothing is to be
    # learned, however many observations lie between the turns.
    mask = torch.tensor([[0, 1, 1, 0, 0, 0, 1, 1], [0, 1, 1, 1, 1, 0, 0, 0]]).bool()
    values = mask.float()
    rewards = torch.tensor([[0.0] * 7 + [1.0], [0.0] * 4 + [1.0] + [0.0] * 3])
    assert not over_actions(generalised_advantages, mask, values, rewards, 1.0, 0.95).any()
    # Discounted by the number of actions to the end: 3, 2, 1 and 0.
    expected = [0, 0.125, 0.25, 0, 0, 0, 0.5, 1]
    assert over_actions(discounted_returns, mask, rewards, 0.5)[0].tolist() == expected


# Upstream's loops over the columns, which ours replaces by sums of whole tensors, bit for bit.


@st.composite
def tensors(draw):
    """Return rewards and values (B, A) of very different size, 0 outside of a mask with holes and empty rows."""
    shape = draw(st.integers(0, 4)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    spread, share = draw(st.sampled_from([0.0, 1.0, 4.0])), draw(st.sampled_from([0.05, 0.5, 1.0]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    sizes = torch.exp(spread * torch.randn(shape, generator=generator))
    mask = torch.rand(shape, generator=generator) < share
    rewards, values = ((sizes * torch.randn(shape, generator=generator) * mask).to(dtype) for _ in range(2))
    return rewards, values, mask


def same(one, other):
    assert one.dtype == other.dtype
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@given(tensors(), st.sampled_from([1.0, 0.99, 0.0]))
def test_returns_are_those_of_upstreams_loop(tensors, gamma):
    rewards, _, mask = tensors
    same(discounted_returns(rewards, gamma), RemoteExperienceMaker.get_cumulative_returns(None, rewards, mask, gamma))


@given(tensors(), st.sampled_from([1.0, 0.99]), st.sampled_from([1.0, 0.95]))
def test_generalised_advantages_are_those_of_upstreams_loop(tensors, gamma, lambd):
    rewards, values, mask = tensors
    expected, _ = RemoteExperienceMaker.get_advantages_and_returns(None, values, rewards, mask, gamma, lambd)
    same(generalised_advantages(values, rewards, gamma, lambd), expected)


def test_the_mean_of_a_mask_without_tokens_is_0():
    # Upstream's masked_mean is NaN there, which one empty response would carry into the mean of the step.
    assert masked_mean(torch.ones(1, 2), torch.zeros(1, 2), dim=-1).isnan().all()
    args = flags("reinforce", group=1, algo__kl__init_coef=0.1)
    batch = ours([sample(0, 1.0, [False, False]), sample(1, 1.0, 2)], args, 0.1, with_reward_model=False)
    assert batch.numbers["kl"][0] == 0
    assert batch.numbers["kl"].isfinite().all()
    assert not batch.samples[0].advantages.any()
