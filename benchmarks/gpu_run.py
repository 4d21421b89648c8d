"""Train on one GPU with vLLM and DeepSpeed taking turns, beside stock OpenRLHF, and print Markdown.

    python benchmarks/gpu_run.py --output runs/gpu_run

``addition`` trains the embedded task with KL-Cov and compares the rewards of the first and the last steps. The other
runs train a model with the shape of Qwen2.5-1.5B and random weights on random prompts: their figures say how long a
step takes and how much memory it needs, not what a policy learns. ``none`` is this project without a method,
``kl_cov`` with KL-Cov and the check of new weights in every step, ``stock`` is OpenRLHF. On a host without a GPU, the
same runs are made at toy size, without ``stock``.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from race.race import STEP, steps_of  # noqa: E402

RUNS = ("addition", "none", "kl_cov", "stock")
# Seconds between two readings of the memory of the GPU.
INTERVAL = 0.2
# Seconds that a run has for its step and a checkpoint after SIGTERM. Stock OpenRLHF ends at once.
GRACE = 180


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model with random weights and of its training."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    key_value_heads: int
    vocabulary: int
    prompts: int
    response_tokens: int
    micro_batch: int
    steps: int


# The shape of Qwen2.5-1.5B; 256 responses a step.
FULL = Sizes(28, 1536, 8960, 12, 2, 151_936, prompts=32, response_tokens=512, micro_batch=8, steps=4)
TOY = Sizes(2, 64, 128, 2, 1, 2000, prompts=4, response_tokens=16, micro_batch=8, steps=3)
SAMPLES = 8
PROMPT_TOKENS = 64
ADDITION_STEPS = 40


def main() -> None:
    """Run what is asked for and print a table of each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/gpu_run"))
    parser.add_argument("--only", nargs="+", choices=RUNS, default=RUNS)
    parser.add_argument("--flags", default="", help="further flags of all trainings, in one string")
    parser.add_argument(
        "--cuda_graphs", action="store_true", help="let vLLM on a GPU compile the model and record CUDA graphs"
    )
    parser.add_argument(
        "--timeout", type=float, default=1800, help="seconds after which a run is ended, and has failed"
    )
    args = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    sizes = FULL if on_gpu else TOY
    args.output = args.output.resolve()
    args.output.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in args.only:
        if name == "stock" and not on_gpu:
            continue
        output = args.output / name
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir()
        if name == "addition":
            command = addition(args.output, output, on_gpu)
        else:
            command = random_model(name, args.output, sizes)
        if not args.cuda_graphs:
            command.append("--vllm.enforce_eager")
        row = measure(name, [*command, *shlex.split(args.flags)], output, args.timeout)
        (output / "row.json").write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
        print(table(row), flush=True)
        if row["status"] or (name == "addition" and not row["last_reward"] > row["first_reward"]):
            failed.append(name)
    if failed:
        sys.exit(f"gpu_run: failed: {', '.join(failed)}; see log.txt in their folders in {args.output}")


def colocated(on_gpu: bool, share: float) -> str:
    """Return the flags with which vLLM and training take turns on one GPU; ``share`` is vLLM's of its memory."""
    turns = f"--train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization {share}"
    return f"""
        --actor.num_gpus_per_node 1 --vllm.num_engines 1 {turns if on_gpu else ""}
        --ds.zero_stage 3 --ds.attn_implementation sdpa
        --algo.advantage.estimator group_norm --algo.kl.init_coef 0 --actor.lr_scheduler constant
        --rollout.n_samples_per_prompt {SAMPLES}
    """


def addition(folder: Path, output: Path, on_gpu: bool) -> list[str]:
    """Make the embedded task and return the command that trains it."""
    task = folder / "addition-task"
    if not task.exists():
        tiny = "from openrlhf_cov.cli.main import main; main()"
        subprocess.run([sys.executable, "-c", tiny, "tiny-task", "--output", str(task)], check=True, cwd=REPOSITORY)
    reward = REPOSITORY / "openrlhf_cov" / "experiments" / "tiny_task" / "tiny_reward_func.py"
    flags = f"""
        {colocated(on_gpu, 0.3)} --actor.model_name_or_path {task}/model --data.prompt_dataset {task}/train.jsonl
        --data.input_key input --data.label_key label --data.max_samples {ADDITION_STEPS * 32}
        --reward.remote_url {reward} --data.max_len 48 --rollout.max_new_tokens 32
        --rollout.batch_size 32 --rollout.micro_batch_size 64 --train.batch_size 32 --train.micro_batch_size 32
        --actor.adam.lr 3e-5 --ckpt.output_dir {output} --ckpt.path {output}/state
        --method kl_cov --kl_cov_ratio 2e-2 --train.check_weight_update always
    """
    return [sys.executable, "-m", "openrlhf_cov.cli.train_ppo_ray", *shlex.split(flags)]


def random_model(name: str, folder: Path, sizes: Sizes) -> list[str]:
    """Make the model with random weights and its prompts, and return the command that trains it."""
    model = folder / "random-model"
    data = folder / "random-prompts.jsonl"
    if not model.exists():
        write_model(model, sizes)
    draw = random.Random(0)
    rows = [
        {
            "prompt": " ".join(f"w{draw.randrange(2, sizes.vocabulary)}" for _ in range(PROMPT_TOKENS)),
            "answer": "0",
        }
        for _ in range(sizes.prompts * sizes.steps)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    reward = REPOSITORY / "openrlhf_cov" / "experiments" / "tiny_task" / "coin_reward_func.py"
    batch = sizes.prompts * SAMPLES
    flags = f"""
        {colocated(torch.cuda.is_available(), 0.5)} --actor.model_name_or_path {model}
        --data.prompt_dataset {data} --data.input_key prompt --data.label_key answer --data.max_samples {len(rows)}
        --reward.remote_url {reward}
        --data.max_len {PROMPT_TOKENS + sizes.response_tokens} --rollout.max_new_tokens {sizes.response_tokens}
        --rollout.batch_size {sizes.prompts} --rollout.micro_batch_size {sizes.micro_batch}
        --train.batch_size {batch // 2} --train.micro_batch_size {sizes.micro_batch}
        --actor.gradient_checkpointing_enable --actor.adam.lr 1e-6 --ds.grad_accum_dtype fp32
        --ckpt.output_dir {folder / name} --ckpt.path {folder / name}/state
    """
    program, method = {
        "none": ("openrlhf_cov.cli.train_ppo_ray", ""),
        "kl_cov": (
            "openrlhf_cov.cli.train_ppo_ray",
            "--method kl_cov --kl_cov_ratio 2e-3 --train.check_weight_update always",
        ),
        "stock": ("openrlhf.cli.train_ppo_ray", ""),
    }[name]
    return [sys.executable, "-m", program, *shlex.split(flags), *shlex.split(method)]


def write_model(folder: Path, sizes: Sizes) -> None:
    """Write a Llama model with random weights in bf16, and a tokenizer with one word for each of its ids."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1} | {f"w{number}": number for number in range(2, sizes.vocabulary)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.hidden, intermediate_size=sizes.mlp,
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, num_key_value_heads=sizes.key_value_heads,
        max_position_embeddings=4096, tie_word_embeddings=True, eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    # On the CPU: a process that has used CUDA keeps some of the GPU's memory.
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


@dataclass(frozen=True)
class Followed:
    """What was seen of a run from outside."""

    # Exit status; negative if a signal ended it.
    status: int
    # Seconds from the start of the run to the end of each step, and to its own end.
    step_ends: list[float]
    seconds: float
    # Metrics of each step.
    steps: list[dict]
    # Unix time and GiB in use on the GPU.
    memory: list[tuple[float, float]]


def measure(name: str, command: list[str], output: Path, timeout: float) -> dict:
    """Run a training and return its figures: those of its first step, and medians over the later ones.

    Args:
        name: Name of the run.
        command: Its command line.
        output: Its folder, which gets ``log.txt`` and the readings of the GPU's memory, ``memory.json``.
        timeout: Seconds after which the run gets SIGTERM.
    """
    before = used_memory()
    run = follow(command, output / "log.txt", timeout)
    (output / "memory.json").write_text(json.dumps(run.memory), encoding="utf-8")
    row = {
        "run": name,
        "status": run.status,
        "seconds": run.seconds,
        "steps": len(run.steps),
        "peak_gib": max((used for _, used in run.memory), default=0.0) - before,
    }
    if not run.steps:
        return row | {"status": run.status or 1}
    first, *later = run.steps
    quarter = max(1, len(run.steps) // 4)
    rewards = [step["rollout/reward_mean"] for step in run.steps]
    row |= {
        "first step: ends after seconds": run.step_ends[0],
        "first_reward": statistics.mean(rewards[:quarter]),
        "last_reward": statistics.mean(rewards[-quarter:]),
    }
    row |= {f"first step: {key}": first[key] for key in sorted(first) if key.startswith("timing/")}
    if later:
        step_seconds = (run.step_ends[-1] - run.step_ends[0]) / len(later)
        if step_seconds:  # 0 if all steps were found in the log at once
            tokens = [step["rollout/response_length_mean"] * step["rollout/num_samples"] for step in later]
            row |= {"step_seconds": step_seconds, "response_tokens_per_second": statistics.mean(tokens) / step_seconds}
        phases = sorted(key for key in later[0] if key.startswith("timing/"))
        row |= {f"later steps: {key}": statistics.median(step[key] for step in later) for key in phases}
    return row


def follow(command: list[str], log_path: Path, timeout: float) -> Followed:
    """Run a command to its end and note when each of its steps ends.

    After ``timeout`` seconds the run gets SIGTERM, after which this project ends with its step. It is killed ``GRACE``
    seconds later.
    """
    readings: list[tuple[float, float]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(INTERVAL):
            readings.append((time.time(), used_memory()))

    def log() -> str:
        return log_path.read_text(errors="replace")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "RAY_ADDRESS": "local"}
    ends: list[float] = []
    signalled = False
    with log_path.open("w") as file:
        started = time.monotonic()
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            ended = False
            while not ended:
                time.sleep(0.1)
                ended = process.poll() is not None  # before the log is read, so that its last lines are
                seconds = time.monotonic() - started
                ends += [seconds] * (len(STEP.findall(log())) - len(ends))
                if seconds > timeout + GRACE and not ended:
                    os.killpg(process.pid, signal.SIGKILL)
                elif seconds > timeout and not signalled:
                    process.terminate()
                    signalled = True
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            stop.set()
            watcher.join()
    return Followed(process.returncode, ends, seconds, steps_of(log()), readings)


def used_memory() -> float:
    """Return the GiB in use on the first GPU, 0.0 where there is none."""
    if not torch.cuda.is_available():
        return 0.0
    query = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout) / 1024


def table(row: dict) -> str:
    """Return the figures of a run as a Markdown table."""
    lines = [f"| {row['run']} | |", "|---|---:|"]
    for key, value in row.items():
        if key != "run":
            lines.append(f"| {key} | {value:.3f} |" if isinstance(value, float) else f"| {key} | {value} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
