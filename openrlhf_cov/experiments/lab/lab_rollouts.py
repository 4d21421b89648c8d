"""Recorded rollouts in the lab: its padded tensors as the samples of a file, and back.

B is the number of samples of a global step, P the number of tokens of every prompt, A that of the longest response.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from openrlhf_cov.data.rollout_files import (
    RecordedSample,
    RolloutFileError,
    RolloutHeader,
    RolloutRecord,
    read_rollout,
    rollout_path,
    write_rollout,
)
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.experiments.lab.lab_policy import Samples


def recorded_samples(
    prompts: Tensor, samples: Samples, mask: Tensor, scores: Tensor, tokenizer: Any, eos: int
) -> list[RecordedSample]:
    """Return the samples of a step as a file has them.

    Args:
        prompts: Token ids (B, P).
        samples: The responses (B, A) with their log-probs.
        mask: True for the tokens of a response up to its end, (B, A).
        scores: The rewards (B,).
        tokenizer: Writes the text of a prompt.
        eos: Token id of the end of a response; a response without it was truncated.
    """
    # Entry t of a record is about token t + 1, so a prompt of P tokens has P - 1 entries, which are 0.
    before = torch.zeros(prompts.shape[1] - 1)
    found: list[RecordedSample] = []
    for number, length in enumerate(mask.sum(1).tolist()):
        response = samples.responses[number, :length]
        log_probs = torch.cat([before, samples.log_probs[number, :length]])
        score = scores[number].item()
        found.append(
            RecordedSample(
                tokens=torch.cat([prompts[number], response]),
                action_mask=torch.arange(len(log_probs)) >= len(before),
                sample_id=number,
                log_probs=log_probs,
                prompt="".join(tokenizer.convert_ids_to_tokens(prompts[number].tolist())),
                reward=score,
                score=score,
                truncated=eos not in response.tolist(),
            )
        )
    return found


def tensors_of(samples: Sequence[RecordedSample], pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the prompts (B, P), responses (B, A) and rewards (B,) of recorded samples.

    Args:
        samples: All prompts have the same number of tokens, and one response follows each prompt.
        pad: Token id behind the end of a response.

    Raises:
        RunStopped: The samples are of another kind, as those of a model with a chat template or of an agent.
    """
    # Groups are found by place, so the samples of a prompt must follow one another.
    ordered = sorted(samples, key=lambda sample: sample.sample_id)
    responses = [int(sample.action_mask.sum()) for sample in ordered]
    prompts = [len(sample.tokens) - length for sample, length in zip(ordered, responses, strict=True)]
    ends_with_response = all(
        length and bool(sample.action_mask[-length:].all()) for sample, length in zip(ordered, responses, strict=True)
    )
    if len(set(prompts)) > 1 or not ends_with_response:
        raise RunStopped("--replay_dir: the lab needs prompts of one length, and one response after each")
    if any(sample.abstained for sample in ordered):
        raise RunStopped("--replay_dir: the reward function abstained from samples; the lab needs a reward for each")
    if any(sample.reward is None for sample in ordered):
        raise RunStopped("--replay_dir: the samples have no rewards; the lab has no reward model")
    first = prompts[0]
    return (
        torch.stack([sample.tokens[:first] for sample in ordered]),
        pad_sequence([sample.tokens[first:] for sample in ordered], batch_first=True, padding_value=pad),
        torch.tensor([sample.reward for sample in ordered], dtype=torch.float32),
    )


def write_step(folder: Path, header: RolloutHeader, samples: Sequence[RecordedSample]) -> None:
    """Write the file of a step.

    Args:
        folder: ``--dump_dir``; it is created if it does not exist.
        header: The step, and what a run that reads the file must have in common with this one.
        samples: Result of ``recorded_samples``.

    Raises:
        RunStopped: The disk refuses the file.
    """
    path = rollout_path(folder, header.step)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_rollout(path, RolloutRecord(header, samples))
    except OSError as error:
        raise RunStopped(f"--dump_dir: {path} cannot be written: {error.strerror}") from error


def read_step(
    folder: Path, step: int, *, vocabulary: int, samples_per_prompt: int, prompts_per_step: int, tokenizer: str
) -> Sequence[RecordedSample]:
    """Return the samples of a step.

    Args:
        folder: ``--replay_dir``.
        step: The global step, from 1.
        vocabulary: Number of token ids that the model knows.
        samples_per_prompt: Of the run, like the arguments that follow; see ``RolloutHeader.misfit``.
        prompts_per_step: See above.
        tokenizer: See above.

    Raises:
        RunStopped: The file is missing or damaged, or does not fit the run.
    """
    path = rollout_path(folder, step)
    try:
        record = read_rollout(path)
    except RolloutFileError as error:
        raise RunStopped(f"--replay_dir: {error}") from error
    fault = record.header.misfit(samples_per_prompt, prompts_per_step, tokenizer)
    if fault is None and record.header.step != step:
        fault = f"it is the file of step {record.header.step}"
    if fault is None and len(record.samples) != samples_per_prompt * prompts_per_step:
        fault = f"it has {len(record.samples)} samples; the lab needs full steps"
    if fault is None and max(int(sample.tokens.max()) for sample in record.samples) >= vocabulary:
        fault = f"it has token ids outside of the vocabulary of {vocabulary} ids"
    if fault is not None:
        raise RunStopped(f"--replay_dir: {path}: {fault}")
    return record.samples
