"""Files of the tokens of highest covariance, ``cov_tokens/step_<n>.jsonl`` in a run's folder (docs/metrics.md)."""

import re
from pathlib import Path
from typing import Any

from openrlhf_cov.errors import UsageError
from openrlhf_cov.report.contents import TokenFile
from openrlhf_cov.utils.json_lines import parse_object

FOLDER = "cov_tokens"
NAME = re.compile(r"step_(\d+)\.jsonl")


def find_token_files(run: Path) -> tuple[TokenFile, ...]:
    """The files of a run's folder, in the order of their steps."""
    folder = run / FOLDER
    if not folder.is_dir():
        return ()
    named = [(NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return tuple(sorted((TokenFile(int(name[1]), path) for name, path in named if name), key=lambda file: file.step))


def read_tokens(path: Path) -> list[dict[str, Any]]:
    """The records of a file, highest covariance first; keys as in docs/metrics.md. UsageError for a broken file."""
    records = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = parse_object(line)
            except ValueError as error:
                raise UsageError(f"{path}, line {number}: {error}") from error
            if "token" not in record or "cov" not in record:
                raise UsageError(f"{path}, line {number}, is no token: an object with token and cov is needed")
            records.append(record)
    return records
