"""Check on one GPU what the tests of this package prove on CPUs alone; needs PyTorch and transformers.

The script prints one table and exits with status 1 if a check fails. It took 163 s on an H200; 24 GiB of GPU memory
are enough by arithmetic. With --device cpu it runs the same checks at toy size, in seconds. With DeepSpeed installed
it also moves the states of an optimizer to the host and back.

    python benchmarks/gpu_check.py --output gpu_check.json
"""

import argparse
import copy
import io
import json
import math
import multiprocessing
import os
import platform
import socket
import statistics
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

if find_spec("openrlhf_cov") is None:  # the package is not installed: take the repository of this file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.loss import policy_loss
from openrlhf_cov.models.method import Groups, Plan, TokenBatch
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.ranking import token_keys
from openrlhf_cov.models.responses import group_normalised, mean_log_probs
from openrlhf_cov.models.token_head import BLOCK, min_p_scores, token_scores
from openrlhf_cov.models.window import GATHERED, Ranks, Window, WindowItem, kth_largest, plan_step
from openrlhf_cov.trainer.model.offload_buffers import drop_offload_buffers

# Limits of the checks.
# Error of the chunked head in bf16, relative to that of full logits in bf16. The chunked head rounds the product of
# every block to bf16 where full logits round one sum, which makes the error of a gradient up to 1.41 times as large.
HEAD_ERROR = 1.5
HEAD_MEMORY = 0.5  # peak memory of the chunked head, relative to full logits
HEAD_TIME = 2.0  # time of the chunked head, relative to full logits; it makes four products instead of three
ASLEEP = 2.5  # bytes per parameter of a sleeping ZeRO-3 engine on the GPU: weights in bf16, and little else
GRADIENT_ERROR = 1e-3  # norm of the difference of two gradients in fp32, relative to the norm of the gradient

# Settings with which a method acts on a few random samples. All other methods act with their defaults.
ACTIVE: dict[str, dict[str, float]] = {
    "kl_cov": {"kl_cov_ratio": 0.04},
    "clip_cov": {"clip_cov_ratio": 0.05, "clip_cov_lb": 0.1, "clip_cov_ub": 1e3},
    "lp_reg": {"lp_reg_frac": 0.05},
    "random_drop": {"random_drop_ratio": 0.05},
    "stare": {"stare_gate": 99.0},
    "erc": {"erc_low": 0.9999, "erc_high": 1.0001},
    "positive_weight": {"positive_weight": 0.5},
    "adaptive_entropy": {"entropy_bonus": 0.05},
    "repo_r": {"repo_zeta": 0.1},
    "passk": {"passk_k": 2},
    "clip_b": {"clip_b_mu": 0.5},
    "clip_v": {"clip_v_mu": 0.5, "clip_v_frac": 0.2},
    "entropic": {"entropic_alpha": -0.4, "entropic_theta": 1e-3},
}

# Log ratios of the update's tokens. They are far from the ends of all clips, so that rounding moves no token across.
LOG_RATIOS = (-0.35, -0.1, 0.1, 0.35)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the checks.

    ``head``: tokens, vocabulary, width and logits of a block. ``window``: micro-batches, samples and tokens of each.
    ``update``: samples, tokens of each, vocabulary and width of the model. ``rounds``: timed repetitions.
    """

    head: tuple[int, int, int, int]
    window: tuple[int, int, int]
    update: tuple[int, int, int, int]
    rounds: int


# The head of Qwen2.5-7B and a million tokens of selection.
FULL = Sizes(head=(2048, 152_064, 3584, BLOCK), window=(8, 64, 2048), update=(16, 256, 16_384, 256), rounds=5)
TOY = Sizes(head=(96, 4000, 64, 96 * 512), window=(3, 4, 50), update=(8, 24, 300, 32), rounds=1)


@dataclass(frozen=True)
class Row:
    """One line of the table; ``limit`` is the largest value that passes, None where a value is only reported."""

    check: str
    value: float | str
    limit: float | None = None

    @property
    def passed(self) -> bool | None:
        """True or False; None for a value without a limit. A text in place of a number is an error."""
        if isinstance(self.value, str):
            return None if self.limit is None else False
        return None if self.limit is None else self.value <= self.limit


def main(argv: list[str] | None = None) -> int:
    """Run all checks, print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: the same checks at toy size")
    parser.add_argument("--output", type=Path, help="write the rows to this JSON file")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU; run on a host with one, or give --device cpu for toy sizes")
    torch.set_float32_matmul_precision("highest")  # TF32 would be taken for an error
    device = torch.device(args.device)
    sizes = FULL if args.device == "cuda" else TOY
    rows = [row for check in CHECKS for row in guarded(check, device, sizes)]
    sys.stdout.write(table(rows))
    if args.output:
        args.output.write_text(json.dumps(record(rows, device), indent=2) + "\n", encoding="utf-8")
    return 1 if any(row.passed is False for row in rows) else 0


def guarded(check: Callable[[torch.device, Sizes], Iterator[Row]], device: torch.device, sizes: Sizes) -> list[Row]:
    """Return the rows of one check. An error becomes a row that fails, so that the other checks still run."""
    rows = []
    try:
        for row in check(device, sizes):
            rows.append(row)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        rows.append(Row(check.__name__, f"{type(error).__name__}: {first_line[:120]}", 0.0))
    return rows


# --- the output head ---


def output_head(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """Compare log-probs, entropies and gradients of the chunked head with those of full logits, in bf16."""
    tokens, vocabulary, width, block = sizes.head
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=draw).to(device, torch.bfloat16)
    weight = (torch.randn(vocabulary, width, generator=draw) * 2 / math.sqrt(width)).to(device, torch.bfloat16)
    targets = torch.randint(vocabulary, (tokens,), generator=draw).to(device)

    def chunked() -> list[Tensor]:
        return head_pass(hidden, weight, lambda h, w: token_scores(h, w, None, targets, 1.0, True, block))

    def full() -> list[Tensor]:
        return head_pass(hidden, weight, lambda h, w: full_scores(h, w, targets))

    exact = head_pass(hidden.float(), weight.float(), lambda h, w: full_scores(h, w, targets))
    errors = [
        [float((ours.float() - best).norm() / best.norm()) for ours, best in zip(values, exact, strict=True)]
        for values in (chunked(), full())
    ]
    del exact
    names = ("log-probs", "entropies", "gradient of the hidden states", "gradient of the weight")
    for name, ours, theirs in zip(names, *errors, strict=True):
        yield Row(f"head: bf16 error of the {name}, chunked / full", ours / theirs, HEAD_ERROR)
    peaks = [peak_bytes(run, device) for run in (chunked, full)]
    yield Row("head: peak memory, chunked / full", peaks[0] / peaks[1], HEAD_MEMORY)
    seconds = [median_seconds(run, device, sizes.rounds) for run in (chunked, full)]
    limit = HEAD_TIME if device.type == "cuda" else None  # at toy size a CPU's time says nothing
    yield Row("head: time, chunked / full", seconds[0] / seconds[1], limit)
    if device.type == "cuda":
        yield Row("head: peak memory of the chunked head, GiB", peaks[0] / 2**30)
        yield Row("head: time of the chunked head, s", seconds[0])
        unaligned, aligned = (block_seconds(hidden, weight, columns) / columns for columns in (819, 768))
        yield Row("head: time per column of a product with 819 columns / with 768", unaligned / aligned)


def block_seconds(hidden: Tensor, weight: Tensor, columns: int) -> float:
    """Return the time of one block's product and of its product in the backward pass, repeated 100 times."""
    part = weight[:columns]

    def products() -> None:
        for _ in range(100):
            logits = functional.linear(hidden, part)
            torch.mm(logits, part)

    products()
    return median_seconds(products, hidden.device, 5)


def head_pass(
    hidden: Tensor, weight: Tensor, scores: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]
) -> list[Tensor]:
    """Return log-probs (N,), entropies (N,) and the gradients of hidden states (N, D) and weight (V, D)."""
    hidden = hidden.detach().requires_grad_()
    weight = weight.detach().requires_grad_()
    log_probs, entropy = scores(hidden, weight)
    assert entropy is not None
    push = torch.linspace(-1, 1, len(log_probs), device=log_probs.device)
    (log_probs * push + 0.1 * entropy).sum().backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return [log_probs.detach(), entropy.detach(), hidden.grad, weight.grad]


def full_scores(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probs (N,) of the targets (N,) and entropies (N,) from the matrix of all logits."""
    log_p = functional.linear(hidden, weight).float().log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, targets[:, None])[:, 0], entropy


class LiveBytes(TorchDispatchMode):
    """Count the bytes of the storages that operations make, now and at most; for hosts without a GPU's counter."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._counted: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {each.untyped_storage()._cdata for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given | self._counted:
                    self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        self._counted.add(storage._cdata)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._counted.discard(key)
        self.live -= size


def peak_bytes(run: Callable[[], Any], device: torch.device) -> int:
    """Return the most bytes that ``run`` holds beyond what was there before it."""
    if device.type != "cuda":
        with LiveBytes() as count:
            run()
        return count.peak
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - before


def median_seconds(run: Callable[[], Any], device: torch.device, rounds: int) -> float:
    """Return the median time of ``run``, which has run before."""
    times = []
    for _ in range(rounds):
        synchronize(device)
        started = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def synchronize(device: torch.device) -> None:
    """Wait for the GPU, if there is one."""
    if device.type == "cuda":
        torch.cuda.synchronize()


# --- selection ---


def selection(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """Compare what a window of one optimizer step selects on the device with what it selects on the CPU."""
    here = selected(torch.device("cpu"), sizes)
    there = selected(device, sizes)
    for name, expected in here.items():
        different = sum(int((a != b.cpu()).sum()) for a, b in zip(expected, there[name], strict=True))
        yield Row(f"selection: {name} that differ from the CPU's", different, 0)


def selected(device: torch.device, sizes: Sizes) -> dict[str, list[Tensor]]:
    """Return {what: tensors} that the primitives of ``Window`` give for the same random tokens on any device."""
    count, samples, length = sizes.window
    items = []
    draw = torch.Generator().manual_seed(0)
    for number in range(count):
        log_probs = -4 * torch.rand(samples, length, generator=draw)
        log_probs[0] = log_probs[0].round()  # equal values, which keys must order
        old = log_probs + 0.1 * torch.randn(samples, length, generator=draw)
        advantages = torch.randn(samples, 1, generator=draw).round().expand(samples, length)
        mask = torch.rand(samples, length, generator=draw) > 1 / 3
        batch = TokenBatch(*(each.to(device) for each in (log_probs, old, advantages, mask)))
        ids = torch.arange(samples, device=device) + number * samples
        items.append(WindowItem(batch, token_keys(42, 1, ids, length)))
    window = Window(items, (0.2, 0.2))
    batches = [item.batch for item in items]
    keys = [item.keys for item in items]
    covariance = window.covariance()
    candidates = [each > 0 for each in covariance]
    scores = torch.cat([each.flatten() for each in keys])
    many = Ranks(lambda tensor: tensor, lambda tensor: tensor, size=GATHERED + 1)  # so many that digits are counted
    return {
        "keys of tokens": keys,
        "covariances": covariance,
        "means": [window.means([batch.log_probs for batch in batches], [batch.advantages for batch in batches])],
        "tokens of largest covariance": window.largest(covariance, 0.02),
        "tokens of largest covariance among candidates": window.largest_among(covariance, candidates, 0.1),
        "tokens sampled uniformly": window.sample_uniformly(candidates, 0.02),
        "k-th largest scores by counting": [kth_largest(scores, k, many) for k in (1, len(scores) // 3)],
    }


# --- the update of a model, with every method ---


class ClippedLoss(nn.Module):
    """PPO's clipped loss as a mean over tokens, with the attributes and the results of OpenRLHF's ``PolicyLoss``."""

    policy_loss_type = "ppo"
    is_correction_level = "off"
    dual_clip = None
    token_level_loss = True

    def __init__(self, clip_eps_low: float, clip_eps_high: float) -> None:
        super().__init__()
        self.clip_eps_low = clip_eps_low
        self.clip_eps_high = clip_eps_high

    def forward(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, action_mask: Tensor, *others: Any
    ) -> tuple[Tensor, ...]:
        """Return the loss and the share of clipped tokens, 0-d; in place of upstream's other results None."""
        ratio = (log_probs - old_log_probs).exp()
        clipped = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high)
        gain = torch.minimum(ratio * advantages, clipped * advantages)
        share = masked_mean((clipped * advantages < ratio * advantages).float(), action_mask)
        return -masked_mean(gain, action_mask), share, None, None, None  # type: ignore[return-value]


def masked_mean(values: Tensor, action_mask: Tensor, **_: Any) -> Tensor:
    """Return the mean of values (B, A) over action tokens, 0-d."""
    return (values * action_mask).sum() / action_mask.sum()


@dataclass(frozen=True)
class Rollout:
    """The samples of an update on the CPU: ``ids`` (B, T), ``rewards`` (G, K), all others (B, T - 1)."""

    ids: Tensor
    log_probs: Tensor
    old_log_probs: Tensor
    entropy: Tensor
    proxy: Tensor
    action_mask: Tensor
    rewards: Tensor


def update(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """Compare the gradient of an update on the device, by the chunked head, with the CPU's, by full logits."""
    samples, length, vocabulary, width = sizes.update
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=length, tie_word_embeddings=True,
        attn_implementation="sdpa", initializer_range=0.2,
    )  # fmt: skip
    model = LlamaForCausalLM(shape)
    there = copy.deepcopy(model).to(device)
    in_bf16 = copy.deepcopy(model).to(device, torch.bfloat16)
    rollout = make_rollout(model, samples, length)
    block = max(256, vocabulary // 3) * samples * (length - 1)  # three or more blocks
    not_finite = []
    for name, method in METHODS.items():
        chosen = {"cov_type" if method.by_covariance else "method": name}
        config = CovConfig(**chosen, **ACTIVE.get(name, {}))
        expected = gradient(model, config, rollout, None)
        error = relative_error(gradient(there, config, rollout, block), expected)
        yield Row(f"update: error of the gradient in fp32, {name}", error, GRADIENT_ERROR)
        if not gradient(in_bf16, config, rollout, block).isfinite().all():
            not_finite.append(name)
    yield Row(
        " ".join(["update: methods whose loss or gradient in bf16 is not finite", *not_finite]), len(not_finite), 0
    )


@torch.no_grad()
def make_rollout(model: LlamaForCausalLM, samples: int, length: int) -> Rollout:
    """Return samples of random tokens in groups of four. The first quarter of each is its prompt."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(model.config.vocab_size, (samples, length), generator=draw)
    log_probs, entropy = scores_of(model, ids, None)
    log_ratios = torch.tensor(LOG_RATIOS)[torch.randint(len(LOG_RATIOS), log_probs.shape, generator=draw)]
    mask = torch.ones_like(log_probs, dtype=torch.bool)
    mask[:, : length // 4] = False
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]).repeat(samples // 8).view(-1, 4)
    hidden = model.model(ids).last_hidden_state[:, :-1].flatten(0, 1)
    proxy = min_p_scores(hidden, model.lm_head.weight, None, ids[:, 1:].flatten(), 1.0, 0.02)
    return Rollout(ids, log_probs, log_probs - log_ratios, entropy, proxy.view_as(log_probs), mask, rewards)


def scores_of(model: LlamaForCausalLM, ids: Tensor, block: int | None) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies (B, T - 1) of ids (B, T), by the chunked head or, without block, full logits."""
    hidden = model.model(ids).last_hidden_state[:, :-1].flatten(0, 1)
    weight = model.lm_head.weight
    targets = ids[:, 1:].flatten()
    if block is None:
        log_probs, entropy = full_scores(hidden, weight, targets)
    else:
        log_probs, given = token_scores(hidden, weight, None, targets, 1.0, True, block)
        assert given is not None
        entropy = given
    return log_probs.view_as(ids[:, 1:]), entropy.view_as(ids[:, 1:])


def gradient(model: LlamaForCausalLM, config: CovConfig, rollout: Rollout, block: int | None) -> Tensor:
    """Return the gradient of one update as one float64 vector on the CPU; NaN where the loss is not finite.

    The methods plan from the log-probs and entropies of the rollout, which are the same on every device.
    """
    device = next(model.parameters()).device
    ids, log_probs, old, entropies, proxy, mask, rewards = (each.to(device) for each in vars(rollout).values())
    config = config.at(0)
    mean = entropies[mask].double().mean()
    if config.estimator:
        groups = Groups(rewards, mean.item(), mean_log_probs(log_probs, mask).view_as(rewards))
        advantages = config.estimator.slot.estimate(config, groups).nan_to_num(0.0)
    else:
        advantages = group_normalised(rewards)
    advantages = advantages.view(-1, 1) * mask
    clip = config.clip_of_step(config.ppo_clip or (0.2, 0.2))
    plans: list[Plan] = []
    if config.plans_globally:
        keys = token_keys(42, 0, torch.arange(len(ids), device=device), mask.shape[1])
        item = WindowItem(
            TokenBatch(log_probs, old, advantages, mask),
            keys,
            entropy=entropies,
            old_entropy=entropies,
            proxy=proxy,
            # Any numbers will do here: the tests of the output head compare the true ones.
            discriminator_mean=0.1 * entropies,
        )
        (plans,) = plan_step(config, Window([item], clip, rollout_entropy=mean))
    model.zero_grad()
    now, entropy = scores_of(model, ids, block)
    batch = TokenBatch(now, old, advantages, mask, rollout_log_probs=old)
    value = policy_loss(config, ClippedLoss(*clip), masked_mean, batch, plans).loss
    if config.entropy_bonus_in_force:
        value = value - config.entropy_bonus_in_force * masked_mean(entropy, mask)
    value.backward()
    parts = [parameter.grad.flatten().double().cpu() for parameter in model.parameters() if parameter.grad is not None]
    total = torch.cat(parts)
    return total if value.isfinite() else total * math.nan


def relative_error(value: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference relative to that of ``expected``; NaN, which fails, if that is zero."""
    return float((value - expected).norm() / expected.norm())


# --- the states of an optimizer on the host ---


def optimizer_states(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """Move Adam's moments to the host and back with DeepSpeed's functions, before and after a checkpoint."""
    try:
        from deepspeed.runtime.zero.offload_states import offload_adam_states, reload_adam_states
    except ImportError:
        yield Row("optimizer states: DeepSpeed is not installed", "skipped")
        return
    _, _, _, width = sizes.update
    optimizer = trained_adam(width, device)
    moments = [each.clone() for each in moments_of(optimizer)]
    for when in ("", " after a checkpoint was loaded"):
        if when:
            optimizer = restored_adam(optimizer, width, device)
        # These references also keep the memory, so that it is not given to a new buffer.
        owned = [tensor.detach() for state in optimizer.state.values() for tensor in state.values()]
        pointers = {tensor.data_ptr() for tensor in owned}
        offload_adam_states(optimizer, "cpu", pin_memory=device.type == "cuda", non_blocking=False)
        staying = [each for each in moments_of(optimizer) if each.is_cuda or each.data_ptr() in pointers]
        yield Row(f"optimizer states: moments that stay on the device{when}", len(staying), 0)
        reload_adam_states(optimizer, device)
        synchronize(device)
        back = moments_of(optimizer)
        wrong = sum(a.device != b.device or not a.equal(b) for a, b in zip(back, moments, strict=True))
        yield Row(f"optimizer states: moments that are not back as they were{when}", wrong, 0)


def trained_adam(width: int, device: torch.device, steps: int = 1) -> torch.optim.Adam:
    """Return Adam after ``steps`` updates of a matrix and a vector."""
    parameters = [
        nn.Parameter(torch.ones(width, width, device=device)),
        nn.Parameter(torch.ones(width, device=device)),
    ]
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.linspace(-1, 1, parameter.numel(), device=device).view_as(parameter)
        optimizer.step()
    return optimizer


def restored_adam(optimizer: torch.optim.Optimizer, width: int, device: torch.device) -> torch.optim.Adam:
    """Return a new Adam with what a checkpoint keeps of this one, as ``CovStrategy.load_ckpt`` restores it."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    new = trained_adam(width, device, steps=0)
    new.load_state_dict(torch.load(file))
    drop_offload_buffers(new)
    return new


def moments_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return both moments of every parameter."""
    return [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]


def engine_states(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """Let DeepSpeed's ZeRO-3 engine offload and reload its states on the GPU, before and after a checkpoint.

    DeepSpeed offloads the states of its FusedAdam alone, which it compiles for the GPU at first use.
    """
    if device.type != "cuda":
        yield Row("ZeRO-3 engine: needs a GPU", "skipped")
        return
    if find_spec("deepspeed") is None:
        yield Row("ZeRO-3 engine: DeepSpeed is not installed", "skipped")
        return
    with tempfile.TemporaryDirectory() as folder:
        for phase in ("new", "loaded", "mended"):
            # DeepSpeed keeps references to the memory of engines, so that each has a process of its own.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                yield from process.submit(engine_rows, folder, phase).result()


def engine_rows(folder: str, phase: str) -> list[Row]:
    """Return the rows of one engine.

    ``new`` trains and saves a checkpoint in ``folder``; ``loaded`` loads it as DeepSpeed does, and ``mended`` also
    drops the host buffers in it, as training does.
    """
    import deepspeed

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ.update(
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    )
    deepspeed.init_distributed()
    kept = Path(folder, "moments.pt")
    if phase == "new":
        engine = trained_engine(deepspeed, steps=1)
        parameters = sum(parameter.ds_numel for parameter in engine.module.parameters())
        rows = [Row("ZeRO-3 engine: parameters", f"{parameters:,}"), *memory_rows(engine, "")]
        torch.save([each.cpu() for each in moments_of(engine.basic_optimizer)], kept)
        # A colocated run saves asleep: its states are on the host, and so are the host buffers among them.
        offload(engine)
        engine.save_checkpoint(folder)
    else:
        engine = trained_engine(deepspeed, steps=0)
        engine.load_checkpoint(folder)
        if phase == "loaded":
            rows = list(memory_rows(engine, " after a checkpoint, as DeepSpeed loads it", limited=False))
        else:
            drop_offload_buffers(engine.basic_optimizer)
            loaded = [each.cpu() for each in moments_of(engine.basic_optimizer)]
            wrong = sum(not a.equal(b) for a, b in zip(loaded, torch.load(kept), strict=True))
            rows = [Row("ZeRO-3 engine: moments that the checkpoint changed", wrong, 0)]
            rows += memory_rows(engine, " after a checkpoint")
    torch.distributed.destroy_process_group()
    return rows


def trained_engine(deepspeed: Any, steps: int) -> Any:
    """Return a ZeRO-3 engine in bf16, with gradients in fp32, after updates of a Llama of 0.2B parameters."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=32_000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
        num_key_value_heads=8, max_position_embeddings=128, tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "steps_per_print": 10**9,
    }
    model = LlamaForCausalLM(shape)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    ids = torch.arange(64, device=engine.device).view(1, -1)
    for _ in range(steps):
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
    return engine


def offload(engine: Any) -> None:
    """Move the states of an engine to the host as OpenRLHF does for --ds.enable_sleep."""
    from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum, OffloadStateTypeEnum

    kinds = [
        OffloadStateTypeEnum.optim_states,
        OffloadStateTypeEnum.contiguous_grad_buffer,
        OffloadStateTypeEnum.hp_params,
        OffloadStateTypeEnum.lp_grads,
    ]
    engine.optimizer.offload_states(include=kinds, device=OffloadDeviceEnum.cpu, pin_memory=True, non_blocking=True)
    engine.empty_partition_cache()
    torch.cuda.synchronize()


def memory_rows(engine: Any, when: str, limited: bool = True) -> Iterator[Row]:
    """Offload and reload the states as OpenRLHF does for --ds.enable_sleep, and give the memory of each phase."""
    parameters = sum(parameter.ds_numel for parameter in engine.module.parameters())
    before = [each.cpu() for each in moments_of(engine.basic_optimizer)]
    awake = bytes_per_parameter(parameters)
    offload(engine)
    asleep = bytes_per_parameter(parameters)
    held = torch.cuda.memory_reserved() / parameters
    engine.optimizer.reload_states(non_blocking=True)
    torch.cuda.synchronize()
    back = [each.cpu() for each in moments_of(engine.basic_optimizer)]
    wrong = sum(not a.equal(b) for a, b in zip(back, before, strict=True))
    yield Row(f"ZeRO-3 engine: bytes per parameter, awake{when}", awake)
    yield Row(f"ZeRO-3 engine: bytes per parameter, asleep{when}", asleep, ASLEEP if limited else None)
    yield Row(f"ZeRO-3 engine: bytes per parameter that PyTorch holds asleep{when}", held)
    yield Row(f"ZeRO-3 engine: moments that are not back as they were{when}", wrong, 0)


def bytes_per_parameter(parameters: int) -> float:
    """Return the bytes that PyTorch holds on the GPU, per parameter of the model."""
    return torch.cuda.memory_allocated() / parameters


CHECKS = (output_head, selection, update, optimizer_states, engine_states)


# --- the table ---


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| check | value | limit | passed |", "|---|---|---|---|"]
    for row in rows:
        value = row.value if isinstance(row.value, str) else f"{row.value:.3g}"
        limit = "" if row.limit is None else f"{row.limit:g}"
        passed = {True: "yes", False: "NO", None: ""}[row.passed]
        lines.append(f"| {row.check} | {value} | {limit} | {passed} |")
    return "\n".join(lines) + "\n"


def record(rows: list[Row], device: torch.device) -> dict[str, Any]:
    """Return what --output writes. A value that is no finite number is written as text."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": name,
        "torch": torch.__version__,
        "rows": [asdict(row) | {"value": written(row.value), "passed": row.passed} for row in rows],
    }


def written(value: float | str) -> float | str:
    """Return the value as JSON can hold it."""
    return value if isinstance(value, str) or math.isfinite(value) else str(value)


if __name__ == "__main__":
    sys.exit(main())
