"""Reads a growing file of JSON lines into columns, as far as it is written; a broken line costs itself alone."""

import errno
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from openrlhf_cov.analysis.table import EMPTY, Rows, Table, join, to_numbers, to_table
from openrlhf_cov.utils.json_lines import parse_object
from openrlhf_cov.utils.metric_table import STEP

# Bytes before the place where reading stopped that tell whether it is still the same file.
TAIL = 64
# Broken lines that a warning names.
LINES_NAMED = 5
# Where a second object begins in a line: a writer died within a line and the next one went on behind it.
INNER_OBJECT = re.compile(rb'.\{"')


class JsonRows:
    """The rows of a file; ``read`` takes what was added since, ``table`` is what there is so far.

    A line is an object with a number ``step``. Other values are numbers, null or, with a warning, something else; NaN
    and infinities count as null, with a warning. ``columns`` names what to keep, or with a slash at its end the
    family, None everything.
    """

    def __init__(self, path: str | Path, columns: Collection[str] | None = None) -> None:
        self.path = Path(path)
        self.columns = None if columns is None else {*columns, STEP}
        self._restart()

    def _restart(self) -> None:
        self._inode: int | None = None
        self._offset = 0
        self._tail = b""
        self._rest = b""
        self._lines = 0
        self._odd = 0
        self._broken: list[int] = []
        self._rows = Rows(np.zeros(0), {})
        self._merged: tuple[Table, list[str]] = (EMPTY, [])

    def read(self) -> bool:
        """Read what was added to the file since the last call.

        A file that was replaced, cut or written anew is read from its start. A file that does not exist changes
        nothing.

        Returns:
            True if the table changed.

        Raises:
            OSError: The file cannot be opened, or is a pipe.
        """
        # Opening a pipe would wait until somebody writes to it.
        if self.path.is_fifo():
            raise OSError(errno.ESPIPE, "it is a pipe", str(self.path))
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return False
        with file:
            lost = False
            if not self._goes_on(file):
                lost = len(self.table) > 0
                self._restart()
            self._inode = os.fstat(file.fileno()).st_ino
            file.seek(self._offset)
            fresh = self._read_on(file)
        if fresh:
            self._rows = join([self._rows, self._columns_of(fresh)])
            self._merged = to_table(self._rows, whole_rows=True)
        return lost or bool(fresh)

    @property
    def table(self) -> Table:
        """The rows that have been read so far."""
        return self._merged[0]

    @property
    def warnings(self) -> list[str]:
        """The warnings about the file."""
        found = list(self._merged[1])
        if self._broken:
            named = ", ".join(map(str, self._broken[:LINES_NAMED]))
            if len(self._broken) > LINES_NAMED:
                named += ", ..."
            found.append(f"lines that cannot be read left out, {len(self._broken)}: {named}")
        if self._odd:
            found.append(f"values that are not finite numbers taken as missing, {self._odd}")
        if self._rest.strip():
            found.append("the last line is cut, or is still being written")
        return [f"{self.path.name}: {warning}" for warning in found]

    def _goes_on(self, file: BinaryIO) -> bool:
        """Return True if the file still begins with what was read of it, by inode, size and the last bytes."""
        size = file.seek(0, os.SEEK_END)
        inode = os.fstat(file.fileno()).st_ino
        if size < self._offset or self._inode not in (None, inode):
            return False
        file.seek(self._offset - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def _read_on(self, file: BinaryIO) -> list[dict[str, Any]]:
        """Return the rows from the current position on. An unfinished last line is left for the next call."""
        found: list[dict[str, Any]] = []
        self._rest = b""
        for line in file:
            whole = line.endswith(b"\n")
            row = _object(line) if line.strip() else None
            if row is None and not whole:
                self._rest = line
                break
            if row is None and line.strip():
                self._broken.append(self._lines + 1)
                # A run that was killed leaves half a line, and the resumed run appends to it: save what follows.
                inner = INNER_OBJECT.search(line)
                row = _object(line[inner.start() + 1 :]) if inner else None
            if row is not None:
                found.append({name: value for name, value in row.items() if self._keeps(name)})
            self._lines += whole
            self._offset += len(line)
            # The last bytes tell at the next reading whether the file was only appended to.
            self._tail = (self._tail + line[-TAIL:])[-TAIL:]
        return found

    def _keeps(self, name: str) -> bool:
        return self.columns is None or name in self.columns or f"{name.partition('/')[0]}/" in self.columns

    def _columns_of(self, rows: list[dict[str, Any]]) -> Rows:
        columns = {}
        for name in dict.fromkeys(name for row in rows for name in row if name != STEP):
            columns[name], odd = to_numbers([row.get(name) for row in rows])
            self._odd += odd
        return Rows(to_numbers([row.get(STEP) for row in rows])[0], columns)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        return parse_object(line)
    except ValueError:
        return None
