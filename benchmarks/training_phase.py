"""The training phase of a step against the arithmetic in it: the same micro-batches through the bare model.

Policy ranks without Ray, as in ``selection.py``, on the embedded task's model with random weights, whose responses end
anywhere. CPU seconds of all ranks and tokens, medians over alternating steps. Prints Markdown.

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

import selection
import torch

from openrlhf_cov.cluster import cpu_host

# ``--cov_log_probs`` -> training phase with KL-Cov over the bare model, on an EPYC (Zen 4); see docs/performance.md.
MEASURED = {"old": 0.69, "current": 0.85}
# Largest ratio to the measured value that passes.
LIMIT = 1.5
SETTINGS = tuple(MEASURED)


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
        write("| ranks | prompts | tokens | bare | old | current | old, µs/token | old / bare | current / bare |")
        write("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
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
    seconds: dict[str, list[float]] = {name: [] for name in ("bare", *SETTINGS)}
    ranks = torch.distributed.get_world_size()
    rank = torch.distributed.get_rank()
    tokens = []
    for step in range(steps + 1):  # the first one warms up
        for setting in SETTINGS:
            samples = selection.roll_out(policy, problems, step * ranks + rank)
            if setting == "old":
                seconds["bare"].append(cpu_seconds(bare, policy, samples))
            seconds[setting].append(cpu_seconds(selection.train, policy, samples, setting))
        tokens.append(over_ranks(sum(len(sample.tokens) for sample in samples)))
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    ratios = {name: medians[name] / medians["bare"] for name in SETTINGS}
    cells = [f"{value:.2f}" for value in medians.values()]
    read = statistics.median(tokens[1:])
    cells += [f"{1e6 * medians['old'] / read:.0f}", *(f"{ratio:.2f}" for ratio in ratios.values())]
    write(f"| {ranks} | {ranks * selection.PROMPTS} | {read:.0f} | {' | '.join(cells)} |")
    return ratios


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


def bare(policy, samples: Sequence) -> None:
    """Forward, backward and AdamW of the micro-batches of a step, by torch and transformers alone."""
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
            optimizer.step()
            optimizer.zero_grad()


def cpu_seconds(function, *arguments) -> float:
    """Return the CPU seconds of a call, of all threads and ranks."""
    torch.distributed.barrier()
    started = time.process_time()
    function(*arguments)
    return over_ranks(time.process_time() - started)


if __name__ == "__main__":
    main()
