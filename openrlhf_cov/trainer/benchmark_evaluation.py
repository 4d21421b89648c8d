"""Benchmarks in the place of upstream's evaluation, for upstream's trainers."""

from collections.abc import Callable
from typing import Any

from openrlhf_cov.evaluation import benchmarks
from openrlhf_cov.trainer.evaluation import BenchmarkEvaluation, plan_of


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
