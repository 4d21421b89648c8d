"""Reads a growing file of JSON lines into columns, as far as it is written; a broken line costs itself alone."""

import json
import os
import re
from collections.abc import Collection
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_cov.analysis.table import EMPTY, Rows, Table, join, to_numbers, to_table

STEP = "step"
CHUNK = 8 * 2**20
"""Bytes read at once."""
JOINED = 32
"""Chunks that are joined before the next is read: small arrays, freed among others, would not be reused."""
LINES_NAMED = 5
"""Broken lines that a warning names."""
INNER_OBJECT = re.compile(rb'.\{"')
"""Where a second object begins in a line: a writer died within a line and the next one went on behind it."""


class JsonRows:
    """The rows of a file; ``read`` takes what was added since, ``table`` is what there is so far.

    A line is an object with a number ``step``. Other values are numbers, null or, with a warning, something else; NaN
    and infinities count as null, with a warning. ``columns`` names what to keep, None everything. Large files are
    decoded by msgspec where that is installed (vLLM needs it), 4 to 15 times as fast as by ``json``.
    """

    def __init__(self, path: str | Path, columns: Collection[str] | None = None, chunk: int = CHUNK) -> None:
        self.path, self.chunk = Path(path), chunk
        self.columns = None if columns is None else sorted(set(columns) - {STEP})
        self._decode = _decoder(self.columns)
        self._restart()

    def _restart(self) -> None:
        self._inode: int | None = None
        self._rest, self._offset, self._lines = b"", 0, 0
        self._parts: list[Rows] = []
        self._fresh: list[Rows] = []
        self._broken: list[int] = []
        self._odd = 0
        self._table: tuple[Table, list[str]] | None = (EMPTY, [])

    def read(self) -> bool:
        """Take what the file has got since; True if that is any row. A file that was replaced is read anew."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return False
        taken = False
        with file:
            size, inode = file.seek(0, os.SEEK_END), os.fstat(file.fileno()).st_ino
            if size < self._offset or self._inode not in (None, inode):
                self._restart()
            self._inode = inode
            file.seek(self._offset)
            while chunk := file.read(self.chunk):
                self._offset += len(chunk)
                lines, newline, self._rest = (self._rest + chunk).rpartition(b"\n")
                taken |= self._take(lines + newline)
        if _object(self._rest) is not None:  # whole, its newline is still to come
            taken |= self._take(self._rest)
            self._rest = b""
        return taken

    @property
    def table(self) -> Table:
        return self._merged[0]

    @property
    def warnings(self) -> list[str]:
        """What was odd about the file."""
        found = list(self._merged[1])
        if self._broken:
            named = ", ".join(map(str, self._broken[:LINES_NAMED])) + (", ..." * (len(self._broken) > LINES_NAMED))
            found.append(f"lines that cannot be read left out, {len(self._broken)}: {named}")
        if self._odd:
            found.append(f"values that are no finite numbers taken as missing, {self._odd}")
        if self._rest:
            found.append("the last line is cut, or is still being written")
        return [f"{self.path.name}: {warning}" for warning in found]

    @property
    def _merged(self) -> tuple[Table, list[str]]:
        if self._table is None:
            self._join()
            self._parts = [join(self._parts)]
            self._table = to_table(self._parts[0], whole_rows=True)
        return self._table

    def _take(self, data: bytes) -> bool:
        """Add the rows of whole lines; True if there are any."""
        rows = None if self._decode is None else self._decode(data)
        rows = self._take_slowly(data) if rows is None else rows
        self._lines += data.count(b"\n")
        if len(rows.steps):
            self._fresh.append(rows)
            self._table = None
        if len(self._fresh) == JOINED:
            self._join()
        return len(rows.steps) > 0

    def _join(self) -> None:
        """Turn what was read since into one part."""
        self._parts.append(join(self._fresh))
        self._fresh = []

    def _take_slowly(self, data: bytes) -> Rows:
        """The rows of lines of which some may be broken."""
        found = []
        for number, line in enumerate(data.split(b"\n"), start=self._lines + 1):
            if line.strip():
                row = _object(line)
                if row is None:
                    self._broken.append(number)
                    inner = INNER_OBJECT.search(line)
                    row = _object(line[inner.start() + 1 :]) if inner else None
                if row is not None:
                    found.append(row)
        names = dict.fromkeys(name for row in found for name in row) if self.columns is None else self.columns
        columns = {}
        for name in names:
            columns[name], odd = to_numbers([row.get(name) for row in found])
            self._odd += odd if name != STEP else 0
        steps, _ = to_numbers([row.get(STEP) for row in found])
        return Rows(steps, {name: values for name, values in columns.items() if name != STEP})


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _decoder(columns: list[str] | None) -> Any:
    """Function lines -> Rows, or None for lines that it does not understand; None without msgspec."""
    try:
        import msgspec
    except ImportError:
        return None
    number = float | None
    if columns is None:
        wanted: Any = dict[str, number]
    else:
        fields = [f"column{i}" for i in range(-1, len(columns))]
        fields[0] = STEP
        rename = dict(zip(fields, [STEP, *columns], strict=True))
        wanted = msgspec.defstruct("Row", [(field, number, None) for field in fields], rename=rename, gc=False)
    decoder = msgspec.json.Decoder(wanted)

    def decode(data: bytes) -> Rows | None:
        try:
            found = decoder.decode_lines(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return _rows_of_dicts(found) if columns is None else _rows_of_records(found, fields, columns)

    return decode


def _rows_of_dicts(found: list[dict[str, float | None]]) -> Rows:
    names = dict.fromkeys(name for row in found for name in row)
    columns = {name: np.array([row.get(name) for row in found], dtype=np.float64) for name in names}
    return Rows(columns.pop(STEP, np.full(len(found), np.nan)), columns)


def _rows_of_records(found: list[Any], fields: list[str], columns: list[str]) -> Rows:
    take = attrgetter(*fields, "step")  # always a tuple, whose last entry is not used
    values = np.array([take(row) for row in found], dtype=np.float64).reshape(len(found), len(fields) + 1).T.copy()
    return Rows(values[0], dict(zip(columns, values[1:-1], strict=True)))
