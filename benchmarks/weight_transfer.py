"""Seconds and bytes of a transfer of weights from the trainer to a vLLM engine; prints Markdown.

    OMP_NUM_THREADS=1 python benchmarks/weight_transfer.py --sizes 0.1 0.5 7      # needs 20 GB of memory and of disk

For each size a model of bf16 weights is written, a real engine loads it, and this process sends its copy over gloo, as
rank 0 of a training does. ``pack`` joins the tensors of a bucket, ``broadcast`` sends it, and ``load`` is the rest:
vLLM copies the tensors into its model and repacks its layers. The plan for NCCL and CUDA IPC counts what upstream's
``broadcast_to_vllm`` calls: each tensor is one call of every engine and one broadcast, or one gather of handles.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

# GB -> (width, layers, width of the MLP); 32,000 tokens, embedding and head share a weight.
MODELS = {0.1: (512, 8, 2048), 0.5: (1024, 13, 4096), 7.0: (3072, 28, 9216)}
VOCABULARY = 32_000
REWARD = Path(__file__).resolve().parents[1] / "openrlhf_cov" / "rewards" / "reward_func.py"


def main() -> None:
    """Measure each size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", choices=MODELS, default=[0.1, 0.5], help="GB of weights")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the models are written (default: a temporary folder)")
    parser.add_argument("--engines", type=int, default=8, help="engines of the plan for NCCL and CUDA IPC")
    parser.add_argument("--ranks", type=int, default=8, help="ranks of the policy in that plan")
    args = parser.parse_args()
    rows = []
    for size in args.sizes:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            model = write_model(Path(folder), *MODELS[size])
            rows.append(transfers(model, Path(folder), args.rounds))
            print(rows[-1], file=sys.stderr, flush=True)
    print(table(rows))
    print()
    print(plan(rows, args.engines, args.ranks))


def write_model(folder: Path, width: int, layers: int, mlp_width: int) -> torch.nn.Module:
    """Write a model with small constant weights and a tokenizer of one letter; return the model."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        intermediate_size=mlp_width,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=0,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu")
    model.tie_weights()
    with torch.no_grad():
        for weight in (*model.parameters(), *model.buffers()):
            weight.fill_(0.01)
    model.save_pretrained(folder)
    words = {"<|endoftext|>": 0, "a": 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
    end = "<|endoftext|>"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=end).save_pretrained(folder)
    (folder / "train.jsonl").write_text('{"prompt": "a", "answer": "a"}\n')
    return model


def transfers(model: torch.nn.Module, folder: Path, rounds: int) -> dict[str, Any]:
    """Start an engine, send the weights ``rounds`` times and return the medians, in seconds."""
    from openrlhf_cov.cluster import connection, cpu_host
    from openrlhf_cov.trainer.ray.engines import start_engines
    from openrlhf_cov.trainer.weights import weight_transfer

    args = training_flags(folder)
    cpu_host.install()
    connection.connect(connection.needs_of_training(args))
    try:
        engines = start_engines(args, None)
        sender = weight_transfer.GlooWeightSender(engines, tensor_parallel_size=1)
        found = []
        for _ in range(rounds):
            with timed(weight_transfer, "pack", "broadcast") as seconds:
                began = time.monotonic()
                weight_transfer.transfer_weights(model, sender, zero_stage=2)
                seconds["transfer"] = time.monotonic() - began
            seconds["load"] = seconds["transfer"] - seconds["pack"] - seconds["broadcast"]
            found.append(seconds)
    finally:
        ray.shutdown()
    weights = [weight for _, weight in weight_transfer.plain_parameters(model)]
    medians = {name: statistics.median(each[name] for each in found) for name in found[0]}
    buckets = weight_transfer.buckets(weight_transfer.plain_parameters(model), weight_transfer.BUCKET_BYTES)
    return medians | {
        "gigabytes": sum(weight.nbytes for weight in weights) / 1e9,
        "tensors": len(weights),
        "buckets": sum(1 for _ in buckets),
    }


def training_flags(folder: Path) -> Any:
    """Return the parsed flags of a training whose engine holds the model of ``folder``."""
    from openrlhf_cov.cli import train_ppo_ray

    sys.argv = f"""train_ppo_ray --actor.model_name_or_path {folder} --data.prompt_dataset {folder}/train.jsonl
        --data.input_key prompt --data.label_key answer --actor.num_gpus_per_node 1 --vllm.num_engines 1
        --ds.param_dtype bf16 --algo.advantage.estimator group_norm --algo.kl.init_coef 0 --vllm.sync_backend gloo
        --rollout.batch_size 8 --rollout.n_samples_per_prompt 8 --train.batch_size 8 --train.micro_batch_size 8
        --reward.remote_url {REWARD} --data.max_len 64 --rollout.max_new_tokens 32 --ckpt.output_dir {folder}/run
        --ckpt.path {folder}/checkpoints""".split()
    return train_ppo_ray.parse_args()


@contextmanager
def timed(module: Any, *functions: str) -> Iterator[dict[str, float]]:
    """Count the seconds of all calls of functions of a module."""
    seconds: dict[str, float] = Counter()
    before = {name: getattr(module, name) for name in functions}

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            result = before[name](*args, **kwargs)
            seconds[name] += time.monotonic() - began
            return result

        return call

    for name in functions:
        setattr(module, name, counted(name))
    try:
        yield seconds
    finally:
        for name, function in before.items():
            setattr(module, name, function)


def table(rows: list[dict[str, Any]]) -> str:
    """Return what was measured, in seconds."""
    lines = [
        "| GB | tensors | buckets | pack | broadcast | load in vLLM | transfer | GB/s |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        seconds = [f"{row[name]:.2f}" for name in ("pack", "broadcast", "load", "transfer")]
        speed = row["gigabytes"] / row["transfer"]
        lines.append(
            f"| {row['gigabytes']:.2f} | {row['tensors']} | {row['buckets']} | {' | '.join(seconds)} | {speed:.2f} |"
        )
    return "\n".join(lines)


def plan(rows: list[dict[str, Any]], engines: int, ranks: int) -> str:
    """Return how often each path calls engines and collectives, and the bytes that an engine receives."""
    lines = [
        f"| {engines} engines, {ranks} ranks | GB | calls of engines | collectives | GB to each engine |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        size = f"{row['gigabytes']:.2f}"
        by_bucket = row["buckets"]
        by_tensor = row["tensors"]
        # gloo opens and closes an update with one call each.
        lines.append(f"| gloo, buckets | {size} | {(by_bucket + 2) * engines} | {by_bucket} broadcasts | {size} |")
        lines.append(f"| NCCL, tensors | {size} | {by_tensor * engines} | {by_tensor} broadcasts | {size} |")
        # Engine and rank share a GPU: only the handles travel, and every rank waits at a barrier for each tensor.
        lines.append(f"| CUDA IPC | {size} | {by_tensor * engines} | {by_tensor} gathers and barriers | 0 |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
