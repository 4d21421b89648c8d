"""``make demo-compare TASK=…``: an embedded task with plain GRPO, Clip-Cov and KL-Cov through Ray, and one report.

As ``make demo``, one method after the other, without the KL term to the untrained policy: the entropy law of the
baseline is stated without. The runs lie in folders of their own under ``--output``.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from openrlhf_cov.cli import demo
from openrlhf_cov.cli.program import program
from openrlhf_cov.report.write import write_report
from openrlhf_cov.utils import terminal
from openrlhf_cov.utils.metrics_log import METRICS_FILE, read_metrics

MEAN_OF = 5
"""Steps at the end of a run over which entropy and accuracy are averaged."""
ONE_SEED = "One seed of each, nothing tuned: another seed differs by as much. docs/study.md has seeds and intervals."


@program("demo_compare")
def main() -> int | None:
    """Run the comparison; exit status 1 if a training fails, 2 for a bad setting, 130 when interrupted."""
    return run(parse_args())


def parse_args() -> argparse.Namespace:
    """The flags of the comparison."""
    parser = terminal.Parser(prog="demo_compare", about=__doc__)
    return demo.parse_with_task(parser, "demo-compare", "global steps of each, 32 prompts x 8 samples")


def run(args: argparse.Namespace) -> None:
    """Task, score before, one training after the other, report, table."""
    started = time.monotonic()
    demo.check(args)
    task, output = args.folder.resolve(), args.output.resolve()
    demo.make_task(task, args.task)
    before = demo.score(task / "model", task)
    scores = {}
    for method in demo.METHOD_FLAGS:
        demo.say(f"--cov_type {method}")
        demo.check(argparse.Namespace(task=args.task, folder=task, steps=args.steps, output=output / method))
        scores[method] = demo.train_and_score(method, args.steps, task, output / method, kl_coef=0.0)
    page = write_report([output / method for method in scores], output / "report")
    terminal.say(table(before, scores, output, page, time.monotonic() - started))


def table(before: dict, scores: Mapping[str, dict], output: Path, page: Path, seconds: float) -> str:
    """What the runs did, for a person; entropy and training accuracy are means of the last ``MEAN_OF`` steps."""
    runs = {method: read_metrics(output / method / METRICS_FILE) for method in scores}

    def row(title: str, first: str, values: list[str]) -> str:
        return f"{title:<34}{first:>9}" + "".join(f"{value:>10}" for value in values)

    def tail(name: str, shape: str) -> list[str]:
        ends = [[demo.number(line, name) for line in lines[-MEAN_OF:]] for lines in runs.values()]
        return [format(sum(end) / len(end), shape) for end in ends]

    first = next(iter(runs.values()))[0]
    lines = [row("", "before", list(scores))]
    for title, name in (("greedy", "accuracy_greedy"), ("temperature 1", "accuracy_sampled")):
        values = [f"{score[name]:.1%}" for score in scores.values()]
        lines.append(row(f"held-out accuracy, {title}", f"{before[name]:.1%}", values))
    entropy, accuracy = demo.number(first, "entropy/mean"), demo.number(first, "rollout/reward_mean")
    lines.append(row("entropy, nats per token", f"{entropy:.3f}", tail("entropy/mean", ".3f")))
    lines.append(row("training accuracy", f"{accuracy:.1%}", tail("rollout/reward_mean", ".1%")))
    lines += ["", ONE_SEED, "", f"wall time  {seconds:,.0f} s", f"runs       {output}", f"report     {page}"]
    return "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
