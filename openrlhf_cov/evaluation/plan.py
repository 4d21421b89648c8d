"""Plan an evaluation: every request with its prompt, seed and limits, before a model is loaded."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from openrlhf_cov.data.templates import check_asks, prompts_ids, sent_template
from openrlhf_cov.errors import UsageError, reason_of
from openrlhf_cov.evaluation.benchmarks import Benchmark, Protocol, Sampling
from openrlhf_cov.evaluation.data import Problem, load_problems, ungradable
from openrlhf_cov.evaluation.response_records import AskedProblem, BenchmarkSettings, Count, Key
from openrlhf_cov.utils.record_checks import STRICT
from openrlhf_cov.utils.seeds import seed_of


@dataclass(frozen=True)
class Request:
    """One response to generate."""

    key: Key
    prompt: str
    # Token ids of the prompt; None where the server tokenizes it.
    prompt_ids: tuple[int, ...] | None
    seed: int | None
    temperature: float
    top_p: float
    max_tokens: int
    log_probs: bool = False

    @property
    def fits(self) -> bool:
        """True if the prompt leaves room for a response."""
        return self.max_tokens > 0

    def described(self) -> str:
        """Return the name of the request in messages."""
        benchmark, problem, sample = self.key
        return f"{benchmark}, problem {problem}, sample {sample}"


@dataclass(frozen=True)
class Completion:
    """A generated response. Its fields are those of ``openrlhf_cov.evaluation.response_records.Response``."""

    __pydantic_config__ = STRICT

    text: str
    tokens: Count
    prompt_tokens: Count
    truncated: bool
    surprisal: float | None = None


@dataclass(frozen=True)
class PromptedProblem:
    """One problem and the prompt of all its samples."""

    problem: AskedProblem
    prompt: str
    # Token ids of the prompt; None where the server tokenizes it.
    prompt_ids: tuple[int, ...] | None


@dataclass(frozen=True)
class EvaluationPlan:
    """All benchmarks of a run, and their problems in order."""

    benchmarks: tuple[BenchmarkSettings, ...]
    items: tuple[PromptedProblem, ...]

    @property
    def problems(self) -> tuple[AskedProblem, ...]:
        """The problems without their prompts."""
        return tuple(item.problem for item in self.items)

    @property
    def longest_prompt(self) -> int:
        """Length of the longest prompt in tokens; 0 where the server tokenizes the prompts."""
        return max(len(item.prompt_ids or ()) for item in self.items)

    def requests(self, *, seed: int | None, max_model_len: int | None, log_probs: bool = False) -> Iterator[Request]:
        """Yield every sample of every problem, benchmark by benchmark.

        Args:
            seed: Seed of the run. The seed of a sample is computed from it, the benchmark, the id of the problem and
                the number of the sample. A greedy sample has no seed. None gives no sample a seed.
            max_model_len: Largest number of tokens of prompt and response together. A prompt of known length leaves
                the rest to its response; ``fits`` is False if nothing is left. None applies only the limit of the
                benchmark.
            log_probs: True to ask for the log-probs of the response.
        """
        settings = {benchmark.name: benchmark for benchmark in self.benchmarks}
        for item in self.items:
            asked = item.problem
            ids = item.prompt_ids
            how = settings[asked.benchmark]
            room = how.max_tokens
            if max_model_len is not None and ids is not None:
                room = max(0, min(room, max_model_len - len(ids)))
            for sample in range(how.samples):
                key = (asked.benchmark, asked.id, sample)
                own_seed = seed_of(seed, *key) if seed is not None and how.temperature > 0 else None
                yield Request(key, item.prompt, ids, own_seed, how.temperature, how.top_p, room, log_probs)


def make_plan(
    benchmarks: Sequence[Benchmark],
    protocol: Protocol,
    overrides: Mapping[str, Any],
    *,
    data_dir: Path | None,
    limit: int | None,
    template: str,
    tokenizer: Any,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> EvaluationPlan:
    """Make the plan of a run.

    Args:
        benchmarks: The benchmarks of the run.
        protocol: The sampling settings and the prompt template of the run.
        overrides: Values of fields of ``Sampling`` for every benchmark; None keeps the value of the protocol.
        data_dir: Folder with a file for each benchmark; None reads them from the hub.
        limit: Number of the first problems of each benchmark to take; None takes all.
        template: Name of the prompt template.
        tokenizer: Tokenizer of the model; with None the server tokenizes the prompts.
        chat_template_kwargs: Arguments for the template ``chat``.

    Returns:
        The benchmarks with their settings, problems and prompts.

    Raises:
        UsageError: Data, template or settings cannot be used.
    """
    write = sent_template(template, tokenizer, chat_template_kwargs)
    settings = []
    items = []
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: must be at least 1")
    for benchmark in benchmarks:
        if benchmark.grader != "row":
            check_asks(template, program=benchmark.grader == "code", what=benchmark.name)
        whole = load_problems(benchmark, data_dir)
        problems = whole[:limit]
        complete = len(problems) == len(whole)
        settings.append(_settings(benchmark, sampling_of(protocol, benchmark, overrides), problems, complete))
        texts = [write(problem.problem, tokenizer) for problem in problems]
        tokens = _tokens(benchmark.name, texts, tokenizer)
        items += [
            PromptedProblem(AskedProblem.of(benchmark.name, problem), text, ids)
            for problem, text, ids in zip(problems, texts, tokens, strict=True)
        ]
    return EvaluationPlan(tuple(settings), tuple(items))


def _tokens(benchmark: str, texts: list[str], tokenizer: Any) -> list[tuple[int, ...] | None]:
    """Return the token ids of each prompt, tokenized as in a rollout; None without a tokenizer."""
    if tokenizer is None:
        return [None] * len(texts)
    try:
        return list(map(tuple, prompts_ids(texts, tokenizer)))
    except Exception as error:  # a tokenizer may raise any error
        raise UsageError(
            f"{benchmark}: the tokenizer of the model cannot write its problems ({reason_of(error)}); take another "
            "model, or benchmarks that it can"
        ) from error


def sampling_of(protocol: Protocol, benchmark: Benchmark, overrides: Mapping[str, Any]) -> Sampling:
    """Return the sampling settings of a benchmark: those of the protocol, with the overrides of the user.

    Args:
        protocol: The protocol of the run.
        benchmark: The benchmark.
        overrides: Field of ``Sampling`` -> value; None keeps the value of the protocol. A temperature of 0 without a
            number of samples takes one sample.

    Raises:
        UsageError: The settings are impossible.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    own = protocol.sampling_of(benchmark)
    if given.get("temperature") == 0 and "samples" not in given:
        given["samples"] = 1  # all greedy samples of a problem are equal
    try:
        return replace(own, **given)
    except ValueError as error:
        raise UsageError(f"{benchmark.name}: {error}") from error


def _settings(benchmark: Benchmark, sampling: Sampling, problems: list[Problem], complete: bool) -> BenchmarkSettings:
    return BenchmarkSettings(
        name=benchmark.name,
        version=benchmark.version,
        problems=len(problems),
        complete=complete,
        **asdict(sampling),
        grader=benchmark.grader,
        sha256=hashlib.sha256(json.dumps([astuple(problem) for problem in problems]).encode()).hexdigest(),
        ungradable=tuple(ungradable(benchmark, problems)),
    )
