"""The files of a prepared training set: ``train.jsonl``, ``dropped.jsonl`` and ``manifest.json``.

They follow from the inputs' content and the settings alone: the same again gives the same bytes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from openrlhf_cov.data.inputs import Row, Source
from openrlhf_cov.data.overlap import EvaluationSets
from openrlhf_cov.data.readers import Digest
from openrlhf_cov.data.selection import REASONS, select
from openrlhf_cov.data.templates import check_asks, get_template, plain
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.json_lines import replacing, write_lines

TRAIN = "train.jsonl"
DROPPED = "dropped.jsonl"
MANIFEST = "manifest.json"

# ``(rows, how many, what is done with them)`` -> the same rows, seen by a progress bar.
Watch = Callable[[Iterable[Row], int, str], Iterable[Row]]


def prompt_of(problem: str, template: str) -> str:
    """Return the prompt of a problem in ``train.jsonl``.

    Args:
        problem: Text of the problem.
        template: Name of the template. With ``chat`` the prompt is the message of the user, to which the trainer
            applies the chat template by ``--data.apply_chat_template``.

    Raises:
        UsageError: There is no such template.
    """
    return plain(problem) if template == "chat" else get_template(template)(problem, None)


def training_flags(template: str) -> list[str]:
    """Return the flags of the trainer that fit the rows of ``train.jsonl``."""
    flags = ["--data.input_key", "prompt", "--data.label_key", "answer", "--reward_source", "row"]
    return [*flags, "--data.apply_chat_template"] if template == "chat" else flags


def write_training_set(
    folder: Path, sources: list[Source], evaluation: EvaluationSets, settings: dict[str, Any], watch: Watch
) -> dict[str, Any]:
    """Write a training set. The sources are read twice: to decide which rows to keep, and to write them.

    Every file appears whole or not at all.

    Args:
        folder: Folder to write.
        sources: Sources of the rows.
        evaluation: Problems that the training set must not contain.
        settings: Settings for the manifest, with the ``template`` of the prompts among them.
        watch: Shows progress over rows.

    Returns:
        The manifest.

    Raises:
        UsageError: A source changes meanwhile, a row does not fit the template, or no row is left. In the last case
            only ``dropped.jsonl`` is written, which says why.
    """
    lines = sum(source.count for source in sources)
    before = [hashlib.sha256() for _ in sources]
    selection = select(_fitting(watch(_rows(sources, before), lines, "reading"), settings["template"]), evaluation)
    after = [hashlib.sha256() for _ in sources]
    counts = {source.name: Counter() for source in sources}
    is_empty = len(selection.drops) == selection.rows
    with ExitStack() as files:
        dropped = files.enter_context(LinesFile(folder / DROPPED))
        # An earlier training set in the folder is not replaced by an empty one.
        train = LinesFile(folder / TRAIN) if is_empty else files.enter_context(LinesFile(folder / TRAIN))
        for number, row in enumerate(watch(_rows(sources, after), lines, "writing")):
            drop = selection.drops.get(number)
            counts[row.dataset][drop.reason if drop else "kept"] += 1
            if drop:
                dropped.write({"dataset": row.dataset, "id": row.id, **asdict(drop), "answer": row.answer})
            elif not is_empty:
                train.write(_training_row(row, settings["template"]))
        for source, one, other in zip(sources, before, after, strict=True):
            if one.digest() != other.digest():
                raise UsageError(f"{source.place} changed while it was read; try again")
    if is_empty:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sum(counts.values(), Counter()).items())
        places = ", ".join(source.place for source in sources)
        raise UsageError(
            f"{places}: no row is left to train on: {reasons or 'there is none'}; {dropped.path} has them"
        )
    manifest = {
        "openrlhf_cov": _version(),
        "settings": settings | {"template_text": prompt_of("{problem}", settings["template"])},
        "training_flags": training_flags(settings["template"]),
        "rows": _table(sum(counts.values(), Counter())),
        "inputs": [
            {"name": source.name, "place": source.place, "sha256": digest.hexdigest()} | _table(counts[source.name])
            for source, digest in zip(sources, before, strict=True)
        ],
        "evaluation": [asdict(each) | {"overlaps": selection.overlaps[each.name]} for each in evaluation.files],
        "outputs": {
            file.path.name: {"rows": file.rows, "sha256": file.digest.hexdigest()} for file in (train, dropped)
        },
    }
    write_lines(folder / MANIFEST, [json.dumps(manifest, indent=2, ensure_ascii=False)])
    return manifest


class LinesFile:
    """A file of one JSON object per line, replaced as a whole when the block ends well."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.digest = hashlib.sha256()
        self._writing = replacing(path)

    def write(self, row: dict[str, Any]) -> None:
        """Add a line."""
        line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
        self._file.write(line)
        self.digest.update(line)
        self.rows += 1

    def __enter__(self) -> "LinesFile":
        self._file = self._writing.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._writing.__exit__(*error)


def _fitting(rows: Iterable[Row], template: str) -> Iterator[Row]:
    """Yield the same rows. Raise UsageError at a program where the template asks for a box, and the reverse."""
    for row in rows:
        rule = row.source.partition("/")[0]
        check_asks(template, program=rule == "code", what=f"the source {row.source} of {row.name}")
        yield row


def _training_row(row: Row, template: str) -> dict[str, str]:
    prompt = prompt_of(row.problem, template)
    return {"dataset": row.dataset, "id": row.id, "prompt": prompt, "answer": row.answer, "source": row.source}


def _table(counts: Counter[str]) -> dict[str, int]:
    """Return the number of rows read, kept, and left out for each reason."""
    return {"read": counts.total(), "kept": counts["kept"], **{reason: counts[reason] for reason in REASONS}}


def _version() -> str:
    try:
        return version("openrlhf-cov")
    except PackageNotFoundError:
        return "not installed"


def _rows(sources: list[Source], digests: Sequence[Digest]) -> Iterator[Row]:
    for source, digest in zip(sources, digests, strict=True):
        yield from source.read(digest)
