"""The training loop of one policy rank, on upstream's code with a stub policy and strategy: no Ray, no DeepSpeed."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import PolicyLoss, aggregate_loss
from openrlhf.trainer.ppo_utils.experience import Experience
from planned import select_step
from torch import nn

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.loss import MethodLoss
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.ranking import token_keys
from openrlhf_cov.models.window import ALONE
from openrlhf_cov.trainer.actor_trainer import CovActorTrainer

pytestmark = pytest.mark.usefixtures("one_process")


class StubPolicy(nn.Module):
    """Upstream's ``Actor``: the log-prob of token v is -weight * v. ``asked`` notes every call."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))
        self.model, self.asked = SimpleNamespace(global_steps=0), []

    def forward(self, sequences, action_mask, attention_mask, return_output=False, ring_attn_group=None, **options):
        gradient = torch.is_grad_enabled()
        self.asked.append(dict(sequences=sequences, training=self.training, gradient=gradient, options=options))
        log_probs = -self.weight * sequences[:, -action_mask.shape[1] :] * action_mask
        entropy = (self.weight.detach() * sequences)[:, :-1]  # of the next token, grows with this one
        return (log_probs, SimpleNamespace(entropy=entropy)) if return_output else log_probs


def baseline():
    return MethodLoss(CovConfig(), policy_loss=PolicyLoss(), aggregate=aggregate_loss)


def cov_loss(**settings):
    config = CovConfig(**({"cov_type": "kl_cov", "kl_cov_ratio": 0.2, "allow_large_cov_ratio": True} | settings))
    return MethodLoss(config, policy_loss=PolicyLoss(math.inf, math.inf), aggregate=aggregate_loss)


def make_trainer(loss, accumulated_gradient=1, dynamic_optimizer_step=None):
    """A trainer with what its own methods and upstream's ``training_step`` read."""
    trainer = object.__new__(CovActorTrainer)
    policy, events = StubPolicy(), []
    policy.model.set_gradient_accumulation_boundary = lambda ends: events.append(("boundary", ends))
    policy.model.is_gradient_accumulation_boundary = lambda: (
        (events.count("backward") + 1) % max(1, accumulated_gradient) == 0  # DeepSpeed's count, over all rollouts
    )
    vars(trainer).update(
        args=SimpleNamespace(
            train=SimpleNamespace(dynamic_batch_enable=dynamic_optimizer_step is not None),
            actor=SimpleNamespace(entropy_coef=None),
            algo=SimpleNamespace(kl=SimpleNamespace(use_loss=False)),
        ),
        strategy=SimpleNamespace(
            accumulated_gradient=accumulated_gradient,
            seed=42,
            ring_attn_group=None,
            ds_device_mesh={"dp": SimpleNamespace(get_group=lambda: None)},
            backward=lambda *args: events.append("backward"),
            optimizer_step=lambda *args, **kwargs: events.append("update"),
            get_grad_norm=lambda actor: 0.0,
            is_rank_0=lambda: True,
        ),
        actor=policy, actor_loss_fn=loss, actor_optim=None, ema_model=None, aux_loss=False,
        actor_scheduler=SimpleNamespace(get_last_lr=lambda: [0.0]),
        replay_buffer=SimpleNamespace(
            dynamic_optimizer_step=dynamic_optimizer_step,
            dynamic_batch_num_tokens=[4.0] * 9,
            dynamic_global_batch_size=[2.0] * 9,
            items=[], sample_batch_size=2, dynamic_indices=[],
        ),
        ranks=ALONE, bad_updates=SimpleNamespace(check=lambda *args: None), events=events, _plans={},
        _draws_in_training=True,  # so that one micro-batch, too, is planned before it is trained on
        global_step=5,
        diagnostics=SimpleNamespace(observe=lambda ids, record: events.append("seen"), mean_entropy=None),
    )  # fmt: skip
    return trainer


def micro_batches(count, rows=2, columns=5):
    """Experiences with random tokens; samples are numbered in order, as the replay buffer hands them out."""
    generator, numbers, made = torch.Generator().manual_seed(0), itertools.count(), []
    for _ in range(count):
        sequences = torch.randint(0, 7, (rows, columns + 2), generator=generator)
        action_mask = torch.rand(rows, columns, generator=generator) < 0.8
        made.append(
            Experience(
                sequences=sequences,
                attention_mask=torch.ones_like(sequences),
                action_mask=action_mask,
                action_log_probs=-sequences[:, -columns:].float() * action_mask,
                advantages=torch.randn(rows, 1, generator=generator).expand(rows, columns) * action_mask,
                info={"sample_id": [torch.tensor(next(numbers)) for _ in range(rows)]},
            )
        )
    return made


def expected_masks(window, config, log_probs=None):
    """What ``select_step`` finds in these experiences, with the keys of seed 42, step 5 and their sample ids."""
    batches, keys = [], []
    for i, experience in enumerate(window):
        current = experience.action_log_probs if log_probs is None else log_probs[i]
        batches.append(TokenBatch(current, experience.action_log_probs, experience.advantages, experience.action_mask))
        ids = torch.tensor([int(number) for number in experience.info["sample_id"]])
        keys.append(token_keys(42, 5, ids, experience.action_mask.shape[1]))
    return select_step(batches, keys, config, (math.inf, math.inf))


def windows_of(trainer, experiences):
    """(Sizes of the groups that were planned at once, masks); everything comes out once, in order, planned."""
    sizes = []
    trainer._plans.clear()
    for number, experience in enumerate(trainer.plan_each_step(iter(experiences))):
        assert experience is experiences[number]
        ready = len(trainer._plans)
        assert ready > number
        sizes += [ready - sum(sizes)] if ready > sum(sizes) else []
    assert [*trainer._plans] == [*range(len(experiences))]
    return sizes, [plan.tokens for (plan,) in trainer._plans.values()]


@pytest.mark.parametrize(
    ("accumulated_gradient", "sizes"), [(1, [1] * 6), (2, [2, 2, 2]), (3, [3, 3]), (6, [6]), (0, [1] * 6)]
)
def test_micro_batches_of_one_update_are_selected_together(accumulated_gradient, sizes):
    loss, experiences = cov_loss(), micro_batches(6)
    found, masks = windows_of(make_trainer(loss, accumulated_gradient), experiences)
    assert found == sizes
    start = 0
    for size in sizes:
        window = slice(start, start + size)
        assert all(map(torch.equal, masks[window], expected_masks(experiences[window], loss.config)))
        start += size
    if accumulated_gradient > 1:  # the masks are not those of each micro-batch alone
        alone = [expected_masks([experience], loss.config)[0] for experience in experiences]
        assert not all(map(torch.equal, masks, alone))


@pytest.mark.parametrize(
    ("ends", "sizes"), [([0, 1, 1, 0, 0, 1], [2, 1, 3]), ([1, 1, 1, 1, 1, 1], [1] * 6), ([0, 0, 0, 0, 0, 1], [6])]
)
def test_dynamic_micro_batches_of_one_update_are_selected_together(ends, sizes):
    trainer = make_trainer(cov_loss(), accumulated_gradient=4, dynamic_optimizer_step=ends)
    assert windows_of(trainer, micro_batches(6))[0] == sizes


def test_no_micro_batch_nothing_to_select():
    assert list(make_trainer(cov_loss(), 2).plan_each_step(iter([]))) == []


def test_the_number_of_a_sample_decides_not_its_place():
    loss = cov_loss(cov_type="clip_cov", clip_cov_ratio=0.3, clip_cov_lb=-99.0, clip_cov_ub=99.0)
    (_, masks), (_, swapped) = (windows_of(make_trainer(loss, 2), micro_batches(2)[::way]) for way in (1, -1))
    assert all(map(torch.equal, masks, reversed(swapped)))


def test_the_policy_is_asked_again_only_after_an_update():
    trainer, experiences, asked = make_trainer(cov_loss(), 2), micro_batches(6), []
    for _ in trainer.plan_each_step(iter(experiences)):
        asked.append(len(trainer.actor.asked))
        assert trainer.actor.training
    assert asked == [0, 0, 2, 2, 4, 4]
    for call, experience in zip(trainer.actor.asked, experiences[2:], strict=True):
        assert call["sequences"] is experience.sequences
        assert not call["training"]
        assert not call["gradient"]
    windows_of(trainer, micro_batches(2))  # the next epoch
    assert len(trainer.actor.asked) == 6


def test_images_go_with_the_text():
    trainer, (experience,) = make_trainer(cov_loss()), micro_batches(1)
    trainer.policy_moved = trainer.actor.is_vlm = True
    experience.mm_train_inputs = [{"pixel_values": torch.ones(1, 3)}, {"pixel_values": torch.zeros(1, 3)}]
    list(trainer.plan_each_step(iter([experience])))
    assert trainer.actor.asked[0]["options"]["pixel_values"].tolist() == [[1.0] * 3, [0.0] * 3]


def test_the_answer_of_the_moved_policy_decides():
    loss, experiences = cov_loss(), micro_batches(4)
    trainer = make_trainer(loss, 2)
    for number, _ in enumerate(trainer.plan_each_step(iter(experiences))):
        if number == 1:  # the update
            trainer.actor.weight.data = torch.tensor(-3.0)
    moved = [-3.0 * experience.action_log_probs for experience in experiences[2:]]
    current = expected_masks(experiences[2:], loss.config, log_probs=moved)
    stale = expected_masks(experiences[2:], loss.config)
    assert all(torch.equal(trainer._plans[number][0].tokens, mask) for number, mask in enumerate(current, start=2))
    assert not all(map(torch.equal, current, stale))


def test_old_log_probs_never_ask_the_policy():
    loss, experiences = cov_loss(cov_log_probs="old"), micro_batches(4)
    trainer = make_trainer(loss, 2)
    _, masks = windows_of(trainer, experiences)
    assert trainer.actor.asked == []
    assert all(map(torch.equal, masks[2:], expected_masks(experiences[2:], loss.config)))


@pytest.mark.parametrize("cov_type", ["none", "kl_cov"])
@pytest.mark.parametrize("log_probs", ["current", "old"])
@pytest.mark.parametrize("entropies", ["current", "old"])
@pytest.mark.parametrize("moved", [False, True])
def test_the_window_holds_what_the_methods_ask_for(moved, entropies, log_probs, cov_type):
    asked = {
        "cov_type": cov_type,
        "method": "top_entropy",
        "cov_log_probs": log_probs,
        "top_entropy_policy": entropies,
    }
    trainer = make_trainer(cov_loss(**asked), 1)
    trainer.policy_moved, trainer.actor.weight.data = moved, torch.tensor(3.0)
    (experience,) = micro_batches(1)
    found, entropy = trainer._policy_now(experience, torch.full((2, 5), 7.0), trainer.actor_loss_fn.config)

    old = experience.action_log_probs
    current = moved and cov_type == "kl_cov" and log_probs == "current"
    assert torch.equal(found, 3.0 * old if current else old)
    measured = moved and entropies == "current"
    # columns 1 to 5 of 7: the five actions are the last ones, and an entropy is that of the token after it
    expected = 3.0 * experience.sequences[:, 1:-1] if measured else torch.full((2, 5), 7.0)
    assert torch.equal(entropy, expected)
    assert len(trainer.actor.asked) == (current or measured)  # one forward serves both
    assert not any(call["gradient"] for call in trainer.actor.asked)


@pytest.mark.parametrize(
    ("policy", "moved", "dropped"),
    [
        ("old", False, [1, 0, 0, 1, 1]),
        ("old", True, [1, 0, 0, 1, 1]),
        ("current", False, [1, 0, 0, 1, 1]),
        ("current", True, [0, 1, 1, 0, 1]),
    ],
)
def test_the_entropies_that_a_method_asks_for_decide_which_tokens_train(policy, moved, dropped):
    # floor(0.4 * 5) = 2 tokens train: of the rollout's entropies, 0.5, 1.5, 2, 0.2 and 1 nats, those of 2 and 1.5; of
    # what the policy has now, 3, 0, 1, 4 and 2 nats, the number of the token before, those of 4 and 3
    config = CovConfig(method="top_entropy", top_entropy_frac=0.4, top_entropy_policy=policy)
    trainer = make_trainer(MethodLoss(config, policy_loss=PolicyLoss(), aggregate=aggregate_loss))
    trainer.policy_moved = moved
    trainer.diagnostics.entropies = lambda ids, width: torch.tensor([[0.5, 1.5, 2.0, 0.2, 1.0]])
    experience = Experience(
        sequences=torch.tensor([[6, 3, 0, 1, 4, 2, 5]]),
        attention_mask=torch.ones(1, 7),
        action_mask=torch.ones(1, 5),
        action_log_probs=torch.zeros(1, 5),
        advantages=torch.ones(1, 5),
        info={"sample_id": [torch.tensor(0)]},
    )
    _, (tokens,) = windows_of(trainer, [experience])
    assert tokens.int().tolist() == [dropped]
    assert len(trainer.actor.asked) == (moved and policy == "current")


def test_a_policy_that_fails_is_left_in_training_mode():
    trainer = make_trainer(cov_loss())
    trainer.policy_moved = True
    (experience,) = micro_batches(1)
    experience.attention_mask = experience.sequences = None
    with pytest.raises(TypeError):
        list(trainer.plan_each_step(iter([experience])))
    assert trainer.actor.training


@pytest.mark.parametrize("make_loss", [baseline, lambda: cov_loss(cov_scope="micro_batch")])
def test_without_global_selection_micro_batches_pass_untouched(make_loss):
    trainer, experiences, taken = make_trainer(make_loss(), 2), micro_batches(3), []
    source = (taken.append(number) or experience for number, experience in enumerate(experiences))
    before = [dict(vars(experience)) for experience in experiences]
    for number, experience in enumerate(trainer.plan_each_step(source)):
        assert experience is experiences[number]
        assert taken == list(range(number + 1))  # nothing is held back
    assert [vars(experience) for experience in experiences] == before
    assert trainer.actor.asked == []


def test_the_step_hands_the_plans_to_the_loss_and_the_record_to_the_diagnostics():
    loss, (experience,) = cov_loss(), micro_batches(1)
    trainer, plans, seen = make_trainer(loss), [Plan(torch.zeros(2, 5, dtype=torch.bool))], []
    trainer.actor.model.global_steps = 8
    trainer._plans[3] = plans
    trainer.diagnostics.observe = lambda ids, record: seen.append((ids.tolist(), record))
    status = trainer.training_step(experience, 0.0, 3)
    ((ids, record),) = seen
    assert (ids, record.plans, record.update) == ([0, 1], plans, 8)
    assert torch.equal(record.batch.log_probs, experience.action_log_probs)
    assert not record.batch.log_probs.requires_grad
    assert trainer._plans == {}
    assert trainer.events == ["backward", "update"]
    assert "policy_loss" in status["metrics"]


@pytest.mark.parametrize("make_loss", [baseline, lambda: cov_loss(cov_scope="micro_batch")])
def test_without_global_selection_the_step_needs_no_mask(make_loss):
    loss, (experience,) = make_loss(), micro_batches(1)
    make_trainer(loss).training_step(experience, 0.0, 0)
    assert bool(loss.record.plans) == bool(loss.config.methods)


@pytest.mark.parametrize("make_loss", [baseline, cov_loss])
def test_dynamic_steps_tell_deepspeed_where_they_end(make_loss):
    trainer = make_trainer(make_loss(), dynamic_optimizer_step=[0, 1, 1])
    for step, experience in enumerate(trainer.plan_each_step(iter(micro_batches(3)))):
        trainer.training_step(experience, 0.0, step, None)
    held, ends = [("boundary", False), "backward", "seen"], [("boundary", True), "backward", "update", "seen"]
    assert trainer.events == held + ends + ends


def test_with_gloo_weights_go_in_one_update():
    trainer, calls = object.__new__(CovActorTrainer), []
    model = nn.Linear(2, 3)
    sender = SimpleNamespace(
        start=lambda: calls.append("start"),
        send=lambda named: calls.append([(name, tensor.tolist()) for name, tensor in named]),
        finish=lambda: calls.append("finish"),
    )
    vars(trainer).update(
        args=SimpleNamespace(vllm=SimpleNamespace(sync_backend="gloo"), ds=SimpleNamespace(zero_stage=2)),
        actor=SimpleNamespace(model=SimpleNamespace(module=model)),
        sender=sender,
    )
    trainer.broadcast_to_vllm()
    assert calls == ["start", [(name, param.tolist()) for name, param in model.named_parameters()], "finish"]
    trainer.sender = None  # the other ranks
    trainer.broadcast_to_vllm()
    assert calls[2:] == ["finish"]
