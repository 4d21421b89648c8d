"""Recorded rollouts in a training: written with ``--rollout.dump_dir``, trained on with ``--rollout.replay_dir``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_cov.cluster.sizing.updates import usable_groups
from openrlhf_cov.config import SamplingConfig
from openrlhf_cov.data.rollout_files import (
    RecordedSample,
    RolloutFileError,
    RolloutHeader,
    RolloutRecord,
    read_rollout,
    rollout_path,
    set_aside_after,
    tokenizer_digest,
    write_rollout,
)
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.records import Rollout, Sample
from openrlhf_cov.trainer.rollout.batch_stream import Watch
from openrlhf_cov.trainer.rollout.generation import EngineGroup

PASS_RATE = "dynamic_filtering_pass_rate"

# Fields of a recorded sample that have another name in a training.
LOG_PROBS = {"log_probs": "rollout_log_probs"}


class RolloutRecorder:
    """Writes the samples of each step to ``--rollout.dump_dir``.

    Args:
        args: The parsed flags.
        tokenizer: The tokenizer of the policy.
    """

    def __init__(self, args: SimpleNamespace, tokenizer: Any) -> None:
        self.args = args
        self.folder = Path(args.rollout_dump_dir)
        self.tokenizer = tokenizer_digest(tokenizer)

    def set_aside_after(self, step: int) -> None:
        """Rename the files of later steps to ``FILE.bak`` (``.bak1``, ...).

        A run that continues after ``step`` makes these steps anew.

        Args:
            step: The global step that the run continues from, 0 for a fresh start.

        Raises:
            RunStopped: The folder cannot be read, or a file cannot be renamed.
        """
        try:
            set_aside_after(self.folder, step)
        except OSError as error:
            raise RunStopped(f"--rollout.dump_dir: {error.filename} cannot be set aside: {error.strerror}") from error

    def write(self, step: int, rollout: Rollout, samples: Sequence[Sample]) -> None:
        """Write the file of a step.

        Args:
            step: The global step, from 1.
            rollout: The rollout of the step.
            samples: Its samples as the models score them.

        Raises:
            RunStopped: The file cannot be written.
        """
        metrics = dict(rollout.metrics)
        if rollout.pass_rate is not None:
            metrics[PASS_RATE] = rollout.pass_rate
        header = RolloutHeader(
            step=step,
            samples_per_prompt=self.args.rollout.n_samples_per_prompt,
            prompts_per_step=self.args.rollout.batch_size,
            tokenizer=self.tokenizer,
            metrics=metrics,
        )
        path = rollout_path(self.folder, step)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_rollout(path, RolloutRecord(header, [recorded_sample(sample) for sample in samples]))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise RunStopped(f"--rollout.dump_dir: {path} cannot be written: {reason}") from error


class RecordedSampler:
    """Gives the rollouts that a folder has files of, in the order of their steps, in place of ``Sampler``.

    The rollouts end after the last file, or after ``--rollout_limit`` rollouts.

    Args:
        args: The parsed flags.
        engines: Engines for an evaluation; the group may be empty.
        tokenizer: The tokenizer of the policy.
        vocabulary: Number of token ids that the model knows.
    """

    def __init__(self, args: SimpleNamespace, engines: EngineGroup, tokenizer: Any, vocabulary: int) -> None:
        self.args = args
        self.engines = engines
        self.folder = Path(args.rollout_replay_dir)
        self.tokenizer = tokenizer_digest(tokenizer)
        self.vocabulary = vocabulary
        self.limit = SamplingConfig.from_args(args).rollout_limit
        # Number of rollouts given out so far.
        self.step = 0

    def next_batch(self, version: int, watch: Watch | None = None) -> Rollout | None:
        """Return the rollout of the next step; None after the last one.

        Args:
            version: Version of the weights. It has no effect: the samples are what they are.
            watch: Not called: all samples are there at once.

        Raises:
            RunStopped: The file is damaged, or does not fit this run.
        """
        if self._is_over:
            return None
        path = rollout_path(self.folder, self.step + 1)
        try:
            record = read_rollout(path)
        except RolloutFileError as error:
            raise RunStopped(f"--rollout.replay_dir: {error}") from error
        rollout = self.args.rollout
        fault = record.header.misfit(rollout.n_samples_per_prompt, rollout.batch_size, self.tokenizer)
        if fault := fault or self._fault(record):
            raise RunStopped(f"--rollout.replay_dir: {path}: {fault}")
        self.step += 1
        metrics = dict(record.header.metrics)
        return Rollout(
            samples=[replayed_sample(sample) for sample in record.samples],
            metrics={name: value for name, value in metrics.items() if name != PASS_RATE},
            seconds=0.0,
            pass_rate=metrics.get(PASS_RATE),
            sampler_state={"step": self.step, "is_over": self._is_over},
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the ``sampler_state`` of a rollout, whichever sampler made it."""
        self.step = state["step"]

    @property
    def _is_over(self) -> bool:
        if 0 < self.limit <= self.step:
            return True
        # The first file has to be there.
        return self.step > 0 and not rollout_path(self.folder, self.step + 1).exists()

    def _fault(self, record: RolloutRecord) -> str | None:
        if record.header.step != self.step + 1:
            return f"it is the file of step {record.header.step}; give each file the name that it was written with"
        prompts = len(record.samples) // record.header.samples_per_prompt
        if prompts > record.header.prompts_per_step:
            return f"it has {prompts} prompts, more than the {record.header.prompts_per_step} of a step"
        if usable_groups(prompts, self.args) != prompts:
            return f"its {len(record.samples)} samples make no whole number of updates; change --train.batch_size"
        for sample in record.samples:
            numbers = (sample.reward, sample.score)
            if not sample.abstained and not all(number is None or math.isfinite(number) for number in numbers):
                return f"sample {sample.sample_id} has the reward {sample.reward} and the score {sample.score}"
        longest = max(len(sample.tokens) for sample in record.samples)
        if longest > self.args.data.max_len:
            return f"a sample has {longest} tokens, more than --data.max_len {self.args.data.max_len}; raise it"
        largest = max(int(sample.tokens.max()) for sample in record.samples)
        if largest >= self.vocabulary:
            return f"token id {largest} is outside of the vocabulary of the model, {self.vocabulary} ids"
        return None


def recorded_sample(sample: Sample) -> RecordedSample:
    """Return what the file of a step keeps of a sample. Its label is left out: nothing reads it after the reward."""
    names = [entry.name for entry in fields(RecordedSample)]
    return RecordedSample(**{name: getattr(sample, LOG_PROBS.get(name, name)) for name in names})


def replayed_sample(recorded: RecordedSample) -> Sample:
    """Return the sample of a training that was recorded."""
    return Sample(**{LOG_PROBS.get(name, name): value for name, value in vars(recorded).items()})
