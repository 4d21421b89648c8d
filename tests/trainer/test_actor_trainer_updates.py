"""All updates of a global step, by upstream's own ``ppo_train`` and replay buffer: a policy of 6 numbers learns."""

import math
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import PolicyLoss, aggregate_loss
from openrlhf.trainer.ppo_utils.experience import Experience, balance_experiences
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from torch import nn
from transformers import GPT2Config, LlamaConfig, MixtralConfig

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.loss import MethodLoss
from openrlhf_cov.models.window import ALONE
from openrlhf_cov.trainer.actor_model import draws_in_training
from openrlhf_cov.trainer.actor_trainer import CovActorTrainer, StepLoader

pytestmark = pytest.mark.usefixtures("one_process", "loader")


@pytest.fixture
def loader(monkeypatch):
    monkeypatch.setattr("openrlhf.trainer.ray.ppo_actor.DataLoader", StepLoader)


SAMPLES, VOCABULARY, LEARNING_RATE = 8, 6, 20.0
LOGGED = {"cov/empty_update_frac": 0.0, "cov/selected_abs_log_ratio": 1.0}


class Unigrams(nn.Module):
    """Upstream's ``Actor`` around a policy without context; its DeepSpeed engine keeps gradients until it steps."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.linspace(-1, 1, VOCABULARY))
        self.model = SimpleNamespace(set_gradient_accumulation_boundary=self.note_boundary, global_steps=0)
        self.questions = 0

    def forward(self, sequences, action_mask, attention_mask, return_output=False, ring_attn_group=None, **options):
        log_probs = self.logits.log_softmax(0)[sequences[:, 1:]] * action_mask
        self.questions += not torch.is_grad_enabled()
        return (log_probs, SimpleNamespace()) if return_output else log_probs

    def note_boundary(self, ends):
        self.ends = ends


class Strategy:
    """The calls of upstream's ``DeepspeedStrategy`` that training makes, with plain gradient descent."""

    seed, ring_attn_group = 42, None
    ds_device_mesh = {"dp": SimpleNamespace(get_group=lambda: None)}  # noqa: RUF012

    def __init__(self, args, accumulated_gradient):
        self.args, self.accumulated_gradient, self.backwards, self.updates = args, accumulated_gradient, 0, 0

    def at_boundary(self):
        return (self.backwards + 1) % self.accumulated_gradient == 0

    def is_rank_0(self):
        return False

    def all_reduce(self, data, op="mean"):
        return data

    def backward(self, loss, actor, optimizer):
        (loss / self.accumulated_gradient).backward()  # as DeepSpeed does
        self.backwards += 1

    def optimizer_step(self, optimizer, actor, scheduler, name):
        if self.args.train.dynamic_batch_enable:
            assert actor.ends
        elif self.backwards % self.accumulated_gradient:
            return
        with torch.no_grad():
            actor.logits -= LEARNING_RATE * actor.logits.grad
        actor.logits.grad, self.updates = None, self.updates + 1

    def get_grad_norm(self, actor):
        return 0.0


def rollouts():
    """Single samples of 3 to 9 tokens, the first a prompt, as the controller numbers them; lengths differ."""
    generator, samples = torch.Generator().manual_seed(0), []
    log_probs = Unigrams().logits.detach().log_softmax(0)
    for number in range(SAMPLES):
        sequences = torch.randint(0, VOCABULARY, (1, 3 + number * 6 // (SAMPLES - 1)), generator=generator)
        action_mask = torch.ones_like(sequences[:, 1:])
        length = torch.tensor([float(sequences.numel())])
        samples.append(
            Experience(
                sequences=sequences,
                attention_mask=torch.ones_like(sequences),
                action_mask=action_mask,
                action_log_probs=log_probs[sequences[:, 1:]],
                advantages=action_mask * (1.5 if number % 3 == 0 else -0.5),
                total_length=length,
                index=[number],
                info={"reward": torch.tensor([1.0]), "sample_id": torch.tensor([number])},
            )
        )
    return samples


def make_trainer(config, micro_batch, dynamic=False, epochs=2, kind=CovActorTrainer):
    """A trainer with everything that upstream's ``ppo_train`` reads; its buffer holds the rollouts."""
    args = SimpleNamespace(
        train=SimpleNamespace(
            dynamic_batch_enable=dynamic,
            batch_size=SAMPLES,
            max_tokens_per_gpu=14,
            micro_batch_size=micro_batch,
            seed=42,
        ),
        rollout=SimpleNamespace(batch_size=SAMPLES, n_samples_per_prompt=1),
        actor=SimpleNamespace(entropy_coef=None, num_nodes=1, num_gpus_per_node=1),
        algo=SimpleNamespace(kl=SimpleNamespace(use_loss=False)),
        ds=SimpleNamespace(tensor_parallel_size=1, ring_attn_size=1),
    )
    trainer, loss = object.__new__(kind), PolicyLoss(math.inf, math.inf)
    if kind is CovActorTrainer:
        loss = MethodLoss(config, policy_loss=loss, aggregate=aggregate_loss)
        books = SimpleNamespace(
            start=lambda *_: None, observe=lambda *_: None, finish=lambda eta: LOGGED, mean_entropy=None
        )
        bad_updates = SimpleNamespace(total=0, check=lambda *_: None)
        vars(trainer).update(
            config=config,
            diagnostics=books,
            bad_updates=bad_updates,
            ranks=ALONE,
            _plans={},
            _draws_in_training=False,
            warned=set(),
        )
    vars(trainer).update(
        args=args, strategy=Strategy(args, 1 if dynamic else SAMPLES // micro_batch), actor=Unigrams(),
        actor_loss_fn=loss, actor_optim=None, ema_model=None, aux_loss=False, max_epochs=epochs,
        actor_scheduler=SimpleNamespace(get_last_lr=lambda: [0.0]), dataloader_pin_memory=False, global_step=3,
        replay_buffer=NaiveReplayBuffer(micro_batch, dynamic_batch=dynamic),
    )  # fmt: skip
    trainer.actor.model.is_gradient_accumulation_boundary = trainer.strategy.at_boundary
    samples = rollouts()
    batches = balance_experiences(samples, args) if dynamic else [
        Experience.concat_experiences(samples[:5], 0), Experience.concat_experiences(samples[5:], 0),
    ]  # fmt: skip
    for batch in batches:
        trainer.replay_buffer.append(batch)
    return trainer


def train(trainer):
    """[{(sample id, position)} restrained in each update]."""
    restrained, step, updates = [set()], trainer.training_step, trainer.strategy.updates

    def recording(experience, *args):
        status = step(experience, *args)
        ids = [int(number) for number in experience.info["sample_id"]]
        restrained[-1] |= {(ids[row], t) for row, t in trainer.actor_loss_fn.record.selected.nonzero().tolist()}
        if trainer.strategy.updates - updates == len(restrained):
            restrained.append(set())
        return status

    trainer.training_step = recording
    torch.manual_seed(0)  # upstream shuffles
    status = trainer.ppo_train(0.0)
    del trainer.training_step
    assert math.isfinite(status["policy_loss"])
    assert restrained.pop() == set()
    return restrained


CONFIGS = {
    "kl_cov": CovConfig(cov_type="kl_cov", kl_cov_ratio=0.2, ppo_kl_coef=0.5, allow_large_cov_ratio=True),
    "clip_cov": CovConfig(cov_type="clip_cov", clip_cov_ratio=0.2, clip_cov_lb=0.01, allow_large_cov_ratio=True),
}
TOKENS = sum(sample.action_mask.sum().item() for sample in rollouts())


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_updates_do_not_depend_on_the_micro_batches(config):
    reference = make_trainer(config, micro_batch=SAMPLES)
    expected = train(reference)
    assert [len(restrained) for restrained in expected] == [int(0.2 * TOKENS)] * 2
    assert expected[0] != expected[1]  # the policy moved, lots are drawn from other candidates
    for layout in ({"micro_batch": 1}, {"micro_batch": 2}, {"micro_batch": 4}, {"micro_batch": 1, "dynamic": True}):
        trainer = make_trainer(config, **layout)
        assert train(trainer) == expected, layout
        assert trainer.strategy.updates == 2
        # two updates of some 40 token gradients in float32, added in another order
        torch.testing.assert_close(trainer.actor.logits, reference.actor.logits, rtol=1e-5, atol=1e-6)
    assert trainer.strategy.backwards > 4  # dynamic: several micro-batches per update


def updates_of_epochs(epochs, batch_size, seed=42):
    """The sample ids of every update, in the order of training."""
    trainer = make_trainer(CovConfig(), micro_batch=1, dynamic=True, epochs=epochs)
    trainer.args.train.batch_size, trainer.args.train.seed = batch_size, seed
    updates, step = [[]], trainer.training_step

    def recording(experience, kl_ctl, number, *args):
        ends = trainer.ends_step(number)  # of this epoch: its end makes the next one
        status = step(experience, kl_ctl, number, *args)
        updates[-1] += [int(sample) for sample in experience.info["sample_id"]]
        if ends:
            updates.append([])
        return status

    trainer.training_step = recording
    trainer.ppo_train(0.0)
    assert updates.pop() == []
    return [sorted(update) for update in updates]


@pytest.mark.parametrize(("batch_size", "count"), [(2, 4), (4, 2), (3, 2)])
def test_every_epoch_has_its_own_dynamic_updates(batch_size, count):
    # as static batches, which upstream shuffles in every epoch; 3: two samples of 8 make no update
    updates = updates_of_epochs(3, batch_size)
    epochs = [updates[first : first + count] for first in (0, count, 2 * count)]
    assert len(updates) == 3 * count
    trained = sorted(chain.from_iterable(epochs[0]))
    assert len(trained) == batch_size * count
    for epoch in epochs:
        assert sorted(chain.from_iterable(epoch)) == trained  # each sample once, and the same ones
        assert [len(update) for update in epoch] == [batch_size] * count
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert updates_of_epochs(3, batch_size) == updates
    assert updates_of_epochs(1, batch_size) == epochs[0]
    assert updates_of_epochs(3, batch_size, seed=43)[:count] == epochs[0]  # the controller orders the first one
    assert updates_of_epochs(3, batch_size, seed=43) != updates


def test_the_policy_is_asked_from_the_second_update_on():
    for scope, questions in ({}, 2), ({"cov_log_probs": "old"}, 0), ({"cov_scope": "micro_batch"}, 0):
        config = CovConfig(cov_type="kl_cov", **scope)
        trainer = make_trainer(config, micro_batch=4)
        train(trainer)
        assert trainer.actor.questions == questions  # two micro-batches of the second epoch
    trainer = make_trainer(CovConfig(cov_type="kl_cov"), micro_batch=4)
    for asked in (2, 4):  # the next global step starts anew
        train(trainer)
        assert trainer.actor.questions == asked


def test_one_micro_batch_is_planned_by_the_forward_pass_that_trains_it():
    config = CONFIGS["clip_cov"]
    trainer, asking = make_trainer(config, micro_batch=SAMPLES), make_trainer(config, micro_batch=SAMPLES)
    asking._draws_in_training = True  # then another pass it is, without what is drawn
    assert train(trainer) == train(asking)
    assert (trainer.actor.questions, asking.actor.questions) == (0, 1)
    assert torch.equal(trainer.actor.logits, asking.actor.logits)


@pytest.mark.parametrize(
    ("module", "draws"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)), False),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), True),
    ],
)
def test_dropout_is_seen(module, draws):
    assert draws_in_training(nn.ModuleList([module])) is draws


@pytest.mark.parametrize(
    ("config", "draws"),
    [
        (LlamaConfig(), False),
        (LlamaConfig(attention_dropout=0.1), True),
        (GPT2Config(), True),
        (MixtralConfig(router_jitter_noise=0.01), True),
        ({"attention_dropout": 0.1}, False),  # DeepSpeed's, of its engine
    ],
)
def test_dropout_in_the_config_is_seen(config, draws):
    module = nn.Linear(2, 2)
    module.config = config
    assert draws_in_training(nn.Sequential(module)) is draws


def test_old_log_probs_select_the_same_tokens_in_every_update():
    config = CovConfig(cov_type="kl_cov", cov_log_probs="old", kl_cov_ratio=0.2, allow_large_cov_ratio=True)
    first, second = train(make_trainer(config, micro_batch=2))
    assert first == second
    assert first == train(make_trainer(CONFIGS["kl_cov"], micro_batch=2))[0]


@pytest.mark.parametrize("setting", ["current", "old"])
def test_every_fifty_steps_the_selections_by_both_policies_are_compared(setting):
    config = CovConfig(cov_type="kl_cov", cov_log_probs=setting, kl_cov_ratio=0.2, allow_large_cov_ratio=True)
    quota, passes = (
        int(0.2 * TOKENS),
        {"current": 2, "old": 0}[setting],
    )  # one for each micro-batch of the second epoch
    for step, compared in (0, 1), (1, 0), (49, 0), (50, 1):
        trainer, pairs = make_trainer(config, micro_batch=4), []
        trainer.global_step = step
        trainer.diagnostics.compare = lambda current, old, pairs=pairs: pairs.append((current, old))
        first, second = train(trainer)
        assert len(pairs) == compared  # the first update has the rollout's policy
        assert trainer.actor.questions == (2 if compared else passes)
        for current, old in pairs:
            both = sum(int((one & other).sum()) for one, other in zip(current, old, strict=True))
            assert [sum(int(mask.sum()) for mask in masks) for masks in (current, old)] == [quota, quota]
            # the rollout's log-probs select in every update what the first one selects
            by_current = second if setting == "current" else train(make_trainer(CONFIGS["kl_cov"], micro_batch=4))[1]
            assert both == len(first & by_current) < quota


def test_methods_that_do_not_look_at_log_probs_are_not_compared():
    trainer = make_trainer(CovConfig(method="top_entropy"), micro_batch=4)
    trainer.global_step = 0
    assert not trainer._compares_selections(trainer.config)


def test_the_baseline_is_upstreams(monkeypatch):
    import openrlhf.trainer.ray.ppo_actor as upstream

    baseline = make_trainer(CovConfig(), micro_batch=2)
    torch.manual_seed(0)
    baseline.ppo_train(0.0)
    plain = make_trainer(None, micro_batch=2, kind=CovActorTrainer.__bases__[-1])
    assert type(plain).__module__ == upstream.__name__  # upstream's trainer, loader and order of samples
    monkeypatch.setattr(upstream, "DataLoader", torch.utils.data.DataLoader)
    torch.manual_seed(0)
    plain.ppo_train(0.0)
    assert torch.equal(baseline.actor.logits, plain.actor.logits)
    assert baseline.actor.questions == 0


def test_micro_batches_of_a_step_are_dealt_by_prompt():
    trainer = make_trainer(CovConfig(), micro_batch=2, epochs=1)
    trainer.args.rollout.n_samples_per_prompt = 4
    trainer.actor.shares_prompts = True
    trainer.strategy.accumulated_gradient = 4
    batches = [[5, 0], [3, 6], [1, 2], [4, 7], [7, 1], [0, 4], [2, 6], [5, 3]]
    # prompts: 0 of samples 0 to 3, 1 of 4 to 7; each window of four keeps its samples and, in a prompt, their order
    dealt = [[0, 3], [1, 2], [5, 6], [4, 7], [1, 0], [2, 3], [7, 4], [6, 5]]
    assert list(trainer.deal_by_prompt(batches)) == dealt
    assert len(trainer.deal_by_prompt(batches)) == 8
    trainer.config = CovConfig(cov_scope="micro_batch")  # nothing looks at micro-batches
    assert list(trainer.deal_by_prompt(batches)) == dealt
    trainer.config = CovConfig(cov_type="kl_cov", cov_scope="micro_batch")  # it selects in them
    assert trainer.deal_by_prompt(batches) is batches
    trainer.config, trainer.strategy.accumulated_gradient = CovConfig(), 1
    assert trainer.deal_by_prompt(batches) is batches
    trainer.strategy.accumulated_gradient, trainer.actor.shares_prompts = 4, False
    assert trainer.deal_by_prompt(batches) is batches
