"""The JSON of finished runs: files of a run's folder, and lines of a packed file."""

from pathlib import Path
from typing import Annotated, TypeVar

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, model_validator

from openrlhf_cov.experiments.study.run_plan import Stage, StudyRun
from openrlhf_cov.utils.json_lines import parse_json, read_bounded
from openrlhf_cov.utils.record_checks import StopsAtFirstError, checked_value

# Bytes of a file of a run.
MAX_FILE_BYTES = 2**26
# Samples of a question in a test.
MAX_SAMPLES = 2**20

Model = TypeVar("Model", bound=BaseModel)
# A metric is missing in a step where it is null.
Columns = dict[str, Annotated[list[float | None], StopsAtFirstError()]]
Counts = Annotated[list[Annotated[int, Ge(0), Le(MAX_SAMPLES)]], StopsAtFirstError()]
Texts = Annotated[list[str], StopsAtFirstError()]


class Answers(BaseModel):
    """The test of a run, question by question: ``test.json``, and the same in a packed run."""

    # Kind of each question.
    kinds: Texts
    # 1 where the greedy answer is correct, else 0.
    greedy: Counts
    # Number of correct ones of ``samples`` samples.
    right: Counts
    samples: Annotated[int, Ge(1), Le(MAX_SAMPLES)]

    @model_validator(mode="after")
    def check_questions(self) -> "Answers":
        """Raise ValueError for lists of different questions, and for more correct answers than answers."""
        if not len(self.kinds) == len(self.greedy) == len(self.right) > 0:
            raise ValueError("kinds, greedy and right must have one entry for each question")
        if max(self.greedy) > 1 or max(self.right) > self.samples:
            raise ValueError("a question has more correct answers than answers")
        return self


class LastEvaluation(BaseModel):
    """``result.json``, as far as it is read."""

    greedy: float
    # The step after which the run ended, if it was not its last.
    stopped_at: int | None = None


class RunFields(BaseModel):
    """A ``StudyRun`` in a packed file.

    Published files have these keys: ``arm`` is the name of the method and ``cell`` its configuration.
    """

    model_config = ConfigDict(extra="forbid")

    arm: str
    stage: Stage
    cell: Texts
    seed: int


class PackedRun(BaseModel):
    """One line of a packed file."""

    model_config = ConfigDict(extra="forbid")

    run: RunFields
    metrics: Columns
    evaluations: Columns
    test: Answers
    # The flags of the run.
    asked: Texts | None = None

    @property
    def study_run(self) -> StudyRun:
        """The run that the line is about."""
        return StudyRun(self.run.arm, self.run.stage, tuple(self.run.cell), self.run.seed)


def read_record(kind: type[Model], path: Path) -> Model:
    """Return the record in a file of a run.

    Args:
        kind: The type of the record.
        path: The file, of at most ``MAX_FILE_BYTES`` bytes.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is too large or holds no such record. The message is one line that names the file.
    """
    try:
        return checked_value(kind, parse_json(read_bounded(path, MAX_FILE_BYTES)))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
