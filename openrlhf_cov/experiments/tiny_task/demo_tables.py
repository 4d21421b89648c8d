"""The results of a demo as text, and the commands that come next."""

import shlex
from pathlib import Path

from openrlhf_cov.experiments.tiny_task.demo_run import DemoResult
from openrlhf_cov.experiments.tiny_task.demo_training import PROMPTS, SAMPLES, number, task_in, tokens
from openrlhf_cov.utils.metrics_log import METRICS_FILE, read_metrics
from openrlhf_cov.utils.terminal import command_name

# Steps at the end of a run over which the table of several methods averages entropy and accuracy.
MEAN_OF = 5
ONE_SEED = (
    "One seed of each, nothing tuned: another seed differs by as much. docs/study_commands.md has seeds and intervals."
)


def result_table(result: DemoResult) -> str:
    """Return the results of a demo as text, in a column for each method where there are several."""
    return table_of_methods(result) if len(result.runs) > 1 else table_of_run(result)


def table_of_run(result: DemoResult) -> str:
    """Return the result of a demo with one method: before and after, first and last step, speed, files."""
    [(method, folder)] = result.runs.items()
    before = result.before
    after = result.after[method]
    lines = read_metrics(folder / METRICS_FILE)
    entropy = [number(line, "entropy/mean") for line in (lines[0], lines[-1])]
    reward = [number(line, "rollout/reward_mean") for line in (lines[0], lines[-1])]
    generated = sum(map(tokens, lines))
    generating = sum(number(line, "timing/generation") for line in lines)
    total = sum(number(line, "timing/step_total") for line in lines)
    return f"""
--method {method} on the embedded task: {len(lines)} steps of {PROMPTS} prompts x {SAMPLES} samples
                                    before     after
held-out accuracy, greedy          {before["accuracy_greedy"]:7.1%}   {after["accuracy_greedy"]:7.1%}
held-out accuracy, temperature 1   {before["accuracy_sampled"]:7.1%}   {after["accuracy_sampled"]:7.1%}
                                first step  last step
entropy, nats per token            {entropy[0]:7.3f}   {entropy[1]:7.3f}
training accuracy                  {reward[0]:7.1%}   {reward[1]:7.1%}

tokens per second   {generated / generating:,.0f} generating, {generated / total:,.0f} over the whole step
wall time           {result.seconds:,.0f} s, {total:,.0f} s of it in steps
checkpoint          {folder}
metrics             {folder / METRICS_FILE}
report              {result.page}
"""


def table_of_methods(result: DemoResult) -> str:
    """Return the results of several methods as text; entropy and training accuracy are means of the last steps."""
    metrics = [read_metrics(folder / METRICS_FILE) for folder in result.runs.values()]
    first_step = metrics[0][0]
    before = result.before
    lines = [_row("", "before", list(result.runs))]
    for title, name in (("greedy", "accuracy_greedy"), ("temperature 1", "accuracy_sampled")):
        values = [f"{scores[name]:.1%}" for scores in result.after.values()]
        lines.append(_row(f"held-out accuracy, {title}", f"{before[name]:.1%}", values))
    for title, name, form in (
        ("entropy, nats per token", "entropy/mean", ".3f"),
        ("training accuracy", "rollout/reward_mean", ".1%"),
    ):
        last = [[number(line, name) for line in run[-MEAN_OF:]] for run in metrics]
        values = [format(sum(each) / len(each), form) for each in last]
        lines.append(_row(title, format(number(first_step, name), form), values))
    lines += ["", ONE_SEED, ""]
    lines += [f"wall time  {result.seconds:,.0f} s", f"runs       {result.output}", f"report     {result.page}"]
    return "\n" + "\n".join(lines) + "\n"


def next_steps(result: DemoResult) -> str:
    """Return the commands that a newcomer may want next, as they are typed in the current folder."""
    kind, _ = task_in(result.task)
    output = result.output
    folders = [_from_here(run) for run in result.runs.values()]
    commands = {
        "show the metrics of the training": ["watch", *folders, "--once"],
        "fit the entropy law": ["report", *folders, "--output", _from_here(output / "law")],
    }
    if kind.evaluation_flags is not None:
        benchmark = _from_here(result.task / "benchmark.jsonl")
        evaluation = ["evaluate", "--model", folders[-1], "--benchmarks", benchmark]
        evaluation += [*kind.evaluation_flags, "--max_tokens", str(kind.evaluation_tokens)]
        evaluation += ["--samples", "8", "--temperature", "1", "--output", _from_here(output / "evaluation")]
        commands["evaluate the trained policy through vLLM"] = evaluation
    lines = [f"# {purpose}\n{shlex.join([*command_name(), *words])}\n" for purpose, words in commands.items()]
    return "Next:\n\n" + "\n".join(lines)


def _row(title: str, before: str, values: list[str]) -> str:
    return f"{title:<34}{before:>9}" + "".join(f"{value:>10}" for value in values)


def _from_here(path: Path) -> str:
    """Return a path as it is typed in the current folder: relative where it lies below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
