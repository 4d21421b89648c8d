import copy
import math
import random
from dataclasses import replace

import pytest
import torch
from active import IN_THE_LAB, OF_EACH_SLOT, active

from openrlhf_cov.experiments.lab.lab_policy import Samples
from openrlhf_cov.experiments.lab.lab_settings import LabSettings
from openrlhf_cov.experiments.lab.tasks import TASKS
from openrlhf_cov.experiments.lab.training import Lab, frozen
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.rollout import mean_entropy, token_sums

SMALL = dict(steps=2, prompts=8, group=4, updates=4, learning_rate=1e-2, eval_every=2, eval_samples=2, test_samples=4)
METHODS = {name: active(name) for name in IN_THE_LAB}


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.fixture
def run(task, policy):
    """Function (settings of the policy loss, settings) -> (weights after a short run, its metrics, evaluations).

    With ``right`` all responses are, or none is.
    """

    def run_with(config=None, right=None, **settings):
        model, tokenizer = policy
        trained = copy.deepcopy(model)
        asked = task if right is None else replace(task, is_right=lambda response, label: right)
        lab = Lab(asked, trained, tokenizer, LabSettings(**(SMALL | settings)), config or CovConfig(), frozen(model))
        steps = list(lab.run())
        return weights(trained), [values for _, values, _ in steps], [found for _, _, found in steps if found]

    return run_with


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OF_EACH_SLOT, "random_drop"])
def test_a_run_repeats(run, name):
    first = run(METHODS[name])
    again = run(METHODS[name])
    assert first[0].equal(again[0])
    assert str(first[1:]) == str(again[1:])  # NaN where a mean is over nothing
    assert not first[0].equal(run(METHODS[name], seed=1)[0])


@pytest.mark.slow
def test_every_method_changes_the_policy(run):
    without = run()[0]
    for name, config in METHODS.items():
        trained = run(config)[0]
        assert trained.isfinite().all(), name
        assert not trained.equal(without), name


def test_advantages_are_about_the_group(task, policy):
    lab = Lab(task, *policy, LabSettings(**SMALL), CovConfig())
    responses = torch.tensor([[9, 3, 1]] * 31 + [[9, 1, 0]])
    # a group with one right response of four: mean 1/4, deviation sqrt(((3/4)^2 + 3 (1/4)^2) / 3) = 1/2
    scores = torch.tensor([1.0, 0.0, 0.0, 0.0] + [1.0] * 4 + [0.0] * 24)
    seen = torch.full((32, 3), -0.5)
    rollout = lab.rollout_tokens(Samples(responses, seen, -seen), scores, CovConfig())
    assert rollout.advantages[:4, 0].tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert rollout.advantages[4:].abs().max() == 0.0
    assert rollout.action_mask[-1].tolist() == [True, True, False]
    assert rollout.log_probs[-1].tolist() == [-0.5, -0.5, 0.0]
    assert rollout.entropy[-1].tolist() == [0.5, 0.5, 0.0]


def test_old_entropies_decide_which_tokens_train_after_an_update(task, policy):
    # floor(0.4 * 5) = 2 tokens train: by the sampler's entropies the two of 2 and 1.5 nats
    config = CovConfig(method="top_entropy", top_entropy_frac=0.4, top_entropy_policy="old")
    lab = Lab(task, *policy, LabSettings(**SMALL), config)
    prompts, *_ = lab.roll_out()
    responses, entropies = torch.tensor([[9, 3, 4, 3, 9]] * 4), torch.tensor([[2.0, 0.5, 0.2, 1.5, 1.0]] * 4)
    rollout = lab.rollout_tokens(Samples(responses, -entropies, entropies), torch.tensor([1.0, 0.0, 0.0, 0.0]), config)
    planning = lab.planning(1, config, mean_entropy(token_sums(rollout)))
    ((plan,),) = lab._plans(planning, prompts[:4], responses, rollout, [torch.tensor([0])], moved=True)
    assert plan.tokens.int().tolist() == [[0, 1, 1, 0, 1]]


@pytest.mark.slow
def test_an_evaluation_leaves_the_run_alone(task, policy):
    lab = Lab(task, *policy, LabSettings(**SMALL), CovConfig())
    state, rng = lab.generator.get_state().clone(), torch.get_rng_state()
    first, again = lab.evaluate(), lab.evaluate()
    assert first == again
    for ours, theirs in zip(lab.test(), lab.test(), strict=True):
        assert ours.equal(theirs)
    assert lab.generator.get_state().equal(state)
    assert torch.get_rng_state().equal(rng)
    # the mean over all letters: 14, 8, 6 and 4 of 32
    shares = {"a": 14 / 32, "b": 8 / 32, "c": 6 / 32, "d": 4 / 32}
    for name in ("greedy", "sampled", "pass@2"):
        assert first[name] == pytest.approx(sum(share * first[f"{name}/{kind}"] for kind, share in shares.items()))


def test_divergence_from_the_base_policy(task, policy):
    model, tokenizer = policy
    uniform = frozen(model)
    uniform.lm_head.weight.zero_()
    itself, far = (
        Lab(task, model, tokenizer, LabSettings(**SMALL), CovConfig(), base).evaluate() for base in (None, uniform)
    )
    assert itself["base_kl"] == pytest.approx(0, abs=1e-5)
    # from a uniform policy over V tokens: log V - H; samples of a few hundred prompts stand for the entropy
    vocabulary = model.lm_head.out_features
    assert far["base_kl"] == pytest.approx(math.log(vocabulary) - far["entropy"], abs=0.05)


def test_samples_that_the_limit_cuts_are_counted(task, policy):
    model, tokenizer = copy.deepcopy(policy)
    lab = Lab(task, model, tokenizer, LabSettings(**SMALL), CovConfig())
    prompts, samples, scores = lab.roll_out()
    responses = samples.responses.fill_(0)
    responses[:24, -1] = lab.eos  # at the last place that there is; of 32, 8 have none
    lab.roll_out = lambda: (prompts, replace(samples, responses=responses), scores)
    assert lab.step(1)["truncated"] == 0.25


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "kl_cov", "top_entropy"])
def test_micro_batches_add_up_to_an_optimizer_step(run, name):
    whole, parts = run(METHODS.get(name)), run(METHODS.get(name), micro_batch=2)
    # the gradients of one step are sums of 8 samples in another order; Adam's first steps go by their signs
    torch.testing.assert_close(parts[0], whole[0], rtol=0, atol=5e-3)
    for ours, theirs in zip(parts[1], whole[1], strict=True):
        for value in ("policy_loss", "gradient/norm", "cov/selected_count", "reward"):
            assert ours[value] == pytest.approx(theirs[value], rel=1e-3, abs=1e-5)


@pytest.mark.slow
def test_selection_by_micro_batch_depends_on_its_size(run):
    config = CovConfig(cov_type="kl_cov", cov_scope="micro_batch", kl_cov_ratio=0.02)
    small, large = (run(config, micro_batch=size)[1][0]["cov/selected_count"] for size in (1, 8))
    # 4 updates of 8 samples of at most 5 tokens: at least one token of each of the 32 samples; of each update else
    assert small == 32.0
    assert large == 4.0


@pytest.mark.slow
def test_updates_without_a_selected_token_are_counted(run):
    # No token of this policy has such a covariance. KL-Cov selects a token in every update.
    empty = run(CovConfig(cov_type="clip_cov", clip_cov_lb=50.0, clip_cov_ub=60.0))[1]
    assert [values["cov/empty_update_frac"] for values in empty] == [1.0, 1.0]
    assert [values["cov/empty_update_frac"] for values in run(METHODS["kl_cov"])[1]] == [0.0, 0.0]


@pytest.mark.slow
def test_a_random_reward_does_not_look_at_the_response(run):
    weights_, metrics, _ = run(random_reward=True)
    assert not weights_.equal(run()[0])
    assert 0.0 < metrics[0]["reward"] < 1.0
    assert weights_.equal(run(random_reward=True)[0])


@pytest.mark.slow
def test_the_test_is_about_other_problems_than_the_evaluations(task):
    for name in TASKS:
        built = TASKS[name]()
        if built.replicas:
            continue  # a bandit has no other questions than those it trains on
        sets = [{problem.prompt for problem in split} for split in (built.validation, built.test)]
        drawn = {built.draw(random.Random(seed)).prompt for seed in range(2000)}
        assert not sets[0] & sets[1]
        assert not drawn & (sets[0] | sets[1])
        assert len(built.validation) == len(built.test) == 256
    shares = [task.kind(problem) for problem in task.test]
    assert {kind: shares.count(kind) for kind in "abcd"} == {"a": 112, "b": 64, "c": 48, "d": 32}  # 14, 8, 6, 4 of 32


@pytest.mark.slow
def test_the_objective_has_an_entropy_bonus_and_a_reference(run):
    plain, bonus, held = run()[0], run(entropy_coef=0.1)[0], run(kl_coef=0.1)[0]
    assert not plain.equal(bonus)
    assert not plain.equal(held)
