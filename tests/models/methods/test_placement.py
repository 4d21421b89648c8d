"""What every registered method does to a step does not depend on padding, micro-batches, ranks or order."""

from dataclasses import dataclass

import pytest
import torch
from active import EQUAL, ESTIMATORS, NEUTRAL, PLANNED, SURROGATES, active, neutral
from method_loss import MethodLoss
from openrlhf.models import PolicyLoss, aggregate_loss
from simulated_ranks import Simulated

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.diagnostics import update_metrics
from openrlhf_cov.models.method import Groups, TokenBatch, fills
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.ranking import token_keys
from openrlhf_cov.models.slots import EntropyBonus
from openrlhf_cov.models.window import ALONE, Window, WindowItem, plan_step
from openrlhf_cov.utils.metrics import MetricBuffer

SAMPLES, LONGEST = 8, 12
WHOLE = [[list(range(SAMPLES))]]
# Name -> by rank, by micro-batch, the samples.
DEALS = {
    "one by one": [[[row] for row in range(SAMPLES)]],
    "unequal micro-batches, another order": [[[7, 1], [0], [5, 4, 2], [6, 3]]],
    "two ranks": [[[0, 1, 2, 3]], [[4, 5, 6, 7]]],
    "three ranks of unequal ones": [[[6], [0, 3]], [[1, 7, 2]], [[5], [4]]],
}


@dataclass(frozen=True)
class Sample:
    """Tensors (T,) of one response."""

    tokens: TokenBatch
    entropy: torch.Tensor
    old_entropy: torch.Tensor
    proxy: torch.Tensor
    discriminator_mean: torch.Tensor


def samples(seed=0):
    """Responses of unequal lengths; ratios beyond the clip, both signs of advantages and one response of A = 0."""
    generator, made = torch.Generator().manual_seed(seed), []
    for number in range(SAMPLES):
        length = int(torch.randint(3, LONGEST + 1, (), generator=generator))
        log_probs = -torch.rand(length, generator=generator) * 4
        old = log_probs + 0.3 * torch.randn(length, generator=generator)
        advantage = 0.0 if number == 5 else (1.2 if number % 3 == 0 else -0.7)
        tokens = TokenBatch(log_probs, old, torch.full((length,), advantage), torch.ones(length))
        entropy = torch.rand(length, generator=generator)
        old_entropy = entropy * (1 + 0.1 * torch.randn(length, generator=generator))
        made.append(Sample(tokens, entropy, old_entropy, old + 0.3 * (number % 2), old_entropy * 0.3))
    return made


def estimated(config, made):
    """The samples with the advantages of an estimator, for rewards of two groups of four."""
    log_probs = torch.tensor([[-0.2, -1.0, -0.5, -0.7], [-0.1, -2.0, -0.6, -0.4]])
    groups = Groups(torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 1]]), 0.5, log_probs)
    advantages = config.estimator.slot.estimate(config, groups).nan_to_num(0.0).view(-1)
    for each, advantage in zip(made, advantages, strict=True):
        each.tokens.advantages.fill_(advantage)
    return made


def padded(rows, columns, value=-55.0):
    """Rows (T,) as (B, columns) with what must never count behind them."""
    return torch.stack([torch.cat([row, torch.full((columns - len(row),), value)]) for row in rows])


def micro_batch(made, indices, extra):
    """The micro-batch of these samples."""
    chosen = [made[i] for i in indices]
    columns = max(len(each.entropy) for each in chosen) + extra
    behind = {"log_probs": 9.0, "old_log_probs": -9.0, "advantages": -55.0}
    tensors = {name: padded([getattr(each.tokens, name) for each in chosen], columns, behind[name]) for name in behind}
    mask = padded([each.tokens.action_mask for each in chosen], columns) > 0
    tokens = TokenBatch(**tensors, action_mask=mask)
    names = ("entropy", "old_entropy", "proxy", "discriminator_mean")
    values = {name: padded([getattr(each, name) for each in chosen], columns) for name in names}
    return WindowItem(tokens, token_keys(1, 2, torch.tensor(indices), columns), **values)


def step_of(config, made, hand, ranks=ALONE, extra=0):
    """({sample: (A', gradient) per token}, loss, metrics) of one rank in one update."""
    clip = config.ppo_clip or (0.2, 0.28)
    by_token = config.aggregation is None
    loss = MethodLoss(config, policy_loss=PolicyLoss(*clip, token_level_loss=by_token), aggregate=aggregate_loss)
    items = [micro_batch(made, indices, extra) for indices in hand]
    plans = [()] * len(hand)
    if config.plans_globally:
        mean = torch.cat([each.old_entropy for each in made]).mean()
        plans = plan_step(config, Window(items, clip, ranks, mean))
    total, found, buffer = 0.0, {}, MetricBuffer()
    for indices, item, planned in zip(hand, items, plans, strict=True):
        batch = item.batch
        loss.expect(planned)
        log_probs = batch.log_probs.clone().requires_grad_()
        tensors = log_probs, batch.old_log_probs, batch.advantages, batch.action_mask, batch.old_log_probs
        count = torch.tensor(sum(len(each.entropy) for each in made))
        value, *_ = loss(*tensors, batch_num_tokens=count, global_batch_size=torch.tensor(float(SAMPLES)))
        value.backward()
        total += value.item()
        buffer.add(*update_metrics(loss.record))
        assert not log_probs.grad[~batch.action_mask].any()
        for row, index in enumerate(indices):
            length = len(made[index].entropy)
            found[index] = loss.record.advantages[row, :length], log_probs.grad[row, :length]
    reduce = {"sum": ranks.all_reduce_sum, "max": lambda t: ranks.all_gather(t).view(-1, len(t)).amax(0)}
    return found, total, buffer.reduce(lambda tensor, op: reduce[op](tensor))


def placed(config, made, deal, extra=0):
    """The same over all ranks; every rank reads the same metrics."""
    steps = Simulated(len(deal)).run(lambda hand, ranks: step_of(config, made, hand, ranks, extra), deal)
    found = {index: tensors for step in steps for index, tensors in step[0].items()}
    assert all(str(step[2]) == str(steps[0][2]) for step in steps)
    return found, sum(step[1] for step in steps), steps[0][2]


# Centred over the micro-batch, as docs/metrics.md says.
PLACEMENT = ("cov/selected_mean",)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_is_the_same_for_any_placement(name):
    config = active(name)
    made = estimated(config, samples()) if name in ESTIMATORS else samples()
    expected, loss, metrics = placed(config, made, WHOLE)
    plain, _, without = placed(CovConfig(), samples(), WHOLE)
    acts = any(not torch.equal(expected[index][1], plain[index][1]) for index in expected)
    assert acts or fills(METHODS[name], EntropyBonus)
    assert metrics.keys() - without.keys() == {each for each in metrics if each.startswith("method/")}
    for title, deal in {**DEALS, "more padding": WHOLE}.items():
        found, other, read = placed(config, made, deal, extra=5 * (title == "more padding"))
        for index, (advantages, gradient) in expected.items():
            # the same tokens: where the weights come from sums, these are exact, and only exp may round otherwise
            torch.testing.assert_close(found[index][0], advantages, rtol=1e-6, atol=0, msg=title)
            torch.testing.assert_close(found[index][1], gradient, rtol=1e-6, atol=1e-9, msg=title)
        assert other == pytest.approx(loss, rel=1e-5, abs=1e-6), title
        same = {each: value for each, value in metrics.items() if each not in PLACEMENT}
        assert {each: read[each] for each in same} == pytest.approx(same, rel=1e-5, nan_ok=True), title


@pytest.mark.parametrize("name", sorted({*PLANNED} - {*ESTIMATORS}))
def test_a_step_without_a_token_is_one(name):
    """All tokens of a rank are masked, or of all ranks."""
    config, made = active(name), samples()
    for dead in (made[:4], made):
        for each in dead:
            each.tokens.action_mask.zero_()
        found, loss, _ = placed(config, made, DEALS["two ranks"])
        assert all(gradient.isfinite().all() for _, gradient in found.values())
        assert torch.tensor(loss).isfinite()


# Their limits are tested with the surrogates, or in the tests of their own.
ELSEWHERE = {
    *SURROGATES,
    *("passk", "entrocraft"),  # with k = 1, in the band: GRPO's advantages
    "dr_grpo",  # with the mean length: the mean over tokens
    "ucpo",  # with tau 0: GRPO's advantages
    "lite_ppo",  # in a step of one group: GRPO's advantages
}
# 80/20 drops one token or more; the others have another baseline than a mean or none, or do not divide by the standard
# deviation. In no setting are they GRPO.
WITHOUT = {"top_entropy", "qae", "w_reinforce", "prime", "maxrl", "rs_grpo", "wapo"}


def test_every_method_has_its_limit():
    assert sorted([*NEUTRAL, *ELSEWHERE, *WITHOUT]) == sorted(METHODS)


@pytest.mark.parametrize("name", NEUTRAL)
def test_in_its_limit_a_method_is_grpo_bit_for_bit(name):
    config, made = neutral(name), samples()
    for each in made:
        each.tokens.advantages.fill_(EQUAL[name]) if name in EQUAL else None

    def gradients(config):
        clip = config.ppo_clip or published
        loss = MethodLoss(config, policy_loss=PolicyLoss(*clip), aggregate=aggregate_loss)
        item = micro_batch(made, range(SAMPLES), 2)
        batch = item.batch
        if config.plans_globally:
            loss.expect(*plan_step(config, Window([item], clip, ALONE, torch.tensor(0.1))))
        log_probs = batch.log_probs.clone().requires_grad_()
        value, *_ = loss(log_probs, batch.old_log_probs, batch.advantages, action_mask=batch.action_mask)
        value.backward()
        return value, log_probs.grad

    published = (0.2, 0.28) if config.ppo_clip is None or config.moved_clip else config.ppo_clip
    for found, expected in zip(gradients(config), gradients(CovConfig()), strict=True):
        assert torch.equal(found, expected)
