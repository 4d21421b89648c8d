"""CPU time and peak memory of log-probs and entropies: upstream's model against ours, on the same tokens.

A model of one layer, so that the output head is nearly all of it; a process of each in turns. Peak is what the process
holds beyond what it held before. Prints Markdown.

    python benchmarks/output_head.py --tokens 2048 --vocabulary 151936 --width 256
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Tokens of a sample.
LENGTH = 128
# Action tokens among them: nearly all, as in long responses, and as many as in the SmolLM2 recipes.
ACTIONS = (127, 50)
KINDS = {"upstream": "openrlhf.models.Actor", "ours": "openrlhf_cov.trainer.model.actor_model.CovActor"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        kind, folder = args.measure
        sys.stdout.write(json.dumps(measure(kind, folder, args.tokens)) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, args.vocabulary, args.width)
        rounds = [{kind: in_a_process(args, kind, folder) for kind in KINDS} for _ in range(args.rounds)]
    lines = [row(actions, phase, rounds) for actions in ACTIONS for phase in ("score", "train")]
    sys.stdout.write("\n".join([HEAD, *lines, ""]))


HEAD = """\
| action tokens of 128 | pass | upstream, CPU s | ours, CPU s | ours / upstream | upstream, MiB | ours, MiB |
|---|---|---|---|---|---|---|"""


def row(actions: int, phase: str, rounds: list[dict]) -> str:
    """Medians over the rounds; the ratio's also from least to largest."""
    median = {
        (kind, what): statistics.median(each[kind][f"{phase} {actions}"][what] for each in rounds)
        for kind in KINDS
        for what in ("seconds", "mebibytes")
    }
    seconds_of = [{kind: each[kind][f"{phase} {actions}"]["seconds"] for kind in KINDS} for each in rounds]
    ratios = [each["ours"] / each["upstream"] for each in seconds_of]
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    seconds = " | ".join(f"{median[kind, 'seconds']:.2f}" for kind in KINDS)
    memory = " | ".join(f"{median[kind, 'mebibytes']:,.0f}" for kind in KINDS)
    return f"| {actions} | {phase} | {seconds} | {ratio} | {memory} |"


def in_a_process(args: argparse.Namespace, kind: str, folder: str) -> dict:
    """``measure`` in a process of its own."""
    command = [sys.executable, __file__, "--tokens", str(args.tokens), "--measure", kind, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def make_model(folder: str, vocabulary: int, width: int) -> None:
    """A model with random weights, tied, of one layer."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)


def measure(kind: str, folder: str, tokens: int) -> dict:
    """{pass and number of actions: {"seconds", "mebibytes"}}."""
    from openrlhf_cov.cluster import cpu_host

    cpu_host.install()
    cpu_host.accept_fp32()
    import torch

    module, name = KINDS[kind].rsplit(".", 1)
    actor_class = getattr(__import__(module, fromlist=[name]), name)
    actor = actor_class(folder, attn_implementation="sdpa", param_dtype="fp32")
    draw = torch.Generator().manual_seed(0)
    vocabulary = actor.model.config.vocab_size
    sequences = torch.randint(0, vocabulary, (tokens // LENGTH, LENGTH), generator=draw)
    attention = torch.ones_like(sequences)

    def score(action: torch.Tensor) -> None:
        with torch.no_grad():
            actor(sequences, action, attention, return_output=True, return_entropy=True)

    def train(action: torch.Tensor) -> None:
        log_probs, _output = actor(sequences, action, attention, return_output=True)
        (log_probs * torch.linspace(-1, 1, action.shape[1])).sum().backward()

    score(torch.ones_like(sequences[:, :1]))  # upstream compiles its entropy
    results = {}
    for actions in ACTIONS:
        for run in (score, train):
            Path("/proc/self/clear_refs").write_text("5")  # the peak is now what there is
            before = resident("VmRSS")
            started = time.process_time()
            run(torch.ones_like(sequences[:, -actions:]))
            seconds = time.process_time() - started
            results[f"{run.__name__} {actions}"] = {"seconds": seconds, "mebibytes": resident("VmHWM") - before}
    return results


def resident(name: str) -> float:
    """MiB of this process in memory, now (VmRSS) or at most (VmHWM)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) / 1024


if __name__ == "__main__":
    main()
