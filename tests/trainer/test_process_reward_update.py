"""All updates of the process reward model in a global step, through ``update_process_reward``."""

import math
from dataclasses import replace

import pytest
import torch
from rank_models import LEARNING_RATE, VOCABULARY, flags, make_process_reward, make_samples, order_of
from simulated_ranks import Simulated

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.batches.rank_batches import shares_of_ranks
from openrlhf_cov.trainer.process_reward_update import update_process_reward

pytestmark = pytest.mark.usefixtures("one_process")

BETA = 0.1


def prime(tmp_path, **changes):
    """Return the flags of a run with PRIME whose step is one update of all samples, unless ``changes`` say other."""
    config = CovConfig(method="prime", prime_beta=BETA)
    return flags(tmp_path, config, **{"micro_batch_size": 1, "train__batch_size": 2} | changes)


def labelled(*responses, abstained=()):
    """Return responses (tokens, 1 or 0) to the prompt token 0; the reference is the model as it starts."""
    (sample,) = make_samples(1)
    start = torch.linspace(-1, 1, VOCABULARY).log_softmax(0)
    made = []
    for number, (tokens, correct) in enumerate(responses):
        zeros = torch.zeros(len(tokens))
        made.append(
            replace(
                sample, sample_id=number, score=correct, tokens=torch.tensor([0, *tokens]), log_probs=zeros,
                action_mask=torch.full((len(tokens),), number not in abstained), entropy=zeros, advantages=zeros,
                returns=zeros, base_log_probs=start[torch.tensor(tokens)],
            )
        )  # fmt: skip
    return made


def gradient_of(*responses):
    """Return the gradient of the mean loss at q = 0: beta (1/2 - correct) times that of the log-prob of each token."""
    probs = torch.linspace(-1, 1, VOCABULARY).softmax(0)
    total = torch.zeros(VOCABULARY)
    for tokens, correct in responses:
        for token in tokens:
            total += BETA * (0.5 - correct) * (torch.nn.functional.one_hot(torch.tensor(token), VOCABULARY) - probs)
    return total / len(responses)


RESPONSES = [([1, 1, 2], 1.0), ([4], 0.0)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"micro_batch_size": 2},
        {"dynamic_batch_enable": True, "max_tokens_per_gpu": 4},
        {"dynamic_batch_enable": True, "max_tokens_per_gpu": 100},
        {"max_epochs": 3},  # of the policy: the process reward model sees a step once
    ],
)
def test_an_update_is_one_step_on_the_mean_over_responses(tmp_path, changes):
    args = prime(tmp_path, **changes)
    model = make_process_reward(args)
    result = update_process_reward(model, order_of(args), labelled(*RESPONSES))
    moved = model.model.logits.detach() - torch.linspace(-1, 1, VOCABULARY)
    torch.testing.assert_close(moved, -LEARNING_RATE * gradient_of(*RESPONSES))
    assert result.metrics == {
        "prm/loss": pytest.approx(math.log(2)),  # q is 0
        "prm/grad_norm": pytest.approx(float(gradient_of(*RESPONSES).norm())),
        "prm/lr": LEARNING_RATE,
        "prm/skipped_updates": 0.0,
    }
    assert result.updates == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_abstention_does_not_count(tmp_path, dynamic):
    args = prime(tmp_path, dynamic_batch_enable=dynamic, max_tokens_per_gpu=5)
    model = make_process_reward(args)
    result = update_process_reward(model, order_of(args), labelled(*RESPONSES, abstained=[1]))
    moved = model.model.logits.detach() - torch.linspace(-1, 1, VOCABULARY)
    torch.testing.assert_close(moved, -LEARNING_RATE * gradient_of(RESPONSES[0]))
    assert result.metrics["prm/loss"] == pytest.approx(math.log(2))


def test_a_step_repeats_and_steps_differ(tmp_path):
    args = prime(tmp_path, train__batch_size=1)
    found = []
    for step in (3, 4, 3):
        model = make_process_reward(args)
        torch.rand(7)
        update_process_reward(model, order_of(args, step), labelled(*[([n % 5, 1], float(n % 2)) for n in range(8)]))
        found.append(model.model.logits.detach())
    assert found[0].equal(found[2])
    assert not found[0].equal(found[1])


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_learn_what_one_rank_learns(tmp_path, count):
    args = prime(tmp_path, dynamic_batch_enable=True, max_tokens_per_gpu=6, train__batch_size=4)
    order = order_of(args)
    responses = [([number % 5, 1] + [2] * (number % 3), float(number % 3 == 0)) for number in range(8)]
    samples = labelled(*responses, abstained=[1, 6])
    alone = make_process_reward(args)
    (share,) = shares_of_ranks(samples, args, ranks=1, step=order.step)
    expected = update_process_reward(alone, order, share)
    simulated = Simulated(count)

    def model_of(rank):
        model = make_process_reward(args)
        ranks = replace(simulated.rank(rank), size=count)
        model.ranks, model.layout = ranks, replace(model.layout, update_size=4 // count)
        model.strategy.average = lambda gradient: ranks.all_reduce_sum(gradient) / count
        return model

    models = [model_of(rank) for rank in range(count)]
    shares = shares_of_ranks(samples, args, ranks=count, step=order.step)
    results = simulated.run(lambda model, share, _: update_process_reward(model, order, share), models, shares)
    assert expected.updates == 2
    for model, result in zip(models, results, strict=True):
        torch.testing.assert_close(model.model.logits, alone.model.logits, rtol=1e-5, atol=1e-6)
        assert result.metrics == pytest.approx(dict(expected.metrics), rel=1e-5)
