"""A policy and a critic of a few numbers on one rank, with what a rank trains them by; no Ray and no DeepSpeed.

The policy knows no context: the log-prob of token v is ``log_softmax(logits)[v]`` wherever it stands. The strategy is
plain gradient descent with DeepSpeed's rules: static micro-batches are counted over all rollouts, and each loss is
divided by their number; with dynamic ones the engine is told where an update ends.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from run_flags import run_flags
from torch import nn
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.models.cov_config import CovConfig

cpu_host.install()  # upstream's modules import on a CPU host only after that
from openrlhf.utils.deepspeed import DeepspeedStrategy  # noqa: E402

from openrlhf_cov.trainer.model.policy import Policy  # noqa: E402
from openrlhf_cov.trainer.model.trained_model import TrainedModel  # noqa: E402
from openrlhf_cov.trainer.records import StepSettings, TrainSample  # noqa: E402

VOCABULARY, LEARNING_RATE, SEED = 6, 20.0, 42


@dataclass
class Optimizer:
    """An optimizer of DeepSpeed that looks for gradients that are not finite itself."""

    overflow: bool = False
    check_grad_overflow: bool = False


class Call(NamedTuple):
    """A forward pass of ``Unigrams``."""

    sequences: torch.Tensor
    training: bool
    gradient: bool
    options: dict[str, Any]


class Engine:
    """What updates ask of a DeepSpeed engine."""

    def __init__(self, parameter: nn.Parameter, accumulation: int, dynamic: bool) -> None:
        self.parameter, self.accumulation, self.dynamic = parameter, accumulation, dynamic
        self.optimizer = Optimizer()
        self.micro_steps = self.global_steps = self.skipped_steps = 0
        self.told: list[bool] = []
        self.norm = 0.0

    def set_gradient_accumulation_boundary(self, ends: bool) -> None:
        self.told.append(ends)

    def is_gradient_accumulation_boundary(self) -> bool:
        return (self.micro_steps + 1) % self.accumulation == 0

    def backward(self, loss: torch.Tensor) -> None:
        (loss / self.accumulation).backward()

    def step(self, average) -> None:
        """Count a micro-batch, and step at the end of an update."""
        self.micro_steps += 1
        if self.micro_steps % self.accumulation:
            return
        if self.told:
            assert self.told[-1]
        gradient = average(self.parameter.grad)
        self.norm = float(gradient.norm())
        self.optimizer.overflow = not bool(gradient.isfinite().all())
        if not self.optimizer.overflow:
            with torch.no_grad():
                self.parameter -= LEARNING_RATE * gradient
        self.skipped_steps += self.optimizer.overflow
        self.parameter.grad = None
        self.global_steps += 1


class Unigrams(nn.Module):
    """The forward contract of ``CovActor``. ``calls`` notes every forward pass."""

    is_vlm = False
    shares_prefixes = False
    # Whether the model has a plain output head, which some methods need (see ``CovActor.forward``).
    has_plain_head = True
    temperature = 1.0

    def __init__(self, accumulation: int = 1, dynamic: bool = False) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.linspace(-1, 1, VOCABULARY))
        self.model = Engine(self.logits, accumulation, dynamic)
        self.calls: list[Call] = []

    @property
    def questions(self) -> int:
        """Passes without gradient."""
        return sum(not call.gradient for call in self.calls)

    def forward(self, sequences, action_mask, attention_mask, return_output=False, return_entropy=False, **options):
        self.calls.append(Call(sequences, self.training, torch.is_grad_enabled(), options))
        log_probs = (self.logits / self.temperature).log_softmax(0)
        found = log_probs[sequences[:, 1:]][:, -action_mask.shape[1] :] * action_mask
        if not return_output:
            return found
        output = MoeCausalLMOutputWithPast(aux_loss=self.logits.square().sum())
        if return_entropy:
            # The entropy that stands at a token is that of the next one: here all are equal but for the token itself.
            entropy = -(log_probs.exp() * log_probs).sum()
            output.entropy = entropy * (1 + 0.1 * sequences[:, :-1])
        if self.has_plain_head and options.get("proxy_min_p") is not None:
            # Among the tokens that have at least this part of the largest probability.
            probable = log_probs >= log_probs.max() + math.log(options["proxy_min_p"])
            among = log_probs.masked_fill(~probable, -math.inf).log_softmax(0)
            output.proxy = among[sequences[:, 1:]][:, -action_mask.shape[1] :]
        if self.has_plain_head and options.get("with_discriminator_mean"):
            # sum_v p_v S_v with S_v = p_v (H + log p_v)
            entropy = -(log_probs.exp() * log_probs).sum()
            mean = (log_probs.exp().square() * (entropy + log_probs)).sum()
            output.discriminator_mean = mean.expand_as(found)
        return found, output


class Values(nn.Module):
    """The forward contract of upstream's critic, an engine itself: the value of token v is ``table[v]``."""

    def __init__(self, accumulation: int = 1, dynamic: bool = False) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(VOCABULARY))
        self.engine = Engine(self.table, accumulation, dynamic)
        for name in ("set_gradient_accumulation_boundary", "is_gradient_accumulation_boundary", "optimizer"):
            setattr(self, name, getattr(self.engine, name))

    def forward(self, sequences, action_mask, attention_mask, return_output=False, **options):
        values = self.table[sequences[:, 1:]][:, -action_mask.shape[1] :] * action_mask
        if not return_output:
            return values
        return values, MoeCausalLMOutputWithPast(aux_loss=self.table.square().sum() + self.table.sum())


class Mesh:
    """The data-parallel dimension of upstream's device mesh, on one of its ranks."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def get_group(self) -> None:
        """Return the default process group."""

    def get_local_rank(self) -> int:
        return self.rank


class Strategy:
    """The calls of upstream's ``DeepspeedStrategy`` that training makes."""

    seed, ring_attn_group, stage = SEED, None, 2

    def __init__(self, args: Any, accumulation: int, data_rank: int = 0) -> None:
        self.args, self.accumulated_gradient, self.data_rank = args, accumulation, data_rank
        self.use_dynamic_batch, self.time_steps = args.train.dynamic_batch_enable, defaultdict(int)
        self.ds_device_mesh = {"dp": Mesh(data_rank)}
        self.average = lambda gradient: gradient

    def is_rank_0(self) -> bool:
        return self.data_rank == 0

    def get_rank(self) -> int:
        return self.data_rank

    def all_reduce(self, data, op="mean"):
        return data

    def backward(self, loss, model, optimizer) -> None:
        engine_of(model).backward(loss)

    def optimizer_step(self, optimizer, model, scheduler, name) -> None:
        engine_of(model).step(self.average)

    def get_grad_norm(self, model) -> float:
        return engine_of(model).norm

    def moving_average(self, model, model_ema, beta=0.992, device="cpu") -> None:
        DeepspeedStrategy.moving_average(self, model, model_ema, beta, "cpu")


def engine_of(model: nn.Module) -> Engine:
    return model.engine if isinstance(model, Values) else model.model


FLAGS = {
    "train.max_epochs": 2, "train.max_tokens_per_gpu": 14, "train.seed": SEED, "train.ema_beta": 0.9,
    "rollout.batch_size": 8, "rollout.n_samples_per_prompt": 1, "actor.eps_clip_low_high": (0.2, 0.28),
    "vllm.sync_backend": "gloo",
}  # fmt: skip
SECTIONS = ("train", "rollout", "actor", "algo.kl", "algo.advantage", "ds", "critic")


def flags(folder, config: CovConfig | None = None, **changes) -> Any:
    """Return the flags of a run; ``changes`` are by their last name, such as ``batch_size`` of ``train``."""
    args = run_flags(FLAGS | {"ckpt.output_dir": str(folder)} | vars(config or CovConfig()))
    for name, value in changes.items():
        section, _, own = name.rpartition("__")
        sections = [attrgetter(each)(args) for each in ([section] if section else SECTIONS)]
        setattr(next(each for each in sections if hasattr(each, own)), own, value)
    return args


def accumulation_of(args: Any, ranks: int = 1) -> int:
    """Return DeepSpeed's micro-batches of an update; 1 with dynamic ones, of which it is told the end."""
    train = args.train
    return 1 if train.dynamic_batch_enable else max(1, train.batch_size // ranks // train.micro_batch_size)


SCHEDULER = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD([torch.zeros(1)], LEARNING_RATE), factor=1.0)


class Tokenizer:
    def decode(self, ids, skip_special_tokens=False) -> str:
        return " ".join(map(str, ids))


def make_policy(args: Any, *, with_ema: bool = False, shares_prefixes: bool = False) -> Policy:
    """Return the policy of the only rank of a process group."""
    accumulation = accumulation_of(args)
    actor = Unigrams(accumulation, args.train.dynamic_batch_enable)
    actor.shares_prefixes = shares_prefixes
    ema = Unigrams() if with_ema else None
    return Policy.of(Strategy(args, accumulation), actor, SCHEDULER, ema, Tokenizer())


def make_critic(args: Any) -> TrainedModel:
    """Return the critic of the only rank of a process group."""
    accumulation = accumulation_of(args)
    engine = Values(accumulation, args.train.dynamic_batch_enable)
    return TrainedModel.of("critic", "critic", Strategy(args, accumulation), engine, engine, SCHEDULER)


def make_process_reward(args: Any) -> TrainedModel:
    """Return the process reward model of the only rank of a process group."""
    accumulation = accumulation_of(args)
    actor = Unigrams(accumulation, args.train.dynamic_batch_enable)
    strategy = Strategy(args, accumulation)
    return TrainedModel.of("prm", "process reward model", strategy, actor, actor.model, SCHEDULER)


def make_samples(count: int = 8, *, longest: int = 9, log_probs=None, drift: float = 0.0) -> list[TrainSample]:
    """Return samples of 3 to ``longest`` random tokens, the first of which is the prompt.

    Every third one has a positive advantage. The old log-probs are those of the first policy, or of token v
    ``log_probs[v]``. The engine's and the reference's differ from these by normal noise of size ``drift``.
    """
    generator = torch.Generator().manual_seed(0)
    if log_probs is None:
        log_probs = Unigrams().logits.detach().log_softmax(0)
    samples = []
    for number in range(count):
        length = 3 + number * (longest - 3) // max(1, count - 1)
        tokens = torch.randint(0, VOCABULARY, (length,), generator=generator)
        old = log_probs[tokens[1:]]
        noise = drift * torch.randn(3, length - 1, generator=generator)
        advantages = torch.full((length - 1,), 1.5 if number % 3 == 0 else -0.5)
        samples.append(
            TrainSample(
                sample_id=number,
                score=float(number % 3 == 0),
                abstained=False,
                tokens=tokens,
                action_mask=torch.ones(length - 1, dtype=torch.bool),
                log_probs=old,
                entropy=torch.rand(length - 1, generator=generator),
                advantages=advantages,
                returns=advantages + noise[0],
                base_log_probs=old + noise[1],
                rollout_log_probs=old + noise[2],
                values=noise[0] / 2,
            )
        )
    return samples


def order_of(args: Any, step: int = 3, kl_coef: float = 0.0) -> StepSettings:
    """Return the order of a global step with the settings of the run."""
    return StepSettings(step, CovConfig.from_args(args).at(step), kl_coef)
