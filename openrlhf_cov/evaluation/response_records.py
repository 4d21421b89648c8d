"""Read and write the files of an evaluation: settings, problems and responses.

``run.json`` holds the settings, ``problems.jsonl`` the problems, ``responses.jsonl`` one line per sample as it
arrives. Scores, tables and pages follow from these three files alone.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.data import Problem
from openrlhf_cov.utils.json_lines import MAX_SETTINGS_BYTES, parse_object, read_bounded, read_rows, write_lines
from openrlhf_cov.utils.record_checks import STRICT, checked

# Schema version: increase it when a field is removed or changes its meaning.
SCHEMA = 1

RUN_FILE = "run.json"
PROBLEMS_FILE = "problems.jsonl"
RESPONSES_FILE = "responses.jsonl"
DIFFERENCES_FILE = "differences.jsonl"

# Status of a sample whose prompt leaves no room for a response; the others are those of
# ``openrlhf_cov.rewards.grades.Grade``.
PROMPT_TOO_LONG = "prompt_too_long"

# The settings of the rewards in a run that does not say otherwise.
DEFAULTS = RewardConfig()
# Settings of the rewards that a run records, as they decide which responses are correct.
GRADED_BY = (
    *("reward_format", "thinking_markers", "thinking_opened"),
    *("code_extract", "code_judge", "code_float_tolerance"),
    *("reward_timeout", "code_timeout", "code_budget", "code_memory_mb", "code_output_mb", "code_sandbox"),
)

# The packages that grade responses.
GRADING_PACKAGES = ("openrlhf-cov", "math-verify")

# Benchmark, problem id and sample number: what a response answers.
Key = tuple[str, str, int]

# A number of things, which every program that reads JSON can hold.
Count = Annotated[int, Ge(0), Lt(2**53)]

PositiveCount = Annotated[int, Ge(1), Lt(2**53)]


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """The settings of one benchmark."""

    __pydantic_config__ = STRICT

    name: str
    version: int
    # Number of evaluated problems: all, or the first ``--limit``.
    problems: PositiveCount
    # True if all problems of the benchmark were evaluated.
    complete: bool
    samples: PositiveCount
    temperature: float
    top_p: float
    max_tokens: Count
    grader: str
    # Digest of the evaluated problems and their answers, in their order.
    sha256: str
    # Ids of problems whose gold answer the rule cannot read; every response to them counts as incorrect.
    ungradable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "ungradable", tuple(self.ungradable))


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings that determine the responses of a run. A resumed run must have equal ones, except ``packages``."""

    __pydantic_config__ = STRICT

    model: str
    protocol: str
    template: str
    # The prompt with ``{problem}`` where the problem goes.
    template_text: str
    seed: int
    log_probs: bool
    reward_format: str
    # Longest prompt + response in tokens; None: what an endpoint allows.
    max_model_len: Count | None
    benchmarks: tuple[BenchmarkSettings, ...]
    # Fingerprint of the files of a local model folder; None for a name on the hub or an endpoint.
    model_sha256: str | None = None
    # Arguments that were given to the chat template of the model.
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    # Precision of weights and activations; None for an endpoint.
    dtype: str | None = None
    # Versions of the packages that make responses and grade them.
    packages: dict[str, str] = field(default_factory=dict)
    # This and the fields below are those of ``RewardConfig``.
    thinking_markers: tuple[str, str] = DEFAULTS.thinking_markers
    thinking_opened: bool = DEFAULTS.thinking_opened
    code_extract: str = DEFAULTS.code_extract
    code_judge: str = DEFAULTS.code_judge
    code_float_tolerance: float = DEFAULTS.code_float_tolerance
    reward_timeout: float = DEFAULTS.reward_timeout
    code_timeout: float = DEFAULTS.code_timeout
    code_budget: float = DEFAULTS.code_budget
    code_memory_mb: int = DEFAULTS.code_memory_mb
    code_output_mb: int = DEFAULTS.code_output_mb
    # ``bubblewrap`` or ``url``. The address of a service is left out: it may change, and may hold a secret.
    code_sandbox: str = DEFAULTS.code_sandbox
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class AskedProblem:
    """One line of ``problems.jsonl``."""

    __pydantic_config__ = STRICT

    benchmark: str
    id: str
    problem: str
    answer: str
    source: str

    @classmethod
    def of(cls, benchmark: str, problem: Problem) -> "AskedProblem":
        """Return the line of a problem.

        Args:
            benchmark: Name of its benchmark.
            problem: The problem.
        """
        return cls(benchmark=benchmark, **asdict(problem))

    def without_benchmark(self) -> Problem:
        """Return the problem without the name of its benchmark."""
        return Problem(id=self.id, problem=self.problem, answer=self.answer, source=self.source)


@dataclass(frozen=True, kw_only=True)
class Response:
    """One line of ``responses.jsonl``: a sample and its grade."""

    __pydantic_config__ = STRICT

    benchmark: str
    id: str
    # 0 to K - 1.
    sample: Count
    # None for greedy decoding.
    seed: Annotated[int, Ge(0), Lt(2**63)] | None
    text: str
    # Length of the response, the end token included.
    tokens: Count
    prompt_tokens: Count
    # True if it was cut at the token limit.
    truncated: bool
    # Mean of -log p of the response's tokens, in nats, under the model at temperature 1; None without ``--log_probs``.
    surprisal: float | None
    # The extracted answer.
    answer: str | None
    # Status of the grade, or the reason why there is none.
    status: Literal["graded", "no_answer", "unparsable", "timeout", "prompt_too_long"]
    # The verdict of the grader strict.
    correct: bool
    # The verdict of the grader published; None where it did not grade.
    published: bool | None = None

    @property
    def key(self) -> Key:
        """The benchmark, the problem and the sample number of the response."""
        return self.benchmark, self.id, self.sample


@dataclass(frozen=True, kw_only=True)
class GraderDifference:
    """One line of ``differences.jsonl``: a response on which the graders strict and published differ."""

    benchmark: str
    id: str
    sample: Count
    text: str
    gold: str
    answer: str | None
    strict: bool
    published: bool


def graded_by(config: RewardConfig) -> dict[str, Any]:
    """Return the fields of ``RunSettings`` that say how responses are graded.

    Args:
        config: Settings of the grader.
    """
    values = {name: getattr(config, name) for name in GRADED_BY}
    values["code_sandbox"] = config.code_sandbox.partition(":")[0]
    return values


def grading_defaults(settings: RunSettings) -> dict[str, Any]:
    """Return the settings with which the responses of a run are graded again.

    The sandbox is left out, because the record does not have its address.
    """
    return {name: getattr(settings, name) for name in GRADED_BY if name != "code_sandbox"}


def write_settings(folder: Path, settings: RunSettings) -> None:
    """Write or replace ``run.json``.

    Args:
        folder: Folder of the evaluation; it must exist.
        settings: Settings of the run.

    Raises:
        OSError: The file cannot be written.
    """
    write_lines(folder / RUN_FILE, [json.dumps(asdict(settings), indent=2, ensure_ascii=False)])


def read_settings(folder: Path) -> RunSettings:
    """Return the settings of a run.

    Raises:
        UsageError: There is no run of this schema.
    """
    path = folder / RUN_FILE
    try:
        content = read_bounded(path, MAX_SETTINGS_BYTES)
        found = parse_object(content).get("schema", SCHEMA)
        if found != SCHEMA:
            raise UsageError(f"{path} has schema {found!r:.40}; this version reads schema {SCHEMA}")
        return checked(RunSettings, content)
    except OSError as error:
        raise UsageError(
            f"{folder} is not the folder of an evaluation: {RUN_FILE}: {error.strerror}; give its --output"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} cannot be read ({error}); it is written by `evaluate`") from error


def write_records(path: Path, records: Iterable[Any]) -> None:
    """Write or replace a file of records. At any moment the file is the old one or the new one, as a whole.

    Args:
        path: The file. Its folder must exist.
        records: Dataclasses, one for each line.

    Raises:
        OSError: The file cannot be written.
    """
    write_lines(path, map(record_line, records))


def record_line(record: Any) -> str:
    """Return a record as one line of JSON, its fields in their order."""
    return json.dumps(asdict(record), ensure_ascii=False, allow_nan=False)


def read_problems(folder: Path) -> list[AskedProblem]:
    """Return the problems of a run, in the order of its requests.

    Raises:
        UsageError: The file cannot be read, or a line of it is no problem.
    """
    return [problem for _, problem in read_rows(folder / PROBLEMS_FILE, partial(checked, AskedProblem))]


def read_responses(folder: Path) -> list[Response]:
    """Return the complete responses in the file, in its order.

    Only the first response of a key counts. A last line that was cut is left out.

    Raises:
        UsageError: The file cannot be read, or a line of it is no response.
    """
    path = folder / RESPONSES_FILE
    found: dict[Key, Response] = {}
    if not path.exists():
        return []
    for _, response in read_rows(path, partial(checked, Response), may_be_cut=True):
        found.setdefault(response.key, response)
    return list(found.values())
