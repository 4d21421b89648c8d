"""GRPO from top to bottom, in one process: sample, score, plan and update, measure, evaluate.

It is made of what the Ray run is made of: ``MethodLoss`` around upstream's PPO loss, the window of an optimizer step,
the methods, the diagnostics. Only the policy, the sampler and the optimizer are plain PyTorch, so that a step of the
embedded tasks takes a fraction of a second.
"""

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from openrlhf.models.loss import PolicyLoss, aggregate_loss
from openrlhf.models.utils import compute_approx_kl
from torch import Tensor
from transformers import LlamaForCausalLM

from openrlhf_cov.lab.policy import log_probs_and_entropy, sample
from openrlhf_cov.lab.settings import LabSettings
from openrlhf_cov.lab.tasks import Problem, Task
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.diagnostics import update_metrics
from openrlhf_cov.models.dynamics import EntropyDynamics
from openrlhf_cov.models.loss import LossRecord, MethodLoss
from openrlhf_cov.models.method import Groups, TokenBatch
from openrlhf_cov.models.ranking import token_keys
from openrlhf_cov.models.responses import group_normalised
from openrlhf_cov.models.rollout import (
    Rollout,
    group_sums,
    mean_entropy,
    rollout_metrics,
    selection_metrics,
    token_sums,
)
from openrlhf_cov.models.window import ALONE, Window, plan_step
from openrlhf_cov.rewards.addition import EOS_TOKEN
from openrlhf_cov.tiny_task.tokenizer import PAD_TOKEN
from openrlhf_cov.utils.metrics import MetricBuffer

ENDS = (EOS_TOKEN, PAD_TOKEN)


class Lab:
    """One run: ``model`` is trained in place, a global step at a time. Two with equal settings give equal numbers."""

    def __init__(
        self,
        task: Task,
        model: LlamaForCausalLM,
        tokenizer: Any,
        settings: LabSettings,
        config: CovConfig,
        base: LlamaForCausalLM | None = None,
    ) -> None:
        self.task, self.model, self.tokenizer, self.settings, self.config = task, model, tokenizer, settings, config
        self.eos, self.pad = (tokenizer.convert_tokens_to_ids(token) for token in ENDS)
        self.base = base
        """The policy that ``kl_coef`` holds it to."""
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        low, high = config.ppo_clip or settings.clip
        by_token = config.aggregation is None  # as --actor.loss_agg_mode token-mean
        self.loss = MethodLoss(
            config, policy_loss=PolicyLoss(low, high, token_level_loss=by_token), aggregate=aggregate_loss
        )
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.problems = random.Random(f"problems {settings.seed}")
        self.dynamics = EntropyDynamics()
        self.controller = config.controller()

    def run(self) -> Iterator[tuple[int, dict[str, float], dict[str, float] | None]]:
        """(global step from 1, its metrics, the evaluation after it or None) of every step."""
        for step in range(1, self.settings.steps + 1):
            metrics = self.step(step)
            due = step % self.settings.eval_every == 0 or step in (1, self.settings.steps)
            yield step, metrics, self.evaluate() if due else None

    def step(self, step: int) -> dict[str, float]:
        """One rollout and its updates, and what was measured on the way."""
        prompts, responses, scores = self.roll_out()
        rollout = self.score(prompts, responses, scores, self.config.at(step - 1))
        buffer = MetricBuffer()
        sums, groups = token_sums(rollout), group_sums(rollout, self.settings.group, self.settings.prompts)
        buffer.add(*rollout_metrics(rollout, sums, groups, self.settings.group))
        logged = self.update(step, prompts, responses, rollout, buffer)
        if self.controller:
            logged |= self.controller.step(mean_entropy(sums).item(), self.loss.config.entropy_target)
        values = buffer.reduce(lambda tensor, op: tensor)
        eta = self.settings.learning_rate * self.settings.updates
        names = ("entropy/mean", "cov/prob_weighted_mean", "cov/mean")
        entropy, weighted, covariance = (values[name] for name in names)
        values |= self.dynamics.step(entropy, weighted, covariance, eta)
        values |= {f"entropy/position_{place}": value for place, value in enumerate(_by_position(rollout))}
        lengths = rollout.action_mask.sum(1).float()
        return values | logged | {"reward": scores.mean().item(), "response_length": lengths.mean().item()}

    def roll_out(self) -> tuple[Tensor, Tensor, Tensor]:
        """Prompts (B, P), responses (B, A) and scores (B,), the samples of a group one after another."""
        drawn = [self.task.draw(self.problems) for _ in range(self.settings.prompts)]
        asked = [problem for problem in drawn for _ in range(self.settings.group)]
        prompts = self._ids(asked)
        responses = self._sample(prompts, self.generator)
        return prompts, responses, self._scores(responses, asked)

    @torch.no_grad()
    def score(self, prompts: Tensor, responses: Tensor, scores: Tensor, config: CovConfig) -> Rollout:
        """The samples under the policy that made them, with the advantages of an estimator of ``config`` or GRPO's."""
        self.model.eval()
        log_probs, entropy = log_probs_and_entropy(self.model, prompts, responses)
        mask = responses.ne(self.pad)
        groups = Groups(scores.view(-1, self.settings.group), entropy[mask].mean().item())
        estimate = config.estimator and config.estimator.estimate
        advantages = estimate(config, groups).nan_to_num(0.0) if estimate else group_normalised(groups.rewards)
        return Rollout(
            log_probs=log_probs * mask,
            entropy=entropy * mask,
            advantages=advantages.view(-1, 1) * mask,
            action_mask=mask,
            scores=scores,
            sample_ids=torch.arange(len(scores)),
        )

    def update(
        self, step: int, prompts: Tensor, responses: Tensor, rollout: Rollout, buffer: MetricBuffer
    ) -> dict[str, float]:
        """All optimizer steps of a rollout, each on other samples; the means of what upstream logs, too."""
        self.loss.start_step(self.config.at(step - 1, self.controller), self.settings.seed, step, rank=0)
        order = torch.randperm(len(prompts), generator=self.generator)
        chosen = torch.zeros_like(rollout.action_mask)
        logged = []
        for number, rows in enumerate(order.chunk(self.settings.updates)):
            logged.append(self.optimize(step, prompts, responses, rollout, rows, first=number == 0, buffer=buffer))
            chosen[rows] |= self.record.selected
        buffer.add(*selection_metrics(rollout.entropy, rollout.action_mask, chosen))
        losses, norms = zip(*logged, strict=True)
        return {"policy_loss": sum(losses) / len(losses), "gradient/norm": sum(norms) / len(norms)}

    def optimize(
        self,
        step: int,
        prompts: Tensor,
        responses: Tensor,
        rollout: Rollout,
        rows: Tensor,
        first: bool,
        buffer: MetricBuffer,
    ) -> tuple[float, float]:
        """The loss and the norm of the gradient of one optimizer step on ``rows``; ``first`` after a rollout."""
        self.model.train()
        if self.loss.config.plans_globally:
            self.loss.expect(self._plans(step, prompts[rows], responses[rows], rollout, rows, first))
        log_probs, entropy = log_probs_and_entropy(self.model, prompts[rows], responses[rows])
        mask, old, advantages = rollout.action_mask[rows], rollout.log_probs[rows], rollout.advantages[rows]
        tokens = mask.sum()
        sizes = {"batch_num_tokens": tokens, "global_batch_size": len(rows)}
        loss, *_ = self.loss(log_probs, old, advantages, action_mask=mask, rollout_log_probs=old, **sizes)
        buffer.add(*update_metrics(self.record))
        objective = loss
        moved = self.loss.config.entropy_bonus_in_force
        if bonus := self.settings.entropy_coef if moved is None else moved:
            objective = objective - bonus * (entropy * mask).sum() / tokens
        if self.settings.kl_coef:
            objective = objective + self.settings.kl_coef * self._kl(prompts[rows], responses[rows], log_probs, mask)
        self.optimizer.zero_grad()
        objective.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item(), norm.item()

    @property
    def record(self) -> LossRecord:
        """What the last call of the loss did."""
        if self.loss.record is None:
            raise RuntimeError("no update was made yet")
        return self.loss.record

    @torch.no_grad()
    def _plans(
        self, step: int, prompts: Tensor, responses: Tensor, rollout: Rollout, rows: Tensor, first: bool
    ) -> Sequence:
        """What each method does to the tokens of one optimizer step, seen as a whole before it."""
        config = self.loss.config
        log_probs, entropy = rollout.log_probs[rows], rollout.entropy[rows]
        if not first and (config.asks_log_probs or config.entropy_policy == "current"):
            now, entropy_now = log_probs_and_entropy(self.model, prompts, responses)
            log_probs = now if config.asks_log_probs else log_probs
            entropy = entropy_now if config.entropy_policy == "current" else entropy
        mask = rollout.action_mask[rows]
        batch = TokenBatch(log_probs, rollout.log_probs[rows], rollout.advantages[rows], mask)
        keys = token_keys(self.settings.seed, step, rollout.sample_ids[rows], mask.shape[1])
        entropies = [entropy], [rollout.entropy[rows]], mean_entropy(token_sums(rollout))
        [plans] = plan_step(config, Window([batch], [keys], self.loss.ppo_clip, ALONE, *entropies))
        return plans

    def _kl(self, prompts: Tensor, responses: Tensor, log_probs: Tensor, mask: Tensor) -> Tensor:
        if self.base is None:
            raise ValueError("kl_coef needs the base policy")
        with torch.no_grad():
            base, _ = log_probs_and_entropy(self.base, prompts, responses)
        kl = compute_approx_kl(log_probs, base, kl_estimator="k3")
        return aggregate_loss(kl, mask, batch_num_tokens=mask.sum())

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Greedy accuracy, accuracy at temperature 1 and pass@k on problems held out; over all and by kind.

        The same random numbers every time: the state of the run is not touched.
        """
        self.model.eval()
        settings, results = self.settings, {}
        for kind, held_out in self.task.held_out.items():
            prompts = self._ids(held_out)
            greedy = self._scores(self._sample(prompts, None), held_out)
            asked = [problem for problem in held_out for _ in range(settings.eval_samples)]
            generator = torch.Generator().manual_seed(1)
            drawn = self._sample(prompts.repeat_interleave(settings.eval_samples, 0), generator)
            right = self._scores(drawn, asked).view(-1, settings.eval_samples)
            results[kind] = {
                "greedy": greedy.mean().item(),
                "sampled": right.mean().item(),
                f"pass@{settings.eval_samples}": right.amax(1).mean().item(),
            }
        return _weighed(results, self.task.weights)

    def _sample(self, prompts: Tensor, generator: torch.Generator | None) -> Tensor:
        return sample(self.model, prompts, self.task.tokens, generator, self.eos, self.pad)

    def _ids(self, asked: Sequence[Problem]) -> Tensor:
        return torch.tensor([self.tokenizer.encode(problem.prompt) for problem in asked])

    def _scores(self, responses: Tensor, asked: Sequence[Problem]) -> Tensor:
        texts = self.tokenizer.batch_decode([[t for t in row if t != self.pad] for row in responses.tolist()])
        rows = zip(texts, asked, strict=True)
        return torch.tensor([float(self.task.is_right(text, problem.label)) for text, problem in rows])


def _by_position(rollout: Rollout) -> list[float]:
    """Mean entropy (nats) of the tokens at each place of a response."""
    totals = (rollout.entropy * rollout.action_mask).sum(0)
    return (totals / rollout.action_mask.sum(0).clamp(min=1)).tolist()


def _weighed(by_kind: Mapping[str, Mapping[str, float]], weights: Mapping[str, float]) -> dict[str, float]:
    """Each value over all kinds as they are drawn, and that of each kind where there are several."""
    names = next(iter(by_kind.values()))
    values = {name: sum(weights[kind] * of_kind[name] for kind, of_kind in by_kind.items()) for name in names}
    if len(by_kind) > 1:
        values |= {f"{name}/{kind}": of_kind[name] for kind, of_kind in by_kind.items() for name in names}
    return values


def frozen(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """A copy that nothing trains."""
    return copy.deepcopy(model).eval().requires_grad_(False)
