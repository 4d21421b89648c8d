"""Measure the memory that two steps of each method of a study in the lab add to a new process. Prints Markdown.

OMP_NUM_THREADS=1 python benchmarks/study_memory.py studies/commands.yaml
"""

import argparse
import multiprocessing
import resource
import statistics
import sys
from pathlib import Path

from openrlhf_cov.experiments.lab import request as lab
from openrlhf_cov.experiments.study.lab_runs import LabStudy
from openrlhf_cov.experiments.study.run_plan import StudyRun
from openrlhf_cov.experiments.study.spec_file import read_spec

# Units of ``ru_maxrss`` in a MiB.
UNIT = 1024 * 1024 if sys.platform == "darwin" else 1024


def added(study: LabStudy, run: StudyRun) -> float:
    """MiB of the highest resident size after two steps less that before them."""
    made = lab.prepare(study.request(run))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for step in (1, 2):
        made.step(step)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / UNIT


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("spec", type=Path)
    parser.add_argument("--base_policies", type=Path, default=lab.base_policies())
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    spec = read_spec(args.spec)
    study = LabStudy(spec, Path("unused"), args.base_policies)
    sys.stdout.write("| method | MiB added by two steps | lowest, highest |\n|---|---|---|\n")
    for method in spec.methods:
        tasks = [
            (study, StudyRun(method.name, "report", method.configurations[0], seed)) for seed in range(args.repeats)
        ]
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            sizes = pool.starmap(added, tasks, chunksize=1)
        sys.stdout.write(f"| {method.name} | {statistics.median(sizes):.0f} | {min(sizes):.0f}, {max(sizes):.0f} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
