"""Train GRPO on every cheap task of the lab, record predicted and measured changes of the entropy, and pack the runs.

``python scripts/make_entropy_drops.py`` makes the runs that are missing in ``runs/entropy_drops`` and writes
``studies/results/entropy_drops.jsonl.xz``, from which ``scripts/write_study_docs.py`` writes the page.
"""

import argparse
from pathlib import Path

from openrlhf_cov.experiments.lab.request import LabRequest, build_parser, train
from openrlhf_cov.experiments.study.run_plan import REPORT, StudyRun
from openrlhf_cov.experiments.study.run_results import pack, read_run

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "studies" / "results" / "entropy_drops.jsonl.xz"
SEEDS = (0, 1, 2)
STEPS = 60
# One update of a rollout, as the theorems assume; evaluations are as short as they can be.
SHARED = f"--steps {STEPS} --updates 1 --eval.steps {STEPS} --eval.n_samples_per_prompt 1 --test_samples 1"
# Task -> its flags beside those that all tasks share.
TASKS = {
    "two_peaks": "--rollout.batch_size 256 --actor.adam.lr 0.3",
    "shortcut": "--rollout.batch_size 32 --actor.adam.lr 2e-4 --shortcut_share 0.2",
    "tail": "--rollout.batch_size 32 --actor.adam.lr 2e-4",
    "commands": "--rollout.batch_size 32 --actor.adam.lr 2e-4",
    "graph_paths": "--rollout.batch_size 32 --actor.adam.lr 2e-4",
    "addition": "--rollout.batch_size 32 --actor.adam.lr 2e-4",
}
KEPT = ("reward", "entropy/mean", "entropy/delta", "entropy/delta_theorem1", "entropy/delta_theorem2", "drop/")


def words_of(run: StudyRun) -> list[str]:
    """Return the flags of a run, but for its folder."""
    words = ["--task", run.method, *SHARED.split(), *TASKS[run.method].split(), "--record_mechanism"]
    return [*words, "--train.seed", str(run.seed)]


def main() -> None:
    """Make the missing runs, task by task in each seed, and pack all finished ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "entropy_drops", help="folder of the runs")
    output = parser.parse_args().output
    results = []
    for task in TASKS:
        for seed in SEEDS:
            run = StudyRun(task, REPORT, (), seed)
            request = LabRequest.of(build_parser(), ["--output", str(output / f"{task}-{seed}"), *words_of(run)])
            request.check()
            if not request.is_complete():
                train(request)
            results.append(read_run(request.args.output, run))
            pack(results, RESULTS, words_of, KEPT)
            print(f"{len(results)} of {len(SEEDS) * len(TASKS)} runs are finished", flush=True)


if __name__ == "__main__":
    main()
