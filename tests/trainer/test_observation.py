import math
from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import PolicyLoss, aggregate_loss

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.loss import MethodLoss
from openrlhf_cov.models.method import Plan
from openrlhf_cov.models.window import Ranks
from openrlhf_cov.trainer.observation import (
    StepDiagnostics,
    all_reduce_over,
    observe_loss,
    observe_training,
    record_entropy,
    rollout_of,
    sample_ids,
)
from openrlhf_cov.utils.metrics import MetricBuffer

SEQUENCES = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
MASK = torch.tensor([[1, 1], [1, 0]])


def hooks(module):
    return len(module._forward_hooks), len(module._forward_pre_hooks)


def test_entropy_is_recorded_beside_the_log_probs(stub_actor):
    actor = stub_actor()
    expected = actor(SEQUENCES, MASK)
    with record_entropy(actor, num_actions=2) as entropies:
        log_probs = actor(SEQUENCES, MASK, ring_attn_group=None)
        actor(SEQUENCES + 1, action_mask=MASK)
    assert torch.equal(log_probs, expected)
    # entropy (B, T - 1) is 10 * the first three tokens; its last two columns belong to the two actions
    assert [entropy.tolist() for entropy in entropies] == [
        [[20.0, 30.0], [60.0, 70.0]],
        [[30.0, 40.0], [70.0, 80.0]],
    ]


def test_nothing_stays_behind(stub_actor):
    actor = stub_actor()
    with record_entropy(actor, num_actions=2):
        assert hooks(actor) == (1, 1)
    assert hooks(actor) == (0, 0)
    assert torch.equal(actor(SEQUENCES, MASK), -SEQUENCES[:, -2:].float() * MASK)


def test_nothing_stays_behind_after_an_exception(stub_actor):
    actor = stub_actor()
    with pytest.raises(RuntimeError, match="from inside"), record_entropy(actor, num_actions=2):
        raise RuntimeError("from inside")
    assert hooks(actor) == (0, 0)


def test_nothing_stays_behind_after_a_failing_forward(stub_actor):
    actor = stub_actor()
    with pytest.raises(AttributeError), record_entropy(actor, num_actions=2):
        actor(SEQUENCES, None)
    assert hooks(actor) == (0, 0)


# means -3 and 1: covariance 2, -2, 0, -6; ratios 1.5, 0.5, 1, 3, of which 0.2 / 0.2 clips the 1st, 2nd and 4th
LOG_PROBS = torch.tensor([[-1.0, -2.0], [-3.0, -6.0]])
OLD = LOG_PROBS - torch.tensor([[1.5, 0.5], [1.0, 3.0]]).log()
ADVANTAGES = torch.tensor([[2.0, -1.0], [0.0, 3.0]])


def outcome(loss):
    log_probs = LOG_PROBS.clone().requires_grad_()
    result = loss(log_probs, OLD, ADVANTAGES, action_mask=torch.ones(2, 2), rollout_log_probs=None)
    result[0].backward()
    return *result[:3], log_probs.grad


def kl_cov(cov_scope="micro_batch"):
    config = CovConfig(cov_type="kl_cov", cov_scope=cov_scope, kl_cov_ratio=0.25, allow_large_cov_ratio=True)
    return MethodLoss(config, policy_loss=PolicyLoss(math.inf, math.inf), aggregate=aggregate_loss)


def observed(make_loss):
    """(outcome of the observed loss, metrics it left)."""
    loss, buffer = make_loss(), MetricBuffer()
    observe_loss(loss, buffer)
    return outcome(loss), buffer.reduce(lambda tensor, op: tensor)


@pytest.mark.parametrize("make_loss", [PolicyLoss, kl_cov])
def test_observing_changes_neither_loss_nor_gradient(make_loss):
    result, _ = observed(make_loss)
    assert all(torch.equal(seen, plain) for seen, plain in zip(result, outcome(make_loss()), strict=True))


def test_the_baseline_logs_the_same_names_as_a_method():
    _, baseline = observed(PolicyLoss)
    _, method = observed(kl_cov)
    assert baseline.keys() == method.keys()
    # the method's own selection and the clip in force
    assert (baseline["cov/selected_frac"], method["cov/selected_frac"]) == (0.0, 0.25)
    assert method["cov/selected_mean"] == 2.0
    assert (baseline["ppo/clip_frac"], method["ppo/clip_frac"]) == (0.75, 0.0)


@pytest.mark.parametrize("kind", ["ppo", "gspo"])
@pytest.mark.parametrize("level", ["off", "token", "seq"])
def test_the_clip_fraction_is_upstreams(kind, level):
    # sequences of two and one token with their own ratios to the policy that scored and to the one that sampled
    log_probs = torch.tensor([[-0.1, -1.2], [-0.9, -5.0]])
    old = log_probs - torch.tensor([[0.1, -0.5], [-0.4, 0.0]])
    sampled = log_probs - torch.tensor([[0.0, 0.02], [0.3, 0.0]])
    loss, buffer = PolicyLoss(0.05, 0.05, policy_loss_type=kind, is_correction_level=level), MetricBuffer()
    observe_loss(loss, buffer)
    mask = torch.tensor([[1, 1], [1, 0]])
    _, expected, *_ = loss(
        log_probs, old, torch.tensor([[1.0, 1.0], [1.0, 1.0]]), action_mask=mask, rollout_log_probs=sampled
    )
    values = buffer.reduce(lambda tensor, op: tensor)
    assert values["ppo/clip_frac"] == pytest.approx(float(expected))
    assert values["ppo/ratio_max"] == pytest.approx(math.exp(0.1))  # to the policy that scored, always


def test_every_call_counts():
    loss, buffer = PolicyLoss(), MetricBuffer()
    observe_loss(loss, buffer)
    outcome(loss)
    single = torch.zeros(1, 4)  # covariance 0, ratio 1
    loss(single, single, single, action_mask=torch.ones(1, 4))
    values = buffer.reduce(lambda tensor, op: tensor)
    assert values["ppo/clip_frac"] == 0.375  # 3 / 8


# Upstream's replay buffer: samples without padding; (log-probs, advantages, entropies) of their tokens
def item(number, tokens, score=1.0):
    log_probs, advantages, entropy = torch.tensor(tokens).T
    return SimpleNamespace(
        action_log_probs=log_probs,
        advantages=advantages,
        entropy=entropy,
        action_mask=torch.ones(len(tokens), dtype=torch.long),
        scores=None if score is None else torch.tensor(score),
        info={"sample_id": torch.tensor(number)},
    )


ITEMS = [
    item(3, [(-1.0, 1.0, 0.5), (-3.0, 1.0, 1.0)]),
    item(0, [(-4.0, -2.0, 2.0)], score=0.0),
    item(1, [(-1.0, 0.0, 0.0), (-1.0, 3.0, 0.25), (-2.0, -3.0, 1.5)], score=None),
]


def test_a_rollout_is_the_padded_replay_buffer():
    rollout = rollout_of(ITEMS, "cpu")
    assert rollout.action_mask.tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
    assert rollout.entropy.tolist() == [[0.5, 1.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.25, 1.5]]
    assert rollout.sample_ids.tolist() == [3, 0, 1]
    assert rollout.scores[:2].tolist() == [1.0, 0.0]
    assert rollout.scores[2].isnan()


SHAPES = [torch.tensor([2, 5]), torch.tensor([[2], [5]]), [torch.tensor(2), torch.tensor(5)]]


@pytest.mark.parametrize("ids", [*SHAPES, [torch.tensor([2]), torch.tensor([5])]])
def test_sample_ids_in_any_shape_that_upstream_makes(ids):
    assert sample_ids({"sample_id": ids}).tolist() == [2, 5]


def test_a_step_from_start_to_finish():
    diagnostics = StepDiagnostics(MetricBuffer(), samples_per_prompt=2)
    diagnostics.start(ITEMS, "cpu")
    # update 7 selects the first token of sample 1 and the second of sample 3, 8 nothing, 9 the first again
    ids, mask = torch.tensor([1, 3]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    first = torch.tensor([[1, 0, 0], [0, 1, 1]]).bool()  # the last one lies on padding
    diagnostics.observe(ids, mask, first, update=7)
    diagnostics.observe(torch.tensor([0]), torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.bool), update=7)
    diagnostics.observe(ids, mask, None, update=8)
    diagnostics.observe(ids[:1], mask[:1], first[:1], update=9)
    assert diagnostics.selected.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0]]
    values = diagnostics.finish(eta=0.5)
    assert values["cov/empty_update_frac"] == pytest.approx(1 / 3)
    assert values["entropy/selected"] == 0.5  # (1 + 0) / 2
    assert values["entropy/unselected"] == pytest.approx(4.25 / 4)  # 0.5 + 2 + 0.25 + 1.5
    assert values["cov/mean"] == pytest.approx(7 / 6)  # means -2 and 0: 1 - 1 + 4 + 0 + 3 + 0
    assert values["entropy/delta_theorem2"] == pytest.approx(-0.5 * 7 / 6)
    diagnostics.start(ITEMS[:1], "cpu")
    assert not diagnostics.selected.any()
    values = diagnostics.finish(eta=0.5)
    assert values["entropy/delta"] == pytest.approx(0.75 - 5.25 / 6)
    assert math.isnan(values["cov/empty_update_frac"])  # no update


@pytest.mark.parametrize("parts", [[ITEMS[:1], ITEMS[1:]], [ITEMS[1:2], ITEMS[2:], ITEMS[:1]]])
def test_ranks_log_what_one_rank_logs(simulated, parts):
    def work(items, ranks):
        diagnostics = StepDiagnostics(MetricBuffer(), samples_per_prompt=2, ranks=ranks)
        diagnostics.start(items, "cpu")
        ids, mask = diagnostics.rollout.sample_ids, diagnostics.rollout.action_mask
        diagnostics.observe(ids, mask, mask & (ids == 1)[:, None], update=0)
        return diagnostics.finish(eta=1.0)

    (expected,) = simulated(1).run(work, [ITEMS])
    for values in simulated(len(parts)).run(work, parts):
        assert values == pytest.approx(expected, nan_ok=True, rel=1e-12)
    assert expected["cov/empty_update_frac"] == 0  # although ranks without sample 1 select nothing


def test_reducing_over_the_data_parallel_ranks():
    reduce = all_reduce_over(Ranks(lambda tensor: 2 * tensor, lambda tensor: torch.cat([tensor, tensor + 1])), "cpu")
    assert reduce(torch.tensor([1.0, 2.0]), "sum").tolist() == [2.0, 4.0]
    assert reduce(torch.tensor([1.0, 2.0]), "max").tolist() == [2.0, 3.0]


class StubTrainer:
    """Upstream's ``ActorPPOTrainer`` and its DeepSpeed engine: one update per step."""

    def __init__(self, loss):
        self.actor_loss_fn = loss
        self.actor = SimpleNamespace(model=SimpleNamespace(global_steps=4))
        self.log_probs = torch.tensor([[-1.0, -3.0, 0.0], [-1.0, -1.0, -2.0]], requires_grad=True)

    def training_step(self, experience, kl_ctl, step=None):
        tensors = self.log_probs, OLD_OF_STEP, ADVANTAGES_OF_STEP
        loss, *_ = self.actor_loss_fn(*tensors, action_mask=experience.action_mask)
        loss.backward()
        self.actor.model.global_steps += 1
        return {"loss": loss.item(), "kl_ctl": kl_ctl, "step": step}


def global_kl_cov():
    return kl_cov(cov_scope="global")


OLD_OF_STEP = torch.tensor([[-1.1, -2.9, 0.0], [-1.0, -1.3, -2.0]])
ADVANTAGES_OF_STEP = torch.tensor([[1.0, 1.0, 0.0], [0.0, 3.0, -3.0]])


@pytest.mark.parametrize("make_loss", [PolicyLoss, global_kl_cov])
def test_the_diagnostics_change_neither_loss_nor_gradient(make_loss):
    def train(observed):
        torch.manual_seed(0)
        trainer = StubTrainer(make_loss())
        if isinstance(trainer.actor_loss_fn, MethodLoss):
            trainer.actor_loss_fn.plans = [Plan(torch.tensor([[False, True, False], [True, False, False]]))]
        diagnostics = StepDiagnostics(MetricBuffer(), samples_per_prompt=2)
        if observed:
            observe_loss(trainer.actor_loss_fn, diagnostics.metrics)
            observe_training(trainer, diagnostics)
            diagnostics.start(ITEMS, "cpu")
        info = {"sample_id": [torch.tensor(3), torch.tensor(1)]}
        experience = SimpleNamespace(info=info, action_mask=torch.tensor([[1, 1, 0], [1, 1, 1]]))
        status = trainer.training_step(experience, 0.25, step=9)
        values = diagnostics.finish(eta=1.0) if observed else {}
        return (status, trainer.log_probs.grad.tolist(), torch.rand(3).tolist()), values

    seen, values = train(observed=True)
    plain, _ = train(observed=False)
    assert seen == plain
    assert seen[0].items() >= {"kl_ctl": 0.25, "step": 9}.items()
    assert values["cov/selected_count"] == (2 if make_loss is global_kl_cov else 0)
    assert values["cov/empty_update_frac"] == (0 if make_loss is global_kl_cov else 1)
    assert math.isnan(values["entropy/selected"]) == (make_loss is PolicyLoss)
