"""Time of a linear layer in fp32, forward and backward, by PyTorch's own choice and by oneDNN; prints Markdown.

    OMP_NUM_THREADS=1 python benchmarks/linear_layers.py

"First" is the first time of a number of rows, for whose three products oneDNN makes code.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from openrlhf_cov.cluster.onednn_linear import linear, plain_linear

# Inputs and outputs of layers: of the addition task's model, and of SmolLM2-135M.
SIZES = ((192, 192), (192, 512), (512, 192), (576, 1536))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=550, help="tokens of a micro-batch")
    parser.add_argument("--rounds", type=int, default=50, help="of which the medians are printed")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds must be at least 2: the first one of each shape does not count")
    print("| milliseconds | MKL | oneDNN | ratio | oneDNN, first |\n|---|---:|---:|---:|---:|")
    for inputs, outputs in SIZES:
        seconds: dict[Callable, list[float]] = {linear: [], plain_linear: []}
        for _ in range(args.rounds):
            for layer, measured in seconds.items():
                measured.append(forward_and_backward(layer, args.rows, inputs, outputs))
        ours, theirs = (statistics.median(measured[1:]) * 1e3 for measured in seconds.values())
        # Other numbers of rows, none of which was there before.
        firsts = [forward_and_backward(linear, args.rows + 1 + extra, inputs, outputs) for extra in range(9)]
        first = statistics.median(firsts) * 1e3
        print(f"| {inputs} × {outputs} | {theirs:.2f} | {ours:.2f} | {ours / theirs:.2f} | {first:.2f} |")


def forward_and_backward(layer: Callable[[Tensor, Tensor], Tensor], rows: int, inputs: int, outputs: int) -> float:
    """Return the seconds that a layer takes for a batch of rows, with the gradients of input and weight."""
    batch = torch.randn(rows, inputs, requires_grad=True)
    weight = torch.randn(outputs, inputs, requires_grad=True)
    of_output = torch.randn(rows, outputs)
    started = time.perf_counter()
    layer(batch, weight).backward(of_output)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
