import json
from collections.abc import Callable
from pathlib import Path

import pytest

from openrlhf_cov.data.inputs import Keys, Source, open_sources


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """Function (rows, name) -> path of a JSON Lines file; a row that is a text is written as it is."""

    def write_rows(rows, name="own.jsonl"):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path = tmp_path / name
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return write_rows


@pytest.fixture
def open_rows(write) -> Callable[..., Source]:
    """Function (rows, name, keys of the rows) -> a source of these rows."""

    def open_file(rows, name="own.jsonl", **keys):
        (source,) = open_sources(str(write(rows, name)), None, Keys(**keys))
        return source

    return open_file
