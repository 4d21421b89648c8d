"""Files of JSON that others may have written, and files that appear whole or not at all."""

import errno
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from openrlhf_cov.errors import UsageError

BOM = b"\xef\xbb\xbf"
# Bytes of a file that holds one value, of a file of settings, and of a line of a file with one value a line. Values of
# JSON take up to 25 times as much memory.
MAX_FILE_BYTES = 2**26
MAX_SETTINGS_BYTES = 2**22
MAX_LINE_BYTES = 2**28
# Digits of an integer that a float can hold; int() takes quadratic time, and refuses thousands of digits.
MAX_DIGITS = 300
# An escape in JSON that is half a surrogate pair; most have their other half beside them.
HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


def json_number(value: float) -> float | None:
    """Return the value, or None for NaN and infinities, which JSON does not have."""
    return value if math.isfinite(value) else None


def parse_json(content: bytes) -> Any:
    """Return the value of a line or a file of JSON.

    A number beyond the range of floats is infinite, and a byte order mark is passed over. Texts are valid, see
    ``valid_text``.

    Args:
        content: The JSON, in UTF-8.

    Raises:
        ValueError: It is not JSON or not UTF-8, or its values are nested too deep. The message is one line.
    """
    try:
        text = content.removeprefix(BOM).decode("utf-8")
        value = json.loads(text, parse_int=_integer)
        if HALF_PAIR.search(text):
            value = json.loads(valid_text(json.dumps(value, ensure_ascii=False)), parse_int=_integer)
        return value
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not UTF-8") from error
    except RecursionError as error:
        raise ValueError("values are nested too deep") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error


def parse_object(content: bytes) -> dict[str, Any]:
    """Return the object on a line or in a file of JSON.

    Raises:
        ValueError: The content is not JSON, or no object; the message is one line.
    """
    value = parse_json(content)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def read_bounded(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a file of limited size.

    Args:
        path: The file.
        most_bytes: The largest size in bytes.

    Raises:
        OSError: The path is no regular file, or cannot be read.
        ValueError: The file is larger.
    """
    with regular(path).open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it has more than {most_bytes:,} bytes")
    return content


def read_json(file: Path) -> Any:
    """Return the value in a file of JSON; None where there is none that can be read."""
    try:
        return parse_json(read_bounded(file))
    except (OSError, ValueError):
        return None


def read_rows(
    path: Path, parse: Callable[[bytes], Any] = parse_json, *, may_be_cut: bool = False
) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line of a file that is not blank.

    Args:
        path: The file.
        parse: Returns the value of a line; ValueError for a line that is none.
        may_be_cut: True to leave out a last line without an end that cannot be parsed.

    Raises:
        UsageError: The file cannot be read, or ``parse`` refuses a line; the message has the number of the line.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
                if len(line) > MAX_LINE_BYTES:
                    raise UsageError(f"{path}, line {number}: it has more than {MAX_LINE_BYTES:,} bytes")
                try:
                    value = parse(line.removesuffix(b"\n")) if line.strip() else None
                except ValueError as error:
                    if may_be_cut and not line.endswith(b"\n"):
                        return
                    raise UsageError(f"{path}, line {number}: {error}") from error
                if line.strip():
                    yield number, value
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def regular(path: Path) -> Path:
    """Return the path of a regular file.

    Raises:
        OSError: It is a pipe, whose other end would be waited for, a device or a folder.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path


def valid_text(text: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair: JSON may have one, a file of UTF-8 may not."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def write_lines(path: Path, lines: Iterable[str], *, private: bool = False) -> None:
    """Write or replace a whole file, see ``replacing``.

    Args:
        path: The file. Its folder must exist.
        lines: The lines, without line ends.
        private: True if only the user may read the file (mode 600).

    Raises:
        OSError: The file cannot be written. The old one stays.
    """
    with replacing(path, private=private) as file:
        file.writelines((line + "\n").encode("utf-8") for line in lines)


def write_json(path: Path, content: Any) -> None:
    """Write or replace a file with one value, indented; see ``replacing``.

    Args:
        path: The file. Its folder must exist.
        content: A value that JSON can hold.

    Raises:
        OSError: The file cannot be written. The old one stays.
    """
    write_lines(path, [json.dumps(content, indent=2)])


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Yield a file whose content becomes that of ``path`` when the block ends well; until then ``path`` is unchanged.

    The file is written beside ``path`` as ``.NAME.tmp``, never through a link that somebody put there, and is removed
    when the block or the disk fails. If two processes write at the same time, the one that began last wins. A pipe or
    a device is written to directly.

    Args:
        path: The file to write or replace. Its folder must exist.
        private: True if only the user may read the file (mode 600).

    Raises:
        FileExistsError: Another process began to write the same file meanwhile.
        OSError: The file cannot be written; the error names ``path``.
    """
    unfinished = path.with_name(f".{path.name}.tmp")
    mode = 0o600 if private else 0o666
    try:
        if path.exists() and (not path.is_file() or path.is_relative_to("/dev")):
            with path.open("wb") as file:
                yield file
            return
        unfinished.unlink(missing_ok=True)  # of a process that was killed
        with open(unfinished, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            mine = os.fstat(file.fileno())
            try:
                yield file
                file.flush()
                if not _is_file(unfinished, mine):
                    raise FileExistsError(errno.EEXIST, "another process writes it at the same time", str(path))
                unfinished.replace(path)
            except BaseException:
                if _is_file(unfinished, mine):
                    unfinished.unlink()
                raise
    except OSError as error:
        if error.errno and error.filename in (None, str(unfinished)):  # None: the disk is full
            error.filename = str(path)
        raise


def _is_file(path: Path, status: os.stat_result) -> bool:
    """Return True if that file exists."""
    try:
        return os.path.samestat(path.lstat(), status)
    except FileNotFoundError:
        return False


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)
