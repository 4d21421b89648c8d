"""GRPO from top to bottom, in one process: sample, score, plan and update, measure, evaluate.

It is made of what the Ray run is made of: ``MethodLoss`` around upstream's PPO loss, the window of an optimizer step,
the methods, the diagnostics. Only the policy, the sampler and the optimizer are plain PyTorch, so that a step of the
embedded tasks takes a fraction of a second.
"""

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from openrlhf.models.loss import PolicyLoss, aggregate_loss
from openrlhf.models.utils import compute_approx_kl
from torch import Tensor
from transformers import LlamaForCausalLM

from openrlhf_cov.lab.policy import Samples, log_probs_and_entropy, sample, until_end
from openrlhf_cov.lab.settings import PPO_CLIP, LabSettings
from openrlhf_cov.lab.tasks import Question, Task
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.diagnostics import update_metrics
from openrlhf_cov.models.dynamics import EntropyDynamics
from openrlhf_cov.models.loss import LossRecord, MethodLoss
from openrlhf_cov.models.method import Groups, Plan, TokenBatch
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
from openrlhf_cov.utils.prompts import prompts_ids

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
        self.words: list[str] = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.base = frozen(model) if base is None else base
        """The policy that ``kl_coef`` holds it to, and ``base_kl`` measures it against: ``model`` as it is now."""
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        low, high = settings.clip if any(settings.clip) else config.at(0).ppo_clip or PPO_CLIP
        by_token = config.aggregation is None  # as --actor.loss_agg_mode token-mean
        self.loss = MethodLoss(
            config, policy_loss=PolicyLoss(low, high, token_level_loss=by_token), aggregate=aggregate_loss
        )
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.problems = random.Random(f"problems {settings.seed}")
        self.coin = random.Random(f"coin {settings.seed}")
        self.dynamics = EntropyDynamics()
        self.controller = config.controller()

    def run(self) -> Iterator[tuple[int, dict[str, float], dict[str, float] | None]]:
        """(global step from 1, its metrics, the evaluation after it or None) of every step."""
        evaluated = frozenset(self.settings.evaluated)
        for step in range(1, self.settings.steps + 1):
            metrics = self.step(step)
            yield step, metrics, self.evaluate() if step in evaluated else None

    def step(self, step: int) -> dict[str, float]:
        """One rollout and its updates, and what was measured on the way."""
        prompts, samples, scores = self.roll_out()
        rollout = self.score(samples, scores, self.config.at(step - 1))
        buffer = MetricBuffer()
        sums, groups = token_sums(rollout), group_sums(rollout, self.settings.group, self.settings.prompts)
        buffer.add(*rollout_metrics(rollout, sums, groups, self.settings.group))
        logged = self.update(step, prompts, samples.responses, rollout, buffer)
        if self.controller:
            logged |= self.controller.step(mean_entropy(sums).item(), self.loss.config.entropy_target)
        values = buffer.reduce(lambda tensor, op: tensor)
        eta = self.settings.learning_rate * self.settings.updates
        names = ("entropy/mean", "cov/prob_weighted_mean", "cov/mean")
        entropy, weighted, covariance = (values[name] for name in names)
        values |= self.dynamics.step(entropy, weighted, covariance, eta)
        lengths = rollout.action_mask.sum(1).float()
        cut = ~samples.responses.eq(self.eos).any(1)
        values |= {"response_length": lengths.mean().item(), "truncated": cut.float().mean().item()}
        return values | logged | {"reward": scores.mean().item()}

    def roll_out(self) -> tuple[Tensor, Samples, Tensor]:
        """Prompts (B, P), samples (B, A) and scores (B,), the samples of a group one after another."""
        asked = [self.task.draw(self.problems) for _ in range(self.settings.prompts)]
        prompts, samples = self._ask(asked, self.settings.group, self.generator, self.config.proxy_min_p)
        scores = self._right(samples, asked, self.settings.group).flatten().float()
        if self.settings.random_reward:
            scores = torch.tensor([float(self.coin.random() < 0.5) for _ in scores])
        return prompts.repeat_interleave(self.settings.group, 0), samples, scores

    def score(self, samples: Samples, scores: Tensor, config: CovConfig) -> Rollout:
        """The samples with the advantages of an estimator of ``config`` or GRPO's; log-probs and entropies are those
        that the sampler saw."""
        mask = until_end(samples.responses, self.eos)
        groups = Groups(scores.view(-1, self.settings.group), samples.entropy[mask].mean().item())
        estimate = config.estimator and config.estimator.estimate
        advantages = estimate(config, groups).nan_to_num(0.0) if estimate else group_normalised(groups.rewards)
        return Rollout(
            log_probs=samples.log_probs * mask,
            entropy=samples.entropy * mask,
            advantages=advantages.view(-1, 1) * mask,
            action_mask=mask,
            scores=scores,
            sample_ids=torch.arange(len(scores)),
            proxy=samples.proxy,
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
            *values, selected = self.optimize(step, prompts, responses, rollout, rows, number == 0, buffer)
            logged.append(values)
            chosen[rows] = selected
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
    ) -> tuple[float, float, Tensor]:
        """Loss, norm of the gradient and selected tokens (rows, A) of one optimizer step on ``rows``.

        ``first`` after a rollout. Micro-batches add up to the step: each loss is over the tokens of all of them.
        """
        parts = rows.split(self.settings.micro_batch or len(rows))
        global_plans = self.loss.config.plans_globally
        plans = self._plans(step, prompts, responses, rollout, parts, first) if global_plans else []
        tokens = rollout.action_mask[rows].sum()
        sizes = {"batch_num_tokens": tokens, "global_batch_size": len(rows)}
        moved = self.loss.config.entropy_bonus_in_force
        bonus = self.settings.entropy_coef if moved is None else moved
        self.optimizer.zero_grad()
        losses, selected = [], []
        for number, part in enumerate(parts):
            if global_plans:
                self.loss.expect(plans[number])
            log_probs, entropy = log_probs_and_entropy(self.model, prompts[part], responses[part])
            mask, old, advantages = rollout.action_mask[part], rollout.log_probs[part], rollout.advantages[part]
            loss, *_ = self.loss(log_probs, old, advantages, action_mask=mask, rollout_log_probs=old, **sizes)
            buffer.add(*update_metrics(self.record))
            losses.append(loss.item())
            selected.append(self.record.selected)
            if bonus:
                loss = loss - bonus * (entropy * mask).sum() / tokens
            if self.settings.kl_coef:
                base = self._base_log_probs(prompts[part], responses[part])
                kl = compute_approx_kl(log_probs, base, kl_estimator="k3")
                loss = loss + self.settings.kl_coef * aggregate_loss(kl, mask, batch_num_tokens=tokens)
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return sum(losses), norm.item(), torch.cat(selected)

    @property
    def record(self) -> LossRecord:
        """What the last call of the loss did."""
        if self.loss.record is None:
            raise RuntimeError("no update was made yet")
        return self.loss.record

    @torch.no_grad()
    def _plans(
        self,
        step: int,
        prompts: Tensor,
        responses: Tensor,
        rollout: Rollout,
        parts: Sequence[Tensor],
        first: bool,
    ) -> Sequence[Sequence[Plan]]:
        """What each method does to the tokens of each micro-batch of an optimizer step, seen as a whole before it."""
        config = self.loss.config
        current = not first and (config.asks_log_probs or config.entropy_policy == "current")
        batches, keys, entropies, old_entropies, proxies = [], [], [], [], []
        for rows in parts:
            log_probs, entropy = rollout.log_probs[rows], rollout.entropy[rows]
            if current:
                now, entropy_now = log_probs_and_entropy(self.model, prompts[rows], responses[rows])
                log_probs = now if config.asks_log_probs else log_probs
                entropy = entropy_now if config.entropy_policy == "current" else entropy
            mask = rollout.action_mask[rows]
            batches.append(TokenBatch(log_probs, rollout.log_probs[rows], rollout.advantages[rows], mask))
            keys.append(token_keys(self.settings.seed, step, rollout.sample_ids[rows], mask.shape[1]))
            entropies.append(entropy)
            old_entropies.append(rollout.entropy[rows])
            proxies.append(None if rollout.proxy is None else rollout.proxy[rows])
        others = entropies, old_entropies, mean_entropy(token_sums(rollout)), proxies
        return plan_step(config, Window(batches, keys, self.loss.ppo_clip, ALONE, *others))

    @torch.no_grad()
    def _base_log_probs(self, prompts: Tensor, responses: Tensor) -> Tensor:
        return log_probs_and_entropy(self.base, prompts, responses)[0]

    def evaluate(self) -> dict[str, float]:
        """Greedy accuracy, and at temperature 1 accuracy, pass@k, entropy and length, on the validation split.

        ``base_kl`` is the KL divergence of the policy from the base policy in nats per token, estimated by the mean
        log ratio of these samples. Accuracy and pass@k of each kind of problem, too. The prompts and random numbers
        are the same every time, and the state of the run is not touched.
        """
        settings, asked = self.settings, self.task.validation
        greedy = self._greedy(asked)
        prompts, samples = self._ask(asked, settings.eval_samples, torch.Generator().manual_seed(1))
        right = self._right(samples, asked, settings.eval_samples)
        mask = until_end(samples.responses, self.eos)
        scores = {
            "greedy": greedy.float(),
            "sampled": right.float().mean(1),
            f"pass@{settings.eval_samples}": right.any(1).float(),
        }
        kinds = [self.task.kind(problem) for problem in asked]
        values = {name: each.mean().item() for name, each in scores.items()}
        for kind in sorted(set(kinds) - {""}):
            of_kind = torch.tensor([each == kind for each in kinds])
            values |= {f"{name}/{kind}": each[of_kind].mean().item() for name, each in scores.items()}
        entropy = samples.entropy * mask
        tokens = mask.sum(0)
        base = self._base_log_probs(prompts.repeat_interleave(settings.eval_samples, 0), samples.responses)
        values |= {"entropy": (entropy.sum() / mask.sum()).item(), "length": mask.sum(1).float().mean().item()}
        values["base_kl"] = ((samples.log_probs - base) * mask).sum().item() / mask.sum().item()
        return values | {f"entropy/position_{p}": value for p, value in enumerate((entropy.sum(0) / tokens).tolist())}

    def test(self) -> tuple[Tensor, Tensor]:
        """Which problems (N,) of the test split are answered right greedily, and which samples (N, K) of each."""
        samples = self.settings.test_samples
        greedy = self._greedy(self.task.test)
        _, drawn = self._ask(self.task.test, samples, torch.Generator().manual_seed(2))
        return greedy, self._right(drawn, self.task.test, samples)

    def _greedy(self, asked: Sequence[Question]) -> Tensor:
        return self._right(self._ask(asked, 1, None)[1], asked, 1)[:, 0]

    def _ask(
        self, asked: Sequence[Question], each: int, generator: torch.Generator | None, min_p: float | None = None
    ) -> tuple[Tensor, Samples]:
        """Prompts (N, P) and ``each`` samples of every one (N * each, A), greedy ones without a generator."""
        prompts = torch.tensor(prompts_ids([problem.prompt for problem in asked], self.tokenizer))
        return prompts, sample(self.model, prompts, self.task.tokens, generator, self.eos, self.pad, each, min_p)

    def _right(self, samples: Samples, asked: Sequence[Question], each: int) -> Tensor:
        """Booleans (N, each)."""
        lengths = until_end(samples.responses, self.eos).sum(1).tolist()
        rows = zip(samples.responses.tolist(), lengths, strict=True)
        texts = ["".join(self.words[token] for token in row[:length]) for row, length in rows]
        found = [self.task.is_right(text, asked[place // each].label) for place, text in enumerate(texts)]
        return torch.tensor(found).view(-1, each)


def frozen(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """A copy that nothing trains."""
    return copy.deepcopy(model).eval().requires_grad_(False)
