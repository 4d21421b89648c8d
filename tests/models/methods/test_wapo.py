from dataclasses import replace

import pytest
import torch
from example import example, worked_out
from openrlhf.models import PolicyLoss, aggregate_loss
from simulated_ranks import Simulated

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.loss import policy_loss
from openrlhf_cov.models.method import Groups, TokenBatch
from openrlhf_cov.models.methods.wapo import METHOD
from openrlhf_cov.models.rollout import RolloutTokens, positive_share, positive_sums
from openrlhf_cov.models.window import Window, WindowItem, plan_step


def config(length=None, anchor="rollout", **settings):
    return CovConfig(method="wapo", wapo_length=length, wapo_anchor=anchor, **settings)


# 1 - 1/6, 1 - 3/6, 1 - 5/6, and 0 for incorrect responses
@pytest.mark.parametrize(("correct", "expected"), [(1, 5 / 6), (3, 0.5), (5, 1 / 6)])
def test_advantages_of_a_correct_and_of_an_incorrect_response(correct, expected):
    rewards = torch.tensor([[1.0] * correct + [0.0] * (6 - correct)], dtype=torch.float64)
    (found,) = METHOD.slot.estimate(config(), Groups(rewards, 0.5))
    assert found[:correct].tolist() == pytest.approx([expected] * correct, abs=1e-12)
    assert found[correct:].tolist() == [0.0] * (6 - correct)


def gradients(settings, clip, batch=None, positive=None):
    """(loss, gradient of the five tokens) of the example with rewards 1 and 0: the advantages are 1/2 and 0."""
    given = torch.tensor([[0.5], [0.0]], dtype=torch.float64).expand(2, 3)
    batch = batch or replace(example(), advantages=given)
    detached = replace(batch, log_probs=batch.log_probs.detach())
    window = Window([WindowItem(detached, torch.arange(6).view(2, 3))], clip, positive_prompts=positive)
    (plans,) = plan_step(settings, window)
    result = policy_loss(settings, PolicyLoss(*clip), aggregate_loss, batch, plans)
    result.loss.backward()
    return result.loss.item(), batch.log_probs.grad.flatten()[:-1].tolist()


# The ratios to the engine are exp(0.2), exp(-0.5), exp(0.4) = 1.221403, 0.606531, 1.491825; each times 1/2, over 5
# tokens or over 1 prompt * 2 responses * L 4 = 8. To the old policy they are 1.105171, 0.606531 and 1.491825, which
# the upper clip of 1.28 removes.
@pytest.mark.parametrize(
    ("length", "clip", "anchor", "loss", "gradient"),
    [
        (4.0, (1.0, 9.0), "rollout", -0.207485, [-0.076338, -0.037908, -0.093239, 0, 0]),
        (None, (1.0, 9.0), "rollout", -0.331976, [-0.122140, -0.060653, -0.149182, 0, 0]),
        (4.0, (1.0, 0.28), "old", -0.186981, [-0.069073, -0.037908, 0, 0, 0]),
    ],
)
def test_gradients_of_the_example(length, clip, anchor, loss, gradient):
    assert gradients(config(length, anchor), clip) == worked_out(loss, gradient)


def test_without_log_probs_of_the_engine_the_ratio_is_to_the_old_policy():
    given = torch.tensor([[0.5], [0.0]], dtype=torch.float64).expand(2, 3)
    batch = replace(example(), advantages=given, rollout_log_probs=None)
    assert gradients(config(4.0), (1.0, 0.28), batch) == gradients(config(4.0, "old"), (1.0, 0.28))


def test_prompts_without_a_positive_advantage_do_not_count():
    # half of the prompts of the rollout have one: every token weighs twice as much; without any the weight is finite
    half, none = torch.tensor(0.5), torch.tensor(0.0)
    once, twice = gradients(config(4.0), (1.0, 9.0)), gradients(config(4.0), (1.0, 9.0), positive=half)
    assert twice[1] == pytest.approx([2 * value for value in once[1]])
    assert gradients(config(4.0), (1.0, 9.0), positive=none) == once


def test_updates_add_up_to_the_published_loss():
    # Three prompts of two responses of 2, 1, 3, 1, 2 and 2 tokens; two prompts have one correct response, A = 1/2.
    # Published, a token with A = 1/2 counts 1/2 / (2 prompts * 2 responses * L 5) = 1/40, and in one of three updates
    # three times as much.
    lengths, values = [2, 1, 3, 1, 2, 2], [0.5, 0.0, 0.0, 0.5, 0.0, 0.0]
    mask = torch.arange(3) < torch.tensor(lengths)[:, None]
    given = torch.tensor(values)[:, None].expand(6, 3)
    rollout = RolloutTokens(torch.zeros(6, 3), torch.zeros(6, 3), given, mask, torch.zeros(6), torch.arange(6))
    share = positive_share(positive_sums(rollout, 2, 3))
    assert float(share) == pytest.approx(2 / 3)
    for updates in ([[0, 1, 2, 3, 4, 5]], [[0, 5], [3, 1], [2, 4]]):
        for rows in updates:
            batch = TokenBatch(*torch.zeros(2, len(rows), 3), given[rows], mask[rows])
            item = WindowItem(batch, torch.zeros(len(rows), 3, dtype=torch.int64))
            window = Window([item], (1, 9), positive_prompts=share)
            ((plan,),) = plan_step(config(5.0), window)
            tokens = int(mask[rows].sum())
            assert float(plan.weight) * 0.5 / tokens == pytest.approx(len(updates) / 40)


def test_the_share_of_prompts_is_that_of_all_ranks():
    # each of two ranks has one response to each of two prompts; the second prompt has no advantage
    values = torch.tensor([[0.5], [0.0], [0.0], [0.0]]).expand(4, 2)
    one = torch.ones(4, 2)
    whole = RolloutTokens(one, one, values, one.bool(), one[:, 0], torch.arange(4))

    def share(rows, ranks):
        own = RolloutTokens(one[rows], one[rows], values[rows], one[rows].bool(), one[rows, 0], torch.tensor(rows))
        return float(positive_share(ranks.all_reduce_sum(positive_sums(own, 2, 2))))

    assert float(positive_share(positive_sums(whole, 2, 2))) == 0.5
    assert Simulated(2).run(share, [[0, 2], [1, 3]]) == [0.5, 0.5]
