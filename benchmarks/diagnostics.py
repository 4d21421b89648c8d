"""Measure what the diagnostics add to a global step: scoring and all updates, with and without them, in turn.

A small Llama on the CPU, upstream's ``Actor`` and policy loss, no Ray and no DeepSpeed. Prints Markdown.

    OMP_NUM_THREADS=1 python benchmarks/diagnostics.py
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from openrlhf_cov.cluster import cpu_host

cpu_host.install()

from openrlhf.models import Actor, PolicyLoss, aggregate_loss  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from openrlhf_cov.models.cov_config import CovConfig  # noqa: E402
from openrlhf_cov.models.loss import clip_of, plan_micro_batch, policy_loss  # noqa: E402
from openrlhf_cov.models.window import ALONE  # noqa: E402
from openrlhf_cov.trainer.losses import token_batch  # noqa: E402
from openrlhf_cov.trainer.metrics.observation import StepDiagnostics  # noqa: E402
from openrlhf_cov.trainer.records import MicroBatch, TrainSample  # noqa: E402

SAMPLES = 64
SAMPLES_PER_PROMPT = 8
PROMPT = 16
RESPONSE = 112
VOCABULARY = 4096
UPDATES = 4
MICRO_BATCH = 8


CONFIG = CovConfig(cov_type="kl_cov", cov_scope="micro_batch")


class Trainer:
    """The updates of a step without DeepSpeed: one micro-batch after another, forward and backward."""

    def __init__(self, actor: Actor, optimizer: torch.optim.Optimizer, *, with_diagnostics: bool) -> None:
        self.actor = actor
        self.optimizer = optimizer
        self.with_diagnostics = with_diagnostics
        self.ppo_loss = PolicyLoss(math.inf, math.inf)

    def train(self, samples: Sequence[TrainSample]) -> None:
        """Make all updates on the samples of a step."""
        diagnostics = StepDiagnostics(samples, SAMPLES_PER_PROMPT, ALONE, "cpu") if self.with_diagnostics else None
        draws = torch.Generator()
        batches = [MicroBatch.of(samples[first : first + MICRO_BATCH]) for first in range(0, SAMPLES, MICRO_BATCH)]
        per_update = len(batches) // UPDATES
        for number, micro_batch in enumerate(batches):
            log_probs = self.actor(
                micro_batch.tokens, micro_batch.action_mask, attention_mask=micro_batch.attention_mask
            )
            batch = token_batch(micro_batch, log_probs)
            plans = plan_micro_batch(CONFIG, batch, clip_of(self.ppo_loss), draws)
            update = number // per_update
            result = policy_loss(CONFIG, self.ppo_loss, aggregate_loss, batch, plans, update=update)
            result.loss.backward()
            if (number + 1) % per_update == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            if diagnostics:
                diagnostics.observe(micro_batch.sample_ids, result.record)
            result.loss.item()
        if diagnostics:
            diagnostics.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12, help="global steps with and without the diagnostics")
    pairs = parser.parse_args().pairs
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4
    )
    actor = Actor(LlamaForCausalLM(config))
    actor.packing_samples = False
    optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-5)
    plain, observed = (Trainer(actor, optimizer, with_diagnostics=each) for each in (False, True))

    seconds = []
    for seed in range(pairs + 1):
        order = [plain, observed][:: 1 if seed % 2 else -1]
        times = {trainer: global_step(trainer, seed) for trainer in order}
        seconds.append((times[plain], times[observed]))
    sys.stdout.write(report(seconds[1:]))  # the first pair warms up


def global_step(trainer: Trainer, seed: int) -> tuple[float, float]:
    """CPU seconds of scoring one rollout, and of all updates on it; other load on the machine does not count."""
    torch.manual_seed(seed)
    samples = rollout()
    started = time.process_time()
    samples = score(trainer.actor, samples, with_entropy=trainer.with_diagnostics)
    scored = time.process_time()
    trainer.train(samples)
    return scored - started, time.process_time() - scored


def rollout() -> list[TrainSample]:
    """Samples of random tokens, responses of random length, random advantages."""
    samples = []
    for number in range(SAMPLES):
        length = PROMPT + int(torch.randint(RESPONSE // 2, RESPONSE + 1, ()))
        action_mask = torch.arange(1, length) >= PROMPT
        advantages = torch.randn(()) * action_mask
        zeros = torch.zeros(length - 1)
        samples.append(
            TrainSample(
                sample_id=number,
                score=float(torch.randint(2, ())),
                abstained=False,
                tokens=torch.randint(VOCABULARY, (length,)),
                action_mask=action_mask,
                log_probs=zeros,
                entropy=zeros,
                advantages=advantages,
                returns=advantages,
            )
        )
    return samples


@torch.no_grad()
def score(actor: Actor, samples: Sequence[TrainSample], with_entropy: bool) -> list[TrainSample]:
    """Return the samples with their log-probs, and with their entropies if asked."""
    scored = []
    for first in range(0, SAMPLES, MICRO_BATCH):
        part = samples[first : first + MICRO_BATCH]
        batch = MicroBatch.of(part)
        wanted = {"return_output": True, "return_entropy": True} if with_entropy else {}
        found = actor(batch.tokens, batch.action_mask, attention_mask=batch.attention_mask, **wanted)
        log_probs, output = found if with_entropy else (found, None)
        for row, sample in enumerate(part):
            width = len(sample.action_mask)
            given = {"log_probs": log_probs[row, :width]}
            if output is not None:
                given["entropy"] = output.entropy[row, :width]
            scored.append(replace(sample, **given))
    return scored


def report(seconds: list[tuple[tuple[float, float], tuple[float, float]]]) -> str:
    """Markdown: medians of each phase without and with the diagnostics, and what they add pair by pair."""
    phases = {"scoring the rollout": (1, 0), "all updates": (0, 1), "both": (1, 1)}
    lines = ["| phase | without, CPU s | with, CPU s | added (median of pairs) |", "|---|---|---|---|"]
    for name, (scoring, updates) in phases.items():
        plain, observed = ([scoring * pair[i][0] + updates * pair[i][1] for pair in seconds] for i in (0, 1))
        added = statistics.median(b / a - 1 for a, b in zip(plain, observed, strict=True))
        lines.append(f"| {name} | {statistics.median(plain):.3f} | {statistics.median(observed):.3f} | {added:+.1%} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
