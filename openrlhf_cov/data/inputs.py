"""Sources of training problems: files, and datasets on the Hugging Face hub by name.

The names of datasets and fields on the hub are those that public code loads; they could not be tried here, on a host
without the hub. Fields are checked, so that a wrong one stops the run.
"""

import difflib
import json
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrlhf_cov.data import readers
from openrlhf_cov.data.columns import ANSWER_KEYS, PROBLEM_KEYS, answer_of, find_key, problem_of
from openrlhf_cov.data.hub import HubDataset, download
from openrlhf_cov.data.readers import Digest, PlacedRows
from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards.code import datasets
from openrlhf_cov.rewards.code.datasets import Converter
from openrlhf_cov.rewards.code.tests import with_judge
from openrlhf_cov.rewards.maths.extraction import GSM8K_MARK, answer_of_solution
from openrlhf_cov.rewards.sources import SOURCES
from openrlhf_cov.utils.rows import value_at


@dataclass(frozen=True, slots=True)
class Row:
    """A problem with its answer as the source gives them, but for white space around them.

    The part of ``source`` before its first slash names the rule that grades (``--reward_source row``).
    """

    dataset: str
    id: str
    problem: str
    answer: str
    source: str

    @property
    def name(self) -> str:
        """The name of the row in reports."""
        return f"{self.dataset}/{self.id}"


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Keys of a file's rows; dots lead into nested values.

    A row without the default key of ``id`` or ``source`` gets its number, its dataset. A row without the default key
    of ``problem`` or ``answer`` is searched for the keys of ``openrlhf_cov.data.columns.PROBLEM_KEYS`` and
    ``ANSWER_KEYS``.
    """

    id: str = "id"
    problem: str = "problem"
    answer: str = "answer"
    source: str = "source"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A dataset that can be read more than once; ``read`` adds the content to a digest as it goes."""

    name: str
    # Name of the file, or path, configuration and split on the hub.
    place: str
    # Rows, for a progress bar; a file's empty lines count.
    count: int
    read: Callable[[Digest], Iterator[Row]]


@dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """A dataset that is known by name."""

    hub: HubDataset
    # Its name in ``--data_dir``.
    file: str
    # Source of the rows on the hub. It begins with the rule that grades them. Rows of the file whose source names no
    # rule are graded by this rule as well.
    source: str
    # Makes the label from the answer field on the hub. It returns None if the field holds no label.
    answer: Callable[[Any], Any] = lambda answer: answer
    # Makes the text of the problem from the problem field on the hub.
    problem: Callable[[Any], Any] = lambda problem: problem
    # A field on the hub, and its value in the rows that belong to the set; None: all rows belong to it.
    only: tuple[str, str] | None = None
    # Makes problem and label from a row, on the hub or in the file, if they are no fields of it.
    convert: Converter | None = None
    # Key of ``openrlhf_cov.rewards.code.comparison.JUDGES``, the published judge that compares outputs. Empty: the
    # label names the judge.
    judge: str = ""


def _programs(path: str, file: str, name: str, convert: Converter, judge: str = "") -> TrainingSet:
    """Return a training set of programs, whose rows on the hub have fields of their own."""
    hub = HubDataset(path=path, split="train")
    return TrainingSet(hub=hub, file=file, source=f"code/{name}", convert=convert, judge=judge)


# --dataset, by name.
TRAINING_SETS: dict[str, TrainingSet] = {
    "dapo-math-17k": TrainingSet(
        # the original, BytedTsinghua-SIA/DAPO-Math-17k, repeats every row 100 times, inside another prompt
        hub=HubDataset(
            path="open-r1/DAPO-Math-17k-Processed", config="all", split="train", problem="prompt", answer="solution"
        ),
        file="dapo_math_17k.jsonl",
        source="math/DAPO-Math-17k",
    ),
    "eurus-2-rl-math": TrainingSet(
        # mathematics and programs in one set, told apart by a field; problems are chats, labels lie in reward_model
        hub=HubDataset(path="PRIME-RL/Eurus-2-RL-Data", split="train", problem="prompt", answer="reward_model"),
        file="eurus_2_rl_math.jsonl",
        source="math/Eurus-2-RL-Math",
        problem=problem_of,
        answer=lambda reward: reward.get("ground_truth") if isinstance(reward, dict) else reward,
        only=("ability", "math"),
    ),
    "math": TrainingSet(
        hub=HubDataset(path="DigitalLearningGmbH/MATH-lighteval", split="train", answer="solution"),
        file="math_train.jsonl",
        source="math/MATH",
        answer=answer_of_solution,
    ),
    "gsm8k": TrainingSet(
        hub=HubDataset(path="openai/gsm8k", config="main", split="train", problem="question"),
        file="gsm8k_train.jsonl",
        source="gsm8k/train",
        answer=lambda solution: solution.rpartition(GSM8K_MARK)[2],
    ),
    "eurus-2-code": _programs(
        "PRIME-RL/Eurus-2-RL-Data", "eurus_2_rl.jsonl", "Eurus-2-RL-Code", datasets.eurus, "prime"
    ),
    "acecode": _programs("TIGER-Lab/AceCode-87K", "acecode.jsonl", "AceCode", datasets.acecode),
    "kodcode": _programs("KodCode/KodCode-V1", "kodcode.jsonl", "KodCode", datasets.kodcode),
    "taco": _programs("BAAI/TACO", "taco.jsonl", "TACO", datasets.apps, "apps"),
    "apps": _programs("codeparrot/apps", "apps.jsonl", "APPS", datasets.apps, "apps"),
}


@dataclass(frozen=True, kw_only=True)
class DatasetPart:
    """The part of a data set on the hub or in a folder that is read."""

    split: str = "train"
    # The name of a configuration of the data set; None for its only one.
    subset: str | None = None


def open_sources(
    datasets: str, data_dir: Path | None, keys: Keys, rule: str | None = None, part: DatasetPart | None = None
) -> list[Source]:
    """Open the sources of a comma-separated list of names and files.

    Args:
        datasets: The value of ``--dataset``.
        data_dir: Folder of the sets known by name; None reads the hub.
        keys: Keys of the fields in files.
        rule: Rule that grades the rows of files whose source names no rule; None refuses such rows.
        part: Part of folders and of data sets on the hub to read.

    Returns:
        One source per name, in their order.

    Raises:
        UsageError: A source does not exist, or two have the same name, so that their rows could not be distinguished.
    """
    sources = [_open(name, data_dir, keys, rule, part or DatasetPart()) for name in _names(datasets)]
    called = [source.name for source in sources]
    for name in called:
        if called.count(name) > 1:
            raise UsageError(f"--dataset {datasets}: two datasets are called {name}; rename a file or name it once")
    return sources


def check_sources(datasets: str, data_dir: Path | None) -> None:
    """Check the names of ``--dataset`` as ``open_sources`` does, but without asking the hub.

    Args:
        datasets: The value of ``--dataset``.
        data_dir: Folder of the sets known by name; None if these are read from the hub.

    Raises:
        UsageError: A dataset does not exist.
    """
    for name in _names(datasets):
        if data_dir is not None and name in TRAINING_SETS:
            _named_file(name, data_dir)
        elif name not in TRAINING_SETS and not _is_place(name) and not readers.is_hub_name(name):
            raise _unknown(name)


def unread_part(datasets: str, data_dir: Path | None, part: DatasetPart) -> str | None:
    """Return why a flag of ``openrlhf-cov prepare`` would have no effect on its inputs; None if all have one.

    Args:
        datasets: The value of ``--dataset``.
        data_dir: Folder of the sets known by name.
        part: Part of folders and of data sets on the hub.
    """
    names = _names(datasets)
    if data_dir is not None and not any(name in TRAINING_SETS for name in names):
        return f"--data_dir {data_dir} has no effect: no input is one of {', '.join(TRAINING_SETS)}; drop it"
    if any(name not in TRAINING_SETS and not Path(name).is_file() for name in names):
        return None
    given = [("split", part.split, DatasetPart.split), ("subset", part.subset, DatasetPart.subset)]
    for flag, value, default in given:
        if value != default:
            return f"--{flag} {value} has no effect on files and named sets: they have no {flag}s; drop it"
    return None


def _names(datasets: str) -> list[str]:
    return [datasets] if _is_place(datasets) else [name.strip() for name in datasets.split(",")]


def _is_place(name: str) -> bool:
    """Return whether a name is that of a file or folder."""
    return Path(name).is_file() or (name != "" and Path(name).is_dir())


def _open(name: str, data_dir: Path | None, keys: Keys, rule: str | None, part: DatasetPart) -> Source:
    known = TRAINING_SETS.get(name)
    if known and data_dir is None:
        return _hub_source(name, known)
    if known and data_dir is not None:
        rule = rule or known.source.partition("/")[0]
        return _file_source(name, _named_file(name, data_dir), keys, rule, known)
    path = Path(name)
    if path.is_file():
        return _file_source(path.stem, path, keys, rule, None)
    if _is_place(name) or readers.is_hub_name(name):
        return _dataset_source(name, keys, rule, part)
    raise _unknown(name)


def _named_file(name: str, data_dir: Path) -> Path:
    """Return the file of a data set that is known by name. Raise UsageError if it is missing."""
    path = data_dir / TRAINING_SETS[name].file
    if not path.is_file():
        raise UsageError(f"--data_dir {data_dir}: no file {path.name}, which {name} needs")
    return path


def _unknown(name: str) -> UsageError:
    close = difflib.get_close_matches(name.lower(), TRAINING_SETS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"give a file, or one of {', '.join(TRAINING_SETS)}"
    return UsageError(f"--dataset {name}: no such file or dataset; {hint}")


def _file_source(name: str, path: Path, keys: Keys, rule: str | None, known: TrainingSet | None) -> Source:
    convert = known and known.convert

    def read(digest: Digest) -> Iterator[Row]:
        rows = readers.read_file(path, digest)
        if known and convert:
            for number, (place, row) in enumerate(rows):
                yield from _converted(place, row, name, number, known, convert)
        else:
            yield from _rows(rows, name, keys, rule)

    return Source(name=name, place=path.name, count=readers.count_rows(path), read=read)


def _dataset_source(name: str, keys: Keys, rule: str | None, part: DatasetPart) -> Source:
    """Return a data set of the hub, by its id, or one in a folder."""
    dataset = readers.open_dataset(name, part.subset, part.split)
    place = ", ".join(filter(None, (name, part.subset, f"split {part.split}")))
    called = Path(name).resolve().name

    def read(digest: Digest) -> Iterator[Row]:
        return _rows(readers.dataset_rows(place, dataset, digest), called, keys, rule)

    return Source(name=called, place=place, count=len(dataset), read=read)


def _rows(rows: PlacedRows, name: str, keys: Keys, rule: str | None) -> Iterator[Row]:
    for number, (place, row) in enumerate(rows):
        yield _row(place, row, name, number, keys, rule)


def _row(place: str, row: dict[str, Any], name: str, number: int, keys: Keys, rule: str | None) -> Row:
    """Return a row in the form of the trainer. Raise UsageError for a row without a key, and for wrong values."""
    found = {
        "id": find_key(row, keys.id, Keys.id, ()),
        "problem": find_key(row, keys.problem, Keys.problem, PROBLEM_KEYS),
        "answer": find_key(row, keys.answer, Keys.answer, ANSWER_KEYS),
        "source": find_key(row, keys.source, Keys.source, ()),
    }
    for field, key in found.items():
        asked = getattr(keys, field)
        if key is None and (field in ("problem", "answer") or asked != getattr(Keys, field)):
            raise UsageError(
                f"{place} has no key {asked!r}; it has {', '.join(row) or 'none'}; name the key with --{field}_key"
            )
    values = {field: None if key is None else value_at(row, key) for field, key in found.items()}
    if values["id"] is None:
        values["id"] = f"{name}-{number}"
    if values["source"] is None:
        # In verl's files the key ``ability`` says that the answer is a program.
        if rule is None and row.get("ability") in ("code", "coding"):
            raise UsageError(f"{place}: it is a program (ability {row['ability']!r}); name its rule with --rule code")
        values["source"] = f"{rule or 'math'}/{name}"
    source = _with_rule(place, _text(f"{place}: {found['source']!r}", values["source"]), rule)
    try:
        problem = problem_of(values["problem"])
    except ValueError as error:
        raise UsageError(f"{place}: {found['problem']!r}: {error}") from error
    try:
        answer = answer_of(values["answer"], found["answer"] or "", source.partition("/")[0].lower())
    except ValueError as error:
        raise UsageError(f"{place}: {found['answer']!r}: {error}") from error
    return Row(
        dataset=name,
        id=_text(f"{place}: {found['id']!r}", values["id"]),
        problem=_text(f"{place}: {found['problem']!r}", "" if problem is None else problem),
        answer=_text(f"{place}: {found['answer']!r}", answer),
        source=source,
    )


def _converted(
    place: str, row: dict[str, Any], name: str, number: int, known: TrainingSet, convert: Converter
) -> Iterator[Row]:
    """Yield the row of a dataset with fields of its own, if it is one of its problems."""
    try:
        converted = convert(row)
    except datasets.FAULTS as error:
        reason = f"has no {error}" if isinstance(error, KeyError) else f"is not as {name} should be: {error}"
        raise UsageError(f"{place} {reason}") from error
    if converted is not None:
        problem, answer = (_text(place, text) for text in converted)
        if known.judge:
            answer = with_judge(answer, known.judge)
        yield Row(name, f"{name}-{number}", problem, answer, known.source)


def _with_rule(place: str, source: str, rule: str | None) -> str:
    """Return a source that names a rule as it is, and any other source after ``rule`` and a slash."""
    if source.partition("/")[0].lower() in SOURCES:
        return source
    if rule is None:
        raise UsageError(
            f"{place}: source {source!r} names no rule; name the rule of such rows with --rule: {', '.join(SOURCES)}"
        )
    return f"{rule}/{source}"


def _hub_source(name: str, known: TrainingSet) -> Source:
    hub = known.hub
    place = ", ".join(filter(None, (hub.path, hub.config, f"split {hub.split}")))
    dataset = download(hub, place, f"{known.file}, or a file")
    if known.convert is None:
        for field in filter(None, (hub.problem, hub.answer, known.only and known.only[0])):
            if field not in dataset.column_names:
                raise UsageError(f"{place}: field {field!r} is missing; it has {', '.join(dataset.column_names)}")
        if known.only:
            only, value = known.only
            dataset = dataset.filter(lambda row: row[only] == value)
        dataset = dataset.select_columns([hub.problem, hub.answer])

    def read(digest: Digest) -> Iterator[Row]:
        for number, row in enumerate(dataset):
            for made in _hub_rows(f"{place}, row {number + 1}", row, name, number, known):
                digest.update(json.dumps([made.problem, made.answer]).encode() + b"\n")
                yield made

    return Source(name=name, place=place, count=len(dataset), read=read)


def _hub_rows(place: str, row: dict[str, Any], name: str, number: int, known: TrainingSet) -> Iterator[Row]:
    """Yield the row of a dataset on the hub, if it is one of its problems."""
    if known.convert:
        yield from _converted(place, row, name, number, known, known.convert)
        return
    hub = known.hub
    label = known.answer(row[known.hub.answer])
    problem = _text(f"{place}: {hub.problem!r}", known.problem(row[hub.problem]))
    answer = _text(f"{place}: {hub.answer!r}", "" if label is None else label)
    yield Row(name, f"{name}-{number}", problem, answer, known.source)


def _text(place: str, value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise UsageError(f"{place} is a text, got {reprlib.repr(value)}")
    return value.strip()
