"""Samples with common prefixes side by side against a row for each: the same micro-batches through ``CovActor``.

They take turns. Models with random weights, fp32; seconds by the clock, medians. ``--width 576 --layers 30`` is
SmolLM2-135M's. Prints Markdown.

    OMP_NUM_THREADS=2 python benchmarks/shared_prefixes.py
    OMP_NUM_THREADS=2 python benchmarks/shared_prefixes.py --width 576 --layers 30 --prompt 102 --response 64 \\
        --samples 16 --rounds 3
"""

import argparse
import statistics
import tempfile
import time

from openrlhf_cov.cluster import cpu_host

cpu_host.install()
import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from openrlhf_cov.trainer.model.actor_model import CovActor  # noqa: E402

VOCABULARY = 1000
GROUP = 8
SHARED = "shared"


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=9)
    parser.add_argument("--response", type=int, default=16)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="print what the last row spends its time on, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model(args.width, args.layers).save_pretrained(folder)
        actor = CovActor(folder, attn_implementation="sdpa", param_dtype="bf16", temperature=1.0).float()
    assert actor.shares_prefixes
    sharing = actor._sharing
    print("| | tokens, a row each | tokens side by side | row each, s | side by side, s | ratio |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, prompts, training in (
        ("scoring, groups of 8", args.samples // GROUP, False),
        ("training, groups of 8", args.samples // GROUP, True),
        ("training, every prompt once", args.samples, True),
    ):
        batch = samples(args, prompts)
        seconds: dict[str, list[float]] = {SHARED: [], "apart": []}
        for _ in range(args.rounds):
            for way, times in seconds.items():
                actor.__dict__["_sharing"] = sharing if way == SHARED else None
                times.append(measure(actor, batch, training))
        shared, apart = (statistics.median(times) for times in seconds.values())
        actor.__dict__["_sharing"] = sharing
        read = tokens_side_by_side(actor, batch)
        print(f"| {name} | {batch[0].numel()} | {read} | {apart:.3f} | {shared:.3f} | {shared / apart:.2f} |")
    if args.profile:
        with torch.profiler.profile() as profiler:
            for _ in range(args.rounds):
                measure(actor, batch, training)
        print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=8))


def model(width: int, layers: int) -> LlamaForCausalLM:
    """A Llama with heads of 32 or 64 numbers, as the embedded task's and SmolLM2's have."""
    size = 32 if width < 512 else 64
    config = LlamaConfig(
        hidden_size=width, intermediate_size=8 * width // 3, num_hidden_layers=layers, vocab_size=VOCABULARY,
        num_attention_heads=width // size, num_key_value_heads=width // size, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def samples(args: argparse.Namespace, prompts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(sequences, attention mask (B, T), action mask (B, A)); responses are between half and all of their length."""
    draw = torch.Generator().manual_seed(0)
    shape = args.samples, args.prompt + args.response
    sequences = torch.randint(2, VOCABULARY, shape, generator=draw)
    each = args.samples // prompts
    sequences[:, : args.prompt] = sequences[::each, : args.prompt].repeat_interleave(each, 0)
    lengths = torch.randint(args.response // 2, args.response + 1, (args.samples, 1), generator=draw)
    attention = (torch.arange(shape[1]) < args.prompt + lengths).long()
    return sequences * attention, attention, attention[:, args.prompt :].clone()


def measure(actor: CovActor, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor], training: bool) -> float:
    """Seconds of a pass, with the backward pass if ``training``."""
    sequences, attention, action = batch
    actor.train(training)
    started = time.perf_counter()
    with torch.set_grad_enabled(training):
        log_probs = actor(sequences, action, attention)
    if training:
        log_probs.sum().backward()
        actor.zero_grad()
    return time.perf_counter() - started


def tokens_side_by_side(actor: CovActor, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> int:
    """Return the tokens of the padded batch in which shared prompts are scored side by side."""
    sequences, attention, action = batch
    before = torch.zeros_like(sequences, dtype=torch.bool)
    before[:, -1 - action.shape[1] : -1] = action.bool()
    layout = actor._layout(sequences, attention, before)
    return layout.tokens.numel() if layout else sequences.numel()


if __name__ == "__main__":
    main()
