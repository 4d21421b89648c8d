"""CPU seconds of a training step by process, of this project on the embedded task; prints Markdown.

    OMP_NUM_THREADS=1 python benchmarks/step_profile.py --folder runs/tiny_task --rounds 3

``--folder`` holds what ``make demo`` makes. CPU seconds depend less on other work of the host than wall-clock
seconds do, least with one thread. To compare two versions, give both with ``--trees``: their runs alternate.
"""

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from race.race import STEP, TASKS, look

REPOSITORY = Path(__file__).resolve().parents[1]
# Steps that do not count: caches and pools fill.
WARM_UP = 2
# Start of a process's title -> its name in the table.
PROCESSES = {
    "ray::PolicyRole": "policy: update, scoring",
    "ray::ReferenceRole": "reference: scoring",
    # An engine was two processes in earlier commits.
    "VLLM::EngineCore": "engine: generation, rewards",
    "ray::CovRolloutActor": "engine: generation, rewards",
    "ray::TrainingController": "controller",
}
OTHERS = "Ray and the driver"
NAMES = list(dict.fromkeys([*PROCESSES.values(), OTHERS]))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/tiny_task"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument(
        "--trees", type=Path, nargs="+", default=[REPOSITORY], help="working trees (default: this one)"
    )
    parser.add_argument("--figure", type=Path, help="also draw the medians into this SVG file")
    args = parser.parse_args()
    found: dict[Path, list[dict[str, float]]] = {tree: [] for tree in args.trees}
    for _ in range(args.rounds):
        for tree in args.trees:
            found[tree].append(measure(tree.resolve(), args.folder.resolve(), args.steps))
            print(tree, found[tree][-1], file=sys.stderr, flush=True)
    print(table(found))
    if args.figure:
        draw(found, args.figure)


def measure(tree: Path, folder: Path, steps: int) -> dict[str, float]:
    """Return the CPU seconds of a step of each process of one run, by its name in the table."""
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "-m", "openrlhf_cov.cli.train_ppo_ray", *flags(folder, Path(output), steps)]
        environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONWARNINGS": "ignore", "RAY_ADDRESS": "local"}
        log = Path(output) / "log.txt"
        with log.open("w") as file:
            run = subprocess.Popen(command, cwd=tree, env=environment, stdout=file, stderr=subprocess.STDOUT)
        used: dict[int, float] = {}
        names: dict[int, str] = {}
        # What every process had used at the end of each step.
        ends: list[dict[int, float]] = []
        while run.poll() is None:
            look(run.pid, used)
            for pid in used:
                # A worker of Ray gets its title when it becomes an actor.
                if names.get(pid, OTHERS) == OTHERS:
                    names[pid] = name_of(pid)
            finished = len(STEP.findall(log.read_text(errors="replace")))
            ends += [dict(used)] * (finished - len(ends))
            time.sleep(0.2)
        if run.returncode or len(ends) <= WARM_UP:
            sys.exit(f"step_profile: the run ended with status {run.returncode}\n{log.read_text()[-3000:]}")
    seconds = dict.fromkeys(NAMES, 0.0)
    first = ends[WARM_UP - 1]
    last = ends[-1]
    for pid, end in last.items():
        seconds[names[pid]] += (end - first.get(pid, 0.0)) / (len(ends) - WARM_UP)
    return seconds


def flags(folder: Path, output: Path, steps: int) -> list[str]:
    """Return the command line: KL-Cov on 32 prompts × 8 samples with 8 updates and a reference."""
    task = TASKS["embedded"]
    reward = REPOSITORY / "openrlhf_cov" / "experiments" / "tiny_task" / "tiny_reward_func.py"
    return shlex.split(f"""
        --actor.model_name_or_path {folder / task.model} --data.prompt_dataset {folder / task.data}
        --data.input_key {task.keys[0]} --data.label_key {task.keys[1]} --data.max_samples {steps * task.prompts}
        --reward.remote_url {reward} --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --train.colocate_actor_ref
        --vllm.num_engines 1 --algo.advantage.estimator group_norm --algo.kl.use_loss --algo.kl.estimator k3
        --algo.kl.init_coef {task.kl_coef} --rollout.batch_size {task.prompts}
        --rollout.n_samples_per_prompt {task.samples} --rollout.micro_batch_size {2 * task.micro_batch}
        --train.batch_size {task.train_batch} --train.micro_batch_size {task.micro_batch} --data.max_len {task.max_len}
        --rollout.max_new_tokens {task.new_tokens} --actor.adam.lr {task.lr} --actor.lr_scheduler constant
        --cov_type kl_cov --kl_cov_ratio 2e-2 --rollout_seeded --ckpt.output_dir {output}
        --ckpt.path {output}/checkpoints
    """)


def name_of(pid: int) -> str:
    """Return the name of a process in the table."""
    try:
        title = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return OTHERS
    matches = (name for start, name in PROCESSES.items() if re.match(re.escape(start), title))
    return next(matches, OTHERS)


def table(found: dict[Path, list[dict[str, float]]]) -> str:
    """Return the medians of the rounds with the lowest and the highest value."""
    lines = [f"| CPU seconds | {' | '.join(map(str, found))} |", f"|---|{'---:|' * len(found)}"]
    for name in [*NAMES, "a step"]:
        cells = []
        for rounds in found.values():
            values = [sum(each.values()) if name == "a step" else each[name] for each in rounds]
            cells.append(f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(found: dict[Path, list[dict[str, float]]], path: Path) -> None:
    """Draw a stacked bar for each working tree: the medians of its processes."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.4, 1.4 + 0.5 * len(found)), layout="constrained")
    labels = [tree.name for tree in found]
    ends = [0.0] * len(found)
    for name in NAMES:
        widths = [statistics.median(each[name] for each in rounds) for rounds in found.values()]
        bars = axes.barh(labels, widths, left=ends, label=name)
        axes.bar_label(bars, fmt="%.2f", label_type="center", fontsize=8, color="white")
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("CPU seconds of a step")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    main()
