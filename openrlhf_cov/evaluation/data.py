"""The problems of a benchmark, from a file or from the Hugging Face hub, checked before anything is generated."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.data.hub import HubDataset, download
from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.benchmarks import Benchmark
from openrlhf_cov.rewards.code import datasets
from openrlhf_cov.rewards.code.tests import with_judge
from openrlhf_cov.rewards.maths.extraction import GSM8K_MARK
from openrlhf_cov.rewards.sources import RewardSource, source_of
from openrlhf_cov.utils.json_lines import read_rows, write_lines
from openrlhf_cov.utils.record_checks import OPEN, checked_value


@dataclass(frozen=True)
class Problem:
    """One problem: ``answer`` is the gold answer as its source gives it, ``source`` the tag of its row."""

    __pydantic_config__ = OPEN

    id: str
    problem: str
    answer: str
    source: str

    def __post_init__(self) -> None:
        # A problem without a text cannot be answered, and one without an answer or a tag cannot be graded.
        for name, text in vars(self).items():
            if not text.strip():
                raise ValueError(f"{name}: must not be empty")


FIELDS = tuple(field.name for field in fields(Problem))


def load_problems(benchmark: Benchmark, data_dir: Path | None) -> list[Problem]:
    """Return the problems of a benchmark in their order, all of them checked.

    Args:
        benchmark: The benchmark. A benchmark of the user names its own file.
        data_dir: Folder with a file for each benchmark; None reads the hub.

    Raises:
        UsageError: The problems cannot be read. The message names file, line and field.
    """
    path = benchmark.path or (data_dir and _find_file(benchmark, data_dir))
    if path is None:
        place, rows, expected = _hub_rows(benchmark)
    else:
        place = str(path)
        expected = benchmark.rows
        rows = _own_form(benchmark, ((f"{path}, line {number}", row) for number, row in read_rows(path)))
    problems = _check_rows(rows)
    if benchmark.grader == "row":
        _check_rules(place, problems)
    if expected is None and not problems:
        raise UsageError(f"{place} has no problems")
    if expected is not None and len(problems) != expected:
        raise UsageError(
            f"{place}: {len(problems)} rows, but {benchmark.name} version {benchmark.version} has {expected}; "
            "get the complete set, and use --limit for a part of it"
        )
    return problems


def write_problem_file(benchmark: Benchmark, folder: Path, data_dir: Path | None) -> Path:
    """Write the problems of a benchmark to the file that ``load_problems`` finds in a folder, unless it exists.

    Args:
        benchmark: The benchmark.
        folder: Folder of the file; it must exist.
        data_dir: Folder to read the problems from; None reads the hub.

    Returns:
        The file.

    Raises:
        UsageError: The problems cannot be read.
        OSError: The file cannot be written.
    """
    path = folder / benchmark.files[0]
    if not path.exists():
        problems = load_problems(benchmark, data_dir)
        write_lines(path, [json.dumps(asdict(problem), ensure_ascii=False) for problem in problems])
    return path


def _check_rules(place: str, problems: Iterable[Problem]) -> None:
    """Raise UsageError if a problem does not name the rule that grades it."""
    for problem in problems:
        try:
            source_of(problem.source, RewardConfig(reward_source="row"))
        except ValueError as error:
            raise UsageError(f"{place}: problem {problem.id}: {error}") from error


def ungradable(benchmark: Benchmark, problems: Iterable[Problem]) -> list[str]:
    """Return the ids of the problems whose gold answer the rule of a benchmark cannot read.

    Any response to them counts as incorrect. They stay in the benchmark, so that its size is what others report; the
    caller says how many they are.

    Args:
        benchmark: The benchmark, whose rule reads the answers.
        problems: Its problems, or a part of them.
    """
    return ungradable_by(benchmark.grader, problems)


def ungradable_by(rule: str, problems: Iterable[Problem]) -> list[str]:
    """Return the ids of the problems whose gold answer a rule cannot read.

    Args:
        rule: A value of ``--reward_source``; with ``row`` each problem names its own rule.
        problems: The problems.
    """
    config = RewardConfig(reward_source=rule)
    return [problem.id for problem in problems if not _can_reward(source_of(problem.source, config), problem.answer)]


def _can_reward(rule: RewardSource, answer: str) -> bool:
    try:
        rule.check_label(answer)
    except ValueError:  # a sentence with its own box does not equal itself inside of another one, but is read well
        return rule.grade(answer, answer, RewardConfig()).correct
    return True


def _find_file(benchmark: Benchmark, data_dir: Path) -> Path:
    if not data_dir.is_dir():
        raise UsageError(f"--data_dir {data_dir}: no such folder")
    for name in benchmark.files:
        if (data_dir / name).is_file():
            return data_dir / name
    raise UsageError(f"--data_dir {data_dir}: no file {' or '.join(benchmark.files)}, which {benchmark.name} needs")


# The place of a row, for messages, and the row.
Row = tuple[str, Any]


def _own_form(benchmark: Benchmark, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of a file. Rows in the form of the published dataset are converted to our form."""
    for number, (place, row) in enumerate(rows):
        if benchmark.convert and isinstance(row, dict) and "problem" not in row:
            row = _converted(benchmark, benchmark.convert, place, number, row)
        if benchmark.judge and isinstance(row, dict) and isinstance(row.get("answer"), str):
            row = row | {"answer": with_judge(row["answer"], benchmark.judge)}
        yield place, row


def _converted(
    benchmark: Benchmark, convert: datasets.Converter, place: str, number: int, row: dict[str, Any]
) -> dict[str, str]:
    """Convert a row of a dataset with fields of its own to our form."""
    key = benchmark.hub and benchmark.hub.id
    try:
        converted = convert(row)
        name = f"{benchmark.name}-{number}" if key is None else str(row[key])
    except datasets.FAULTS as error:
        reason = f"has no {error}" if isinstance(error, KeyError) else f"is not as {benchmark.name} should be: {error}"
        raise UsageError(f"{place} {reason}") from error
    if converted is None:
        raise UsageError(f"{place} is not as {benchmark.name} should be: it has no tests")
    return dict(zip(FIELDS, (name, *converted, benchmark.name), strict=True))


def _check_rows(rows: Iterable[Row]) -> list[Problem]:
    problems = []
    places = {}
    for place, row in rows:
        try:
            problem = checked_value(Problem, row)
        except ValueError as error:
            raise UsageError(f"{place}: {error}") from error
        if problem.id in places:
            raise UsageError(f"{place}: id: {problem.id!r} is also the id of {places[problem.id]}")
        places[problem.id] = place
        problems.append(problem)
    return problems


def _hub_rows(benchmark: Benchmark) -> tuple[str, Iterator[Row], int | None]:
    hub = benchmark.hub
    if hub is None:
        raise UsageError(
            f"{benchmark.name} is not on the Hugging Face hub; give --data_dir with {' or '.join(benchmark.files)}"
        )
    place = f"{hub.path}, split {hub.split}"
    dataset = download(hub, place, benchmark.files[0])
    if benchmark.convert:
        rows = ((f"{place}, row {number + 1}", row) for number, row in enumerate(dataset))
        return place, _own_form(benchmark, rows), hub.rows or benchmark.rows
    for name in filter(None, (hub.problem, hub.answer, hub.id)):
        if name not in dataset.column_names:
            raise UsageError(f"{place}: field {name!r} is missing; it has {', '.join(dataset.column_names)}")
    return place, _rows_of_dataset(benchmark, hub, place, dataset), hub.rows or benchmark.rows


def _rows_of_dataset(benchmark: Benchmark, hub: HubDataset, place: str, dataset: Any) -> Iterator[Row]:
    for number, row in enumerate(dataset, start=1):
        name = f"{benchmark.name}-{number - 1}" if hub.id is None else _text(row[hub.id])
        values = (name, row[hub.problem], _gold(row[hub.answer]), benchmark.name)
        yield f"{place}, row {number}", dict(zip(FIELDS, values, strict=True))


def _gold(answer: Any) -> Any:
    """Return the gold answer as a text.

    It is the one element of OlympiadBench's list, the end of GSM8K's solution, or a number. Any other value is
    returned unchanged.
    """
    if isinstance(answer, list) and len(answer) == 1:
        (answer,) = answer
    text = _text(answer)
    return text.rpartition(GSM8K_MARK)[2].strip() if isinstance(text, str) else text


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
