"""Decodes whole JSON lines into columns with msgspec, the lines of a large file in several processes."""

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_cov.analysis.table import Rows

STEP = "step"
LINE = 64 * 2**10
"""Bytes looked through at once for the end of a line."""

Decoder = Callable[[bytes | memoryview], Rows | None]


@cache
def decoder_of(columns: tuple[str, ...] | None) -> Decoder | None:
    """Function lines -> rows of these columns (None: all), or None for lines that it does not understand.

    None without msgspec.
    """
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

    def decode(data: bytes | memoryview) -> Rows | None:
        with without_collection():
            try:
                found = decoder.decode_lines(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return None
            if columns is None:
                return _rows_of_dicts(found)
            return _rows_of_tuples(map(msgspec.structs.astuple, found), columns)

    return decode


@contextmanager
def without_collection() -> Iterator[None]:
    """No search for circles among objects that have none: it takes a fifth of the time of decoding."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def decode_file(
    path: Path, columns: tuple[str, ...] | None, chunk: int, processes: int
) -> Iterator[tuple[int, int, Rows | None]]:
    """First byte, end and rows of one piece of the file after another, each of whole lines and about ``chunk`` bytes.

    Rows are None where ``decoder_of`` gives None. Ends within a piece of the last newline, or earlier where the
    operating system ends one of the processes or gives none.
    """
    ends = _line_ends(path, chunk)
    starts = ends[:-1]
    with ProcessPoolExecutor(processes) as pool:
        try:
            found = pool.map(_decode_piece, repeat(path), starts, ends[1:], repeat(columns))
            yield from zip(starts, ends[1:], found, strict=True)
        except (BrokenProcessPool, OSError):
            return


def _line_ends(path: Path, chunk: int) -> list[int]:
    """0 and the places after newlines at which a file can be cut into pieces of ``chunk`` bytes or a little more."""
    ends = [0]
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        while ends[-1] < size:
            file.seek(min(ends[-1] + chunk, size) - 1)
            while (found := file.read(LINE)) and b"\n" not in found:
                pass
            if not found:
                break
            ends.append(file.tell() - len(found) + found.index(b"\n") + 1)
    return ends


def _decode_piece(path: Path, start: int, end: int, columns: tuple[str, ...] | None) -> Rows | None:
    decode = decoder_of(columns)
    with path.open("rb") as file:
        file.seek(start)
        return decode(file.read(end - start)) if decode else None


def _rows_of_dicts(found: list[dict[str, float | None]]) -> Rows:
    names = dict.fromkeys(name for row in found for name in row)
    columns = {name: np.array([row.get(name) for row in found], dtype=np.float64) for name in names}
    return Rows(columns.pop(STEP, np.full(len(found), np.nan)), columns)


def _rows_of_tuples(found: Iterable[tuple[float | None, ...]], columns: tuple[str, ...]) -> Rows:
    """Rows of tuples (step, value of each column)."""
    values = np.array(list(found), dtype=np.float64).reshape(-1, 1 + len(columns)).T.copy()
    return Rows(values[0], dict(zip(columns, values[1:], strict=True)))
