"""What the diagnostics add to a global step: scoring the rollouts and all updates, with and without them, in turn.

A small Llama on the CPU, upstream's ``Actor`` and policy loss, no Ray and no DeepSpeed. Prints Markdown.

    OMP_NUM_THREADS=1 python benchmarks/diagnostics.py
"""

import argparse
import math
import statistics
import sys
import time
from types import SimpleNamespace

import torch

from openrlhf_cov.trainer import cpu_host

cpu_host.install()

from openrlhf.models import Actor, PolicyLoss, aggregate_loss  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from openrlhf_cov.models.config import CovConfig  # noqa: E402
from openrlhf_cov.models.loss import MethodLoss  # noqa: E402
from openrlhf_cov.models.window import ALONE  # noqa: E402
from openrlhf_cov.trainer.observation import StepDiagnostics  # noqa: E402
from openrlhf_cov.trainer.records import TrainSample  # noqa: E402

SAMPLES, SAMPLES_PER_PROMPT, PROMPT, RESPONSE, VOCABULARY = 64, 8, 16, 112, 4096
UPDATES, MICRO_BATCH = 4, 8


class Trainer:
    """A step of training without DeepSpeed: one micro-batch forward and backward."""

    diagnostics: StepDiagnostics | None = None

    def __init__(self, actor: Actor, optimizer: torch.optim.Optimizer, observes: bool) -> None:
        config = CovConfig(cov_type="kl_cov", cov_scope="micro_batch")
        loss = PolicyLoss(math.inf, math.inf)
        self.actor_loss_fn = MethodLoss(config, policy_loss=loss, aggregate=aggregate_loss)
        self.actor, self.optimizer, self.observes = actor, optimizer, observes

    def training_step(self, batch: SimpleNamespace, ends_update: bool) -> dict:
        log_probs = self.actor(batch.sequences, batch.action_mask, attention_mask=batch.attention_mask)
        self.actor_loss_fn.expect(update=self.actor.model.global_steps)
        loss, *_ = self.actor_loss_fn(
            log_probs, batch.action_log_probs, batch.advantages, action_mask=batch.action_mask
        )
        loss.backward()
        if ends_update:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.actor.model.global_steps += 1
        if self.diagnostics:
            self.diagnostics.observe(batch.info["sample_id"], self.actor_loss_fn.record)
        return {"loss": loss.item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12, help="global steps with and without the diagnostics")
    pairs = parser.parse_args().pairs
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4
    )
    actor = Actor(LlamaForCausalLM(config))
    actor.packing_samples, actor.model.global_steps = False, 0
    optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-5)
    plain = Trainer(actor, optimizer, observes=False)
    observed = Trainer(actor, optimizer, observes=True)

    seconds = []
    for seed in range(pairs + 1):
        order = [plain, observed][:: 1 if seed % 2 else -1]
        times = {trainer: global_step(trainer, seed) for trainer in order}
        seconds.append((times[plain], times[observed]))
    sys.stdout.write(report(seconds[1:]))  # the first pair warms up


def global_step(trainer: Trainer, seed: int) -> tuple[float, float]:
    """CPU seconds of scoring one rollout, and of all updates on it; other load on the machine does not count."""
    torch.manual_seed(seed)
    batches = rollout()
    started = time.process_time()
    score(trainer.actor, batches, with_entropy=trainer.observes)
    scored = time.process_time()
    if trainer.observes:
        samples = [sample for batch in batches for sample in samples_of(batch)]
        trainer.diagnostics = StepDiagnostics(samples, SAMPLES_PER_PROMPT, ALONE, "cpu")
    per_update = len(batches) // UPDATES
    for number, batch in enumerate(batches, start=1):
        trainer.training_step(batch, number % per_update == 0)
    if trainer.diagnostics:
        trainer.diagnostics.finish()
    return scored - started, time.process_time() - scored


def rollout() -> list[SimpleNamespace]:
    """Micro-batches of random tokens, responses of random length, random advantages."""
    batches = []
    for first in range(0, SAMPLES, MICRO_BATCH):
        lengths = PROMPT + torch.randint(RESPONSE // 2, RESPONSE + 1, (MICRO_BATCH, 1))
        sequences = torch.randint(VOCABULARY, (MICRO_BATCH, int(lengths.max())))
        attention_mask = (torch.arange(sequences.shape[1]) < lengths).long()
        action_mask = attention_mask[:, 1:].bool()
        action_mask[:, : PROMPT - 1] = False
        advantages = torch.randn(MICRO_BATCH, 1) * action_mask
        info = {"sample_id": torch.arange(first, first + MICRO_BATCH)}
        batches.append(
            SimpleNamespace(
                sequences=sequences,
                attention_mask=attention_mask,
                action_mask=action_mask,
                advantages=advantages,
                scores=torch.randint(2, (MICRO_BATCH,)).float(),
                info=info,
            )
        )
    return batches


@torch.no_grad()
def score(actor: Actor, batches: list[SimpleNamespace], with_entropy: bool) -> None:
    """Give every micro-batch its log-probs, and its entropies if asked."""
    for batch in batches:
        wanted = {"return_output": True, "return_entropy": True} if with_entropy else {}
        found = actor(batch.sequences, batch.action_mask, attention_mask=batch.attention_mask, **wanted)
        if with_entropy:
            found, output = found
            batch.entropy = output.entropy[:, -batch.action_mask.shape[1] :]
        batch.action_log_probs = found


def samples_of(batch: SimpleNamespace) -> list[TrainSample]:
    """Return the samples of a micro-batch without padding."""
    samples = []
    for i, length in enumerate(batch.attention_mask.sum(1).tolist()):
        names = ("entropy", "advantages", "action_mask")
        tensors = {name: getattr(batch, name)[i, : length - 1] for name in names}
        samples.append(
            TrainSample(
                sample_id=int(batch.info["sample_id"][i]),
                score=float(batch.scores[i]),
                abstained=False,
                tokens=batch.sequences[i, :length],
                log_probs=batch.action_log_probs[i, : length - 1],
                returns=tensors["advantages"],
                **tensors,
            )
        )
    return samples


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
