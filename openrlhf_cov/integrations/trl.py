"""The methods in TRL: ``CovGRPOTrainer`` is TRL's ``GRPOTrainer`` with a method by name (tested with TRL 1.16.0).

TRL generates completions, scores them with the reward functions and computes its loss: the PPO clip, the average of
``loss_type``, the KL term and the entropy bonus. The methods change what goes into TRL's loss:

1. After generation, an estimator may replace the advantages of the responses (``_start_rollout``).
2. Before each optimizer step, the methods plan over all its micro-batches on all ranks: which tokens they drop, weigh
   or penalise (``_plan_update``).
3. For each micro-batch, ``policy_loss`` turns advantages (B,) and plans into advantages (B, A) of tokens, which TRL's
   loss accepts, and adds the penalties (``_compute_loss``).
4. After the last optimizer step of a rollout, its metrics go to TRL's logs and to ``metrics.jsonl``
   (``_end_rollout``).
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from trl.trainer.grpo_config import GRPOConfig

from openrlhf_cov.integrations import trl_options
from openrlhf_cov.integrations.choice import choose
from openrlhf_cov.integrations.closed_loop import ClosedLoop
from openrlhf_cov.integrations.trainer_loss import TrainerLoss
from openrlhf_cov.integrations.trl_batches import (
    model_inputs,
    response_metrics,
    rollout_tokens,
    token_batch,
    vocabulary_scores,
    window_part,
    with_truncated,
)
from openrlhf_cov.integrations.trl_recording import RecordingGRPOTrainer
from openrlhf_cov.models.loss import draws_of_step, plan_micro_batch, policy_loss
from openrlhf_cov.models.method import Plan
from openrlhf_cov.models.planning import PlanningStep, plan_window, policy_seen
from openrlhf_cov.models.responses import mean_log_probs, response_advantages
from openrlhf_cov.models.rollout import mean_entropy, token_sums
from openrlhf_cov.models.rollout_metrics import RolloutMetrics
from openrlhf_cov.models.window import Ranks
from openrlhf_cov.utils.command import write_settings
from openrlhf_cov.utils.metrics import Mean
from openrlhf_cov.utils.metrics_log import METRICS_FILE, MetricsLog

logger = logging.getLogger(__name__)


class CovGRPOTrainer(RecordingGRPOTrainer):
    """TRL's ``GRPOTrainer`` with methods against entropy collapse, exact over the optimizer step.

    A global step of the methods is one rollout with its updates: schedules and closed loops move once per rollout, and
    ``<output_dir>/metrics.jsonl`` has a line for each.

    Args:
        model: As in TRL.
        reward_funcs: As in TRL.
        args: As in TRL. PPO's clip is the one that the method was published with, unless ``epsilon`` or
            ``epsilon_high`` differs from TRL's default.
        method: Name of a method, of several methods with commas between them, or ``none``.
        method_settings: Settings of the methods by name, such as ``{"kl_cov_ratio": 2e-3}``.
        dump_dir: Folder for a file with the completions of every rollout (``docs/replay.md``), or None.
        replay_dir: Folder of such files. The run trains on them instead of generating and scoring.
        kwargs: Further arguments of TRL's trainer.

    Raises:
        ValueError: A setting is out of range, an option of TRL does not go with the method, or the files of
            ``replay_dir`` do not fit the run.
    """

    _buffered_inputs: Any  # TRL declares it more widely

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        *,
        method: str = "none",
        method_settings: Mapping[str, Any] | None = None,
        dump_dir: str | Path | None = None,
        replay_dir: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        self.methods = choose(method, method_settings or {})
        trl_options.check_options(self.methods, args or GRPOConfig(), kwargs)
        super().__init__(model, reward_funcs, args, dump_dir=dump_dir, replay_dir=replay_dir, **kwargs)
        trl_options.check_model(self.methods, self.model)
        self.accumulation = self.args.gradient_accumulation_steps
        for warning in trl_options.warnings_of(self.methods, self.args, self.updates):
            logger.warning(warning)
        self.ranks = Ranks(
            all_reduce_sum=lambda tensor: self.accelerator.reduce(tensor, "sum"),
            all_gather=self.accelerator.gather,
            size=self.accelerator.num_processes,
        )
        self.closed_loop = ClosedLoop(self.methods)
        self._metrics_log: MetricsLog | None = None
        self._warned: set[str] = set()
        # Metrics of the rollout that is being trained on; None between rollouts.
        self._rollout: RolloutMetrics | None = None
        # The forward pass of a micro-batch, on its way to TRL's loss.
        self._forward: tuple[Tensor, Tensor | None, Tensor | None] | None = None

    # -- The rollout --

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self._start_rollout(batch)
        return batch

    def _start_rollout(self, batch: dict[str, Any]) -> None:
        """Measure the policy that sampled, and add to ``batch`` what the methods need.

        TRL then shuffles the rows of ``batch`` and cuts it into micro-batches.
        """
        for name in ("num_images", "tool_mask"):
            if name in batch:
                raise ValueError(f"{name}: CovGRPOTrainer trains on text without tools; use GRPOTrainer")
        # A rewarded completion is compared with others, also where TRL hides it from the loss because it is truncated.
        whole = with_truncated(batch, self._completion_ids)
        batch["policy_log_probs"], batch["policy_entropy"] = self._score(whole)
        batch |= self._vocabulary_scores(batch)
        # Samples are numbered over the ranks, so the K responses to prompt p are p * K ... p * K + K - 1.
        rows = self.rows_of_rank(len(batch["completion_ids"]))
        batch["sample_ids"] = torch.arange(rows.start, rows.stop, device=self.accelerator.device)

        number = self.rollout_number
        config = self.methods.at(number - 1, self.closed_loop.controller)
        rewards = (self._rewards * self.reward_weights.to(self._rewards.device)).nansum(1).float()
        # ``nansum`` gives 0 to a completion that no function rewarded; NaN marks it as abstained.
        rewards = rewards.masked_fill(self._rewards.isnan().all(1), math.nan)
        scores = rewards[rows]
        batch["graded"] = ~scores.isnan()
        self.record_rollout(batch, scores)
        if config.estimator is not None:
            sums = self.ranks.all_reduce_sum(token_sums(rollout_tokens(batch, scores)))
            groups = rewards.view(-1, self.num_generations)
            found = self.ranks.all_gather(mean_log_probs(batch["policy_log_probs"], whole["completion_mask"]))
            seen = mean_entropy(sums).item(), found.view_as(groups)
            estimated = response_advantages(groups, ~groups.isnan(), "group_norm", config, *seen)
            advantages = estimated.nan_to_num(0.0).flatten()
            batch["advantages"] = advantages[rows]
            # TRL keeps as many as a rollout has, so that these replace its own in the table of completions.
            self._logs["advantages"].extend(advantages.tolist())
        self._rollout = RolloutMetrics(rollout_tokens(batch, scores), self.num_generations, self.ranks)
        self._rollout.add(*response_metrics(self._completion_ids, scores, self.eos_token_ids))

        clip = trl_options.ppo_clip(config, self.args)
        self.epsilon_low, self.epsilon_high = clip  # TRL's loss clips by these
        seed = self.args.seed
        positive_prompts = self._rollout.positive_prompts() if config.uses_positive_prompts else None
        self._planning = PlanningStep(
            config, seed, number, clip, self._rollout.mean_entropy, self.ranks, positive_prompts
        )
        self._draws = draws_of_step(seed, number, self.accelerator.process_index, self.accelerator.device)
        # The learning rate of the first update stands for those of all updates of the rollout.
        self._learning_rate = self._get_learning_rate()
        self._norms: list[float] = []

    # -- The optimizer steps --

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """Compute the loss of one micro-batch: TRL's with the methods of the run."""
        if not self.model.training or self._rollout is None:
            return super()._compute_loss(model, inputs)
        config = self._planning.config
        place = self._step % self.accumulation
        if place == 0 and config.plans_globally:
            self._plans = self._plan_update()

        # One forward pass serves the methods and TRL's loss.
        forward = super()._get_per_token_logps_and_entropies(
            model, *model_inputs(inputs), compute_entropy=True, compute_aux_loss=self.aux_loss_enabled
        )
        log_probs, entropy, _ = forward
        batch = token_batch(inputs, log_probs)
        if config.plans_globally:
            plans = self._plans[place]
        else:
            plans = plan_micro_batch(config, batch, self._planning.ppo_clip, self._draws)
        # ``super()`` without arguments does not work in the function below.
        loss_of_trl = super()._compute_loss

        def loss_of(advantages: Tensor, old_log_probs: Tensor) -> Tensor:
            self._forward = forward
            # A method may compare with the engine that sampled; TRL's own old log-probs are those of the trainer.
            return loss_of_trl(model, inputs | {"advantages": advantages, "old_per_token_logps": old_log_probs})

        # Penalties have the weights of TRL's loss, whose means are over all completions.
        mask = inputs["completion_mask"].bool()

        def aggregate(values: Tensor, _: Tensor, loss_type: str = self.loss_type, **__: Any) -> Tensor:
            weights = _token_weights(mask, loss_type, self.args, inputs["num_items_in_batch"], self.ranks.size)
            return (values * weights).sum()

        # TRL's loss of the transformed advantages, and the penalties of the methods.
        ppo_loss = TrainerLoss(loss_of, self._planning.ppo_clip, self.args.delta)
        update = self._step % self.rollout_micro_batches // self.accumulation
        result = policy_loss(config, ppo_loss, aggregate, batch, plans, update=update)
        loss = result.loss
        if config.entropy_bonus_in_force:
            # A mean over the tokens of the step. TRL's entropy_coef takes the mean over micro-batches of their means.
            loss = loss - config.entropy_bonus_in_force * aggregate(entropy, mask, loss_type="dapo")
        self._rollout.observe(inputs["sample_ids"], result.record)
        # The losses of the micro-batches of an update add up to its loss, so the weights of an update add up to 1.
        self._rollout.add(Mean("policy_loss", loss.detach(), 1 / self.accumulation))
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple:
        """Return the forward pass of ``_compute_loss`` to TRL's loss, or run TRL's own where there is none."""
        forward = self._forward
        self._forward = None
        return super()._get_per_token_logps_and_entropies(*args, **kwargs) if forward is None else forward

    @torch.no_grad()
    def _plan_update(self) -> list[list[Plan]]:
        """Return what each method does to the tokens of each micro-batch of the coming optimizer step."""
        first = self._step % self.args.steps_per_generation
        window = self._buffered_inputs[first : first + self.accumulation]
        parts = [window_part(batch) for batch in window]
        # Before the first update of a rollout the policy is still the one that sampled it.
        moved = self._step % self.rollout_micro_batches > 0
        seen = policy_seen(self._planning.config, parts, moved, lambda place, _: self._score(window[place]))
        # TRL trains on a rollout ``num_iterations`` times.
        epoch = self._step % self.rollout_micro_batches // self.args.steps_per_generation
        return plan_window(replace(self._planning, epoch=epoch), parts, seen)

    # -- The policy before an update --

    @torch.no_grad()
    def _score(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies (B, A) of completions under the policy as it is now."""
        log_probs, entropy, _ = super()._get_per_token_logps_and_entropies(
            self.model,
            *model_inputs(batch),
            batch_size=self.args.per_device_train_batch_size,
            compute_entropy=True,
        )
        return log_probs, entropy

    @torch.no_grad()
    def _vocabulary_scores(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return what the methods ask of the whole vocabulary, (B, A) each; nothing where they ask for nothing."""
        ids, mask, width = model_inputs(batch)
        found: list[dict[str, Tensor]] = []
        if self.methods.proxy_min_p is None and not self.methods.needs_discriminator_mean:
            return {}
        # The logits of all completions at once would be too large: they have an entry for every token of the
        # vocabulary.
        for rows in torch.arange(len(ids)).split(self.args.per_device_train_batch_size):
            with self.accelerator.autocast():
                # Logits at a position are about the next token, so one more is asked for and the last one is dropped.
                logits = self.model(input_ids=ids[rows], attention_mask=mask[rows], logits_to_keep=width + 1).logits
            found.append(vocabulary_scores(self.methods, logits[:, :-1], ids[rows, -width:], self.temperature))
        return {name: torch.cat([each[name] for each in found]) for name in found[0]}

    # -- Logs and checkpoints --

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, grad_norm: Any, *args: Any, **kwargs: Any) -> None:
        """Note the end of an optimizer step before TRL logs it."""
        if self._rollout is not None:
            self._norms.append(math.nan if grad_norm is None else float(grad_norm))
            if self._step % self.rollout_micro_batches == 0:
                self._end_rollout(self._rollout)
                self._rollout = None
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **kwargs)

    def _end_rollout(self, rollout: RolloutMetrics) -> None:
        """Log the metrics of a rollout and its updates, and move the closed loop."""
        number = self._planning.global_step
        values = rollout.finish()
        target = self._planning.config.entropy_target
        values |= self.closed_loop.step(values, target, self._learning_rate * self.updates)
        values |= {"gradient/norm": sum(self._norms) / len(self._norms), "actor_lr": self._learning_rate}
        for method in self.methods.methods:
            message = method.idle(values, self.updates)
            if message and message not in self._warned:
                self._warned.add(message)
                logger.warning(trl_options.in_words_of_trl(message))
        if self.accelerator.is_main_process:
            if self._metrics_log is None:
                # Opened late: only when training runs is it known after which rollout a resumed run continues.
                folder = Path(str(self.args.output_dir))
                self._metrics_log = MetricsLog(folder / METRICS_FILE, number - 1)
                # A report asks them if anything acts on the entropy.
                write_settings(folder, trl_options.recorded_settings(self.methods, self.args))
            self._metrics_log.write(number, values)
        for name, value in values.items():
            # Names without a slash, such as reward, are TRL's own.
            if "/" in name and math.isfinite(value):
                self._metrics["train"][name].append(value)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            self.closed_loop.save(Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}"))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.closed_loop.load(Path(checkpoint))


def _token_weights(mask: Tensor, loss_type: str, args: Any, tokens: Tensor, ranks: int) -> Tensor:
    """Return the weight (B, A) that TRL gives the loss of each token of a micro-batch, for terms added to its loss.

    Args:
        mask: Completion tokens (B, A).
        loss_type: One of ``AVERAGES``.
        args: The ``GRPOConfig``.
        tokens: Number of completion tokens of the rollout on all ranks, TRL's ``num_items_in_batch``.
        ranks: Number of data-parallel ranks, over which gradients are averaged.
    """
    accumulation = args.gradient_accumulation_steps
    if loss_type == "dapo":
        # The share of one micro-batch in the tokens of a rollout, which has steps_per_generation of them on a rank.
        return mask.float() / (tokens.clamp(min=1) / ranks * accumulation / args.steps_per_generation)
    if loss_type == "grpo":
        count = mask.sum(1, keepdim=True).clamp(min=1) * len(mask)
    elif loss_type == "bnpo":
        count = mask.sum().clamp(min=1)
    else:
        # ``dr_grpo``: a constant, so that long responses do not weigh less per token.
        count = len(mask) * args.max_completion_length
    # The other averages are taken within a micro-batch, and then over the micro-batches of an update.
    return mask.float() / count / accumulation
