"""Trains an embedded task in one process, without Ray, vLLM and DeepSpeed: a method in a minute."""

import json
import logging
import os
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from openrlhf_cov.cli.arguments import add_config_arguments
from openrlhf_cov.cli.packages import require
from openrlhf_cov.errors import UsageError
from openrlhf_cov.lab.settings import LabSettings
from openrlhf_cov.models.config import CovConfig, check_reachable
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.utils.command import write_command
from openrlhf_cov.utils.json_lines import read_json, replacing
from openrlhf_cov.utils.metrics_log import EVAL_FILE, METRICS_FILE, MetricsLog
from openrlhf_cov.utils.terminal import Parser, say

RUN_FILE = "lab.json"
"""What a run was asked for."""
RESULT_FILE = "result.json"
"""The last evaluation, written when a run is complete."""
TASKS = ("commands", "addition")
"""Keys of ``lab.tasks.TASKS``, which takes PyTorch to import."""


def build_parser() -> Parser:
    """The parser of this command."""
    parser = Parser(prog="lab", description=__doc__)
    parser.add_argument("--output", required=True, metavar="DIR", type=Path, help="folder to write; new or empty")
    parser.add_argument("--task", default="commands", choices=TASKS, help="embedded task (default: commands)")
    parser.add_argument("--base_policies", metavar="DIR", type=Path, help="where base policies are kept", default=None)
    parser.add_argument("--base_seed", type=int, default=0, metavar="N", help="of the base policy (default: 0)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of PyTorch (default: 1)")
    add_config_arguments(parser, "the run", LabSettings)
    names = {each.name for each in fields(CovConfig) if not each.name.startswith("cov_dump")}
    shared = [name for name in names if not any(method.has(name) for method in METHODS.values())]
    add_config_arguments(parser, "policy loss", CovConfig, shared)
    for method in METHODS.values():
        add_config_arguments(parser, f"{method.title} ({method.flag})", method.settings)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when the run is complete, also if it was before; 2 for a refused request."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        settings, config = LabSettings.from_args(args), configured(args)
        require(("torch", "transformers", "openrlhf"))
    except (ValueError, UsageError) as error:
        parser.error(str(error))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asked = {"task": args.task, "base_seed": args.base_seed, **asdict(settings), **asdict(config)}
    asked |= {name: list(value) for name, value in asked.items() if isinstance(value, tuple)}  # as JSON has them
    output: Path = args.output
    if is_complete(output, asked):
        say(f"{output} already holds this run; nothing to do\n")
        return 0
    if output.exists() and any(output.iterdir()) and read_json(output / RUN_FILE) != asked:
        parser.error(f"--output {output} is not empty and does not hold this run; choose another folder")
    try:
        result = train(args, settings, config, asked)
    except ValueError as error:
        if not str(error).startswith("--"):
            raise
        parser.error(str(error))
    say(f"{output}: {', '.join(f'{name} {value:.3f}' for name, value in result.items() if '/' not in name)}\n")
    return 0


def configured(args: Any) -> CovConfig:
    """The settings of the policy loss. ValueError for what a method refuses of what the laboratory has."""
    known = {each.name: getattr(args, each.name) for each in fields(CovConfig) if hasattr(args, each.name)}
    config = CovConfig(**known)
    flags = {
        "actor.entropy_coef": args.entropy_coef,
        "actor.loss_agg_mode": config.aggregation or "token-mean",
        "rollout.n_samples_per_prompt": args.group,
    }
    for reason in filter(None, (method.refuses(config, flags) for method in config.methods)):
        raise ValueError(reason)
    return config


def is_complete(output: Path, asked: dict[str, Any]) -> bool:
    """Whether ``output`` holds a complete run of what is asked for."""
    return (output / RESULT_FILE).is_file() and read_json(output / RUN_FILE) == asked


def train(args: Any, settings: LabSettings, config: CovConfig, asked: dict[str, Any]) -> dict[str, float]:
    """The last evaluation of a run that writes ``metrics.jsonl``, ``eval.jsonl`` and, at its end, ``result.json``."""
    cpu_host.install()
    import torch

    from openrlhf_cov.lab.loop import Lab, frozen
    from openrlhf_cov.lab.tasks import TASKS

    torch.set_num_threads(args.threads)
    output: Path = args.output
    kept = args.base_policies or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openrlhf_cov"
    task = TASKS[args.task]()
    model, tokenizer = task.base_policy(kept, args.base_seed)
    check_reachable(config.entropy_target, len(tokenizer))
    write_command(output, sys.argv)
    _write(output / RUN_FILE, asked)
    for name in (METRICS_FILE, EVAL_FILE):
        (output / name).unlink(missing_ok=True)  # of a run that was cut off: a minute's work, done again
    base = frozen(model) if settings.kl_coef else None
    lab = Lab(task, model, tokenizer, settings, config, base)
    metrics, evaluations = MetricsLog(output / METRICS_FILE), MetricsLog(output / EVAL_FILE)
    evaluations.write(0, lab.evaluate())
    result: dict[str, float] = {}
    for step, values, evaluation in lab.run():
        metrics.write(step, values)
        if evaluation is not None:
            evaluations.write(step, evaluation)
            result = evaluation
            shown = {name: value for name, value in evaluation.items() if "/" not in name}
            line = " ".join(f"{name} {value:.3f}" for name, value in shown.items())
            say(f"step {step}: reward {values['reward']:.3f} entropy {values['entropy/mean']:.3f} {line}\n")
    _write(output / RESULT_FILE, result)
    return result


def _write(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
