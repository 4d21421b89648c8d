"""What an evaluation leaves in its folder: settings, problems and responses, and how they are read and written.

``run.json`` holds the settings, ``problems.jsonl`` what was asked, ``responses.jsonl`` one line per sample as it
arrives. Scores, tables and pages follow from these three files alone.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.data import Problem
from openrlhf_cov.utils.json_lines import write_lines

SCHEMA = 1
"""Counts up when a field changes its meaning or goes."""

RUN_FILE = "run.json"
PROBLEMS_FILE = "problems.jsonl"
RESPONSES_FILE = "responses.jsonl"

PROMPT_TOO_LONG = "prompt_too_long"
"""Status of a sample whose prompt leaves no room for a response; the others are those of ``grading.Grade``."""

Key = tuple[str, str, int]
"""Benchmark, problem id and sample number: what a response answers."""

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """How one benchmark was asked."""

    name: str
    version: int
    problems: int
    """Problems asked: all, or the first ``--limit``."""
    complete: bool
    """All problems of the benchmark were asked."""
    samples: int
    temperature: float
    top_p: float
    max_tokens: int
    grader: str
    sha256: str
    """Of the problems and answers asked, in their order."""
    ungradable: tuple[str, ...] = ()
    """Ids of problems whose gold answer the rule cannot read; every response to them counts as wrong."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ungradable", tuple(self.ungradable))


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What determines the responses of a run. A resumed run must have equal ones, ``packages`` aside."""

    model: str
    protocol: str
    template: str
    template_text: str
    """The prompt with ``{problem}`` where the problem goes."""
    seed: int
    log_probs: bool
    reward_format: str
    max_model_len: int | None
    """Longest prompt + response in tokens; None: what an endpoint allows."""
    benchmarks: tuple[BenchmarkSettings, ...]
    model_sha256: str | None = None
    """Fingerprint of the files of a local model folder; None for a name on the hub or an endpoint."""
    dtype: str | None = None
    """Precision of weights and activations; None for an endpoint."""
    packages: dict[str, str] = field(default_factory=dict)
    """Versions of the packages that make responses."""
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class AskedProblem:
    """One line of ``problems.jsonl``."""

    benchmark: str
    id: str
    problem: str
    answer: str
    source: str

    @classmethod
    def of(cls, benchmark: str, problem: Problem) -> "AskedProblem":
        """The line of a problem."""
        return cls(benchmark=benchmark, **asdict(problem))


@dataclass(frozen=True, kw_only=True)
class Response:
    """One line of ``responses.jsonl``: a sample and its grade."""

    benchmark: str
    id: str
    sample: int
    """0 to K - 1."""
    seed: int | None
    """None for greedy decoding."""
    text: str
    tokens: int
    """Length of the response, the end token included."""
    prompt_tokens: int
    truncated: bool
    """It was cut at the token limit."""
    surprisal: float | None
    """Mean of -log p of the response's tokens, nats, under the model at temperature 1; None where not asked for."""
    answer: str | None
    """The extracted answer."""
    status: str
    """graded, no_answer, unparsable, timeout or prompt_too_long."""
    correct: bool

    @property
    def key(self) -> Key:
        """What it answers."""
        return self.benchmark, self.id, self.sample


def write_settings(folder: Path, settings: RunSettings) -> None:
    """Write ``run.json``."""
    write_lines(folder / RUN_FILE, [json.dumps(asdict(settings), indent=2, ensure_ascii=False)])


def read_settings(folder: Path) -> RunSettings:
    """The settings of a run. Raises UsageError where there is no run of this schema."""
    path = folder / RUN_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["schema"] != SCHEMA:
            raise UsageError(f"{path} has schema {values['schema']}; this version reads schema {SCHEMA}")
        benchmarks = tuple(BenchmarkSettings(**each) for each in values.pop("benchmarks"))
        return RunSettings(benchmarks=benchmarks, **values)
    except OSError as error:
        raise UsageError(f"{folder} is no folder of an evaluation: {RUN_FILE}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} cannot be read ({error}); it is written by `evaluate`") from error


def write_records(path: Path, records: Iterable[Any]) -> None:
    """Write or replace a file of records; at any moment it is the old one or the new one."""
    write_lines(path, map(record_line, records))


def record_line(record: Any) -> str:
    """A record as one line of JSON, its fields in their order."""
    return json.dumps(asdict(record), ensure_ascii=False, allow_nan=False)


def read_problems(folder: Path) -> list[AskedProblem]:
    """The problems of a run, in the order in which they were asked."""
    return _read(folder / PROBLEMS_FILE, AskedProblem)


def read_responses(folder: Path) -> list[Response]:
    """The complete responses in the file, in its order; one per key, the first. A cut last line is left out."""
    path = folder / RESPONSES_FILE
    found: dict[Key, Response] = {}
    for response in _read(path, Response, may_be_cut=True) if path.exists() else []:
        found.setdefault(response.key, response)
    return list(found.values())


def _read(path: Path, kind: type[Record], may_be_cut: bool = False) -> list[Record]:
    names = {each.name for each in fields(kind)}
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    records = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or set(record) != names:
                raise ValueError(f"a line is an object with the fields {', '.join(sorted(names))}")
        except ValueError as error:
            if may_be_cut and number == len(lines):  # no newline at its end: cut while it was written
                break
            raise UsageError(f"{path}, line {number}: {error}") from error
        records.append(kind(**record))
    return records
