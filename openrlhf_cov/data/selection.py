"""Select the rows that train: each row of all sources is checked in order, and kept or dropped for one reason."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.data.inputs import Row
from openrlhf_cov.data.overlap import EvaluationSets
from openrlhf_cov.data.repeats import Repeats
from openrlhf_cov.rewards.sources import check_label

# Why a row is left out, in the order in which reasons are looked for.
REASONS = {
    "empty": "no problem, or no answer",
    "bad_label": "the grader cannot read the answer",
    "evaluation": "same letters and digits as an evaluation problem",
    "evaluation_ngram": "as many words in a row as --eval_ngram, or all words, shared with an evaluation problem",
    "conflict": "the same statement comes with different answers",
    "duplicate": "same letters and digits, and same answer, as an earlier row",
}

# Characters of an answer, such as tests of a program, that is not kept.
LONG = 1_000
BY_ROW = RewardConfig(reward_source="row")


@dataclass(frozen=True, slots=True)
class Drop:
    """A row that is dropped; ``detail`` names the rows that it is like, or says what is wrong with it."""

    reason: str
    detail: str


@dataclass
class Selection:
    """The decisions about the rows, which are numbered over all sources."""

    # Number of rows that were checked.
    rows: int = 0
    drops: dict[int, Drop] = field(default_factory=dict)
    # Rows left out per evaluation set; one row may count for several sets.
    overlaps: Counter[str] = field(default_factory=Counter)


def select(rows: Iterable[Row], evaluation: EvaluationSets) -> Selection:
    """Return the decision about every row. Texts are not held, only digests and answers.

    Args:
        rows: The rows of all sources, in order. Their numbers in the result count from 0.
        evaluation: Problems that the training set must not contain.
    """
    selection = Selection()
    repeats = Repeats()
    for number, row in enumerate(rows):
        selection.rows += 1
        drop = _alone(row) or _evaluated(row, evaluation, selection.overlaps)
        if drop:
            selection.drops[number] = drop
        else:
            repeats.add(number, row.name, row.problem, row.answer, row.source)
    selection.drops |= {number: Drop("duplicate", of) for number, of in repeats.duplicates().items()}
    selection.drops |= {number: Drop("conflict", about) for number, about in repeats.conflicts().items()}
    return selection


def _alone(row: Row) -> Drop | None:
    """Return what is wrong with a row by itself; None if nothing is."""
    if not row.problem or not row.answer:
        return Drop("empty", "no answer" if row.problem else "no problem")
    fault = label_fault(row.answer, row.source)
    return Drop("bad_label", fault) if fault else None


def label_fault(answer: str, source: str) -> str | None:
    """Return why ``--reward_source row`` cannot grade this answer; None if it can.

    Args:
        answer: The label of the row.
        source: The source of the row, which names the rule before its first slash.
    """
    known = _label_fault if len(answer) <= LONG else _label_fault.__wrapped__
    return known(answer, source)


@lru_cache(maxsize=2**16)
def _label_fault(answer: str, source: str) -> str | None:
    try:
        check_label({"answer": answer, "source": source}, BY_ROW)
    except ValueError as error:
        return str(error)
    return None


def _evaluated(row: Row, evaluation: EvaluationSets, overlaps: Counter[str]) -> Drop | None:
    names = evaluation.same(row.problem)
    reason = "evaluation"
    if not names:
        names = evaluation.similar(row.problem)
        reason = "evaluation_ngram"
    overlaps.update({name.partition("/")[0] for name in names})
    return Drop(reason, ", ".join(names)) if names else None
