"""TRL's ``GRPOTrainer`` that writes its rollouts to files, or trains on recorded ones instead of generating."""

from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from openrlhf_cov.integrations.trl_rollouts import ReplayedCompletions, RolloutFiles, recorded_samples
from openrlhf_cov.utils.seeds import seed_of


class RecordingGRPOTrainer(GRPOTrainer):
    """TRL's ``GRPOTrainer`` with folders of recorded rollouts.

    A replayed run takes prompts, completions, their log-probs and rewards from a file per rollout. TRL computes the
    rest as it always does: advantages, losses and its metrics.

    Args:
        model: As in TRL.
        reward_funcs: As in TRL.
        args: As in TRL.
        dump_dir: Folder for the files, or None.
        replay_dir: Folder of the files to train on, or None.
        kwargs: Further arguments of TRL's trainer.

    Raises:
        ValueError: The files of ``replay_dir`` or an option do not fit the run.
    """

    # What transformers and TRL declare more widely.
    args: Any
    model: Any
    num_generations: int

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        *,
        dump_dir: str | Path | None = None,
        replay_dir: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        if replay_dir is not None and kwargs.get("rollout_func"):
            raise ValueError("rollout_func has no effect with replay_dir, which gives the completions; drop it")
        # Folders are checked before TRL loads the model; the sizes of the run are known only after it.
        files = RolloutFiles(dump_dir, replay_dir)
        super().__init__(model, reward_funcs, args, **kwargs)
        # Micro-batches of a rollout on one rank, counted once per iteration over them, and its optimizer steps.
        self.rollout_micro_batches = self.args.steps_per_generation * self.num_iterations
        self.updates = self.rollout_micro_batches // self.args.gradient_accumulation_steps
        files.fit(self)
        self._files = files
        # The recorded completions that TRL is about to take; None where it generates.
        self._replayed: ReplayedCompletions | None = None

    @property
    def rollout_number(self) -> int:
        """Number of the rollout that the next optimizer step belongs to, from 1."""
        return self.state.global_step // self.updates + 1

    def rows_of_rank(self, count: int) -> slice:
        """Return which completions of all ranks are the ``count`` completions of this rank."""
        first = self.accelerator.process_index * count
        return slice(first, first + count)

    # -- Replay: each method below is TRL's unless there are recorded completions --

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        if self.accelerator.is_main_process:
            self._files.keep_earlier_files(self.rollout_number, begins=self.state.global_step == 0)
        if self._files.replay_dir is not None:
            rows = self.rows_of_rank(len(inputs))
            self._replayed = self._files.read(self.rollout_number, rows, self.reward_weights)
            inputs = self._replayed.inputs
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            self._replayed = None

    def _tokenize_prompts(self, prompts: list) -> tuple:
        if self._replayed is None:
            return super()._tokenize_prompts(prompts)
        return self._replayed.prompt_ids, None, {}  # no images, and nothing else that is not text

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> tuple:
        if self._replayed is None:
            return super()._generate_single_turn(*args, **kwargs)
        return self._replayed.completion_ids, self._replayed.log_probs

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids: Any) -> Tensor:
        if self._replayed is None:
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids)
        else:
            rewards = self._replayed.rewards.to(self.accelerator.device)
        # What a file needs beside TRL's batch. Rewards are (N, F), the others have an entry per completion of a rank.
        self._rewards = rewards
        self._prompts = prompts
        self._completion_ids = completion_ids
        return rewards

    # -- Recording --

    def record_rollout(self, batch: dict[str, Any], totals: Tensor) -> None:
        """Write the completions of a rollout, if the run does; called before TRL shuffles them, on every rank.

        Args:
            batch: TRL's batch with ``policy_log_probs`` (B, A), those of truncated completions included, and
                ``sample_ids`` (B,).
            totals: The rewards of the completions of this rank, (B,); NaN where no function gave one.
        """
        files = self._files
        policy = batch["policy_log_probs"]
        if files.dump_dir is not None:
            rows = self.rows_of_rank(len(totals))
            samples = recorded_samples(
                batch,
                self._log_probs_of_sampler(batch),
                [self._text_of(prompt, row, batch) for row, prompt in enumerate(self._prompts)],
                self._completion_ids,
                self._rewards[rows],
                totals,
                files.end_tokens,
            )
            samples = gather_object(samples)
            if self.accelerator.is_main_process:
                files.write(self.rollout_number, samples)
        elif files.replay_dir is not None:
            # The policy that sampled is the policy of this run, so that no correction is due. TRL has no log-probs of
            # a sampler then either, unless an engine samples.
            mask = batch["completion_mask"].bool()
            if "sampling_per_token_logps" in batch and batch["sampling_per_token_logps"][mask].equal(policy[mask]):
                del batch["sampling_per_token_logps"]
        if files.dump_dir is not None or files.replay_dir is not None:
            # Generation uses up random numbers, which a replayed run does not. Both shuffle their samples alike.
            torch.manual_seed(seed_of(self.args.seed, self.rollout_number, self.accelerator.process_index))

    def _log_probs_of_sampler(self, batch: dict[str, Any]) -> Tensor:
        """Return the log-probs (B, A) of the policy that sampled."""
        policy = batch["policy_log_probs"]
        if "sampling_per_token_logps" in batch:
            sampled = batch["sampling_per_token_logps"]
            return sampled.where(~sampled.isnan(), policy)  # an engine may have none for some tokens
        return policy

    def _text_of(self, prompt: Any, row: int, batch: dict[str, Any]) -> str:
        """Return the text of a prompt; that of a conversation has the marks of its chat template."""
        if isinstance(prompt, str):
            return prompt
        ids = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
        return str(self._tokenizer.decode(ids))
