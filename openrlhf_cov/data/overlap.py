"""Find training problems that are also in an evaluation set."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openrlhf_cov.data.normal_form import letters, words
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.json_lines import parse_json, read_rows
from openrlhf_cov.utils.record_checks import OPEN, checked_value

# An evaluation problem of at least so many words, but fewer than ``ngram``, is found by all its words in a row.
# Shorter ones, such as "What is the value of x?", stand inside other problems as well.
FEWEST_WORDS = 8


@dataclass(frozen=True)
class EvaluationSet:
    """A file of evaluation problems; ``name`` is that of the file without its ending."""

    name: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class _Row:
    """A row of a file of evaluation problems, as far as it is read."""

    __pydantic_config__ = OPEN

    # A text or a number.
    id: Any
    problem: str


@dataclass
class EvaluationSets:
    """The problems of all evaluation sets, in which training problems are searched.

    A problem is found by its ``letters`` and, with ``ngram`` above 0, by any ``ngram`` words in a row that it shares
    with one of them, or by all words of a shorter one. Problems are called ``set/id``.
    """

    ngram: int = 0
    files: list[EvaluationSet] = field(default_factory=list)
    _by_letters: dict[str, list[str]] = field(default_factory=dict)
    _by_words: dict[str, list[str]] = field(default_factory=dict)
    # Numbers of words in a row that are looked for.
    _lengths: set[int] = field(default_factory=set)

    def add(self, name: str, problem: str) -> None:
        """Add a problem.

        Args:
            name: The name of the problem in reports, ``set/id``.
            problem: Text of the problem.
        """
        self._by_letters.setdefault(letters(problem), []).append(name)
        found = words(problem)
        if not self.ngram or len(found) < min(self.ngram, FEWEST_WORDS):
            return
        length = min(self.ngram, len(found))
        self._lengths.add(length)
        for run in set(_runs(found, length)):
            self._by_words.setdefault(run, []).append(name)

    def same(self, problem: str) -> list[str]:
        """Return the names of the evaluation problems with the same letters and digits."""
        return self._by_letters.get(letters(problem), [])

    def similar(self, problem: str) -> list[str]:
        """Return the names of the problems that share ``ngram`` words in a row, or all their fewer words."""
        found = words(problem)
        names: dict[str, None] = {}
        for length in sorted(self._lengths, reverse=True):
            for run in _runs(found, length):
                names.update(dict.fromkeys(self._by_words.get(run, ())))
        return list(names)


def read_evaluation_sets(folder: Path, ngram: int) -> EvaluationSets:
    """Return the problems of all ``*.jsonl`` files of a folder, whose rows have ``id`` and ``problem``.

    Args:
        folder: Value of ``--eval_dir``.
        ngram: Number of words in a row by which a similar problem is found; 0 to look for equal ones only.

    Raises:
        UsageError: The folder has no such file, or a file or a row of it cannot be read.
    """
    paths = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    if not paths:
        raise UsageError(f"--eval_dir {folder}: no *.jsonl files there")
    sets = EvaluationSets(ngram)
    for path in paths:
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        rows: list[_Row] = [row for _, row in read_rows(path, lambda line: checked_value(_Row, parse_json(line)))]
        for row in rows:
            sets.add(f"{path.stem}/{row.id}", row.problem)
        sets.files.append(EvaluationSet(path.stem, len(rows), digest))
    return sets


def _runs(found: Sequence[str], length: int) -> Iterator[str]:
    """Yield every ``length`` words in a row."""
    for start in range(len(found) - length + 1):
        yield " ".join(found[start : start + length])
