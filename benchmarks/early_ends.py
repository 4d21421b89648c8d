"""Repeat runs of the study of the shortcut that ended early, without ``--stop_early``, and compare the outcomes.

``python benchmarks/early_ends.py`` takes the run of seed 0 with which the search of each method began. A run without
an early end is the same step by step, so only those that ended early are repeated. The table has their accuracy on the
questions that need exploration where they ended, and after the last step.
"""

import argparse
from pathlib import Path

from openrlhf_cov.experiments.lab.request import LabRequest, build_parser, train
from openrlhf_cov.experiments.study.headroom import headroom_runs
from openrlhf_cov.experiments.study.lab_runs import LabStudy
from openrlhf_cov.experiments.study.run_plan import has_learned
from openrlhf_cov.experiments.study.run_results import read_run, score_of, unpack
from openrlhf_cov.experiments.study.spec_file import read_spec

ROOT = Path(__file__).resolve().parents[1]
SEED = 0
STOP = "--stop_early"


def main() -> None:
    """Make the missing runs and print a line for each, then the number of changed outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "early_ends", help="folder of the runs")
    output = parser.parse_args().output
    spec = read_spec(ROOT / "studies" / "shortcut.yaml")
    study = LabStudy(spec, output, output)
    runs = headroom_runs(spec, list(unpack(ROOT / "studies" / "results" / "shortcut.jsonl.xz", study.asked))) or {}
    first = {method: found[SEED] for method, found in runs.items() if SEED in found}
    ended = {
        method: each for method, each in first.items() if each.evaluations.steps[-1] < study.evaluated(each.run)[-1]
    }
    changed = 0
    for method, early in ended.items():
        words = [word for word in study.asked(early.run) if word != STOP]
        request = LabRequest.of(build_parser(), ["--output", str(output / method), *words])
        request.check()
        if not request.is_complete():
            train(request)
        late = read_run(request.args.output, early.run)
        outcomes = [has_learned(spec, score_of(each)) for each in (early, late)]
        changed += outcomes[0] != outcomes[1]
        ends = [f"step {each.evaluations.steps[-1]}: {score_of(each).hard:.2f}" for each in (early, late)]
        print(
            f"{method:20} {ends[0]:16} {ends[1]:16} {'changed' if outcomes[0] != outcomes[1] else 'same'}", flush=True
        )
    print(f"{changed} of {len(ended)} outcomes changed; {len(first) - len(ended)} runs did not end early")


if __name__ == "__main__":
    main()
