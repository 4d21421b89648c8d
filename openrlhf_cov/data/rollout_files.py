"""Files of recorded rollouts: the samples of one global step, written once and trained on again.

A folder has one file for each global step, ``step_000001.safetensors`` and so on. ``docs/replay.md`` describes the
format. This module needs torch, safetensors and pydantic only, so other trainers and notebooks can read and write the
files::

    record = read_rollout(rollout_path(folder, step=1))
    rewards = [sample.reward for sample in record.samples]

In all shapes T is the number of tokens of a sample, prompt and response together, and A = T - 1 is the number of
predicted positions: entry t of a tensor (A,) is about token t + 1. N is the number of samples, K of them per prompt.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from openrlhf_cov.errors import reason_of
from openrlhf_cov.utils.json_lines import parse_json, regular, replacing
from openrlhf_cov.utils.record_checks import StopsAtFirstError, checked_value

FORMAT = "openrlhf_cov.rollout"
# Increase the version when a field is removed or changes its meaning.
VERSION = 1

# Limits of what is read. A step of 8,192 samples with 32,768 tokens each has 2.4 GB.
MAX_BYTES = 2**33
MAX_SAMPLES = 2**20
MAX_DETAILS_BYTES = 2**27

FILE_NAME = re.compile(r"step_(\d{6,9})\.safetensors")

# Names of the tensors of a file, and their types.
LENGTHS = "lengths"
TOKENS = "tokens"
ACTION_MASK = "action_mask"
LOG_PROBS = "log_probs"
DETAILS = "samples"
# Entries of the header.
ENTRIES = ("format", "version", "step", "samples_per_prompt", "prompts_per_step", "tokenizer", "metrics")
TYPES = {
    LENGTHS: torch.int64,
    TOKENS: torch.int32,
    ACTION_MASK: torch.bool,
    LOG_PROBS: torch.float32,
    DETAILS: torch.uint8,
}


@dataclass(frozen=True)
class RecordedSample:
    """One response with its prompt and its reward."""

    # Token ids of prompt and response, int64 (T,).
    tokens: Tensor
    # True where a token was sampled by the policy, bool (A,).
    action_mask: Tensor
    # Number of the sample in its step, from 0 to N - 1. Samples of prompt p have the numbers p K ... p K + K - 1.
    sample_id: int
    # Log-probs of the policy that sampled, in nats, float32 (A,), 0 outside of the response; None if it gave none.
    log_probs: Tensor | None = None
    prompt: str = ""
    # Number of prompts that the run drew before this one; -1 if it is not known.
    prompt_number: int = -1
    # Name of the data source of the prompt.
    source: str = "default"
    # The reward that advantages are estimated from; None where a reward model gives it during training.
    reward: float | None = None
    # The score by which accuracies and dynamic sampling count a response as correct; None if it has none.
    score: float | None = None
    # True if the reward function abstained: the sample takes no part in statistics.
    abstained: bool = False
    # True if the response hit the limit of its length.
    truncated: bool = False
    # Numbers to be logged.
    metrics: Mapping[str, float] = field(default_factory=dict)


class SampleDetails(BaseModel):
    """The fields of a sample that are in the JSON of a file; the others are tensors. A number may be NaN."""

    model_config = ConfigDict(strict=True, extra="forbid")

    sample_id: int
    prompt: str
    prompt_number: int
    source: str
    reward: float | None
    score: float | None
    abstained: bool
    truncated: bool
    metrics: dict[str, float]


class StepDetails(BaseModel):
    """The JSON of a file."""

    samples: Annotated[list[SampleDetails], StopsAtFirstError()]


@dataclass(frozen=True)
class RolloutHeader:
    """The metadata of a step's file. It can be read without the samples."""

    # Number of the global step, from 1.
    step: int
    # K; the samples of a prompt lie together.
    samples_per_prompt: int
    # Prompts of a full step; a file has fewer where the data has ended.
    prompts_per_step: int
    # Digest of the vocabulary, see ``tokenizer_digest``.
    tokenizer: str
    # Numbers of the rollout to be logged, such as those of dynamic sampling.
    metrics: Mapping[str, float] = field(default_factory=dict)

    def misfit(self, samples_per_prompt: int, prompts_per_step: int, tokenizer: str | None) -> str | None:
        """Return in one line why a run cannot train on the file; None if it can.

        Args:
            samples_per_prompt: K of the run.
            prompts_per_step: Prompts of a full step of the run.
            tokenizer: ``tokenizer_digest`` of the tokenizer of the run; None if it is not to be compared.
        """
        if self.samples_per_prompt != samples_per_prompt:
            return f"it has {self.samples_per_prompt} samples per prompt, the run has {samples_per_prompt}"
        if self.prompts_per_step != prompts_per_step:
            return f"it has {self.prompts_per_step} prompts per step, the run has {prompts_per_step}"
        if tokenizer is not None and self.tokenizer != tokenizer:
            return "its token ids are those of another tokenizer; use a model with the tokenizer of the recorded run"
        return None


@dataclass(frozen=True)
class RolloutRecord:
    """The samples of one global step."""

    header: RolloutHeader
    samples: Sequence[RecordedSample]


class RolloutFileError(ValueError):
    """A file of a rollout cannot be used; the message is one line that names the file."""


def rollout_path(folder: str | Path, step: int) -> Path:
    """Return the path of the file of a global step.

    Args:
        folder: Folder of the recorded rollouts. It need not exist.
        step: The global step, from 1.
    """
    return Path(folder) / f"step_{step:06}.safetensors"


def recorded_steps(folder: str | Path) -> list[int]:
    """Return the global steps that a folder has files of, in ascending order; none if there is no such folder."""
    path = Path(folder)
    if not path.is_dir():
        return []
    found = (FILE_NAME.fullmatch(each.name) for each in path.iterdir())
    return sorted(int(match[1]) for match in found if match)


def set_aside_after(folder: str | Path, step: int) -> None:
    """Rename the files of later steps to ``FILE.bak`` (``.bak1``, ...), for a run that makes these steps anew.

    Args:
        folder: Folder of the files; it need not exist.
        step: The last step whose file stays, 0 for none.

    Raises:
        OSError: The folder cannot be read, or a file cannot be renamed; ``filename`` of the error is its path.
    """
    for later in recorded_steps(folder):
        if later > step:
            path = rollout_path(folder, later)
            names = (path.with_name(f"{path.name}.bak{number or ''}") for number in itertools.count())
            path.rename(next(name for name in names if not name.exists()))


def check_steps(folder: str | Path) -> list[int]:
    """Return the global steps of a folder of recorded rollouts, which are 1, 2, ... without a gap.

    Raises:
        RolloutFileError: The folder has no such file, or a step is missing between two others.
    """
    steps = recorded_steps(folder)
    if not steps:
        raise RolloutFileError(f"{folder}: it has no recorded rollouts (step_000001.safetensors and so on)")
    for expected, step in enumerate(steps, start=1):
        if step != expected:
            raise RolloutFileError(
                f"{folder}: {rollout_path(folder, expected).name} is missing, but {rollout_path(folder, step).name} "
                "is there; copy the whole folder"
            )
    return steps


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a digest of the vocabulary of a tokenizer: equal digests mean that token ids have equal texts.

    Args:
        tokenizer: An object with ``get_vocab()``, which returns text -> id, such as a tokenizer of transformers.
    """
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:16]


def write_rollout(path: str | Path, record: RolloutRecord) -> None:
    """Write or replace the file of one step. It appears whole or not at all.

    Args:
        path: See ``rollout_path``.
        record: The samples of a prompt lie together. Either all samples have ``log_probs`` or none.

    Raises:
        OSError: The file cannot be written.
        ValueError: Only some samples have ``log_probs``, or the file would be larger than a reader accepts.
    """
    header = record.header
    samples = record.samples
    _check_count(len(samples))
    log_probs = [sample.log_probs for sample in samples if sample.log_probs is not None]
    if log_probs and len(log_probs) < len(samples):
        raise ValueError(f"{len(log_probs)} of {len(samples)} samples have log_probs; all of them or none must")
    details = [{name: _plain(getattr(sample, name)) for name in SampleDetails.model_fields} for sample in samples]
    packed = json.dumps(details).encode()
    _check_details_size(len(packed))
    tensors = {
        LENGTHS: torch.tensor([len(sample.tokens) for sample in samples], dtype=torch.int64),
        TOKENS: _joined([sample.tokens for sample in samples], TYPES[TOKENS]),
        ACTION_MASK: _joined([sample.action_mask for sample in samples], TYPES[ACTION_MASK]),
        DETAILS: torch.frombuffer(bytearray(packed), dtype=torch.uint8),
    }
    if log_probs:
        tensors[LOG_PROBS] = _joined(log_probs, TYPES[LOG_PROBS])
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "step": str(header.step),
        "samples_per_prompt": str(header.samples_per_prompt),
        "prompts_per_step": str(header.prompts_per_step),
        "tokenizer": header.tokenizer,
        "metrics": json.dumps(_plain(header.metrics)),
    }
    content = save(tensors, metadata)
    _check_size(len(content))
    with replacing(Path(path)) as file:
        file.write(content)


def read_header(path: str | Path) -> RolloutHeader:
    """Return what a file says of its step as a whole.

    Raises:
        RolloutFileError: The file is missing, damaged, too large, of another format or of another version.
    """
    with _Opened(path) as opened:
        return opened.header()


def read_rollout(path: str | Path) -> RolloutRecord:
    """Return the samples of one step.

    The file may come from anybody. It is never executed, and what is read is at most ``MAX_BYTES`` large. Token ids
    are at least 0, but the caller has to compare them with the vocabulary of its model.

    Raises:
        RolloutFileError: The file is missing, damaged, too large, of another format or of another version.
    """
    with _Opened(path) as opened:
        header = opened.header()
        samples = opened.samples()
        if len(samples) % header.samples_per_prompt:
            raise ValueError(f"{len(samples)} samples are no multiple of {header.samples_per_prompt} per prompt")
    return RolloutRecord(header, samples)


class _Opened:
    """An open file of a rollout. Every error inside of the block becomes one ``RolloutFileError``."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __enter__(self) -> "_Opened":
        try:
            _check_size(regular(self.path).stat().st_size)
            # The library maps the file into memory, and refuses offsets that do not fit its size.
            self.file = safe_open(self.path, framework="pt")
        except (OSError, ValueError, SafetensorError) as error:
            raise self._refusal(error) from error
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, OSError | LookupError | TypeError | ValueError | RuntimeError | SafetensorError):
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> RolloutFileError:
        if isinstance(error, FileNotFoundError):
            return RolloutFileError(f"{self.path}: no such file")
        reason = error.strerror if isinstance(error, OSError) and error.strerror else reason_of(error)
        return RolloutFileError(f"{self.path}: it is no recorded rollout that can be read: {reason}")

    def header(self) -> RolloutHeader:
        entries = self.file.metadata() or {}
        if entries.get("format") != FORMAT:
            raise ValueError(f"its format is {entries.get('format')!r:.60}, not {FORMAT!r}")
        if entries.get("version") != str(VERSION):
            raise ValueError(f"its format has version {entries.get('version')!r:.60}; this program reads {VERSION}")
        if missing := [name for name in ENTRIES if name not in entries]:
            raise ValueError(f"its header has no {', no '.join(missing)}")
        return RolloutHeader(
            step=_count(entries, "step"),
            samples_per_prompt=_count(entries, "samples_per_prompt"),
            prompts_per_step=_count(entries, "prompts_per_step"),
            tokenizer=entries["tokenizer"],
            metrics=_metrics(entries["metrics"]),
        )

    def samples(self) -> list[RecordedSample]:
        # Lists of Python take more memory than tensors, so their sizes have limits of their own.
        _check_count(self.file.get_slice(LENGTHS).get_shape()[0])
        lengths: list[int] = self._tensor(LENGTHS).tolist()
        if min(lengths, default=0) < 1:
            raise ValueError("it has no sample, or one without a token")
        predicted = [length - 1 for length in lengths]
        tokens = self._tensor(TOKENS, sum(lengths))
        if tokens.min() < 0:
            raise ValueError("a token id is negative")
        columns: dict[str, Sequence[Tensor]] = {
            "tokens": tokens.long().split(lengths),
            # A byte of another program may be neither 0 nor 1.
            "action_mask": self._tensor(ACTION_MASK, sum(predicted)).view(torch.uint8).ne(0).split(predicted),
        }
        if LOG_PROBS in self.file.keys():  # noqa: SIM118 (it is no mapping)
            columns["log_probs"] = self._tensor(LOG_PROBS, sum(predicted)).split(predicted)
        details = self._details(len(lengths))
        if sorted(each.sample_id for each in details) != list(range(len(lengths))):
            raise ValueError(f"the numbers of its samples are not 0 to {len(lengths) - 1}")
        rows = zip(*columns.values(), strict=True)
        return [
            RecordedSample(**dict(zip(columns, row, strict=True)), **vars(each))
            for row, each in zip(rows, details, strict=True)
        ]

    def _tensor(self, name: str, size: int | None = None) -> Tensor:
        """Return a tensor of one dimension; a ``size`` that it does not have raises ValueError."""
        shape = self.file.get_slice(name).get_shape()
        if len(shape) != 1:
            raise ValueError(f"{name} must have 1 dimension; it has {len(shape)}")
        if size is not None and shape[0] != size:
            raise ValueError(f"{name} has {shape[0]:,} entries; the lengths of the samples ask for {size:,}")
        tensor = self.file.get_tensor(name)
        if tensor.dtype != TYPES[name]:
            raise ValueError(f"{name} must be {TYPES[name]}; it is {tensor.dtype}")
        return tensor

    def _details(self, count: int) -> list[SampleDetails]:
        packed = self._tensor(DETAILS)
        _check_details_size(len(packed))
        # A prompt can have half a surrogate pair, which the parser of pydantic refuses.
        content = {"samples": parse_json(packed.numpy().tobytes())}
        details = checked_value(StepDetails, content).samples
        if len(details) != count:
            raise ValueError(f"the JSON of its samples must be a list of {count} objects; it has {len(details)}")
        return details


def _metrics(text: str) -> dict[str, float]:
    try:
        return checked_value(dict[str, float], parse_json(text.encode()))
    except ValueError as error:
        raise ValueError(f"metrics: {error}") from error


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise ValueError(f"it has {size:,} bytes, more than {MAX_BYTES:,}")


def _check_count(samples: int) -> None:
    if samples > MAX_SAMPLES:
        raise ValueError(f"it has {samples:,} samples, more than {MAX_SAMPLES:,}")


def _check_details_size(bytes_of_json: int) -> None:
    if bytes_of_json > MAX_DETAILS_BYTES:
        raise ValueError(f"the JSON of its samples has {bytes_of_json:,} bytes, more than {MAX_DETAILS_BYTES:,}")


def _count(entries: Mapping[str, str], name: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", entries[name]) or int(entries[name]) < 1:
        raise ValueError(f"{name} is {entries[name]!r:.60}; it must be a number of at least 1")
    return int(entries[name])


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: numbers of numpy and torch become those of Python."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if value is None or isinstance(value, bool | str):
        return value
    if hasattr(value, "item"):
        value = value.item()
    return value


def _joined(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([tensor.detach().cpu().flatten() for tensor in tensors]).to(dtype)
