"""A GPU's rules without a GPU: all that a rank computes in a step runs on tensors that have a device and no values.

PyTorch's fake tensors know shapes, types and devices. What mixes devices raises, and so does what makes the host wait
for a value or a shape, beyond the reads that a test allows and counts.
"""

import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from active import PLANNED
from gpu import BrokenRule, GpuGenerator, Rules, gpu_device
from method_loss import MethodLoss
from openrlhf.models import PolicyLoss, aggregate_loss
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode

from openrlhf_cov.models import (
    covariance,
    token_head,
    window,
)
from openrlhf_cov.models import shared_prompts as sharing
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.diagnostics import update_metrics
from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.ranking import token_keys
from openrlhf_cov.models.window import Ranks
from openrlhf_cov.trainer import bad_updates
from openrlhf_cov.trainer.bad_updates import gradient_of, gradients_are_finite
from openrlhf_cov.trainer.observation import StepDiagnostics
from openrlhf_cov.trainer.policy import Policy
from openrlhf_cov.trainer.records import MicroBatch, StepSettings, TrainSample
from openrlhf_cov.trainer.update import OVERLAP_EVERY, update_policy
from openrlhf_cov.trainer.windows import BatchLayout
from openrlhf_cov.utils.metrics import Max


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
        slots = loss.config.token_slots if scope == "global" else []
        for update in range(2):
            plan = Plan(torch.zeros_like(tokens.action_mask), reference=tokens.old_log_probs)
            loss.expect([plan] * len(slots), update)
            log_probs = tokens.log_probs.clone().requires_grad_()
            value, *_ = loss(
                log_probs, tokens.old_log_probs, tokens.advantages, action_mask=tokens.action_mask,
                rollout_log_probs=tokens.old_log_probs, dp_size=2, batch_num_tokens=64.0, global_batch_size=8.0,
            )  # fmt: skip
            value.backward()
            assert log_probs.grad.device == value.device == loss.record.advantages.device == device
            update_metrics(loss.record)


@pytest.mark.parametrize("name", METHODS)
def test_a_micro_batch(rules, name):
    micro_batch_step(rules, name, "global", "off")


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_a_micro_batch_with_a_selection_of_its_own(rules, name, correction):
    micro_batch_step(rules, name, "micro_batch", correction)


@pytest.mark.parametrize("kind", ["ppo", "gspo"])
def test_upstreams_loss_is_observed(rules, kind):
    with rules() as device:
        loss = MethodLoss(CovConfig(), policy_loss=PolicyLoss(policy_loss_type=kind), aggregate=None)
        tokens = batch(device)
        loss(tokens.log_probs, tokens.old_log_probs, tokens.advantages, action_mask=tokens.action_mask)
        update_metrics(loss.record)


QUOTAS = ("clip_v", "clip_cov", "kl_cov", "top_entropy", "random_drop", "stare", "lp_reg")


def selection_of_a_step(rules, ranks, name):
    """A quota is read: how many scores are sent is a shape."""
    with rules(reads=int(name in QUOTAS)) as device:
        loss, step = make_loss(name), [batch(device), batch(device, 2, 5), batch(device)]
        items = []
        for each in step:
            ids = torch.arange(len(each.action_mask), device=device)
            values = torch.rand_like(each.log_probs)
            names = ("entropy", "old_entropy", "proxy", "discriminator_mean")
            item = window.WindowItem(
                each, token_keys(42, 1, ids, each.action_mask.shape[1]), **dict.fromkeys(names, values)
            )
            items.append(item)
        whole = window.Window(items, loss.ppo_clip, ranks, torch.rand((), device=device))
        masks = [plans[0].tokens for plans in window.plan_step(loss.config, whole)]
    assert [mask.device for mask in masks] == [device] * 3
    assert [mask.shape for mask in masks] == [each.action_mask.shape for each in step]


@pytest.mark.parametrize("name", PLANNED)
def test_a_selection(rules, ranks, name):
    selection_of_a_step(rules, ranks, name)


def test_a_large_fraction_is_found_without_a_further_read(rules, ranks, monkeypatch):
    monkeypatch.setattr(window, "GATHERED", 1)
    selection_of_a_step(rules, ranks, "top_entropy")


def test_primitives_of_a_window(rules, ranks):
    with rules() as device:
        tokens = batch(device)
        step = window.Window([window.WindowItem(tokens, tokens.action_mask.long())], (0.2, 0.2), ranks)
        assert step.maximum([tokens.advantages]).device == step.total([tokens.action_mask]).device == device
        assert step.mean([tokens.advantages]).device == step.constant_length_factor(8.0).device == device


def samples(count=4, columns=5):
    """Samples of a rank on the CPU."""
    found = []
    for number in range(count):
        width = columns - number % 2
        names = (
            "log_probs",
            "advantages",
            "returns",
            "entropy",
            "proxy",
            "base_log_probs",
            "rollout_log_probs",
            "discriminator_mean",
        )
        found.append(
            TrainSample(
                sample_id=number, score=math.nan if number == 1 else 1.0, abstained=False,
                tokens=torch.ones(width + 1, dtype=torch.long), action_mask=torch.ones(width, dtype=torch.bool),
                **{name: torch.rand(width) for name in names},
            )
        )  # fmt: skip
    return found


class Learner(torch.nn.Module):
    """The forward contract of ``CovActor``: the log-prob of token v is -v times a weight."""

    is_vlm = shares_prompts = False

    def __init__(self, device):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones((), device=device))
        self.model = SimpleNamespace(global_steps=1, is_gradient_accumulation_boundary=lambda: self.ends)
        self.micro_steps = 0

    @property
    def ends(self):
        return self.micro_steps % 2 == 1

    def forward(self, tokens, action_mask, attention_mask, return_output, ring_attn_group, return_entropy):
        log_probs = -(self.weight * tokens)[:, 1:] * action_mask
        output = SimpleNamespace(aux_loss=self.weight.square(), entropy=self.weight * tokens[:, :-1])
        return (log_probs, output) if return_output else log_probs


KL = SimpleNamespace(use_loss=True, init_coef=0.1, estimator="k3", unbiased_gradient=True)


def policy_on(device, config, ranks, correction="off"):
    """A policy that has its updates of two micro-batches of one sample, and a loss with every term."""
    actor = Learner(device)
    clip = {"token_level_loss": True, "dual_clip": None, "is_correction_level": "off"} | CORRECTIONS[correction]
    level = {name: value for name, value in clip.items() if name.startswith("is_correction")}
    of_correction = {"is_correction_mode": "mask", "is_correction_gating": "ratio"} | level
    args = SimpleNamespace(
        actor=SimpleNamespace(
            entropy_coef=0.1, eps_clip_low_high=(0.2, 0.28), dual_clip=clip["dual_clip"], policy_loss_type="ppo",
            loss_agg_mode="token-mean" if clip["token_level_loss"] else "seq-mean-token-mean", aux_loss_coef=0.1,
        ),
        algo=SimpleNamespace(
            kl=KL, advantage=SimpleNamespace(**of_correction, is_correction_threshold=(0.5, 5.0))
        ),
        train=SimpleNamespace(max_epochs=1),
        rollout=SimpleNamespace(n_samples_per_prompt=2),
    )  # fmt: skip

    def step(*_, **named):
        actor.micro_steps += 1
        if actor.micro_steps % 2 == 0:
            actor.model.global_steps += 1

    strategy = SimpleNamespace(
        args=args, seed=42, ring_attn_group=None, is_rank_0=lambda: False,
        ds_device_mesh={"dp": SimpleNamespace(get_local_rank=lambda: 0)},
        backward=lambda loss, *_: loss.backward(), optimizer_step=step, get_grad_norm=lambda _: 1.0,
    )  # fmt: skip
    layout = BatchLayout(
        dynamic=False, seed=42, micro_batch_size=1, micro_batches=2, update_size=2, most_updates=2, max_tokens=9,
        ring_attn_size=2, tensor_parallel_size=1, samples_per_prompt=2, groups_prompts=False, batch_size=4,
        warns=False,
    )  # fmt: skip
    return Policy(
        strategy=strategy, actor=actor, scheduler=SimpleNamespace(get_last_lr=lambda: [0.1]), ema_model=None,
        tokenizer=None, config=config, ranks=ranks, layout=layout, draws_in_training=True,
        bad_updates=SimpleNamespace(total=0, check=lambda *_: None),
    )  # fmt: skip


def updates_of_a_step(rules, ranks, config, correction="off", step=2):
    """A whole step of two updates. Reads: the number of prompts, a quota for each update and each comparison, and the
    results at the end: sums, maxima, counts of the updates and the mean entropy."""
    has_quota = any(method.name in QUOTAS for method in config.methods) and config.cov_scope == "global"
    selections = 3 if step % OVERLAP_EVERY == 0 else 2  # the second update makes another one, to compare
    with rules(reads=5 + selections * has_quota) as device:
        policy = policy_on(device, config, ranks, correction)
        result = update_policy(policy, StepSettings(step, config, 0.1), samples())
    assert policy.actor.weight.grad.device == device
    assert policy.actor.micro_steps == 4
    assert {"policy_loss", "kl", "entropy_loss", "vllm_kl", "entropy/mean", "ppo/clip_frac"} <= result.metrics.keys()


CONFIGS = {
    "baseline": CovConfig(),
    "KL-Cov, by the policy of the rollout": CovConfig(cov_type="kl_cov", cov_log_probs="old"),
    "KL-Cov in a micro-batch": CovConfig(cov_type="kl_cov", cov_scope="micro_batch"),
    "Clip-Cov in a micro-batch": CovConfig(cov_type="clip_cov", cov_scope="micro_batch"),
    "Dr. GRPO with a constant length": CovConfig(method="dr_grpo", dr_grpo_length=8.0),
    "WAPO with a constant length": CovConfig(method="wapo", wapo_length=8.0),
    **{name: CovConfig(method=name) for name in METHODS},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_updates_of_a_step(rules, ranks, name):
    updates_of_a_step(rules, ranks, CONFIGS[name])


@pytest.mark.parametrize("setting", ["current", "old"])
def test_updates_of_a_step_that_compares_selections(rules, ranks, setting):
    updates_of_a_step(rules, ranks, CovConfig(cov_type="kl_cov", cov_log_probs=setting), step=50)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_updates_of_a_step_with_a_correction(rules, ranks, correction):
    updates_of_a_step(rules, ranks, CovConfig(), correction)


def diagnostics_of_a_step(rules, ranks, updates=2):
    """Reads: the number of prompts at the start; sums, maxima and counts of the updates at the end."""
    with rules(reads=1) as device:
        books = StepDiagnostics(samples(), 2, ranks, device)
    with rules() as device:
        tokens = batch(device, 2, 5)
        for update in range(updates):
            for ids in (torch.arange(2, device=device), torch.arange(2, 4, device=device)):
                plans = [Plan(tokens.action_mask)]
                record = LossRecord(tokens, tokens.advantages, plans, (0.2, 0.2), update=update)
                books.observe(ids, record)
        books.compare([tokens.action_mask.bool()], [tokens.action_mask.bool()])
        part = books.window_part(MicroBatch.of(samples()[:2]).to(device), with_entropy=True)
        assert part.entropy.device == part.proxy.device == part.discriminator_mean.device == device
        assert books.mean_entropy.device == device
    with rules(reads=3):
        books.add(Max("ppo/ratio_max", books.rollout.log_probs.max()))
        values = books.finish()
    assert {"entropy/mean", "cov/mean", "cov/empty_update_frac"} <= values.keys()


@pytest.mark.slow
@pytest.mark.parametrize("updates", [2, 0])
def test_the_diagnostics_of_a_step(rules, ranks, updates):
    diagnostics_of_a_step(rules, ranks, updates)


def test_entropies_of_rollouts(rules, ranks):
    with rules() as device:
        policy = policy_on(device, CovConfig(), ranks)
        tokens, mask = torch.ones(2, 6, device=device), torch.ones(2, 5, device=device)
        scores = policy.score(tokens, mask, None, None, with_entropy=True)
        assert (scores.entropy.device, scores.entropy.shape) == (device, (2, 5))


def test_log_probs_and_entropies_of_a_head(rules):
    with rules() as device:
        hidden, weight = (torch.ones(size, device=device, requires_grad=True) for size in ((4, 3), (7, 3)))
        targets = torch.ones(4, dtype=torch.long, device=device)
        log_probs, entropies = token_head.token_scores(hidden, weight, None, targets, 0.7, with_entropy=True)
        (log_probs.sum() + entropies.sum()).backward()
        assert hidden.grad.device == weight.grad.device == device
        assert token_head.min_p_scores(hidden, weight, None, targets, 0.7, 0.1).device == device
        assert token_head.discriminator_means(hidden, weight, None, 0.7).device == device
        logits = torch.ones(4, 7, device=device)
        assert token_head.min_p_scores_of_logits(logits, targets, 0.7, 0.1).device == device
        assert token_head.discriminator_means_of_logits(logits, 0.7).device == device


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
