"""Rows of files in the formats that people have: JSON Lines, JSON, CSV, parquet, and Hugging Face data sets.

Every reader adds the content to a digest and yields ``(place, row)``, where ``place`` names the row in messages.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from openrlhf_cov.errors import UsageError, reason_of
from openrlhf_cov.utils.json_lines import BOM, parse_json, parse_object

# Rows of a parquet file that are in memory at once. A long text that many rows share is a copy in each of them.
ROWS_AT_ONCE = 128
# Uncompressed bytes of a row group of parquet: at most, and for each byte of the file beside a minimum.
MAX_GROUP_BYTES = 2**33
MIN_GROUP_BYTES = 2**26
MAX_RATIO = 1000
# Endings of files. A name with one of them is never looked up on the hub.
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".arrow")
# Endings of files whose rows cannot be read. A name of any other ending is read as JSON Lines.
UNREADABLE_SUFFIXES = (
    *(".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz", ".7z"),
    *(".tsv", ".xls", ".xlsx", ".ods", ".pkl", ".pickle", ".npy", ".npz", ".pt", ".safetensors", ".avro", ".orc"),
)
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# Files of a folder that ``save_to_disk`` wrote.
SAVED = ("dataset_info.json", "dataset_dict.json")
BLOCK = 2**20

PlacedRows = Iterator[tuple[str, dict[str, Any]]]


class Digest(Protocol):
    """The type that ``hashlib.sha256()`` returns."""

    def update(self, content: bytes, /) -> None: ...


def refuse_suffix(name: str | Path, flag: str = "") -> None:
    """Raise UsageError for a file whose suffix says that its rows cannot be read.

    Args:
        name: Path of the file.
        flag: The flag that names it, for the message.
    """
    suffix = Path(name).suffix.lower()
    if suffix in UNREADABLE_SUFFIXES:
        place = f"{flag} {name}".strip()
        raise UsageError(
            f"{place}: files that end in {suffix} cannot be read; convert it to JSON Lines, JSON, CSV or parquet"
        )


def read_file(path: Path, digest: Digest) -> PlacedRows:
    """Yield the rows of a file, read as its suffix says; a file with another suffix is read as JSON Lines.

    Args:
        path: The file.
        digest: Gets the content of the file as it is read.

    Raises:
        UsageError: The suffix is that of a packed file or of a format that is not read here, see ``refuse_suffix``, or
            a row cannot be read.
    """
    refuse_suffix(path)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet(path, digest)
    if suffix == ".csv":
        return _csv(path, digest)
    if suffix == ".arrow":
        return _arrow(path, digest)
    if suffix == ".json" and is_json_array(path):
        return _json_array(path, digest)
    return _json_lines(path, digest)


def count_rows(path: Path) -> int:
    """Return how many rows a file has, for a progress bar; lines are counted where rows are lines.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        if path.suffix.lower() == ".parquet":
            return _parquet_file(path).metadata.num_rows
        if path.suffix.lower() == ".json" and is_json_array(path):
            return len(_array(path, path.read_bytes()))
        with path.open("rb") as file:
            return sum(1 for _ in file)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def is_json_array(path: Path) -> bool:
    """Return whether a file of JSON holds one array; otherwise it holds JSON Lines."""
    with path.open("rb") as file:
        return file.read(BLOCK).removeprefix(BOM).lstrip()[:1] == b"["


def is_hub_name(name: str) -> bool:
    """Return whether a name that is no file or folder can be that of a data set on the Hugging Face hub."""
    if not HUB_NAME.fullmatch(name) or name.lower().endswith(SUFFIXES):
        return False
    return not Path(name).parent.is_dir()  # a wrong name in a folder of this host


def open_dataset(name: str, subset: str | None, split: str) -> Any:
    """Return a split of a data set, an object of the library ``datasets``.

    Args:
        name: Id of a data set on the Hugging Face hub, a folder that ``save_to_disk`` wrote, or a folder of data
            files.
        subset: Name of a configuration of the data set; None for its only one. A saved folder has none.
        split: Name of the split, such as ``train``. A saved folder that holds a single split is returned whole.

    Raises:
        UsageError: The data set cannot be loaded, or has no such split.
    """
    import datasets  # takes seconds, and is only needed here

    folder = Path(name)
    try:
        if not any((folder / file).is_file() for file in SAVED):
            return datasets.load_dataset(name, subset, split=split)
        dataset = datasets.load_from_disk(name)
    except Exception as error:  # the library raises its own, its backends' and the network's errors
        where = "" if folder.is_dir() else " from the Hugging Face hub"
        raise UsageError(
            f"--dataset {name}: it cannot be loaded{where} ({reason_of(error)}); check the name, --subset and --split "
            f"{split}, or give a file"
        ) from error
    if isinstance(dataset, datasets.DatasetDict):
        if split not in dataset:
            raise UsageError(f"--split {split}: {name} has no such split; it has {', '.join(dataset)}")
        return dataset[split]
    return dataset


def dataset_rows(place: str, dataset: Any, digest: Digest) -> PlacedRows:
    """Yield the rows of a Hugging Face data set, each with its place.

    Args:
        place: Name of the data set in messages.
        dataset: The rows, as ``open_dataset`` returns them.
        digest: Gets each row as a line of JSON with sorted keys, because the files behind the data set are not known.
    """
    for number, row in enumerate(dataset, start=1):
        digest.update(json.dumps(row, sort_keys=True, default=repr).encode() + b"\n")
        yield f"{place}, row {number}", row


def _json_lines(path: Path, digest: Digest) -> PlacedRows:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            digest.update(line)
            if line.strip():
                place = f"{path}, line {number}"
                yield place, _object(place, line)


def _json_array(path: Path, digest: Digest) -> PlacedRows:
    content = path.read_bytes()
    digest.update(content)
    for number, row in enumerate(_array(path, content), start=1):
        if not isinstance(row, dict):
            raise UsageError(f"{path}, row {number}: it is not a JSON object")
        yield f"{path}, row {number}", row


def _csv(path: Path, digest: Digest) -> PlacedRows:
    content = path.read_bytes()
    digest.update(content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from error
    csv.field_size_limit(2**31 - 1)  # the default of 128 KiB is too small for tests of programs
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)  # else an open quote takes all lines behind it
    line = 1
    try:
        _check_names(path, rows.fieldnames or ())
        for row in rows:
            place = f"{path}, line {line + 1}"
            if None in row:
                raise UsageError(f"{place} has more fields than the header; put fields with commas in quotes")
            # A missing last field would count as one that the file does not have, such as that of the source.
            if None in row.values():
                raise UsageError(f"{place} has fewer fields than the header; write commas for empty fields")
            yield place, row
            line = rows.line_num
    except csv.Error as error:
        raise UsageError(f"{path}, line {line + 1}: {error}; check the quotation marks of the row") from error


def _parquet(path: Path, digest: Digest) -> PlacedRows:
    _add_content(path, digest)
    number = 0
    file = _parquet_file(path)
    _check_sizes(path, file.metadata)
    _check_names(path, file.schema_arrow.names)
    try:
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row
    except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's errors are of these kinds
        raise UsageError(f"{path} cannot be read: {reason_of(error)}") from error


def _check_sizes(path: Path, metadata: Any) -> None:
    """Raise UsageError for a file whose row groups are larger than they can be in memory."""
    most = min(MAX_GROUP_BYTES, MIN_GROUP_BYTES + MAX_RATIO * path.stat().st_size)
    for number in range(metadata.num_row_groups):
        size = metadata.row_group(number).total_byte_size
        if size > most:
            raise UsageError(
                f"{path}: row group {number + 1} has {size:,} bytes uncompressed, more than {most:,}; write the file "
                "again with smaller row groups"
            )


def _arrow(path: Path, digest: Digest) -> PlacedRows:
    import datasets  # takes seconds, and is only needed here

    _add_content(path, digest)
    try:
        dataset = datasets.Dataset.from_file(str(path))
    except Exception as error:  # the library raises its own and its backends' errors
        raise UsageError(f"{path} cannot be read: {reason_of(error)}") from error
    for number, row in enumerate(dataset, start=1):
        yield f"{path}, row {number}", dict(row)


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Raise UsageError for two columns of one name: readers differ in which of them they take."""
    twice = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if twice is not None:
        raise UsageError(f"{path}: two columns are called {twice!r}; rename one of them")


def _parquet_file(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{path} cannot be read: {reason_of(error)}") from error


def _add_content(path: Path, digest: Digest) -> None:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)


def _array(path: Path, content: bytes) -> list[Any]:
    try:
        return parse_json(content)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error


def _object(place: str, line: bytes) -> dict[str, Any]:
    try:
        return parse_object(line)
    except ValueError as error:
        raise UsageError(f"{place}: {error}") from error
