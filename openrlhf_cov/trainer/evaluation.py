"""Evaluation of the policy during training, on the engines of the training.

``--eval.dataset`` names a prompt data set, whose responses are graded by the reward function, or benchmarks
(``bench:aime24,math500``). Benchmarks are those of ``openrlhf-cov evaluate``: problems, prompts, sampling and grading
are the same. With ``--rollout_seeded`` the seeds are, too, so that a point of the curve is the number that
``openrlhf-cov evaluate`` gives for the checkpoint of that step.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.config import EvaluationConfig, RewardConfig, template_arguments
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.evaluation import benchmarks
from openrlhf_cov.evaluation.data import load_problems
from openrlhf_cov.evaluation.plan import EvaluationPlan, make_plan
from openrlhf_cov.evaluation.response_records import Response
from openrlhf_cov.evaluation.runner import Grader, respond, too_long
from openrlhf_cov.evaluation.scores import avg_at_k, pass_at_k
from openrlhf_cov.trainer.ray import completions
from openrlhf_cov.trainer.records import Sample
from openrlhf_cov.trainer.rollout.generation import EngineGroup, awake, in_order
from openrlhf_cov.trainer.rollout.prompts import UNNAMED, Prompt, load_evaluation_prompts, source_name
from openrlhf_cov.trainer.rollout.requests import RolloutRequests
from openrlhf_cov.trainer.rollout.rollouts import check_reward_errors, failed_rewards
from openrlhf_cov.utils.engine_limits import engine_limits

# Flag of ``openrlhf-cov evaluate`` in a message -> the flag of a training that takes its place.
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
    "--list": "openrlhf-cov evaluate --list",
}

MEAN_SCORE = "eval/mean/avg"


@contextmanager
def flags_of_training() -> Iterator[None]:
    """Let UsageErrors of the evaluation harness name the training's flags while the body runs.

    Raises:
        UsageError: The body raised one; its message has the flags of the training in place of those of ``evaluate``.
    """
    try:
        yield
    except UsageError as error:
        raise UsageError(re.sub(rf"(?<!\S)({'|'.join(FLAGS)})", lambda flag: FLAGS[flag[1]], str(error))) from error


@flags_of_training()
def benchmarks_of(args: SimpleNamespace) -> list[benchmarks.Benchmark]:
    """Return the benchmarks that ``--eval.dataset`` names.

    Raises:
        UsageError: A benchmark does not exist.
    """
    return benchmarks.select(benchmarks.names_in(args.eval.dataset) or "")


@flags_of_training()
def check_problems(args: SimpleNamespace, benchmark: benchmarks.Benchmark) -> None:
    """Check that the problems of a benchmark can be read.

    Args:
        args: The flags of the run, of which ``--eval.data_dir`` is read.
        benchmark: The benchmark.

    Raises:
        UsageError: They cannot be read.
    """
    load_problems(benchmark, _data_dir(args))


@flags_of_training()
def plan_of(args: SimpleNamespace, tokenizer: Any) -> EvaluationPlan:
    """Return the plan of an evaluation on benchmarks that the flags of a training describe.

    Args:
        args: The flags of the run.
        tokenizer: The tokenizer of the policy, which makes token ids of the prompts; None to leave them texts.

    Raises:
        UsageError: Benchmarks, data, template or settings cannot be used.
    """
    config = EvaluationConfig.from_args(args)
    protocol = benchmarks.get_protocol(args.eval_protocol)
    overrides = {
        "samples": args.eval.n_samples_per_prompt,
        "temperature": args.eval.temperature,
        "max_tokens": config.eval_max_tokens or None,
    }
    template = config.eval_template or protocol.template
    arguments = template_arguments(getattr(args, "chat_template_kwargs", ""))
    return make_plan(
        benchmarks.select(benchmarks.names_in(args.eval.dataset) or ""),
        protocol,
        overrides,
        data_dir=_data_dir(args),
        limit=config.eval_limit or None,
        template=template,
        tokenizer=tokenizer,
        chat_template_kwargs=arguments if template == "chat" else None,
    )


def best_metric(plan: EvaluationPlan) -> str:
    """Return the metric that chooses the best checkpoint unless a flag names one: avg@k of the first benchmark."""
    first = plan.benchmarks[0]
    return f"eval/{first.name}/avg@{first.samples}"


class BenchmarkEvaluation:
    """The evaluation on benchmarks.

    Args:
        plan: Benchmarks with their problems, prompts and sampling.
        args: The parsed flags.
    """

    def __init__(self, plan: EvaluationPlan, args: SimpleNamespace) -> None:
        self.plan = plan
        self.sleeps = args.vllm.enable_sleep
        # vLLM samples requests with seeds of their own one by one, which is slow, so only repeatable runs get them.
        repeats = args.rollout_seeded or args.train.full_determinism_enable
        seed = args.train.seed if repeats else None
        self.requests = list(plan.requests(seed=seed, max_model_len=args.data.max_len))
        # The curve of a training is by one grader, whichever gives the rewards; ``openrlhf-cov evaluate`` gives both.
        self.config = replace(RewardConfig.from_args(args), reward_grader="strict")
        self.grader = Grader.of(plan, self.config)
        on_gpus = not cpu_host.is_cpu_host()
        self.sequences = engine_limits(args.vllm_max_num_seqs, args.vllm_max_num_batched_tokens, on_gpus).sequences

    def run(self, engines: EngineGroup) -> dict[str, float]:
        """Return the metrics of the policy whose weights the engines have."""
        with awake(engines, self.sleeps):
            return self.metrics(self.respond(engines))

    def respond(self, engines: EngineGroup) -> list[Response]:
        """Return graded responses to all requests, in no order."""

        def generate(requests):
            return completions.generate(engines, requests, self.sequences)

        fitting = [request for request in self.requests if request.fits]
        responses = [too_long(request) for request in self.requests if not request.fits]
        respond(fitting, self.grader, generate, self.config.reward_workers, responses.append)
        return responses

    def metrics(self, responses: list[Response]) -> dict[str, float]:
        """Return scores and shares of every benchmark, under ``eval/NAME/``, and the mean of avg@k over benchmarks.

        The mean is R of the paper's law; see docs/metrics.md.
        """
        values = {
            f"eval/{each.name}/{name}": value
            for each in self.plan.benchmarks
            for name, value in _metrics([r for r in responses if r.benchmark == each.name], each.samples).items()
        }
        scores = [values[f"eval/{each.name}/avg@{each.samples}"] for each in self.plan.benchmarks]
        return values | {MEAN_SCORE: sum(scores) / len(scores)}


class PromptEvaluation:
    """The evaluation on a prompt data set, graded by the reward function.

    Args:
        prompts: The prompts of ``--eval.dataset``.
        args: The parsed flags.
        requests: Sends prompts to engines.
    """

    def __init__(self, prompts: Sequence[Prompt], args: SimpleNamespace, requests: RolloutRequests) -> None:
        self.prompts = prompts
        self.args = args
        self.requests = requests

    def run(self, engines: EngineGroup) -> dict[str, float]:
        """Return the metrics of the policy whose weights the engines have.

        Raises:
            RunStopped: So many rewards failed that the accuracy would be wrong, or a response has no reward.
        """
        evaluation = self.args.eval
        with awake(engines, self.args.vllm.enable_sleep):
            generated = self.requests.groups(
                list(self.prompts),
                engines,
                samples_per_prompt=evaluation.n_samples_per_prompt,
                temperature=evaluation.temperature,
                window=self.args.rollout.batch_size,
            )
            groups = [group for _, group in in_order(generated)]
        samples = [sample for group in groups for sample in group]
        check_reward_errors(failed_rewards(samples), len(samples), self.args.reward_max_error_frac)
        return prompt_metrics(self.prompts, groups)


Evaluation = BenchmarkEvaluation | PromptEvaluation


def load_evaluation(
    args: SimpleNamespace, strategy: Any, tokenizer: Any, requests: RolloutRequests
) -> Evaluation | None:
    """Return the evaluation that ``--eval.dataset`` asks for; None without that flag.

    Args:
        args: The parsed flags.
        strategy: See ``openrlhf_cov.trainer.rollout.prompts.load_prompts``.
        tokenizer: The tokenizer itself, which writes prompts with its chat template.
        requests: Sends the prompts of a prompt data set.
    """
    if not args.eval.dataset:
        return None
    if benchmarks.names_in(args.eval.dataset) is not None:
        return BenchmarkEvaluation(plan_of(args, tokenizer), args)
    return PromptEvaluation(load_evaluation_prompts(args, strategy, tokenizer), args, requests)


@dataclass
class _Source:
    """Numbers of one data source of an evaluation."""

    # For each prompt the best and the mean score of its samples.
    best: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    # For each sample the tokens of the response, and whether they hit the limit.
    lengths: list[int] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)


def prompt_metrics(prompts: Sequence[Prompt], groups: Sequence[Sequence[Sample]]) -> dict[str, float]:
    """Return the metrics of an evaluation on a prompt data set, under the names that OpenRLHF gives them.

    They count scores, not rewards, which may be shaped. A sample whose reward function abstained is not solved. A row
    without a data source has the name that ``source_name`` gives.

    Args:
        prompts: The prompts, N.
        groups: K samples for each of them.
    """
    sources: dict[str, _Source] = {}
    for prompt, group in zip(prompts, groups, strict=True):
        is_named = isinstance(prompt.source, str) and prompt.source not in ("", UNNAMED)
        source = sources.setdefault(prompt.source if is_named else source_name(prompt), _Source())
        scores = [_solved(sample) for sample in group]
        source.best.append(max(scores))
        source.mean.append(sum(scores) / len(scores))
        source.lengths += [sample.response_length for sample in group]
        source.truncated += [sample.truncated for sample in group]
    metrics: dict[str, float] = {}
    for name, source in sources.items():
        metrics[f"eval_{name}_pass{len(groups[0])}"] = _mean(source.best)
        metrics[f"eval_{name}_pass1"] = _mean(source.mean)
        metrics[f"eval_{name}_response_length_mean"] = _mean(source.lengths)
        metrics[f"eval_{name}_truncated_rate"] = _mean(source.truncated)
    samples = [sample for group in groups for sample in group]
    if samples:
        metrics["eval_response_length_mean"] = _mean([sample.response_length for sample in samples])
        metrics["eval_truncated_rate"] = _mean([sample.truncated for sample in samples])
        metrics["eval_num_samples"] = float(len(samples))
    return metrics


def _solved(sample: Sample) -> float:
    """Return the score of a sample, or its reward if it has no score; 0 for an abstention."""
    if sample.abstained:
        return 0.0
    value = sample.reward if sample.score is None else sample.score
    if value is None:
        raise RunStopped(
            "--eval.dataset: a response came without a reward; have the agent or reward return one, or drop the flag "
            f"(prompt {sample.prompt[:200]!r})"
        )
    return 0.0 if math.isnan(value) else value


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


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
