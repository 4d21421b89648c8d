"""Reads a growing file of JSON lines into columns, as far as it is written; a broken line costs itself alone."""

import os
import re
from collections.abc import Collection
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from openrlhf_cov.analysis.line_decoder import STEP, decode_file, decoder_of
from openrlhf_cov.analysis.table import EMPTY, Rows, Table, join, to_numbers, to_table
from openrlhf_cov.utils.json_lines import parse_object

CHUNK = 8 * 2**20
"""Bytes read at once."""
JOINED = 32
"""Chunks that are joined before the next is read: small arrays, freed among others, would not be reused."""
ALONE = 32
"""Chunks that one process reads in less time than others take to start."""
TAIL = 64
"""Bytes before the place where reading stopped that tell whether it is still the same file."""
LINES_NAMED = 5
"""Broken lines that a warning names."""
INNER_OBJECT = re.compile(rb'.\{"')
"""Where a second object begins in a line: a writer died within a line and the next one went on behind it."""


class JsonRows:
    """The rows of a file; ``read`` takes what was added since, ``table`` is what there is so far.

    A line is an object with a number ``step``. Other values are numbers, null or, with a warning, something else; NaN
    and infinities count as null, with a warning. ``columns`` names what to keep, None everything. Large files are
    decoded by msgspec where that is installed (vLLM needs it), 4 to 15 times as fast as by ``json``, and by as many
    ``processes``. They are started as multiprocessing does: above 1, guard the main module of a script.
    """

    def __init__(
        self, path: str | Path, columns: Collection[str] | None = None, *, chunk: int = CHUNK, processes: int = 1
    ) -> None:
        self.path, self.chunk, self.processes = Path(path), chunk, processes
        self.columns = None if columns is None else tuple(sorted(set(columns) - {STEP}))
        self._decode = decoder_of(self.columns)
        self._restart()

    def _restart(self) -> None:
        self._inode: int | None = None
        self._rest, self._tail, self._offset = b"", b"", 0
        self._lines, self._counted = 0, 0
        self._parts: list[Rows] = []
        self._fresh: list[Rows] = []
        self._broken: list[int] = []
        self._odd = 0
        self._table: tuple[Table, list[str]] | None = (EMPTY, [])

    def read(self) -> bool:
        """Take what the file has got since; True if that changes the table.

        A file that was replaced, cut or written anew is read from its start; one that is gone changes nothing.
        OSError for one that cannot be opened.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return False
        with file:
            taken = False
            if not self._goes_on(file):
                taken = len(self.table) > 0
                self._restart()
            self._inode = os.fstat(file.fileno()).st_ino
            if self.processes > 1 and self._decode is not None and not self._offset:
                taken |= self._read_together(file)
            file.seek(self._offset)
            taken |= self._read_on(file)
        if _object(self._rest) is not None:  # whole, its newline is still to come
            taken |= self._take(memoryview(self._rest), self._offset - len(self._rest))
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

    def _goes_on(self, file: BufferedReader) -> bool:
        """True if the file begins with what was read of it, as far as inode, size and the last bytes tell."""
        size, inode = file.seek(0, os.SEEK_END), os.fstat(file.fileno()).st_ino
        if size < self._offset or self._inode not in (None, inode):
            return False
        file.seek(self._offset - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def _read_together(self, file: BufferedReader) -> bool:
        """Take the whole lines of a large file by several processes, as far as they get; True if there are any."""
        if file.seek(0, os.SEEK_END) <= ALONE * self.chunk:
            return False
        taken = False
        for start, end, rows in decode_file(self.path, self.columns, self.chunk, self.processes):
            if rows is None:
                file.seek(start)
                rows = self._take_slowly(file.read(end - start), self._lines_before(start))
            taken |= self._add(rows)
            self._offset = end
        file.seek(max(0, self._offset - TAIL))
        self._tail = file.read(self._offset - file.tell())
        return taken

    def _read_on(self, file: BufferedReader) -> bool:
        """Take the lines from where the file stands; True if there are any.

        All chunks go through one buffer: fresh memory for each costs a fifth of the time.
        """
        taken, held = False, len(self._rest)
        buffer = bytearray(self._rest) + bytearray(self.chunk)
        while count := file.readinto(memoryview(buffer)[held:]):
            self._offset += count
            filled = held + count
            self._tail = (self._tail + buffer[max(held, filled - TAIL) : filled])[-TAIL:]
            end = buffer.rfind(b"\n", 0, filled) + 1
            taken |= self._take(memoryview(buffer)[:end], self._offset - filled)
            held = filled - end
            buffer[:held] = buffer[end:filled]
            if len(buffer) < 2 * held:
                buffer += bytearray(len(buffer))
        self._rest = bytes(buffer[:held])
        return taken

    def _take(self, data: memoryview, start: int) -> bool:
        """Add the rows of whole lines that start at a byte of the file; True if there are any."""
        rows = None if self._decode is None else self._decode(data)
        return self._add(self._take_slowly(bytes(data), self._lines_before(start)) if rows is None else rows)

    def _add(self, rows: Rows) -> bool:
        """Add rows that follow the others; True if there are any."""
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

    def _lines_before(self, end: int) -> int:
        """Lines before a byte of the file, counted on from the last such call: most files never need it."""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self._counted)
            while self._counted < end and (chunk := file.read(min(self.chunk, end - self._counted))):
                self._counted += len(chunk)
                self._lines += chunk.count(b"\n")
        return self._lines

    def _take_slowly(self, data: bytes, lines_before: int) -> Rows:
        """The rows of lines of which some may be broken."""
        found = []
        for number, line in enumerate(data.split(b"\n"), start=lines_before + 1):
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
        return parse_object(line)
    except ValueError:
        return None
