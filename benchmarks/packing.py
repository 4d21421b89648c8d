"""One forward and backward pass of upstream's policy on this CPU, samples packed and padded: seconds of one core.

    python benchmarks/packing.py

The policy has the size of the embedded task's; lengths are drawn uniformly. Prints the smallest of several runs.
"""

import argparse
import time

from openrlhf_cov.cluster import cpu_host

cpu_host.install()

import torch  # noqa: E402
from openrlhf.models import Actor  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: E402

from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig  # noqa: E402

# Samples, shortest and longest.
CASES = [(32, 20, 48), (64, 20, 48), (8, 64, 1024)]


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=4)
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    for samples, shortest, longest in CASES:
        lengths = torch.randint(shortest, longest + 1, (samples,), generator=torch.Generator().manual_seed(1))
        padded, packed = (min(seconds(make_policy(packing), lengths) for _ in range(runs)) for packing in (0, 1))
        print(f"{samples} samples of {shortest} to {longest} tokens: padded {padded:.2f} s, packed {packed:.2f} s")


def make_policy(packing: bool) -> Actor:
    """Upstream's policy with random weights."""
    size = BasePolicyConfig()
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        use_cache=False,
    )
    torch.manual_seed(0)
    attention = cpu_host.PACKED_ATTENTION if packing else "sdpa"
    policy = Actor(AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention))
    policy.packing_samples = bool(packing)
    policy.temperature = 1.0
    return policy.train()


def seconds(policy: Actor, lengths: torch.Tensor) -> float:
    """CPU time of one pass over samples of these lengths."""
    attention = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    sequences = torch.randint(2, 32, attention.shape) * attention
    start = time.process_time()
    policy(sequences, attention[:, 1:], attention_mask=attention).sum().backward()
    return time.process_time() - start


if __name__ == "__main__":
    main()
