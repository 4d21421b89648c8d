"""A GPU's rules without a GPU: all that a rank computes in a step runs on tensors that have a device and no values.

PyTorch's fake tensors know shapes, types and devices. What mixes devices raises, and so does what makes the host wait
for a value or a shape, beyond the reads that a test allows and counts.
"""

import inspect
import math
import pkgutil
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from gpu import BrokenRule, GpuGenerator, Rules, gpu_device
from openrlhf.models import PolicyLoss, aggregate_loss
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch
from planned import select_step
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode

from openrlhf_cov import models
from openrlhf_cov.models import covariance, diagnostics, method, ranking, responses, rollout, token_head, window
from openrlhf_cov.models import loss as loss_module
from openrlhf_cov.models import methods as registry
from openrlhf_cov.models import shared_prompts as sharing
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.diagnostics import update_metrics
from openrlhf_cov.models.loss import LossRecord, MethodLoss
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.ranking import token_keys
from openrlhf_cov.models.window import Ranks
from openrlhf_cov.trainer import bad_updates, observation
from openrlhf_cov.trainer import ranks as collectives
from openrlhf_cov.trainer.actor_trainer import CovActorTrainer
from openrlhf_cov.trainer.bad_updates import gradient_of, gradients_are_finite
from openrlhf_cov.trainer.observation import StepDiagnostics
from openrlhf_cov.trainer.sample_info import SAMPLE_ID, sample_ids
from openrlhf_cov.utils import masked, metrics, ordering
from openrlhf_cov.utils.metrics import Max

MODULES = (
    *(covariance, diagnostics, loss_module, method, ranking, responses, rollout, sharing, token_head, window),
    *registry.MODULES,
    *(observation, collectives, masked, metrics, ordering),
)
"""Modules whose public functions a rank calls in a step."""

ON_THE_HOST = {
    "of settings": "adaptive_entropy.bonus",
    "of flags": "method.Method.has psr.mean_of_tokens method.Method.clip_of",
    "of the values that were logged": "clip_cov.idle kl_cov.idle method.Method.idle",
    "on the controller": (
        "entrocraft.estimate nsr.estimate passk.estimate psr.estimate qae.estimate w_reinforce.estimate "
        "passk.advantages responses.group_normalised responses.are_equal responses.right responses.is_two_valued "
        "responses.normalised_among responses.leave_one_out_among responses.apart_among responses.mean_among"
    ),
    "the collectives of torch.distributed, which take what the rules check in `ranks`": "ranks.ranks_of",
}
"""Why -> public functions that need not be called below, beside ``refuses``, which looks at flags."""


@pytest.fixture(scope="module")
def device():
    return gpu_device()


@pytest.fixture
def rules(device, monkeypatch):
    """Context manager: the rules hold, with this number of reads, all of which must happen."""
    monkeypatch.setattr(torch, "Generator", GpuGenerator)
    fakes = FakeTensorMode(allow_non_fake_inputs=False)

    @contextmanager
    def hold(reads=0):
        # autograd's threads for devices began with the first backward of this process, when there was none
        with torch.autograd.set_multithreading_enabled(False), fakes, Rules(reads) as mode:
            yield device
            assert mode.left == 0

    return hold


@pytest.fixture
def ranks(device):
    """Two ranks with equal tensors, which must be on the device and as long as on the other rank."""

    def checked(tensor):
        assert isinstance(tensor, FakeTensor)
        assert tensor.device == device
        return tensor

    def all_gather(tensor):
        assert tensor.dim() == 1
        return torch.cat([checked(tensor)] * 2)

    return Ranks(lambda tensor: checked(tensor) * 2, all_gather)


BROKEN = {
    "two devices": lambda x: x + torch.zeros(3, 4),
    "concatenated": lambda x: torch.cat([x, torch.zeros(3, 4)]),
    "an index of the CPU": lambda x: x[torch.zeros(2, dtype=torch.long)],
    "an index of the GPU": lambda x: torch.zeros(3, 4)[x[0].long()],
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.any()),
    "tolist": lambda x: x.tolist(),
    "mask": lambda x: x[x > 0],
    "write by a mask": lambda x: x.__setitem__(x > 0, torch.ones(5)),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "cpu": lambda x: x.cpu(),
    "copied": lambda x: torch.zeros(3, 4).copy_(x),
    "equal": lambda x: torch.equal(x, x),
    "a generator of the CPU": lambda x: torch.rand(3, device=x.device, generator=torch.Generator("cpu")),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_a_rule_raises(rules, name):
    with rules() as device, pytest.raises((BrokenRule, DynamicOutputShapeException)):
        BROKEN[name](torch.zeros(3, 4, device=device))


@pytest.mark.parametrize("allowed", [0, 1])
def test_a_function_that_averages_on_the_host_is_found(rules, monkeypatch, allowed):
    """The mends that these rules stand for, undone: a mean of the covariance that is a number."""
    of = covariance.TokenMeans.of

    def on_the_host(*args):
        means = of(*args)
        return type(means)(float(means.log_prob), float(means.advantage))

    monkeypatch.setattr(covariance.TokenMeans, "of", on_the_host)
    with rules(allowed) as device:
        tokens = batch(device)
        with pytest.raises(BrokenRule, match="host reads"):
            covariance.token_covariance(tokens.log_probs, tokens.advantages, tokens.action_mask)


# --- what a step consists of


def batch(device, rows=4, columns=8):
    """Tokens of a micro-batch."""
    floats = (torch.rand(rows, columns, device=device) for _ in range(3))
    return TokenBatch(*floats, torch.ones(rows, columns, dtype=torch.bool, device=device))


def make_loss(name, scope="global", **correction):
    low, high = (0.2, 0.28) if name in ("clip_cov", "top_entropy") else (math.inf, math.inf)
    ratios = {"clip_cov_ratio": 0.1, "kl_cov_ratio": 0.1, "clip_cov_lb": -9.0, "clip_cov_ub": 9.0}
    config = CovConfig(method=name, cov_scope=scope, allow_large_cov_ratio=True, **ratios)
    return MethodLoss(config, policy_loss=PolicyLoss(low, high, **correction), aggregate=aggregate_loss)


CORRECTIONS = {
    "off": {},
    "tokens cut": dict(is_correction_level="token", is_correction_mode="clip"),
    "sequences dropped": dict(is_correction_level="seq"),
    "per sequence": dict(token_level_loss=False, dual_clip=3.0),
}


def micro_batch_step(rules, name, scope, correction):
    """The loss of a micro-batch and its metrics, forward and backward."""
    with rules() as device:
        loss, tokens = make_loss(name, scope, **CORRECTIONS[correction]), batch(device)
        loss.start_step(loss.config.at(3), 42, 3, 0)
        planned = scope == "global" and loss.config.methods[0].plan
        for update in range(2):
            plan = Plan(torch.zeros_like(tokens.action_mask), reference=tokens.old_log_probs)
            loss.expect([plan] if planned else [], update)
            log_probs = tokens.log_probs.clone().requires_grad_()
            value, *_ = loss(
                log_probs, tokens.old_log_probs, tokens.advantages, action_mask=tokens.action_mask,
                rollout_log_probs=tokens.old_log_probs, dp_size=2, batch_num_tokens=64.0, global_batch_size=8.0,
            )  # fmt: skip
            value.backward()
            assert log_probs.grad.device == value.device == loss.record.advantages.device == device
            update_metrics(loss.record)


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("scope", ["global", "micro_batch"])
@pytest.mark.parametrize("name", METHODS)
def test_a_micro_batch(rules, name, scope, correction):
    if scope == "micro_batch" and METHODS[name].plan and not METHODS[name].by_covariance:
        scope = "global"  # it is made for a window
    micro_batch_step(rules, name, scope, correction)


@pytest.mark.parametrize("kind", ["ppo", "gspo"])
def test_upstreams_loss_is_observed(rules, kind):
    with rules() as device:
        loss = MethodLoss(CovConfig(), policy_loss=PolicyLoss(policy_loss_type=kind), aggregate=None)
        tokens = batch(device)
        loss(tokens.log_probs, tokens.old_log_probs, tokens.advantages, action_mask=tokens.action_mask)
        update_metrics(loss.record)


QUOTAS = ("clip_cov", "kl_cov", "top_entropy", "random_drop", "stare", "lp_reg")


def selection_of_a_step(rules, ranks, name):
    """A quota is read: how many scores are sent is a shape."""
    with rules(reads=int(name in QUOTAS)) as device:
        loss, step = make_loss(name), [batch(device), batch(device, 2, 5), batch(device)]
        keys = [
            token_keys(42, 1, torch.arange(len(each.action_mask), device=device), each.action_mask.shape[1])
            for each in step
        ]
        entropies = [torch.rand_like(each.log_probs) for each in step]
        others = entropies, entropies, torch.rand((), device=device), entropies
        masks = select_step(step, keys, loss.config, loss.ppo_clip, ranks, *others)
    assert [mask.device for mask in masks] == [device] * 3
    assert [mask.shape for mask in masks] == [each.action_mask.shape for each in step]


@pytest.mark.parametrize("name", [name for name, each in METHODS.items() if each.plan])
def test_a_selection(rules, ranks, name):
    selection_of_a_step(rules, ranks, name)


def test_a_large_fraction_is_found_without_a_further_read(rules, ranks, monkeypatch):
    monkeypatch.setattr(window, "GATHERED", 1)
    selection_of_a_step(rules, ranks, "top_entropy")


def test_primitives_of_a_window(rules, ranks):
    with rules() as device:
        tokens = batch(device)
        step = window.Window([tokens], [tokens.action_mask.long()], (0.2, 0.2), ranks)
        assert step.maximum([tokens.advantages]).device == step.total([tokens.action_mask]).device == device
        assert step.mean([tokens.advantages]).device == device


def samples(count=4, columns=5):
    """What upstream's replay buffer holds on the CPU, each with its entropies."""
    found = []
    for number in range(count):
        floats = dict.fromkeys(("action_log_probs", "advantages", "returns"), torch.rand(columns - number % 2))
        mask = torch.ones(columns - number % 2, dtype=torch.bool)
        sample = Experience(
            sequences=torch.ones(columns + 1 - number % 2, dtype=torch.long),
            attention_mask=torch.ones(columns + 1 - number % 2, dtype=torch.long),
            action_mask=mask, scores=None if number == 1 else torch.ones(()),
            info={SAMPLE_ID: torch.tensor(number)}, **floats,
        )  # fmt: skip
        sample.entropy = sample.proxy = torch.rand(len(mask))
        found.append(sample)
    return found


@pytest.mark.parametrize("name", ["kl_cov", "top_entropy"])
@pytest.mark.parametrize("moved", [False, True])
def test_a_window_of_the_trainer(rules, ranks, stub_actor, moved, name):
    """Reads the quota and nothing else, however many micro-batches and samples there are."""
    with rules(reads=1) as device:
        trainer, actor = object.__new__(CovActorTrainer), stub_actor()
        actor.weight = torch.nn.Parameter(torch.zeros(1, device=device))
        actor.model = SimpleNamespace(global_steps=1)
        entropies = lambda ids, width: torch.rand(len(ids), width, device=device)  # noqa: E731
        vars(trainer).update(
            diagnostics=SimpleNamespace(entropies=entropies, mean_entropy=torch.rand((), device=device)),
            actor=actor,
            actor_loss_fn=make_loss(name),
            ranks=ranks,
            strategy=SimpleNamespace(seed=42, ring_attn_group=None),
            global_step=2,
            policy_moved=moved,
        )
        step = [make_experience_batch([sample]) for sample in samples()]
        assert {plan.tokens.device for (plan,) in trainer._planned(step)} == {device}


def diagnostics_of_a_step(rules, ranks, updates=2):
    """Reads: the number of prompts at the start; sums, maxima and counts of the updates at the end."""
    with rules(reads=1) as device:
        books = StepDiagnostics(samples_per_prompt=2, ranks=ranks)
        books.start(samples(), device)
    with rules() as device:
        tokens = batch(device, 2, 5)
        for update in range(updates):
            for ids in (torch.arange(2, device=device), [torch.tensor(each, device=device) for each in (2, 3)]):
                plans = [Plan(tokens.action_mask)]
                record = LossRecord(tokens, tokens.advantages, plans, (0.2, 0.2), update=update)
                books.observe(sample_ids({SAMPLE_ID: ids}), record)
        books.compare([tokens.action_mask.bool()], [tokens.action_mask.bool()])
        assert books.entropies(torch.arange(2, device=device), 5).device == books.mean_entropy.device == device
        assert books.proxies(torch.arange(2, device=device), 5).device == device
    with rules(reads=3):
        books.metrics.add(Max("ppo/ratio_max", books.rollout.log_probs.max()))
        values = books.finish(eta=1e-6)
    assert {"entropy/mean", "cov/mean", "cov/empty_update_frac", "entropy/delta"} <= values.keys()


@pytest.mark.slow
@pytest.mark.parametrize("updates", [2, 0])
def test_the_diagnostics_of_a_step(rules, ranks, updates):
    diagnostics_of_a_step(rules, ranks, updates)


def test_entropies_of_rollouts(rules, stub_actor):
    with rules() as device:
        trainer = object.__new__(CovActorTrainer)
        trainer.actor, trainer.strategy = stub_actor(), SimpleNamespace(ring_attn_group=None)
        sequences, mask = torch.ones(2, 6, device=device), torch.ones(2, 4, device=device)
        scores = trainer.score(sequences, mask, None, None, with_entropy=True)
        assert (scores.entropy.device, scores.entropy.shape) == (device, (2, 4))


def test_log_probs_and_entropies_of_a_head(rules):
    with rules() as device:
        hidden, weight = (torch.ones(size, device=device, requires_grad=True) for size in ((4, 3), (7, 3)))
        targets = torch.ones(4, dtype=torch.long, device=device)
        log_probs, entropies = token_head.token_scores(hidden, weight, None, targets, 0.7, with_entropy=True)
        (log_probs.sum() + entropies.sum()).backward()
        assert hidden.grad.device == weight.grad.device == device
        assert token_head.min_p_scores(hidden, weight, None, targets, 0.7, 0.1).device == device


def test_samples_side_by_side(rules):
    with rules(reads=1) as device:
        sequences = torch.ones(3, 6, dtype=torch.long, device=device)
        asked = torch.ones(3, 6, dtype=torch.bool, device=device)
        layout = sharing.shared_layout(sequences, sequences, asked, 1e6)
        tensors = layout.tokens, layout.positions, layout.visible, layout.places, layout.additive(torch.bfloat16)
        assert {each.device for each in tensors} == {device}


def test_a_look_at_the_gradients(rules, device, monkeypatch):
    def all_reduce(verdict, op):
        assert verdict.device == device

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    accelerator = SimpleNamespace(current_device_name=lambda: device)
    monkeypatch.setattr(bad_updates, "get_accelerator", lambda: accelerator)
    with rules(reads=1) as device:
        parameters = [torch.nn.Parameter(torch.ones(size, device=device)) for size in (3, 5, 7)]
        for param in parameters[:2]:
            param.grad = torch.ones_like(param)
        assert gradients_are_finite(map(gradient_of, parameters)) is True


# --- nothing is left out


def public_functions():
    """Code object -> name, of every public function and method of ``MODULES``."""
    found = {}
    for module in MODULES:
        owners = [(module.__name__.split(".")[-1], vars(module))]
        owners += [
            (f"{owners[0][0]}.{name}", vars(each))
            for name, each in vars(module).items()
            if inspect.isclass(each) and each.__module__ == module.__name__
        ]
        for prefix, members in owners:
            for name, member in members.items():
                member = getattr(member, "__func__", getattr(member, "fget", member))
                function = inspect.unwrap(member) if callable(member) else None
                if inspect.isfunction(function) and function.__module__ == module.__name__ and name[0] != "_":
                    found[function.__code__] = f"{prefix}.{name}"
    return found


def test_every_module_of_models_is_there():
    """``dynamics``, ``control``: numbers of the log; ``returns``: on the controller; ``config`` holds numbers only."""
    names = {module.name for module in pkgutil.iter_modules(models.__path__)}
    names -= {"dynamics", "control", "returns", "config", "methods"}
    names |= {f"methods.{name}" for name in METHODS}
    assert {f"openrlhf_cov.models.{name}" for name in names} <= {module.__name__ for module in MODULES}


@pytest.mark.slow
def test_every_public_function_runs_under_the_rules(rules, ranks, stub_actor):
    called = set()
    sys.setprofile(lambda frame, event, arg: called.add(frame.f_code) if event == "call" else None)
    try:
        for name, each in METHODS.items():
            micro_batch_step(rules, name, "micro_batch" if each.by_covariance else "global", "off")
            if each.plan:
                selection_of_a_step(rules, ranks, name)
        test_upstreams_loss_is_observed(rules, "gspo")
        test_primitives_of_a_window(rules, ranks)
        diagnostics_of_a_step(rules, ranks)
        test_entropies_of_rollouts(rules, stub_actor)
        test_log_probs_and_entropies_of_a_head(rules)
        test_samples_side_by_side(rules)
    finally:
        sys.setprofile(None)
    functions = public_functions()
    assert len(functions) > 50
    on_the_host = {name for names in ON_THE_HOST.values() for name in names.split()}
    left = {functions[code] for code in functions.keys() - called}
    assert {name for name in left if not name.endswith(".refuses")} == on_the_host
