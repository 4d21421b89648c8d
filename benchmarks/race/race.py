"""Train the same task with this project, stock OpenRLHF and TRL in turns on one host, and print Markdown.

    python benchmarks/race/race.py --task embedded --folder runs/tiny_task --rounds 5
    python benchmarks/race/race.py --task smollm2 --folder runs --rounds 3 --steps 2 --prompts 4
    python benchmarks/race/race.py --table runs/race/embedded.jsonl                      # of what was measured

``--folder`` holds what ``make demo`` makes, or what ``make smollm`` and ``openrlhf-cov prepare --dataset gsm8k
--template chat --output runs/gsm8k`` make. TRL gets an environment of its own from requirements-trl.txt, made the
first time. Every run adds a line to the results, which an interrupted race continues.
"""

import argparse
import ast
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
OURS = {
    "none": "--cov_type none",
    "none, two engines": "--cov_type none --vllm.num_engines 2",
    "none, groups": "--cov_type none --train.shuffle groups",
    "none, groups, two engines": "--cov_type none --train.shuffle groups --vllm.num_engines 2",
    "clip_cov": "--cov_type clip_cov --clip_cov_ratio 2e-2 --clip_cov_lb 0.5",
    "kl_cov": "--cov_type kl_cov --kl_cov_ratio 2e-2",
    "kl_cov, old": "--cov_type kl_cov --kl_cov_ratio 2e-2 --cov_log_probs old",
}
STOCK = {"stock": "", "stock, two engines": "--vllm.num_engines 2", "stock, tuned": ""}
OTHERS = (*STOCK, "trl")
COLUMNS = {
    "s/step": "step",
    "generation": "timing/generation",
    "scoring": "timing/make_experience",
    "training": "timing/ppo_train",
    "CPU s/step": "cpu",
    "tokens/s": "tokens",
    "start, s": "start",
    "peak GB": "memory",
    "reward": "reward",
}
STEP = re.compile(r"Global step \d+: (\{.*\})")


@dataclass(frozen=True)
class Task:
    """The task and the sizes that all trainers get."""

    model: str
    data: str
    keys: tuple[str, str]
    prompts: int
    samples: int
    train_batch: int
    micro_batch: int
    new_tokens: int
    max_len: int
    lr: float
    kl_coef: float
    reward: str
    # Flags that only OpenRLHF has.
    upstream: str = ""
    # Steps that do not count: caches and pools fill.
    warm_up: int = 2


TASKS = {
    "embedded": Task("model", "train.jsonl", ("input", "label"), 32, 8, 32, 32, 32, 48, 3e-5, 1e-3, "addition"),
    "smollm2": Task(
        "smollm2",
        "gsm8k/train.jsonl",
        ("prompt", "answer"),
        *(16, 8, 64, 16, 64, 512),
        *(2e-6, 1e-3, "word"),
        "--data.apply_chat_template --actor.gradient_checkpointing_enable",
        1,
    ),
}


def main() -> None:
    """Race, or print the table of a race."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="embedded")
    parser.add_argument("--folder", type=Path, default=Path("runs/tiny_task"))
    parser.add_argument("--output", type=Path, default=Path("runs/race"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument(
        "--prompts", type=int, help="of a step, with updates of a rollout as many (default: the task's)"
    )
    parser.add_argument("--only", nargs="+", choices=(*OURS, *OTHERS), default=(*OURS, *OTHERS))
    parser.add_argument("--trl", type=Path, default=Path("runs/race/trl"), help="TRL's environment")
    parser.add_argument("--table", type=Path, help="print the table of these results")
    args = parser.parse_args()
    if args.table:
        print(table(read(args.table)))
        return
    args.output.mkdir(parents=True, exist_ok=True)
    if "trl" in args.only and not (args.trl / "bin" / "trl").exists():
        make_trl(args.trl)
    size = f"-{args.prompts}-prompts" if args.prompts else ""
    results = args.output / f"{args.task}{size}.jsonl"
    if others := {row.get("steps", args.steps) for row in read(results)} - {args.steps}:
        sys.exit(f"race: {results} has runs of {others} steps, not --steps {args.steps}; give another --output")
    for number in range(args.rounds):
        for name in args.only:
            if any((row["name"], row["round"]) == (name, number) for row in read(results)):
                continue
            folder = args.output / f"{args.task}{size}-{number}-{re.sub('[, ]+', '-', name)}"
            row = {"name": name, "round": number, "steps": args.steps} | measure(name, args, folder)
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), file=sys.stderr, flush=True)
    print(table(read(results)))


def make_trl(folder: Path) -> None:
    """TRL's environment."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    requirements = HERE / "requirements-trl.txt"
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", "--requirement", requirements], check=True)


def task_of(args: argparse.Namespace) -> Task:
    """The task, scaled to the prompts that are asked for."""
    task = TASKS[args.task]
    prompts = args.prompts or task.prompts
    batch = task.train_batch * prompts // task.prompts
    if batch % task.micro_batch or not batch:
        sys.exit(f"race: --prompts {prompts} makes updates of {batch} samples, no multiple of {task.micro_batch}")
    return replace(task, prompts=prompts, train_batch=batch)


def command(name: str, args: argparse.Namespace, output: Path) -> tuple[list[str], dict[str, str]]:
    """The command line of a contestant, and what it needs in its environment."""
    task = task_of(args)
    folder = args.folder.resolve()
    model = folder / task.model
    data = folder / task.data
    if name == "trl":
        flags = f"""--model {model} --data {data} --prompt_key {task.keys[0]} --label_key {task.keys[1]}
            --output {output} --steps {args.steps} --prompts {task.prompts} --samples {task.samples}
            --train_batch {task.train_batch}
            --micro_batch {task.micro_batch} --new_tokens {task.new_tokens} --lr {task.lr} --kl_coef {task.kl_coef}
            --reward {task.reward} {"--checkpointing" * ("checkpointing" in task.upstream)}"""
        return [str(args.trl.absolute() / "bin" / "python"), str(HERE / "with_trl.py"), *shlex.split(flags)], {}
    reward = HERE / "race_reward.py"
    if task.reward == "addition":
        reward = REPOSITORY / "openrlhf_cov" / "experiments" / "tiny_task" / "tiny_reward_func.py"
    # ZeRO 0: one rank has nothing to shard, and TRL shards nothing.
    flags = f"""
        --actor.model_name_or_path {model} --data.prompt_dataset {data} --data.input_key {task.keys[0]}
        --data.label_key {task.keys[1]} --data.max_samples {args.steps * task.prompts} --reward.remote_url {reward}
        --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --train.colocate_actor_ref --vllm.num_engines 1
        --vllm.gpu_memory_utilization 0.2 --vllm.enforce_eager --vllm.sync_backend gloo
        --algo.advantage.estimator group_norm --algo.kl.use_loss --algo.kl.estimator k3
        --algo.kl.init_coef {task.kl_coef} --rollout.batch_size {task.prompts}
        --rollout.n_samples_per_prompt {task.samples} --rollout.micro_batch_size {2 * task.micro_batch}
        --train.batch_size {task.train_batch} --train.micro_batch_size {task.micro_batch}
        --data.max_len {task.max_len} --rollout.max_new_tokens {task.new_tokens} --actor.adam.lr {task.lr}
        --actor.lr_scheduler constant --ds.zero_stage 0 --ds.attn_implementation sdpa
        --ckpt.output_dir {output} --ckpt.path {output}/checkpoints {task.upstream}
    """
    if name in OURS:
        # TRL generates all samples of a step at once as well.
        flags += f"--vllm.max_num_seqs {task.prompts * task.samples} {OURS[name]}"
        return [sys.executable, "-m", "openrlhf_cov.cli.train_ppo_ray", *shlex.split(flags)], {}
    flags += STOCK[name]
    return [sys.executable, str(HERE / "stock.py"), *shlex.split(flags)], {
        "RACE_TUNED": str(int(name == "stock, tuned"))
    }


def measure(name: str, args: argparse.Namespace, output: Path) -> dict:
    """Return the figures of one run of a contestant."""
    argv, variables = command(name, args, output)
    return measure_command(name, argv, variables, output, task_of(args).warm_up)


def measure_command(name: str, argv: list[str], variables: dict[str, str], output: Path, warm_up: int) -> dict:
    """Run a training and return medians over its steps.

    Args:
        name: What a message about a failed run calls it.
        argv: The command line.
        variables: Variables of its environment beside those of this process.
        output: Its folder; what a race that was broken off left there is removed.
        warm_up: How many of the first steps do not count.
    """
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    path = os.pathsep.join([str(REPOSITORY), str(HERE)])
    env = os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "RAY_ADDRESS": "local"} | variables
    started = time.monotonic()
    log_path = output / "log.txt"
    with log_path.open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    used: dict[int, float] = {}
    start = None
    memory = 0.0
    ends: list[tuple[float, float]] = []
    while process.poll() is None:
        memory = max(memory, look(process.pid, used))
        text = log_path.read_text(errors="replace")
        now = time.monotonic() - started
        if start is None and "Generate samples" in text:
            start = now
        while len(ends) < len(STEP.findall(text)):
            ends.append((now, sum(used.values())))
        time.sleep(0.1)
    steps = steps_of(log_path.read_text(errors="replace"))
    if process.returncode or len(steps) <= warm_up:
        sys.exit(f"race: {name} ended with status {process.returncode} after {len(steps)} steps; see {log_path}")
    (begin, cpu), (end, cpu_end) = ends[warm_up - 1], ends[-1]
    counted = steps[warm_up:]
    row = {key: statistics.median(step[key] for step in counted) for key in COLUMNS.values() if "timing/" in key}
    tokens = sum(step["rollout/response_length_mean"] * step["rollout/num_samples"] for step in counted)
    return row | {
        "step": (end - begin) / len(counted),
        "cpu": (cpu_end - cpu) / len(counted),
        "tokens": tokens / (end - begin),
        "start": start,
        "memory": memory / 2**30,
        "reward": statistics.mean(step["rollout/reward_mean"] for step in steps[-3:]),
    }


def steps_of(log: str) -> list[dict]:
    """The metrics of every global step."""
    return [ast.literal_eval(re.sub(r"\b(nan|inf)\b", "None", found)) for found in STEP.findall(log)]


def look(pid: int, used: dict[int, float]) -> float:
    """Bytes of a tree of processes that none shares; what each has used of the CPU goes into ``used``."""
    memory = 0.0
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return memory
    for member in tree:
        try:
            times = member.cpu_times()
            used[member.pid] = times.user + times.system
            memory += member.memory_info().rss - member.memory_info().shared
        except psutil.Error:
            continue
    return memory


def read(path: Path) -> list[dict]:
    """Return the measurements in a file, none where it does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(rows: list[dict]) -> str:
    """Medians over the rounds, with the lowest and highest."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    lines = [f"| | {' | '.join(COLUMNS)} | runs |", f"|---|{'---:|' * (len(COLUMNS) + 1)}"]
    for name in names:
        mine = [row for row in rows if row["name"] == name]
        cells = [spread([row[key] for row in mine]) for key in COLUMNS.values()]
        lines.append(f"| {name} | {' | '.join(cells)} | {len(mine)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Median (lowest–highest)."""
    return f"{statistics.median(values):.3g} ({min(values):.3g}–{max(values):.3g})"


if __name__ == "__main__":
    main()
