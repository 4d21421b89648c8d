"""A GPU's rules without a GPU: all that a rank computes in a step runs on tensors that have a device and no values.

PyTorch's fake tensors know shapes, types and devices. What mixes devices raises, and so does what makes the host wait
for a value or a shape, beyond the reads that a test allows and counts.
"""

import math
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from gpu import BrokenRule, GpuGenerator, Rules, gpu_device
from rank_models import flags, make_policy
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode

from openrlhf_cov.models import shared_prefixes as sharing
from openrlhf_cov.models import token_head, window
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.window import Ranks
from openrlhf_cov.trainer import bad_updates
from openrlhf_cov.trainer.bad_updates import gradient_of, gradients_are_finite
from openrlhf_cov.trainer.records import StepSettings, TrainSample
from openrlhf_cov.trainer.update import update_policy
from openrlhf_cov.trainer.window_plans import OVERLAP_EVERY

pytestmark = pytest.mark.usefixtures("one_process")


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


def samples(count=4, columns=5):
    """Return samples of a rank, on the CPU."""
    names = "log_probs advantages returns entropy proxy base_log_probs rollout_log_probs discriminator_mean".split()
    found = []
    for number in range(count):
        width = columns - number % 2
        found.append(
            TrainSample(
                sample_id=number, score=math.nan if number == 1 else 1.0, abstained=False,
                tokens=torch.ones(width + 1, dtype=torch.long), action_mask=torch.ones(width, dtype=torch.bool),
                **{name: torch.rand(width) for name in names},
            )
        )  # fmt: skip
    return found


def policy_on(device, ranks, config, **changes):
    """Return a policy that has its updates of two micro-batches of one sample, and a loss with every term."""
    args = flags(
        "out", config, micro_batch_size=1, train__batch_size=2, max_epochs=1, n_samples_per_prompt=2,
        rollout__batch_size=2, entropy_coef=0.1, aux_loss_coef=0.1, use_loss=True, init_coef=0.1, estimator="k3",
        unbiased_gradient=True, **changes,
    )  # fmt: skip
    policy = make_policy(args)
    policy.actor.logits = policy.engine.parameter = torch.nn.Parameter(policy.actor.logits.detach().to(device))
    policy.ranks = ranks
    policy.layout = replace(policy.layout, ring_attn_size=2)  # no shuffle, which is made on the CPU
    return policy


QUOTAS = ("clip_v", "clip_cov", "kl_cov", "top_entropy", "random_drop", "stare", "lp_reg")
UPDATES = 2


def updates_of_a_step(rules, ranks, config, step=2, **changes):
    """Run a whole step of two updates.

    Reads: the number of prompts; for each update and each comparison a quota, which is a shape; the results at the
    end: sums, maxima, counts of the updates and the mean entropy. The played engine reads, as DeepSpeed does, the norm
    of each gradient and whether it is finite.
    """
    has_quota = any(method.name in QUOTAS for method in config.methods) and config.cov_scope == "global"
    selections = 3 if step % OVERLAP_EVERY == 0 else UPDATES  # the second update makes another one, to compare
    with rules(reads=5 + selections * has_quota + 2 * UPDATES) as device:
        policy = policy_on(device, ranks, config, **changes)
        result = update_policy(policy, StepSettings(step, config, 0.1), samples())
    assert result.updates == UPDATES
    assert policy.device == device
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


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_updates_of_a_step(rules, ranks, name):
    updates_of_a_step(rules, ranks, CONFIGS[name])


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["current", "old"])
def test_updates_of_a_step_that_compares_selections(rules, ranks, setting):
    updates_of_a_step(rules, ranks, CovConfig(cov_type="kl_cov", cov_log_probs=setting), step=50)


@pytest.mark.slow
def test_a_large_fraction_is_found_without_a_further_read(rules, ranks, monkeypatch):
    monkeypatch.setattr(window, "GATHERED", 1)
    updates_of_a_step(rules, ranks, CovConfig(method="top_entropy"))


CORRECTIONS = {
    "tokens cut": dict(is_correction_level="token", is_correction_mode="clip"),
    "sequences dropped": dict(is_correction_level="seq"),
    "per sequence": dict(loss_agg_mode="seq-mean-token-mean", dual_clip=3.0),
    "GSPO": dict(policy_loss_type="gspo"),
}


@pytest.mark.slow
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("config", [CovConfig(), CONFIGS["KL-Cov in a micro-batch"]])
def test_updates_of_a_step_with_a_correction(rules, ranks, correction, config):
    updates_of_a_step(rules, ranks, config, is_correction_threshold=(0.5, 5.0), **CORRECTIONS[correction])


def test_entropies_of_rollouts(rules, ranks):
    with rules() as device:
        policy = policy_on(device, ranks, CovConfig())
        tokens = torch.ones(2, 6, dtype=torch.long, device=device)
        scores = policy.score(tokens, torch.ones(2, 5, device=device), None, None, with_entropy=True)
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


class Accelerator:
    """DeepSpeed's accelerator: the GPU, which no build for CPUs has."""

    @staticmethod
    def current_device_name():
        return gpu_device()


def test_a_look_at_the_gradients(rules, device, monkeypatch):
    def all_reduce(verdict, op):
        assert verdict.device == device

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(bad_updates, "get_accelerator", Accelerator)
    with rules(reads=1) as device:
        parameters = [torch.nn.Parameter(torch.ones(size, device=device)) for size in (3, 5, 7)]
        for param in parameters[:2]:
            param.grad = torch.ones_like(param)
        assert gradients_are_finite(map(gradient_of, parameters)) is True
