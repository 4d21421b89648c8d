"""``--eval.dataset bench:aime24,math500``: the evaluation harness inside the training, on the training's engines.

Problems, prompts, sampling and grading are those of ``cli.evaluate``. With ``--rollout_seeded`` the seeds are, too, so
that a point of the curve is the number that the harness gives for the checkpoint of that step.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from openrlhf_cov.config import EvaluationConfig, RewardConfig, template_arguments
from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation import benchmarks
from openrlhf_cov.evaluation.data import load_problems
from openrlhf_cov.evaluation.plan import EvaluationPlan, make_plan
from openrlhf_cov.evaluation.records import Response
from openrlhf_cov.evaluation.runner import Grader, respond, too_long
from openrlhf_cov.evaluation.scores import avg_at_k, pass_at_k
from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.trainer.generation import EngineGroup
from openrlhf_cov.utils.engine_limits import engine_limits

FLAGS = {
    "--benchmarks ": "--eval.dataset bench:",
    "--protocol": "--eval.protocol",
    "--template": "--eval.template",
    "--chat_template_kwargs": "--data.chat_template_kwargs",
    "--data_dir": "--eval.data_dir",
    "--limit": "--eval.limit",
    "--samples": "--eval.n_samples_per_prompt",
    "--temperature": "--eval.temperature",
    "--max_tokens": "--eval.max_tokens",
    "--list": "python -m openrlhf_cov.cli.evaluate --list",
}
"""Flag of ``cli.evaluate`` in a message -> what stands for it in a training."""


MEAN_SCORE = "eval/mean/avg"


@contextmanager
def flags_of_training() -> Iterator[None]:
    """UsageErrors of the evaluation harness name the training's flags."""
    try:
        yield
    except UsageError as error:
        raise UsageError(re.sub(rf"(?<!\S)({'|'.join(FLAGS)})", lambda flag: FLAGS[flag[1]], str(error))) from error


@flags_of_training()
def benchmarks_of(args: SimpleNamespace) -> list[benchmarks.Benchmark]:
    """The benchmarks that --eval.dataset names. Raises UsageError."""
    return benchmarks.select(benchmarks.names_in(args.eval.dataset))


@flags_of_training()
def check_problems(args: SimpleNamespace, benchmark: benchmarks.Benchmark) -> None:
    """The problems of a benchmark can be read. Raises UsageError."""
    load_problems(benchmark, _data_dir(args))


@flags_of_training()
def plan_of(args: SimpleNamespace, tokenizer: Any) -> EvaluationPlan:
    """The plan that the flags of a training describe. Raises UsageError."""
    config, protocol = EvaluationConfig.from_args(args), benchmarks.get_protocol(args.eval_protocol)
    overrides = {
        "samples": args.eval.n_samples_per_prompt,
        "temperature": args.eval.temperature,
        "max_tokens": config.eval_max_tokens or None,
    }
    template = config.eval_template or protocol.template
    arguments = template_arguments(getattr(args, "chat_template_kwargs", ""))
    return make_plan(
        benchmarks.select(benchmarks.names_in(args.eval.dataset)),
        protocol,
        overrides,
        data_dir=_data_dir(args),
        limit=config.eval_limit or None,
        template=template,
        tokenizer=tokenizer,
        chat_template_kwargs=arguments if template == "chat" else None,
    )


def best_metric(plan: EvaluationPlan) -> str:
    """The metric by which the best checkpoint is chosen unless a flag names one: avg@k of the first benchmark."""
    first = plan.benchmarks[0]
    return f"eval/{first.name}/avg@{first.samples}"


class BenchmarkEvaluation:
    """Stands in for upstream's data loader of an evaluation."""

    def __init__(self, plan: EvaluationPlan, args: SimpleNamespace) -> None:
        self.plan = plan
        # vLLM samples requests with seeds of their own one by one, which is slow, so only repeatable runs get them.
        repeats = args.rollout_seeded or args.train.full_determinism_enable
        seed = args.train.seed if repeats else None
        self.requests = list(plan.requests(seed=seed, max_model_len=args.data.max_len))
        # the curve of a training is by one grader, whichever rewards; `evaluate` gives both
        self.config = replace(RewardConfig.from_args(args), reward_grader="strict")
        self.grader = Grader.of(plan, self.config)
        on_gpus = not cpu_host.is_cpu_host()
        self.sequences = engine_limits(args.vllm_max_num_seqs, args.vllm_max_num_batched_tokens, on_gpus).sequences

    def respond(self, engines: EngineGroup) -> list[Response]:
        """Graded responses to all requests, in no order."""
        from openrlhf_cov.trainer.ray import completions

        def generate(requests):
            return completions.generate(engines, requests, self.sequences)

        fitting = [request for request in self.requests if request.fits]
        responses = [too_long(request) for request in self.requests if not request.fits]
        respond(fitting, self.grader, generate, self.config.reward_workers, responses.append)
        return responses

    def metrics(self, responses: list[Response]) -> dict[str, float]:
        """Scores and shares of every benchmark, under ``eval/NAME/``, and the mean of avg@k over all benchmarks, R of
        the paper's law; see docs/metrics.md."""
        values = {
            f"eval/{each.name}/{name}": value
            for each in self.plan.benchmarks
            for name, value in _metrics([r for r in responses if r.benchmark == each.name], each.samples).items()
        }
        scores = [values[f"eval/{each.name}/avg@{each.samples}"] for each in self.plan.benchmarks]
        return values | {MEAN_SCORE: sum(scores) / len(scores)}


def _data_dir(args: SimpleNamespace) -> Path | None:
    return Path(args.eval_data_dir) if args.eval_data_dir else None


def _metrics(responses: list[Response], samples: int) -> dict[str, float]:
    ordered = sorted(responses, key=lambda response: response.key)
    correct = np.array([response.correct for response in ordered]).reshape(-1, samples)  # (N, K)
    passed = {f"pass@{samples}": pass_at_k(correct, samples)} if samples > 1 else {}
    return {
        f"avg@{samples}": avg_at_k(correct),
        **passed,
        "response_length_mean": float(np.mean([response.tokens for response in ordered])),
        "truncated_frac": float(np.mean([response.truncated for response in ordered])),
        "no_answer_frac": float(np.mean([response.status == "no_answer" for response in ordered])),
    }


def with_benchmarks(prepare_datasets: Callable[..., tuple]) -> Callable[..., tuple]:
    """Upstream's ``prepare_datasets``, with a ``BenchmarkEvaluation`` where --eval.dataset names benchmarks."""

    def prepare(strategy: Any, tokenizer: Any) -> tuple:
        args = strategy.args
        dataset = args.eval.dataset
        if benchmarks.names_in(dataset) is None:
            return prepare_datasets(strategy, tokenizer)
        args.eval.dataset = None
        try:
            prompts, _, max_steps = prepare_datasets(strategy, tokenizer)
        finally:
            args.eval.dataset = dataset
        return prompts, BenchmarkEvaluation(plan_of(args, tokenizer), args), max_steps

    return prepare


def of_benchmarks(compute_eval_metrics: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Upstream's ``compute_eval_metrics``, which leaves the metrics of a ``BenchmarkEvaluation`` to itself."""

    def compute(eval_dataloader: Any, samples_list: list, n_samples_per_prompt: int) -> dict[str, Any]:
        if isinstance(eval_dataloader, BenchmarkEvaluation):
            return eval_dataloader.metrics(samples_list)
        return compute_eval_metrics(eval_dataloader, samples_list, n_samples_per_prompt)

    return compute
