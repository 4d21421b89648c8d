"""Recorded rollouts of ``CovGRPOTrainer``: its completions as the samples of a file, and back.

``docs/replay.md`` describes the files, which our own trainer and the lab write and read as well. B is the number of
completions of a rank, N that of all ranks, F the number of reward functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openrlhf_cov.data.rollout_files import (
    RecordedSample,
    RolloutFileError,
    RolloutHeader,
    RolloutRecord,
    check_steps,
    read_header,
    read_rollout,
    recorded_steps,
    rollout_path,
    set_aside_after,
    tokenizer_digest,
    write_rollout,
)


@dataclass(frozen=True)
class ReplayedCompletions:
    """The recorded completions of one rank, in the form in which TRL generates and scores them."""

    # Rows of the data set: the text of each prompt, B of them.
    inputs: list[dict[str, str]]
    # Token ids of prompts and completions, B lists each.
    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    # Log-probs of the tokens of the completions under the policy that sampled, B lists; None if they are not known.
    log_probs: list[list[float]] | None
    # Reward of each of the F functions for the N completions of all ranks, float32 (N, F); NaN where it gave none.
    rewards: Tensor


class RolloutFiles:
    """The folders of recorded rollouts of one run.

    Args:
        dump_dir: Folder for the files that the run writes, or None.
        replay_dir: Folder with the files that the run trains on, or None.

    Raises:
        ValueError: The two are the same folder, or ``replay_dir`` has no files or misses a step.
    """

    def __init__(self, dump_dir: str | Path | None, replay_dir: str | Path | None) -> None:
        self.dump_dir = None if dump_dir is None else Path(dump_dir)
        self.replay_dir = None if replay_dir is None else Path(replay_dir)
        self.steps: list[int] = []
        if self.replay_dir is None:
            return
        if self.dump_dir is not None and self.dump_dir.resolve() == self.replay_dir.resolve():
            raise ValueError(f"dump_dir={str(self.dump_dir)!r} is also replay_dir; choose another folder")
        try:
            self.steps = check_steps(self.replay_dir)
        except RolloutFileError as error:
            raise ValueError(f"replay_dir: {error}") from error

    def fit(self, trainer: Any) -> None:
        """Take the sizes of the run from a trainer whose options are complete.

        Raises:
            ValueError: The first file of ``replay_dir`` has other sizes or another tokenizer, or the folder has fewer
                files than ``max_steps`` asks for.
        """
        args = trainer.args
        self.samples_per_prompt: int = trainer.num_generations
        self.prompts_per_step: int = args.generation_batch_size // trainer.num_generations
        self.tokenizer = tokenizer_digest(trainer._tokenizer)
        self.vocabulary: int = trainer.model.get_input_embeddings().num_embeddings
        self.longest: int | None = args.max_completion_length
        self.functions = len(trainer.reward_funcs)
        self.end_tokens = frozenset(trainer.eos_token_ids)
        if self.replay_dir is None:
            return
        self._read_header(self.steps[0])
        if args.max_steps > len(self.steps) * trainer.updates:
            raise ValueError(
                f"replay_dir={str(self.replay_dir)!r} has {len(self.steps)} rollouts of {trainer.updates} updates; "
                f"lower max_steps={args.max_steps} to at most {len(self.steps) * trainer.updates}"
            )

    def keep_earlier_files(self, step: int, *, begins: bool) -> None:
        """Make sure that the files of this and later steps replace none.

        A run that begins refuses the files of another run. Later, files of this and later steps exist only where the
        run was resumed, and are set aside, because it makes these steps anew.

        Args:
            step: The rollout that is about to be sampled, from 1.
            begins: True before the first update of a run that was not resumed.

        Raises:
            ValueError: ``dump_dir`` has files of another run, or its files cannot be listed or renamed.
        """
        if self.dump_dir is None:
            return
        if begins and (found := recorded_steps(self.dump_dir)):
            raise ValueError(
                f"dump_dir={str(self.dump_dir)!r} holds {rollout_path(self.dump_dir, found[0]).name} of another run; "
                "choose a new folder"
            )
        try:
            set_aside_after(self.dump_dir, step - 1)
        except OSError as error:
            raise ValueError(f"dump_dir: {error.filename} cannot be set aside: {error.strerror}") from error

    def write(self, step: int, samples: Sequence[RecordedSample]) -> None:
        """Write the file of a step.

        Args:
            step: The rollout, from 1.
            samples: The samples of all ranks.

        Raises:
            ValueError: The file cannot be written.
        """
        assert self.dump_dir is not None
        header = RolloutHeader(step, self.samples_per_prompt, self.prompts_per_step, self.tokenizer)
        path = rollout_path(self.dump_dir, step)
        try:
            self.dump_dir.mkdir(parents=True, exist_ok=True)
            write_rollout(path, RolloutRecord(header, samples))
        except OSError as error:
            raise ValueError(f"dump_dir: {path} cannot be written: {error.strerror}") from error

    def read(self, step: int, rows: slice, weights: Tensor) -> ReplayedCompletions:
        """Return the completions of a step.

        Args:
            step: The rollout, from 1.
            rows: The completions of this rank among those of all ranks.
            weights: Weights of the reward functions, (F,).

        Raises:
            ValueError: The file is missing or damaged, or does not fit the run.
        """
        assert self.replay_dir is not None
        self._read_header(step)
        path = rollout_path(self.replay_dir, step)
        try:
            samples = read_rollout(path).samples
        except RolloutFileError as error:
            raise ValueError(f"replay_dir: {error}") from error
        ordered = sorted(samples, key=lambda sample: sample.sample_id)
        if fault := self._fault(ordered):
            raise ValueError(f"replay_dir: {path}: {fault}")
        mine = ordered[rows]
        # The tokens of the only response, which ends the sample.
        lengths = [int(sample.action_mask.sum()) for sample in mine]
        log_probs = [
            sample.log_probs[-length:].tolist()
            for sample, length in zip(mine, lengths, strict=True)
            if sample.log_probs is not None
        ]
        return ReplayedCompletions(
            inputs=[{"prompt": sample.prompt} for sample in mine],
            prompt_ids=[sample.tokens[:-length].tolist() for sample, length in zip(mine, lengths, strict=True)],
            completion_ids=[sample.tokens[-length:].tolist() for sample, length in zip(mine, lengths, strict=True)],
            log_probs=log_probs or None,
            # TRL computes advantages from the rewards of all ranks, so every rank needs all of them.
            rewards=torch.tensor([self._rewards(sample, weights) for sample in ordered]),
        )

    def _read_header(self, step: int) -> None:
        """Raise ValueError if the file of a step is of another kind than the run needs."""
        assert self.replay_dir is not None
        path = rollout_path(self.replay_dir, step)
        try:
            header = read_header(path)
        except RolloutFileError as error:
            raise ValueError(f"replay_dir: {error}") from error
        fault = header.misfit(self.samples_per_prompt, self.prompts_per_step, self.tokenizer)
        if header.step != step:
            fault = f"it is the file of step {header.step}; give each file the name that it was written with"
        if fault:
            raise ValueError(f"replay_dir: {path}: {fault}")

    def _fault(self, samples: Sequence[RecordedSample]) -> str | None:
        """Return in one line why the run cannot train on the samples of a file; None if it can."""
        if len(samples) != self.samples_per_prompt * self.prompts_per_step:
            return f"it has {len(samples)} samples; TRL needs full steps"
        largest = max(int(sample.tokens.max()) for sample in samples)
        if largest >= self.vocabulary:
            return f"token id {largest} is outside of the vocabulary of the model, {self.vocabulary} ids"
        for sample in samples:
            length = int(sample.action_mask.sum())
            if not length or not sample.action_mask[-length:].all():
                return "its samples are conversations of several turns; TRL needs one response after each prompt"
            if self.longest is not None and length > self.longest:
                return f"a completion has {length} tokens, more than max_completion_length={self.longest}; raise it"
            if sample.reward is None and not sample.abstained:
                return "its samples have no rewards; record a run with a reward function"
            # Another program has recorded the sum of its rewards.
            functions = sum(name.startswith(REWARD) for name in sample.metrics) or 1
            if not sample.abstained and functions > self.functions:
                return f"it has rewards of {functions} functions, the run has {self.functions} reward_funcs"
        return None

    def _rewards(self, sample: RecordedSample, weights: Tensor) -> list[float]:
        """Return what each reward function gave for a sample, F numbers."""
        if sample.abstained or sample.reward is None:
            return [torch.nan] * self.functions
        names = [reward_name(number) for number in range(self.functions)]
        if not any(name in sample.metrics for name in names):
            # Another program recorded one total. As the reward of the first function, TRL's weight makes it that total
            # again.
            return [sample.reward / float(weights[0]), *[torch.nan] * (self.functions - 1)]
        return [sample.metrics.get(name, torch.nan) for name in names]


# A metric of a sample with the reward of one function, before its weight; the functions are counted from 1.
REWARD = "reward_function/"


def reward_name(number: int) -> str:
    """Return the metric of a sample that holds the reward of a function, counted from 0."""
    return f"{REWARD}{number + 1}"


def recorded_samples(
    batch: Mapping[str, Any],
    log_probs: Tensor,
    prompts: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    rewards: Tensor,
    totals: Tensor,
    end_tokens: frozenset[int],
) -> list[RecordedSample]:
    """Return the completions of a rank as a file has them.

    Args:
        batch: TRL's batch with ``sample_ids`` (B,).
        log_probs: Of the tokens of the completions under the policy that sampled, (B, A).
        prompts: Texts of the prompts.
        completion_ids: Token ids of the completions, without padding.
        rewards: Of each function, (B, F); NaN where it gave none.
        totals: Their weighted sums (B,); NaN where no function gave a reward.
        end_tokens: A completion without one of these was truncated.
    """
    samples: list[RecordedSample] = []
    for row, completion in enumerate(completion_ids):
        prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].cpu()
        # Entry t of a recorded tensor is about token t + 1, so the prompt has one entry less than tokens.
        before = torch.zeros(len(prompt) - 1)
        tokens = torch.cat([prompt, torch.tensor(completion, dtype=prompt.dtype)])
        log_probs_of_sample = torch.cat([before, log_probs[row, : len(completion)].cpu()])
        total = totals[row].item()
        is_abstained = bool(totals[row].isnan())
        given = enumerate(rewards[row].tolist())
        samples.append(
            RecordedSample(
                tokens=tokens,
                action_mask=torch.arange(len(tokens) - 1) >= len(before),
                sample_id=int(batch["sample_ids"][row]),
                log_probs=log_probs_of_sample,
                prompt=prompts[row],
                reward=0.0 if is_abstained else total,
                score=None if is_abstained else total,
                abstained=is_abstained,
                truncated=end_tokens.isdisjoint(completion),
                # NaN, which differs from itself, stands for a function that gave no reward.
                metrics={reward_name(number): value for number, value in given if value == value},
            )
        )
    return samples
