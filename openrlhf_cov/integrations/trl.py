"""The methods in TRL: ``CovGRPOTrainer`` is TRL's ``GRPOTrainer`` with a method by name.

TRL generates, scores with the reward functions, and computes its loss: the PPO clip, the average of ``loss_type``, the
KL term and the entropy bonus. The methods act on what TRL's loss gets and adds nothing to:

1. After generation, an estimator may replace the advantages of the responses (``_start_rollout``).
2. Before each optimizer step, the methods plan over all its micro-batches on all ranks: which tokens they drop, weigh
   or penalise (``_plan_update``).
3. For each micro-batch, ``policy_loss`` turns advantages (B,) and plans into advantages (B, A) of tokens, which TRL's
   loss accepts, and adds the penalties (``_compute_loss``).
4. After the last optimizer step of a rollout, its metrics go to TRL's logs and to ``metrics.jsonl`` (``_end_rollout``).

Overrides of TRL's private methods are tested with TRL 1.16.0.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from trl import GRPOConfig, GRPOTrainer

from openrlhf_cov.integrations.choice import choose
from openrlhf_cov.integrations.rollout_metrics import RolloutMetrics
from openrlhf_cov.integrations.trl_options import check_options, gives_clip, warnings_of
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.dynamics import EntropyDynamics
from openrlhf_cov.models.loss import draws_of_step, plan_micro_batch, policy_loss
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.planning import PlanningStep, WindowPart, plan_window, policy_seen
from openrlhf_cov.models.responses import response_advantages
from openrlhf_cov.models.rollout import RolloutTokens
from openrlhf_cov.models.token_head import min_p_scores_of_logits
from openrlhf_cov.models.window import Ranks
from openrlhf_cov.utils.metrics import Mean
from openrlhf_cov.utils.metrics_log import METRICS_FILE, MetricsLog

logger = logging.getLogger(__name__)

# Of a checkpoint: the states of the closed loop and of the metrics that look back.
STATE_FILE = "openrlhf_cov_state.json"


class CovGRPOTrainer(GRPOTrainer):
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
        kwargs: Further arguments of TRL's trainer.

    Raises:
        ValueError: A setting is out of range, or an option of TRL does not go with the method.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        *,
        method: str = "none",
        method_settings: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.config = choose(method, method_settings or {})
        check_options(self.config, args or GRPOConfig(), kwargs)
        super().__init__(model, reward_funcs, args, **kwargs)
        self._check_model()
        self.accumulation = self.args.gradient_accumulation_steps
        # Micro-batches of a rollout on one rank, counted once per iteration over them.
        self.rollout_micro_batches = self.args.steps_per_generation * self.num_iterations
        self.updates = self.rollout_micro_batches // self.accumulation
        for warning in warnings_of(self.config, self.args, self.updates):
            logger.warning(warning)

        self.ranks = Ranks(
            all_reduce_sum=lambda tensor: self.accelerator.reduce(tensor, "sum"),
            all_gather=self.accelerator.gather,
            size=self.accelerator.num_processes,
        )
        self.controller = self.config.controller()
        self.dynamics = EntropyDynamics()
        self._metrics_log: MetricsLog | None = None
        self._warned: set[str] = set()
        # Of the rollout that is being trained on; None between rollouts.
        self._rollout: RolloutMetrics | None = None
        # The forward pass of a micro-batch, on its way to TRL's loss.
        self._forward: tuple[Tensor, Tensor | None, Tensor | None] | None = None

    # -- The rollout --

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        self._rewards = super()._calculate_rewards(*args, **kwargs)  # (responses of all ranks, reward functions)
        return self._rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self._start_rollout(batch)
        return batch

    @torch.no_grad()
    def _start_rollout(self, batch: dict[str, Any]) -> None:
        """Measure the policy that sampled, estimate advantages if a method does, and add to ``batch`` what plans need.

        TRL then shuffles the rows of ``batch`` and cuts it into micro-batches.
        """
        for name in ("num_images", "tool_mask"):
            if name in batch:
                raise ValueError(f"{name}: CovGRPOTrainer trains on text without tools; use GRPOTrainer")
        self._number = self.state.global_step // self.updates + 1
        mask = batch["completion_mask"].bool()
        log_probs, entropy = self._score(batch)
        batch["policy_log_probs"] = log_probs
        batch["policy_entropy"] = entropy
        if self.config.proxy_min_p is not None:
            batch["proxy"] = self._proxy(batch, self.config.proxy_min_p)
        first = self.accelerator.process_index * len(mask)
        batch["sample_ids"] = torch.arange(first, first + len(mask), device=mask.device)

        # Rewards of the responses to a prompt lie side by side, and those of the ranks one after another.
        unscored = self._rewards.isnan().all(1)
        rewards = (self._rewards * self.reward_weights.to(self._rewards.device)).nansum(1)
        scores = rewards.masked_fill(unscored, math.nan)[first : first + len(mask)]
        config = self.config.at(self._number - 1, self.controller)
        if config.estimator is not None:
            totals = torch.stack([(entropy.double() * mask).sum(), mask.sum().double()])
            total, tokens = self.ranks.all_reduce_sum(totals).tolist()
            groups = rewards.float().view(-1, self.num_generations)
            graded = ~unscored.view(-1, self.num_generations)
            estimated = response_advantages(groups, graded, "group_norm", config, total / tokens)
            batch["advantages"] = estimated.nan_to_num(0.0).flatten()[first : first + len(mask)]

        tokens = RolloutTokens(
            log_probs=log_probs * mask,
            entropy=entropy * mask,
            advantages=batch["advantages"][:, None] * mask,
            action_mask=mask,
            scores=scores,
            sample_ids=batch["sample_ids"],
            abstained=scores.isnan(),
        )
        self._rollout = RolloutMetrics(tokens, self.num_generations, self.ranks)
        lengths = mask.sum(1)
        ends = torch.isin(batch["completion_ids"], torch.tensor(self.eos_token_ids, device=mask.device)).any(1)
        self._rollout.add(
            Mean("reward", scores.nan_to_num(0.0).sum(), (~scores.isnan()).sum()),
            Mean("response_length", lengths.sum(), len(mask)),
            Mean("truncated", (~ends).sum(), len(mask)),
        )
        self.epsilon_low, self.epsilon_high = self._ppo_clip(config)
        clip = (self.epsilon_low, self.epsilon_high)
        seed, rank = self.args.seed, self.accelerator.process_index
        self._planning = PlanningStep(config, seed, self._number, clip, self._rollout.mean_entropy, self.ranks)
        self._draws = draws_of_step(seed, self._number, rank, mask.device)
        self._learning_rate = self._get_learning_rate()
        self._norms: list[float] = []

    def _ppo_clip(self, config: CovConfig) -> tuple[float, float]:
        """Return (eps_low, eps_high) of the PPO clip under the settings of a step."""
        for method in config.methods:
            if method.clip:
                return method.clip(config)
        if config.ppo_clip and not gives_clip(self.args):
            return config.ppo_clip
        high = self.args.epsilon if self.args.epsilon_high is None else self.args.epsilon_high
        return self.args.epsilon, high

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
        ids, attention_mask, width = _model_inputs(inputs)
        forward = super()._get_per_token_logps_and_entropies(
            model, ids, attention_mask, width, compute_entropy=True, compute_aux_loss=self.aux_loss_enabled
        )
        log_probs, entropy, _ = forward
        mask = inputs["completion_mask"].bool()
        old = inputs.get("old_per_token_logps", log_probs.detach())
        advantages = inputs["advantages"][:, None].expand_as(old)
        # Log-probs of the engine, if there is one. TRL marks those that the engine did not give as NaN.
        sampled = inputs.get("sampling_per_token_logps", old)
        batch = TokenBatch(log_probs, old, advantages, mask, rollout_log_probs=sampled.where(~sampled.isnan(), old))
        plans: Sequence[Plan] = (
            self._plans[place]
            if config.plans_globally
            else plan_micro_batch(config, batch, self._planning.ppo_clip, self._draws)
        )

        def trl_loss(of_tokens: Tensor) -> Tensor:
            self._forward = forward
            return super(CovGRPOTrainer, self)._compute_loss(model, inputs | {"advantages": of_tokens})

        def aggregate(values: Tensor, mask: Tensor, **_: Any) -> Tensor:
            return (values * self._token_weights(mask, inputs, self.loss_type)).sum()

        ppo_loss = _TrlLoss(trl_loss, self._planning.ppo_clip, self.args.delta)
        update = self._step % self.rollout_micro_batches // self.accumulation
        result = policy_loss(config, ppo_loss, aggregate, batch, plans, update=update)
        loss = result.loss
        bonus = config.entropy_bonus_in_force
        if bonus and entropy is not None:
            # The mean over the tokens of the step; TRL's own bonus is the mean of means of micro-batches.
            loss = loss - bonus * (entropy * self._token_weights(mask, inputs, "dapo")).sum()
        self._rollout.observe(inputs["sample_ids"], result.record)
        self._rollout.add(Mean("policy_loss", loss.detach(), 1 / self.accumulation))
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple:
        """Hand TRL's loss the forward pass of ``_compute_loss``; run one where there is none."""
        forward, self._forward = self._forward, None
        return super()._get_per_token_logps_and_entropies(*args, **kwargs) if forward is None else forward

    @torch.no_grad()
    def _plan_update(self) -> list[list[Plan]]:
        """Return what each method does to the tokens of each micro-batch of the coming optimizer step."""
        first = self._step % self.args.steps_per_generation
        window = self._buffered_inputs[first : first + self.accumulation]
        parts = [
            WindowPart(
                sample_ids=each["sample_ids"],
                log_probs=each["policy_log_probs"],
                advantages=each["advantages"][:, None].expand_as(each["policy_log_probs"]),
                action_mask=each["completion_mask"].bool(),
                entropy=each["policy_entropy"],
                proxy=each.get("proxy"),
            )
            for each in window
        ]
        moved = self._step % self.rollout_micro_batches > 0
        seen = policy_seen(self._planning.config, parts, moved, lambda place, _: self._score(window[place]))
        return plan_window(self._planning, parts, seen)

    def _token_weights(self, mask: Tensor, inputs: Mapping[str, Any], loss_type: str) -> Tensor:
        """Return the weight (B, A) with which TRL adds up the losses of tokens under a ``loss_type``."""
        weights = mask.float()
        if loss_type == "dapo":
            share = self.accumulation / self.args.steps_per_generation
            return weights / (inputs["num_items_in_batch"].clamp(min=1) / self.ranks.size * share)
        if loss_type == "grpo":
            weights = weights / mask.sum(1, keepdim=True).clamp(min=1) / len(mask)
        elif loss_type == "bnpo":
            weights = weights / mask.sum().clamp(min=1)
        else:
            weights = weights / (len(mask) * self.max_completion_length)
        return weights / self.accumulation

    # -- The policy before an update --

    @torch.no_grad()
    def _score(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies (B, A) of completions under the policy as it is now."""
        log_probs, entropy, _ = super()._get_per_token_logps_and_entropies(
            self.model,
            *_model_inputs(batch),
            batch_size=self.args.per_device_train_batch_size,
            compute_entropy=True,
        )
        return log_probs, entropy

    def _proxy(self, batch: Mapping[str, Any], min_p: float) -> Tensor:
        """Return log-probs (B, A) among the tokens that are at least ``min_p`` times as probable as the best one."""
        ids, mask, width = _model_inputs(batch)
        found = []
        for rows in torch.arange(len(ids)).split(self.args.per_device_train_batch_size):
            with self.accelerator.autocast():
                logits = self.model(input_ids=ids[rows], attention_mask=mask[rows], logits_to_keep=width + 1).logits
            targets = ids[rows, -width:].flatten()
            scores = min_p_scores_of_logits(logits[:, :-1].flatten(0, 1), targets, self.temperature, min_p)
            found.append(scores.view(len(rows), width))
        return torch.cat(found)

    def _check_model(self) -> None:
        self.config.check_reachable(self.model.get_input_embeddings().num_embeddings)
        if any(isinstance(module, nn.Dropout) and module.p > 0 for module in self.model.modules()):
            raise ValueError(
                "disable_dropout=False: with dropout the methods would see other log-probs than the loss; set "
                "disable_dropout=True"
            )

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
        values = rollout.finish()
        entropy, weighted, cov = (values[name] for name in ("entropy/mean", "cov/prob_weighted_mean", "cov/mean"))
        values |= self.dynamics.step(entropy, weighted, cov, self._learning_rate * self.updates)
        if self.controller:
            values |= self.controller.step(entropy, self._planning.config.entropy_target)
        values |= {"gradient/norm": sum(self._norms) / len(self._norms), "actor_lr": self._learning_rate}
        for method in self.config.methods:
            message = method.idle(values, self.updates)
            if message and message not in self._warned:
                self._warned.add(message)
                logger.warning(message)
        if self.accelerator.is_main_process:
            if self._metrics_log is None:
                self._metrics_log = MetricsLog(Path(self.args.output_dir, METRICS_FILE), self._number - 1)
            self._metrics_log.write(self._number, values)
        for name, value in values.items():
            # TRL logs the reward itself, and takes means over the finite values of a metric.
            if name != "reward" and math.isfinite(value):
                self._metrics["train"][name].append(value)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            state = {"dynamics": self.dynamics.state_dict()}
            if self.controller:
                state["controller"] = self.controller.state_dict()
            folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
            (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and Path(checkpoint, STATE_FILE).exists():
            state = json.loads(Path(checkpoint, STATE_FILE).read_text(encoding="utf-8"))
            self.dynamics.load_state_dict(state["dynamics"])
            if self.controller:
                self.controller.load_state_dict(state.get("controller"))


class _TrlLoss:
    """TRL's loss with the call of OpenRLHF's ``PolicyLoss``, which ``policy_loss`` expects."""

    policy_loss_type = "ppo"
    is_correction_level = "off"
    token_level_loss = True

    def __init__(self, loss: Callable[[Tensor], Tensor], clip: tuple[float, float], dual_clip: float | None) -> None:
        self.loss = loss
        self.clip_eps_low, self.clip_eps_high = clip
        self.dual_clip = dual_clip

    def __call__(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *_: Any) -> tuple:
        """Return TRL's loss of advantages (B, A). TRL logs the clipped share and the KL divergence itself."""
        nothing = log_probs.new_zeros(())
        return self.loss(advantages), nothing, nothing, None, None


def _model_inputs(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor, int]:
    """Return token ids and attention mask (B, P + A), and A, of prompts and completions."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    return ids, mask, batch["completion_ids"].shape[1]
