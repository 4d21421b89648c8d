"""Score a model on AIME, AMC, MATH-500 and other benchmarks, with standard errors and intervals."""

import argparse
import sys
import time
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from tqdm import tqdm

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.packages import MATH_VERIFY, has_math_verify, require_grader
from openrlhf_cov.config import RewardConfig, template_arguments
from openrlhf_cov.data.templates import get_template, own_template_warning, template_text, unread_arguments
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.evaluation import benchmarks, runner
from openrlhf_cov.evaluation.data import load_problems, write_problem_file
from openrlhf_cov.evaluation.flags import GRADING_FLAGS, SAMPLING_FLAGS, build_parser
from openrlhf_cov.evaluation.plan import EvaluationPlan, make_plan
from openrlhf_cov.evaluation.response_records import (
    GRADING_PACKAGES,
    Response,
    RunSettings,
    graded_by,
    grading_defaults,
    read_settings,
)
from openrlhf_cov.evaluation.results import REPORT_FILE, write_results
from openrlhf_cov.evaluation.tables import table
from openrlhf_cov.rewards.pool import shared_pool
from openrlhf_cov.trainer import evaluation_backends
from openrlhf_cov.utils.config_flags import given_flags
from openrlhf_cov.utils.output_folders import check_folder
from openrlhf_cov.utils.terminal import clean_logs, say

# Flags without which no model is evaluated -> what to do.
NEEDED = {
    "model": "give a folder of a Hugging Face model, or its name on the hub or at --base_url",
    "benchmarks": "--list shows the benchmarks",
    "output": "give a folder for the results",
}
KEPT = "what was generated is kept, the same command continues"


@program("openrlhf-cov evaluate", KEPT)
def main(argv: list[str] | None = None) -> int:
    """Print the table of scores. Exit status 2 with one line on stderr for bad input, 1 for a run that stopped itself,
    130 or 143 for one that was interrupted; what was generated until then is kept."""
    parser = build_parser()
    args = parser.parse_args(argv)
    clean_logs()
    if args.list:
        say(benchmarks.table() + "\n")
        return 0
    _refuse_unread(args, given_flags(parser.parse_args, argv, args))
    try:
        if args.write_data:
            return _write_data(args)
        if args.regrade:
            return _regrade(args)
        return _evaluate(args)
    except RunStopped as error:
        raise RunStopped(f"{error}; {KEPT}") from error


def _refuse_unread(args: argparse.Namespace, given: AbstractSet[str]) -> None:
    """Raise UsageError for a flag of sampling that ``--regrade`` or ``--write_data`` would ignore."""
    for mode, read, why in (
        ("write_data", {"benchmarks", "data_dir"}, "writes problems and stops"),
        ("regrade", {"output", *GRADING_FLAGS}, "grades what was generated"),
    ):
        if unread := sorted(given - {mode} - read) if getattr(args, mode) else ():
            raise UsageError(f"--{unread[0]} has no effect with --{mode}, which {why}; drop one of the two")


def check_inputs(args: argparse.Namespace) -> None:
    """Check the files of benchmarks and the folders, without opening a model or asking the hub.

    Raises:
        UsageError: A file does not exist or is damaged, or a path cannot be a folder.
    """
    for flag in ("output", "write_data"):
        if place := getattr(args, flag):
            check_folder(place, f"--{flag}")
    for each in benchmarks.select(args.benchmarks):
        if each.path or args.data_dir:
            load_problems(each, args.data_dir)


def _write_data(args: argparse.Namespace) -> int:
    """Write the files of benchmarks that do not exist yet. Raises UsageError that lists those that cannot be had."""
    if not args.benchmarks:
        raise UsageError("--benchmarks is missing; --list shows the benchmarks")
    check_folder(args.write_data, "--write_data")
    args.write_data.mkdir(parents=True, exist_ok=True)
    missing = []
    for each in benchmarks.select(args.benchmarks):
        try:
            say(f"{write_problem_file(each, args.write_data, args.data_dir)}\n")
        except UsageError as error:
            missing.append(str(error))
    if missing:
        raise UsageError("; ".join(missing))
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    for flag, then in NEEDED.items():
        if not getattr(args, flag):
            raise UsageError(f"--{flag} is missing; {then}")
    check_inputs(args)  # before the imports and the model, which take long
    config = _grading(args)
    chosen = benchmarks.select(args.benchmarks)
    protocol = benchmarks.get_protocol(args.protocol)
    template = args.template or protocol.template
    arguments = _template_arguments(args, template)
    backend = evaluation_backends.open_backend(args)
    plan = make_plan(
        chosen,
        protocol,
        {name: getattr(args, name) for name in SAMPLING_FLAGS},
        data_dir=args.data_dir,
        limit=args.limit,
        template=template,
        tokenizer=backend.tokenizer,
        chat_template_kwargs=arguments,
    )
    settings = RunSettings(
        protocol=args.protocol,
        template=template,
        template_text=template_text(template, backend.tokenizer, arguments),
        chat_template_kwargs=arguments,
        seed=args.seed,
        log_probs=args.log_probs,
        **graded_by(config),
        benchmarks=plan.benchmarks,
        **backend.settings(plan),
    )
    _say_what_cannot_be_graded(plan)
    done = runner.open_run(args.output, settings, plan.problems)
    if not done:  # a run that goes on keeps its template
        _warn_of_template(args, template, arguments, backend.tokenizer)
    if config.reward_grader == "published" and (old := sum(response.published is None for response in done)):
        say(
            f"evaluate: {old:,} responses were graded by strict alone; --regrade grades them with both graders\n",
            sys.stderr,
        )
    limits = {"seed": args.seed, "max_model_len": settings.max_model_len, "log_probs": args.log_probs}
    requests = list(plan.requests(**limits))
    with Progress(len(requests), len(done)) as progress:
        runner.run(
            args.output,
            requests,
            done,
            runner.Grader.of(plan, config),
            lambda missing: backend.generate(missing, settings),
            workers=config.reward_workers,
            on_response=progress.update,
        )
    return _finish(args.output)


def _template_arguments(args: argparse.Namespace, template: str) -> dict[str, Any]:
    """Return the arguments of ``--chat_template_kwargs``. Raises UsageError for what cannot be used."""
    try:
        arguments = template_arguments(args.chat_template_kwargs, "--chat_template_kwargs")
    except ValueError as error:
        raise UsageError(str(error)) from error
    get_template(template, arguments)
    return arguments


def _warn_of_template(args: argparse.Namespace, template: str, arguments: dict[str, Any], tokenizer: Any) -> None:
    """Say on stderr that the chat template of the model is not used, or that it does not read an argument."""
    if not args.template and tokenizer is None:
        say(
            f"evaluate: warning: --template is not given, so the server is sent prompts in the template {template}; "
            f"use --template chat for the chat template of its model, or --template {template} to go without this "
            "warning\n",
            sys.stderr,
        )
    elif not args.template and (warning := own_template_warning(template, tokenizer)):
        say(f"evaluate: warning: {warning}\n", sys.stderr)
    if unread := unread_arguments(arguments, tokenizer):
        say(f"evaluate: warning: --chat_template_kwargs: {unread}\n", sys.stderr)


def _grading(args: argparse.Namespace, **defaults: Any) -> RewardConfig:
    if args.reward_grader is None:
        args.reward_grader = "published" if has_math_verify() else "strict"
        if args.reward_grader == "strict":
            say(f"evaluate: graded by strict alone; for both graders, pip install {MATH_VERIFY}\n", sys.stderr)
    require_grader(args.reward_grader)
    given = {name: getattr(args, name) for name in GRADING_FLAGS if getattr(args, name) is not None}
    try:
        config = RewardConfig(**(defaults | given))
        shared_pool(config.reward_workers)  # starts with its first use
        return config
    except ValueError as error:
        raise UsageError(str(error)) from error


def _regrade(args: argparse.Namespace) -> int:
    if not args.output:
        raise UsageError("--output is missing: the folder whose responses are graded again")
    recorded = read_settings(args.output)
    config = _grading(args, **grading_defaults(recorded))
    graders = evaluation_backends.packages(GRADING_PACKAGES)
    changed = runner.regrade(args.output, config, config.reward_workers, graders)
    say(f"{changed} grades changed\n")
    return _finish(args.output)


def _finish(folder: Path) -> int:
    with runner.writing(folder):
        summary = write_results(folder)
    say(f"{table(summary)}\n\n{folder / REPORT_FILE}\n")
    return 0


def _say_what_cannot_be_graded(plan: EvaluationPlan) -> None:
    for each in plan.benchmarks:
        if each.ungradable:
            say(
                f"evaluate: {each.name}: {len(each.ungradable)} gold answers cannot be read by the rule "
                f"{each.grader}; responses to them count as incorrect\n",
                sys.stderr,
            )


class Progress:
    """Show a progress bar on stderr from the first response on: responses, tokens per second and the time left."""

    def __init__(self, total: int, done: int) -> None:
        self.total = total
        self.done = done
        self.tokens = 0
        self.bar: tqdm | None = None
        self.started = 0.0

    def update(self, response: Response) -> None:
        """Count one response."""
        if self.bar is None:  # engines take a minute to start, which says nothing about the time left
            self.bar = tqdm(total=self.total, initial=self.done, desc="evaluate", unit="response", smoothing=0.05)
            self.started = time.monotonic()
        self.tokens += response.tokens
        elapsed = time.monotonic() - self.started
        self.bar.set_postfix_str(f"{self.tokens / elapsed:,.0f} tokens/s" if elapsed > 1 else "", refresh=False)
        self.bar.update()

    def __enter__(self) -> "Progress":
        left = f"{self.total - self.done:,} of {self.total:,} responses are missing"
        say(f"evaluate: {left}\n" if self.done else f"evaluate: {self.total:,} responses\n", sys.stderr)
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()


if __name__ == "__main__":
    sys.exit(main())
