"""Show the tokens of the highest covariance in the page of a report.

They come from the files ``cov_tokens/step_<n>.jsonl`` in the folder of a run (docs/metrics.md).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Lt

from openrlhf_cov.analysis.report.curves import spread_out
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.json_lines import read_rows
from openrlhf_cov.utils.metrics_log import TOKENS_FOLDER
from openrlhf_cov.utils.record_checks import OPEN, checked


@dataclass(frozen=True)
class TokenFile:
    """A file with the tokens of the highest covariance of a global step."""

    step: int
    path: Path


NAME = re.compile(r"step_(\d+)\.jsonl")


def find_token_files(run: Path) -> tuple[TokenFile, ...]:
    """Return the files of a run's folder, in the order of their steps."""
    folder = run / TOKENS_FOLDER
    if not folder.is_dir():
        return ()
    named = [(NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return tuple(sorted((TokenFile(int(name[1]), path) for name, path in named if name), key=lambda file: file.step))


# Largest number of files of a run that one page shows. The first and the last file are always shown.
TOKEN_STEPS = 8
# Approximate number of tokens in one page. A token takes about 300 bytes.
TOKEN_BUDGET = 6000
# Smallest number of tokens that the page shows of each file, even if there are more than ``TOKEN_BUDGET`` in all.
FEWEST_TOKENS = 20
# Length of the text that ``openrlhf_cov.trainer.metrics.token_dump`` writes before and after a token, in tokens.
CONTEXT = 20
# Longest text that the page shows of a token, before it and after it, in characters. Twenty tokens are shorter; only a
# file that no tokenizer wrote has longer texts.
LONGEST_TEXT = 400

# Larger numbers are replaced by this one, because rounding makes the largest floats infinite.
LARGEST = 1e300

Place = Annotated[int, Ge(0), Lt(2**53)]

# Fields of a token that the page shows beside its text: numbers, which are rounded, and others.
NUMBERS = ("cov", "entropy", "advantage", "log_prob")
OTHERS = ("selected", "position", "sample_id", "prompt_id", "token_id")


@dataclass(frozen=True, kw_only=True)
class Token:
    """One line of a file of tokens; docs/metrics.md describes the fields."""

    __pydantic_config__ = OPEN

    token: str
    cov: float
    # None where the training logged NaN or no such value.
    entropy: float | None = None
    advantage: float | None = None
    log_prob: float | None = None
    selected: bool = False
    # None where it is not known. Such a token is shown alone, not in a passage with other tokens.
    position: Place | None = None
    sample_id: Place | None = None
    prompt_id: Place | None = None
    token_id: Place | None = None
    before: str = ""
    after: str = ""


def read_tokens(path: Path) -> list[Token]:
    """Return the tokens of a file, highest covariance first.

    Raises:
        UsageError: The file cannot be read, or a line is no token. The message names the line and the field.
    """
    return [token for _, token in read_rows(path, partial(checked, Token))]


def run_tokens(token_files: Sequence[TokenFile], most: int) -> dict[str, Any] | None:
    """Return the tokens of a run for the scripts of the page; None for a run without files.

    ``steps`` has the tokens of each file, ``scale`` is the largest absolute covariance among them, and ``notes`` say
    which files and steps are left out.

    Args:
        token_files: The files of the run.
        most: Largest number of tokens of each step. Tokens of the largest absolute covariance come first.
    """
    if not token_files:
        return None
    files = chosen_files(token_files)
    notes = []
    if len(files) < len(token_files):
        notes.append(f"{len(files)} of the {len(token_files)} files of this run are shown, equally spaced.")
    steps = []
    for file in files:
        try:
            tokens = read_tokens(file.path)
        except UsageError as error:
            notes.append(f"The tokens of step {file.step} cannot be read: {error}")
            continue
        if tokens:
            shown = [_cut(token) for token in sorted(tokens, key=lambda token: -abs(token.cov))[:most]]
            facts = [_facts(token) for token in shown]
            steps.append({"step": file.step, "of": len(tokens), "tokens": facts, "passages": passages(shown)})
    scale = max((abs(token["cov"]) for step in steps for token in step["tokens"]), default=0.0)
    return {"steps": steps, "scale": scale, "notes": notes}


def chosen_files(files: Sequence[TokenFile]) -> list[TokenFile]:
    """Return at most ``TOKEN_STEPS`` files of a run, equally spaced."""
    return [files[place] for place in spread_out(len(files), TOKEN_STEPS)]


def tokens_per_step(runs: Sequence[Sequence[TokenFile]]) -> int:
    """Return the number of tokens per file with which the files of these runs fit into one page."""
    files = sum(len(chosen_files(token_files)) for token_files in runs if token_files)
    return max(FEWEST_TOKENS, TOKEN_BUDGET // max(1, files))


def _cut(token: Token) -> Token:
    """Return the token with its texts shortened to ``LONGEST_TEXT``: the text before it keeps its end."""
    texts = {"before": token.before[-LONGEST_TEXT:], "after": token.after[:LONGEST_TEXT]}
    return replace(token, token=token.token[:LONGEST_TEXT], **texts)


def _facts(token: Token) -> dict[str, Any]:
    """Return the fields of a token that the page shows beside its text."""
    numbers = {name: _rounded(getattr(token, name)) for name in NUMBERS}
    return {"token": token.token, **numbers, **{name: getattr(token, name) for name in OTHERS}}


def _rounded(value: float | None) -> float | None:
    """Return a number with five significant digits, which keeps the page small."""
    return None if value is None else float(f"{max(-LARGEST, min(LARGEST, value)):.5g}")


def passages(tokens: Sequence[Token]) -> list[list[str | int]]:
    """Return passages of text with the tokens in them.

    Two tokens of a response stand in one passage if the text after the first token contains the second token and the
    texts around both agree. The passage with the highest absolute covariance comes first. Of two passages with equal
    covariance the one whose first token comes earlier in ``tokens`` is first.

    Args:
        tokens: The tokens of a step.

    Returns:
        A list for each passage. A string is text; a number is the place in ``tokens`` of a token.
    """
    found = [parts for chain in _responses(tokens) for parts in _joined(tokens, chain)]

    def rank(parts: list[str | int]) -> tuple[float, int]:
        places = [part for part in parts if isinstance(part, int)]
        return -max(abs(tokens[place].cov) for place in places), places[0]

    return sorted(found, key=rank)


def _responses(tokens: Sequence[Token]) -> list[list[int]]:
    """Return the places of the tokens of each response, in the order of the text.

    A token of an unknown response forms a group of its own.
    """
    groups: dict[Any, list[int]] = {}
    for place, token in enumerate(tokens):
        known = token.sample_id is not None and token.position is not None
        groups.setdefault(token.sample_id if known else ("alone", place), []).append(place)
    return [sorted(group, key=lambda place: tokens[place].position or 0) for group in groups.values()]


def _joined(tokens: Sequence[Token], chain: Sequence[int]) -> Iterator[list[str | int]]:
    """Yield the passages of the tokens of one response."""
    first = tokens[chain[0]]
    parts: list[str | int] = [first.before, chain[0]]
    text = first.before + first.token
    for last, place in pairwise(chain):
        between = text_between(text, tokens[last], tokens[place])
        if between is None:
            yield [*parts, tokens[last].after]
            parts = [tokens[place].before, place]
            text = tokens[place].before
        else:
            parts += [between, place]
            text += between
        text += tokens[place].token
    yield [*parts, tokens[chain[-1]].after]


def text_between(text: str, token: Token, later: Token) -> str | None:
    """Return the text between two tokens of a response.

    Args:
        text: The known text of the response up to the first token, which it ends with.
        token: The first token.
        later: The second token.

    Returns:
        The text; None where the second token is not in the text after the first, or where the texts around the two do
        not agree.
    """
    if token.position is None or later.position is None or not 0 < later.position - token.position <= CONTEXT:
        return None
    after = token.after
    # The second token may occur more than once in the text. Take its first place at which the texts around both agree.
    for end in range(len(after) + 1):
        rest = after[end + len(later.token) :]
        fits = after.startswith(later.token, end) and later.after.startswith(rest)
        if fits and (text + after[:end]).endswith(later.before):
            return after[:end]
    return None
