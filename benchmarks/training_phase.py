"""The training phase of a step against the arithmetic in it: the same micro-batches through the bare model.

Policy ranks without Ray, as in ``selection.py``, on the embedded task's model with random weights, whose responses end
anywhere. CPU microseconds of all ranks for a token, medians over alternating steps, and in brackets those of gloo's
threads. On several ranks "bare, averaged" is the bare model with one all-reduce of the gradients before each update.
"Read" is the number of tokens that pass through the model for a token of the samples: less than 1 where samples share
the row of their prompt, more with padding and with the passes that ``current`` adds. Prints Markdown.

    OMP_NUM_THREADS=1 python benchmarks/training_phase.py guard     # under a minute; status 1 above the limit
    OMP_NUM_THREADS=1 python benchmarks/training_phase.py growth    # prompts x 1, 2, 4, 8
    OMP_NUM_THREADS=1 torchrun --nproc-per-node 4 benchmarks/training_phase.py growth    # the same on 4 ranks
    OMP_NUM_THREADS=1 python benchmarks/training_phase.py growth --own_rows    # each sample in a row of its own
"""

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import selection
import torch

from openrlhf_cov.cluster import cpu_host

# ``--cov_log_probs`` -> training phase with KL-Cov over the bare model, on an EPYC (Zen 4); see docs/performance.md.
MEASURED = {"old": 0.69, "current": 0.85}
# Largest ratio to the measured value that passes.
LIMIT = 1.5
SETTINGS = tuple(MEASURED)
# The second one on several ranks alone.
BASELINES = ("bare", "bare, averaged")


class TokensRead:
    """Counts the tokens that a model reads while the body runs, padding included."""

    def __init__(self, model: Any) -> None:
        self.embeddings = model.get_input_embeddings()
        self.count = 0

    def __enter__(self) -> "TokensRead":
        self.hook = self.embeddings.register_forward_hook(self._add)
        return self

    def __exit__(self, *_: object) -> None:
        self.hook.remove()

    def _add(self, _module: torch.nn.Module, arguments: tuple[torch.Tensor], _output: torch.Tensor) -> None:
        self.count += arguments[0].numel()


class Used(NamedTuple):
    """CPU seconds of all ranks."""

    seconds: float
    # Of threads other than the one that computes, with one OpenMP thread: those of gloo.
    of_other_threads: float


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("guard", "growth"))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--own_rows", action="store_true", help="read every sample in a row of its own")
    args = parser.parse_args()
    cpu_host.install()
    with tempfile.TemporaryDirectory() as folder:
        guard = args.what == "guard"
        update = 32 if guard else 64
        problems, policy = selection.build(Path(folder), training_steps=1, update=update, own_rows=args.own_rows)
        base = selection.PROMPTS
        ranks = torch.distributed.get_world_size()
        baselines = BASELINES if ranks > 1 else BASELINES[:1]
        columns = ["ranks", "prompts", "tokens", *baselines, *SETTINGS]
        columns += [f"{setting} / {baseline}" for setting in SETTINGS for baseline in baselines]
        columns += [f"read, {setting}" for setting in SETTINGS]
        write(f"| {' | '.join(columns)} |")
        write("|---:" * len(columns) + "|")
        for factor in (1,) if guard else (1, 2, 4, 8):
            selection.PROMPTS = factor * base // ranks
            ratios = measure(policy, problems, args.steps)
    for setting, ratio in ratios.items() if guard else ():
        if ratio > LIMIT * MEASURED[setting]:
            sys.exit(
                f"the training phase with --cov_log_probs {setting} takes {ratio:.2f} times the bare model, more than "
                f"{LIMIT} times the {MEASURED[setting]} of docs/performance.md"
            )


def measure(policy, problems, steps: int) -> dict[str, float]:
    """Writes a row; the ratios of the phase to the bare model."""
    ranks = torch.distributed.get_world_size()
    rank = torch.distributed.get_rank()
    baselines = BASELINES if ranks > 1 else BASELINES[:1]
    used: dict[str, list[Used]] = {name: [] for name in (*baselines, *SETTINGS)}
    tokens = []
    read: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    for step in range(steps + 1):  # the first one warms up
        samples = selection.roll_out(policy, problems, step * ranks + rank)
        for baseline in baselines:
            used[baseline].append(cpu_seconds(bare, policy, samples, baseline != "bare"))
        tokens.append(over_ranks(sum(len(sample.tokens) for sample in samples)))
        for setting in SETTINGS:
            with TokensRead(policy.engine.module) as tokens_read:
                used[setting].append(cpu_seconds(selection.train, policy, samples, setting))
            read[setting].append(over_ranks(tokens_read.count) / tokens[-1])
    of_step = statistics.median(tokens[1:])
    medians = {name: statistics.median(each.seconds for each in found[1:]) for name, found in used.items()}
    cells = []
    for name, found in used.items():
        others = statistics.median(each.of_other_threads for each in found[1:])
        cells.append(f"{1e6 * medians[name] / of_step:.0f} ({1e6 * others / of_step:.0f})")
    cells += [f"{medians[setting] / medians[baseline]:.2f}" for setting in SETTINGS for baseline in baselines]
    cells += [f"{statistics.median(read[setting][1:]):.3f}" for setting in SETTINGS]
    write(f"| {ranks} | {ranks * selection.PROMPTS} | {of_step:.0f} | {' | '.join(cells)} |")
    return {setting: medians[setting] / medians["bare"] for setting in SETTINGS}


def write(line: str) -> None:
    """On the first rank."""
    if torch.distributed.get_rank() == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def over_ranks(value: float) -> float:
    """Its sum."""
    total = torch.tensor(value, dtype=torch.float64)
    torch.distributed.all_reduce(total)
    return float(total)


def bare(policy, samples: Sequence, averages: bool) -> None:
    """Forward, backward and AdamW of the micro-batches of a step, by torch and transformers alone.

    With ``averages`` all ranks get the same gradient before each update, by one all-reduce, as data-parallel training
    needs it; without it each rank trains for itself.
    """
    from openrlhf_cov.trainer.records import MicroBatch

    model = copy.deepcopy(policy.engine.module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, betas=(0.9, 0.95), weight_decay=0.0)
    layout = policy.layout
    for number, first in enumerate(range(0, len(samples), layout.micro_batch_size)):
        batch = MicroBatch.of(samples[first : first + layout.micro_batch_size])
        logits = model(input_ids=batch.tokens, attention_mask=batch.attention_mask).logits[:, :-1]
        log_probs = logits.log_softmax(-1).gather(-1, batch.tokens[:, 1:, None])
        log_probs.mean().backward()
        if (number + 1) % layout.micro_batches == 0:
            if averages:
                average_gradients(list(model.parameters()))
            optimizer.step()
            optimizer.zero_grad()


def average_gradients(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Give all ranks the mean of their gradients."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    joined = torch.cat([each.flatten() for each in gradients])
    torch.distributed.all_reduce(joined)
    joined /= torch.distributed.get_world_size()
    for gradient, mean in zip(gradients, joined.split([each.numel() for each in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def cpu_seconds(function, *arguments) -> Used:
    """Return what a call takes on all ranks."""
    torch.distributed.barrier()
    process = time.process_time()
    thread = time.thread_time()
    function(*arguments)
    thread = time.thread_time() - thread
    process = time.process_time() - process
    return Used(over_ranks(process), over_ranks(process - thread))


if __name__ == "__main__":
    main()
