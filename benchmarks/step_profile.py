"""CPU seconds of a training step by part, of a run of the race on the embedded task; prints Markdown.

    OMP_NUM_THREADS=1 python benchmarks/step_profile.py --folder runs/tiny_task --rounds 3

``--folder`` holds what ``make demo`` makes. CPU seconds depend less on other work of the host than wall-clock
seconds do. The seconds of every thread are measured, and divided among its parts as the samples of py-spy are, which
looks at the stacks of Python 100 times a second. With one OpenMP thread nearly all work is done by threads of Python.
To compare two versions, give both with ``--trees``: their runs alternate. An earlier commit gets a tree of its own by
``git worktree add --detach ../before COMMIT``.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import psutil
from race.race import OURS, STEP, command, look

REPOSITORY = Path(__file__).resolve().parents[1]
# Steps that do not count: caches and pools fill.
WARM_UP = 2
SAMPLES_PER_SECOND = 100
# Ray requires py-spy, so it is in the environment of the training.
PY_SPY = Path(sys.executable).with_name("py-spy")

# Beginning of a process's title -> what the process does.
PROCESSES = {
    "ray::PolicyRole": "policy",
    "ray::ReferenceRole": "reference",
    # An engine was two processes in earlier commits.
    "VLLM::EngineCore": "engine",
    "ray::CovRolloutActor": "engine",
    "ray::TrainingController": "controller",
}
OTHERS = "Ray and the driver"
REST = "other"
# Process -> its parts. A stack belongs to the first part with a function or file that is named in one of its frames.
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "policy": {
        "scoring": ("Policy.score ",),
        "optimizer step": ("DeepSpeedEngine.step ",),
        "reduction of gradients": ("allreduce_gradients ", "grad_handling_hook "),
        "backward pass": ("_engine_run_backward ",),
        "forward pass": ("Policy.forward ",),
        "plans, loss, diagnostics, batches": ("update_policy ",),
        "weights to the engine": ("openrlhf_cov/trainer/weights/", "send_weights "),
    },
    "reference": {"scoring": ("ReferenceRole.score ",)},
    "engine": {
        "forward pass": ("GPUModelRunner._model_forward ",),
        "sampling": ("sample_tokens ", "vllm/v1/sample/"),
        "inputs of the model": ("GPUModelRunner.execute_model ",),
        "scheduler": ("vllm/v1/core/", "EngineCore.step"),
        "outputs, log-probs": ("OutputProcessor.process_outputs ",),
        "reward": ("tiny_reward_func.py", "RewardExecutor._reward "),
        "requests": ("RewardExecutor.execute ", "AsyncLLM.add_request ", "generate_responses "),
        "new weights": ("carry_out_calls ", "update_weights ", "load_weights "),
    },
    "controller": {
        "rollout": ("BatchStream.next ",),
        "rest of the step": ("TrainingLoop.train_step ",),
    },
}
# (process, part) -> CPU seconds of a step.
Seconds = dict[tuple[str, str], float]
# The rows of the table.
ROWS = [(process, part) for process, parts in PARTS.items() for part in (*parts, REST)] + [(OTHERS, "")]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/tiny_task"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--method", choices=OURS, default="none", help="a run of race.py (default: none)")
    parser.add_argument(
        "--trees", type=Path, nargs="+", default=[REPOSITORY], help="working trees (default: this one)"
    )
    parser.add_argument("--figure", type=Path, help="also draw the medians into this SVG file")
    args = parser.parse_args()
    if args.steps <= WARM_UP:
        parser.error(f"--steps {args.steps}: the first {WARM_UP} do not count, ask for more")
    args.task = "embedded"
    args.prompts = None
    if not PY_SPY.exists():
        sys.exit(f"step_profile: there is no {PY_SPY}; requirements-cpu.txt has it")
    found: dict[Path, list[Seconds]] = {tree: [] for tree in args.trees}
    for number in range(args.rounds):
        for tree in args.trees:
            found[tree].append(measure(tree.resolve(), args))
            print(f"round {number + 1}, {tree}: {sum(found[tree][-1].values()):.2f} s", file=sys.stderr, flush=True)
    print(table(found))
    if args.figure:
        draw(found, args.figure)


def measure(tree: Path, args: argparse.Namespace) -> Seconds:
    """Return the CPU seconds of a step of one run for each (process, part)."""
    steps = args.steps
    with tempfile.TemporaryDirectory() as output:
        argv, variables = command(args.method, args, Path(output))
        argv.append("--rollout_seeded")  # all trees train on the same samples
        variables |= {"PYTHONPATH": str(tree), "PYTHONWARNINGS": "ignore", "RAY_ADDRESS": "local"}
        environment = os.environ | variables
        log = Path(output) / "log.txt"
        with log.open("w") as file:
            run = subprocess.Popen(argv, cwd=tree, env=environment, stdout=file, stderr=subprocess.STDOUT)
        used: dict[int, float] = {}
        # What every process had used after the warm-up, and at the end of the last step.
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        begun = 0
        names: dict[int, str] = {}
        samplers: dict[int, Sampler] = {}
        try:
            while run.poll() is None and not last:
                look(run.pid, used)
                finished = len(STEP.findall(log.read_text(errors="replace")))
                if finished >= WARM_UP and not first:
                    first = dict(used)
                    begun = finished
                    names = {pid: name_of(pid) for pid in used}
                    samplers = {pid: Sampler(pid, Path(output)) for pid, name in names.items() if name != OTHERS}
                if finished == steps:
                    last = dict(used)
                    for sampler in samplers.values():
                        sampler.note_end()
                time.sleep(0.1)
        finally:
            for sampler in samplers.values():
                sampler.stop()
        if run.wait() or not last or begun == steps:
            sys.exit(f"step_profile: the run ended with status {run.returncode}\n{log.read_text()[-3000:]}")
    seconds: Seconds = dict.fromkeys(ROWS, 0.0)
    for pid, end in last.items():
        process = names.get(pid, OTHERS)
        found = samplers[pid].parts(process) if pid in samplers else {}
        for part, value in found.items():
            seconds[process, part] += value / (steps - begun)
        rest = end - first.get(pid, 0.0) - sum(found.values())
        seconds[process, "" if process == OTHERS else REST] += rest / (steps - begun)
    return seconds


class Sampler:
    """The CPU seconds of the threads of a process from now on, and py-spy, which samples those that compute."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid = pid
        self.path = folder / f"{pid}.txt"
        rate = str(SAMPLES_PER_SECOND)
        command = [str(PY_SPY), "record", "--nonblocking", "--threads", "--format", "raw", "--rate", rate]
        self.py_spy = subprocess.Popen(
            [*command, "--pid", str(pid), "--output", str(self.path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.first = self.last = seconds_of_threads(pid)

    def note_end(self) -> None:
        """Note the CPU seconds of the threads at the end of the measurement, and let py-spy write what it has."""
        self.last = seconds_of_threads(self.pid)
        self.py_spy.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """Wait for the samples of py-spy, which ends with the process at the latest."""
        error = self.py_spy.communicate()[1]
        if not self.path.exists():
            sys.exit(f"step_profile: py-spy failed; it may need to be run as root\n{error}")
        self.samples = self.path.read_text().splitlines()

    def parts(self, process: str) -> dict[str, float]:
        """Return the CPU seconds of each part."""
        # Thread -> part -> samples.
        samples: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for line in self.samples:
            # Frames from the outermost to the innermost, after the name of the thread.
            stack, _, count = line.rpartition(" ")
            thread = re.search(r"thread \((\d+)\)", stack)
            if thread:
                samples[int(thread[1])][part_of(process, stack)] += int(count)
        seconds: defaultdict[str, float] = defaultdict(float)
        for thread, parts in samples.items():
            # A thread that has ended counts as other work of its process.
            used = max(0.0, self.last.get(thread, 0.0) - self.first.get(thread, 0.0))
            for part, count in parts.items():
                seconds[part] += used * count / parts.total()
        return seconds


def seconds_of_threads(pid: int) -> dict[int, float]:
    """Return the CPU seconds of each thread of a process so far; {} if it has ended."""
    try:
        threads = psutil.Process(pid).threads()
    except psutil.Error:
        return {}
    return {thread.id: thread.user_time + thread.system_time for thread in threads}


def part_of(process: str, stack: str) -> str:
    """Return the part of a process that a stack belongs to."""
    names = (part for part, marks in PARTS[process].items() if any(mark in stack for mark in marks))
    return next(names, REST)


def name_of(pid: int) -> str:
    """Return what a process does."""
    try:
        title = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return OTHERS
    return next((name for start, name in PROCESSES.items() if title.startswith(start)), OTHERS)


def commit_of(tree: Path) -> str:
    """Return the commit of a working tree."""
    command = ["git", "-C", str(tree), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def medians(rounds: Sequence[Seconds]) -> dict[tuple[str, str], float]:
    """Return the median of the rounds for each (process, part)."""
    return {row: statistics.median(each[row] for each in rounds) for row in ROWS}


def table(found: dict[Path, list[Seconds]]) -> str:
    """Return the medians of the rounds with their shares of a step."""
    lines = [f"| process | part | {' | '.join(map(str, found))} |", f"|---|---|{'---:|' * len(found)}"]
    columns = [medians(rounds) for rounds in found.values()]
    for row in ROWS:
        cells = [f"{column[row]:.3f} ({column[row] / sum(column.values()):.0%})" for column in columns]
        lines.append(f"| {' | '.join([*row, *cells])} |")
    totals = [[sum(each.values()) for each in rounds] for rounds in found.values()]
    cells = [f"{statistics.median(each):.2f} ({min(each):.2f}–{max(each):.2f})" for each in totals]
    lines.append(f"| a step | | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(found: dict[Path, list[Seconds]], path: Path) -> None:
    """Draw a bar for every part and working tree."""
    import matplotlib.pyplot as plt

    columns = {commit_of(tree): medians(rounds) for tree, rounds in found.items()}
    shown = [row for row in ROWS if max(column[row] for column in columns.values()) >= 0.005]
    figure, axes = plt.subplots(figsize=(8.4, 0.6 + 0.17 * len(shown) * (len(columns) + 0.5)), layout="constrained")
    height = 0.8 / len(columns)
    for number, (name, column) in enumerate(columns.items()):
        places = [place + height * number for place in range(len(shown))]
        widths = [column[row] for row in shown]
        bars = axes.barh(places, widths, height=height, label=f"commit {name}, {sum(column.values()):.2f} s")
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
    middles = [place + height * (len(columns) - 1) / 2 for place in range(len(shown))]
    axes.set_yticks(middles, [": ".join(filter(None, row)) for row in shown], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("CPU seconds of a step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.01)
    axes.legend(loc="lower right", fontsize=8, frameon=False)
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    main()
