"""GRPO from top to bottom, in one process: sample, score, plan and update, measure, evaluate.

It is made of what the Ray run is made of: ``plan_window``, ``policy_loss`` around upstream's PPO loss, the methods and
the diagnostics. Only the policy, the sampler and the optimizer are plain PyTorch, so that a step of the
embedded tasks takes a fraction of a second.
"""

import copy
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from openrlhf.models.loss import PolicyLoss, aggregate_loss
from openrlhf.models.utils import compute_approx_kl
from torch import Tensor
from transformers import LlamaForCausalLM

from openrlhf_cov.data.rollout_files import RolloutHeader, tokenizer_digest
from openrlhf_cov.data.templates import prompts_ids
from openrlhf_cov.experiments.lab.early_stop import DECISION_ENTROPY, outcome_of
from openrlhf_cov.experiments.lab.lab_policy import Samples, log_probs_and_entropy, logits_of, sample, until_end
from openrlhf_cov.experiments.lab.lab_rollouts import read_step, recorded_samples, tensors_of, write_step
from openrlhf_cov.experiments.lab.lab_settings import PPO_CLIP, LabSettings
from openrlhf_cov.experiments.lab.mechanism import decision_metrics, drop_metrics, name_probabilities
from openrlhf_cov.experiments.lab.tasks import Question, Task
from openrlhf_cov.experiments.tiny_task.tokenizer import PAD_TOKEN
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.dynamics import EntropyDynamics
from openrlhf_cov.models.entropy_change import predicted_drop
from openrlhf_cov.models.loss import clip_of, draws_of_step, plan_micro_batch, policy_loss
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.planning import PlanningStep, WindowPart, plan_window, policy_seen
from openrlhf_cov.models.responses import mean_log_probs, response_advantages
from openrlhf_cov.models.rollout import RolloutTokens
from openrlhf_cov.models.rollout_metrics import RolloutMetrics
from openrlhf_cov.models.window import ALONE
from openrlhf_cov.rewards.addition import EOS_TOKEN

ENDS = (EOS_TOKEN, PAD_TOKEN)


class Lab:
    """One run: ``model`` is trained in place, a global step at a time. Runs with equal settings give equal numbers."""

    def __init__(
        self,
        task: Task,
        model: LlamaForCausalLM,
        tokenizer: Any,
        settings: LabSettings,
        config: CovConfig,
        base: LlamaForCausalLM | None = None,
        dump_dir: Path | None = None,
        replay_dir: Path | None = None,
    ) -> None:
        self.task = task
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings
        self.config = config
        self.eos, self.pad = (tokenizer.convert_tokens_to_ids(token) for token in ENDS)
        self.words: list[str] = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        # Policy that ``kl_coef`` pulls toward and ``base_kl`` is measured to: ``model`` as it is now.
        self.base = frozen(model) if base is None else base
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        # Prompts and coins have generators of their own. Methods with the same seed then train on the same prompts,
        # however many random numbers their responses take.
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.problems = random.Random(f"problems {settings.seed}")
        self.coin = random.Random(f"coin {settings.seed}")
        # Folders of recorded rollouts: where they are written, and from where they are read instead of sampled.
        self.dump_dir = dump_dir
        self.replay_dir = replay_dir
        self.digest = tokenizer_digest(tokenizer)
        self.dynamics = EntropyDynamics()
        self.controller = config.controller()

    def run(self) -> Iterator[tuple[int, dict[str, float], dict[str, float] | None]]:
        """Yield the number of every global step from 1, its metrics, and the evaluation after it or None.

        With ``--stop_early`` the run ends at the second evaluation in a row with the same ``outcome_of``.
        """
        evaluated = frozenset(self.settings.evaluated)
        outcome_before = None
        for step in range(1, self.settings.steps + 1):
            metrics = self.step(step)
            evaluation = self.evaluate() if step in evaluated else None
            yield step, metrics, evaluation
            if evaluation is None or not self.settings.stop_early:
                continue
            outcome = outcome_of(evaluation)
            # Twice in a row, because a single evaluation may cross a bound by chance.
            if outcome and outcome == outcome_before:
                return
            outcome_before = outcome

    def step(self, step: int) -> dict[str, float]:
        """Make one rollout and its updates, and return what was measured on the way."""
        prompts, samples, scores = self.roll_out() if self.replay_dir is None else self.replay(self.replay_dir, step)
        if self.dump_dir is not None:
            self.dump(self.dump_dir, step, prompts, samples, scores)
        rollout = self.rollout_tokens(samples, scores, self.config.at(step - 1))
        metrics = RolloutMetrics(rollout, self.settings.group, ALONE)
        config = self.config.at(step - 1, self.controller)
        positive_prompts = metrics.positive_prompts() if config.uses_positive_prompts else None
        planning = self.planning(step, config, metrics.mean_entropy, positive_prompts)
        logged = self.update(planning, prompts, samples.responses, metrics)
        if self.controller:
            logged |= self.controller.step(metrics.mean_entropy.item(), config.entropy_target)
        values = metrics.finish()
        # Stands for the step size of the theorems, which is known up to a constant.
        eta = self.settings.learning_rate * self.settings.updates
        names = ("entropy/mean", "cov/prob_weighted_mean", "cov/mean")
        entropy, weighted, covariance = (values[name] for name in names)
        values |= self.dynamics.step(entropy, weighted, covariance, eta)
        lengths = rollout.action_mask.sum(1).float()
        # A response without an end was cut at the limit of its length.
        cut = ~samples.responses.eq(self.eos).any(1)
        values |= {"response_length": lengths.mean().item(), "truncated": cut.float().mean().item()}
        return values | logged | {"reward": scores.mean().item()}

    def roll_out(self) -> tuple[Tensor, Samples, Tensor]:
        """Return prompts (B, P), samples (B, A) and scores (B,); the samples of a group follow one another."""
        asked = self.task.questions(self.problems, self.settings.prompts)
        prompts, samples = self._ask(
            asked,
            self.settings.group,
            self.generator,
            self.config.proxy_min_p,
            self._needs_discriminator_mean,
        )
        if self.task.mean_reward is None:
            scores = self._right(samples, asked, self.settings.group).flatten().float()
        else:
            # The task says how often a response is rewarded. Each sample gets a reward of 0 or 1 with that
            # probability.
            means = torch.tensor([self.task.mean_reward(text) for text in self._texts(samples)])
            scores = torch.bernoulli(means, generator=self.generator)
        if self.settings.random_reward:
            scores = torch.tensor([float(self.coin.random() < 0.5) for _ in scores])
        return prompts.repeat_interleave(self.settings.group, 0), samples, scores

    @property
    def _needs_discriminator_mean(self) -> bool:
        return self.config.needs_discriminator_mean or self.settings.record_mechanism

    def dump(self, folder: Path, step: int, prompts: Tensor, samples: Samples, scores: Tensor) -> None:
        """Write the file of a global step.

        Args:
            folder: ``--dump_dir``.
            step: Number of the global step, from 1.
            prompts: Token ids (B, P).
            samples: The responses (B, A) with their log-probs.
            scores: The rewards (B,).

        Raises:
            RunStopped: The file cannot be written.
        """
        header = RolloutHeader(step, self.settings.group, self.settings.prompts, self.digest)
        mask = until_end(samples.responses, self.eos)
        write_step(folder, header, recorded_samples(prompts, samples, mask, scores, self.tokenizer, self.eos))

    def replay(self, folder: Path, step: int) -> tuple[Tensor, Samples, Tensor]:
        """Return what ``roll_out`` returns, with the responses and scores of the file of a global step.

        Log-probs and entropies are those of the policy as it is now.

        Args:
            folder: ``--replay_dir``.
            step: Number of the global step, from 1.

        Raises:
            RunStopped: The file is missing or damaged, or does not fit this run.
        """
        each = self.settings.group
        fits = {"samples_per_prompt": each, "prompts_per_step": self.settings.prompts, "tokenizer": self.digest}
        recorded = read_step(folder, step, vocabulary=len(self.words), **fits)
        prompts, responses, scores = tensors_of(recorded, self.pad)
        samples = sample(
            self.model, prompts[::each], self.task.tokens, self.generator, self.eos, self.pad, each,
            self.config.proxy_min_p, self._needs_discriminator_mean, forced=responses,
        )  # fmt: skip
        return prompts, samples, scores

    def rollout_tokens(self, samples: Samples, scores: Tensor, config: CovConfig) -> RolloutTokens:
        """Return the samples with their advantages, by the estimator of the run's method or else by GRPO.

        Log-probs and entropies are those of the policy that sampled.

        Args:
            samples: The responses (B, A), the responses to one prompt one after another.
            scores: The rewards (B,).
            config: The settings of the step.

        Raises:
            RunStopped: An estimator for correct and incorrect responses meets other rewards.
        """
        mask = until_end(samples.responses, self.eos)
        rewards = scores.view(-1, self.settings.group)
        entropy = samples.entropy[mask].mean().item()
        log_probs = mean_log_probs(samples.log_probs, mask).view_as(rewards)
        # No reward of the lab abstains, so every response is graded. NaN is a response that an estimator leaves out;
        # the plan of its method drops the tokens with advantage 0.
        advantages = response_advantages(
            rewards, torch.ones_like(rewards, dtype=torch.bool), "group_norm", config, entropy, log_probs
        ).nan_to_num(0.0)
        return RolloutTokens(
            log_probs=samples.log_probs * mask,
            entropy=samples.entropy * mask,
            advantages=advantages.view(-1, 1) * mask,
            action_mask=mask,
            scores=scores,
            sample_ids=torch.arange(len(scores)),
            proxy=samples.proxy,
            discriminator_mean=samples.discriminator_mean,
        )

    def planning(
        self, step: int, config: CovConfig, rollout_entropy: Tensor, positive_prompts: Tensor | None = None
    ) -> PlanningStep:
        """Return what the updates of a global step have in common.

        Args:
            step: Number of the global step, from 1.
            config: The settings of the step.
            rollout_entropy: Mean entropy of all tokens of the rollout, 0-d, in nats.
            positive_prompts: Share of the prompts with a response of positive advantage, 0-d; None where no method
                uses it.
        """
        clip = clip_of(self.ppo_loss(config))
        return PlanningStep(config, self.settings.seed, step, clip, rollout_entropy, positive_prompts=positive_prompts)

    def ppo_loss(self, config: CovConfig) -> PolicyLoss:
        """Return upstream's PPO loss with the clip that is in force under the settings of a step."""
        # A clip of the flags wins over the clip that a method was published with.
        of_run = self.settings.clip if any(self.settings.clip) else self.config.at(0).ppo_clip or PPO_CLIP
        low, high = config.clip_of_step(of_run)
        # Without a published aggregation, as with --actor.loss_agg_mode token-mean.
        return PolicyLoss(low, high, token_level_loss=config.aggregation is None)

    def update(
        self, planning: PlanningStep, prompts: Tensor, responses: Tensor, metrics: RolloutMetrics
    ) -> dict[str, float]:
        """Make all optimizer steps of a rollout, each on other samples.

        Args:
            planning: What the updates of the global step have in common.
            prompts: Token ids (N, P).
            responses: Token ids (N, A).
            metrics: The metrics of the rollout, with its log-probs, entropies and advantages (N, A). They receive
                those of the updates.

        Returns:
            Means of loss and gradient norm over the updates, and numbers of ``--record_mechanism`` where it is set.
        """
        order = torch.randperm(len(prompts), generator=self.generator)
        # Rank 0: the lab is a single process.
        draws = draws_of_step(planning.seed, planning.global_step, 0, "cpu")
        losses: list[float] = []
        norms: list[float] = []
        for number, rows in enumerate(order.chunk(self.settings.updates)):
            loss, norm = self.optimize(planning, prompts, responses, metrics, rows, update=number, draws=draws)
            losses.append(loss)
            norms.append(norm)
        means = {"policy_loss": sum(losses) / len(losses), "gradient/norm": sum(norms) / len(norms)}
        if self.settings.record_mechanism:
            return means | self.mechanism(prompts, responses, metrics.rollout, metrics.selected)
        return means

    @torch.no_grad()
    def mechanism(
        self, prompts: Tensor, responses: Tensor, rollout: RolloutTokens, chosen: Tensor
    ) -> dict[str, float]:
        """Return what ``--record_mechanism`` adds to the metrics of a step, after its updates.

        Args:
            prompts: (B, P) of all samples of the rollout.
            responses: (B, A).
            rollout: The policy that sampled them.
            chosen: Mask (B, A) of the tokens that the method acted on.
        """
        assert rollout.discriminator_mean is not None
        mask = rollout.action_mask
        predicted = predicted_drop(
            rollout.log_probs, rollout.entropy, rollout.discriminator_mean, rollout.advantages, mask
        )
        _, entropy_after = log_probs_and_entropy(self.model, prompts, responses)
        values = drop_metrics(predicted, rollout.entropy, entropy_after, mask)
        if self.task.skill_of is None:
            return values
        place = self.task.decision_token
        asked = [self.task.skill_of(self._words(prompt)) for prompt in prompts.tolist()]
        said = [self.words[token] for token in responses[:, place].tolist()]
        advantages = rollout.advantages[:, place]
        return values | decision_metrics(self.task.skills, asked, said, advantages, chosen[:, place])

    def optimize(
        self,
        planning: PlanningStep,
        prompts: Tensor,
        responses: Tensor,
        metrics: RolloutMetrics,
        rows: Tensor,
        *,
        update: int,
        draws: torch.Generator,
    ) -> tuple[float, float]:
        """Make one optimizer step on the samples ``rows``.

        Micro-batches add up to the step: each loss is over the tokens of all of them.

        Args:
            planning: What the updates of the global step have in common.
            prompts: (B, P) of all samples of the rollout.
            responses: (B, A).
            metrics: The metrics of their rollout, which receive those of the update.
            rows: The samples of this step.
            update: Number of the update since the rollout, from 0.
            draws: The generator of ``--cov_scope micro_batch``.

        Returns:
            The loss and the norm of the gradient.
        """
        config = planning.config
        rollout = metrics.rollout
        ppo_loss = self.ppo_loss(config)
        parts = rows.split(self.settings.micro_batch or len(rows))
        # The first update sees the policy that sampled, so methods need no forward pass of their own for it.
        moved = update > 0
        window_plans = (
            self._plans(planning, prompts, responses, rollout, parts, moved) if config.plans_globally else []
        )
        tokens = rollout.action_mask[rows].sum()
        # Every micro-batch divides by the tokens and samples of the whole step, so that the losses add up to one mean.
        normalizers = {"batch_num_tokens": tokens, "global_batch_size": len(rows)}
        bonus = config.entropy_bonus_in_force
        bonus = self.settings.entropy_coef if bonus is None else bonus
        self.optimizer.zero_grad()
        total = 0.0
        for number, part in enumerate(parts):
            log_probs, entropy = log_probs_and_entropy(self.model, prompts[part], responses[part])
            mask = rollout.action_mask[part]
            old = rollout.log_probs[part]
            # The sampler is the trained model itself, so its log-probs are also those of the engine.
            batch = TokenBatch(log_probs, old, rollout.advantages[part], mask, rollout_log_probs=old)
            if config.plans_globally:
                plans: Sequence[Plan] = window_plans[number]
            else:
                plans = plan_micro_batch(config, batch, planning.ppo_clip, draws)
            result = policy_loss(config, ppo_loss, aggregate_loss, batch, plans, update=update, **normalizers)
            metrics.observe(rollout.sample_ids[part], result.record)
            total += result.loss.item()
            loss = result.loss
            if bonus:
                loss = loss - bonus * (entropy * mask).sum() / tokens
            if self.settings.kl_coef:
                base = self._base_log_probs(prompts[part], responses[part])
                kl = compute_approx_kl(log_probs, base, kl_estimator="k3")
                loss = loss + self.settings.kl_coef * aggregate_loss(kl, mask, batch_num_tokens=tokens)
            loss.backward()
        # The default of --actor.max_norm in the trainer.
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return total, norm.item()

    @torch.no_grad()
    def _plans(
        self,
        planning: PlanningStep,
        prompts: Tensor,
        responses: Tensor,
        rollout: RolloutTokens,
        parts: Sequence[Tensor],
        moved: bool,
    ) -> Sequence[Sequence[Plan]]:
        """Return what each method does to the tokens of each micro-batch of an optimizer step."""

        def score_now(place: int, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
            return log_probs_and_entropy(self.model, prompts[parts[place]], responses[parts[place]])

        window = [
            WindowPart(
                sample_ids=rollout.sample_ids[rows],
                log_probs=rollout.log_probs[rows],
                advantages=rollout.advantages[rows],
                action_mask=rollout.action_mask[rows],
                entropy=rollout.entropy[rows],
                proxy=None if rollout.proxy is None else rollout.proxy[rows],
                discriminator_mean=None if rollout.discriminator_mean is None else rollout.discriminator_mean[rows],
            )
            for rows in parts
        ]
        return plan_window(planning, window, policy_seen(planning.config, window, moved, score_now))

    @torch.no_grad()
    def _base_log_probs(self, prompts: Tensor, responses: Tensor) -> Tensor:
        return log_probs_and_entropy(self.base, prompts, responses)[0]

    def evaluate(self) -> dict[str, float]:
        """Return greedy accuracy, and at temperature 1 accuracy, pass@k, entropy and length, on the validation split.

        ``base_kl`` is the KL divergence of the policy from the base policy in nats per token, estimated by the mean
        log ratio of these samples. Accuracy and pass@k of each kind of problem, too. The prompts and random numbers
        are the same every time, and the state of the run is not touched.
        ``greedy_hard`` is the accuracy on the questions that the habit of the base policy does not answer, and
        ``distinct_correct`` the number of different correct responses among the samples of a question.
        """
        settings = self.settings
        asked = self.task.validation
        greedy = self._greedy(asked)
        # The same draws in every evaluation, so that a difference between two of them comes from the policy.
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
        hard = torch.tensor([self.task.needs_exploration(problem) for problem in asked])
        # Where all questions need exploration, the number would repeat "greedy".
        if not hard.all():
            values["greedy_hard"] = greedy[hard].float().mean().item()
        if self.task.has_many_answers:
            values["distinct_correct"] = self._distinct(samples, right).mean().item()
        entropy = samples.entropy * mask
        tokens = mask.sum(0)
        base = self._base_log_probs(prompts.repeat_interleave(settings.eval_samples, 0), samples.responses)
        values |= {"entropy": (entropy.sum() / mask.sum()).item(), "length": mask.sum(1).float().mean().item()}
        values["base_kl"] = ((samples.log_probs - base) * mask).sum().item() / mask.sum().item()
        # The mean at each position is over the responses that are so long.
        positions = (entropy.sum(0) / tokens).tolist()
        # No response reaches the decision token if all end before it.
        if self.task.decision_token < len(positions):
            values[DECISION_ENTROPY] = positions[self.task.decision_token]
        if settings.record_mechanism:
            values |= self._name_probabilities()
        return values | {f"entropy/position_{p}": value for p, value in enumerate(positions)}

    @torch.no_grad()
    def _name_probabilities(self) -> dict[str, float]:
        """Return the probability of each skill's name on the validation prompts of each skill; {} without skills."""
        task = self.task
        if task.skill_of is None:
            return {}
        prompts = torch.tensor(prompts_ids([problem.prompt for problem in task.validation], self.tokenizer))
        policy = logits_of(self.model, prompts, 1, [])[:, -1].softmax(-1)
        names = torch.tensor(self.tokenizer.convert_tokens_to_ids(list(task.skills)))
        asked = [task.skill_of(problem.prompt) for problem in task.validation]
        return name_probabilities(task.skills, asked, policy[:, names])

    def test(self) -> tuple[Tensor, Tensor]:
        """Return which test problems (N,) are solved greedily, and which samples (N, K) of each are correct."""
        samples = self.settings.test_samples
        greedy = self._greedy(self.task.test)
        _, drawn = self._ask(self.task.test, samples, torch.Generator().manual_seed(2))
        return greedy, self._right(drawn, self.task.test, samples)

    def _greedy(self, asked: Sequence[Question]) -> Tensor:
        return self._right(self._ask(asked, 1, None)[1], asked, 1)[:, 0]

    def _ask(
        self,
        asked: Sequence[Question],
        each: int,
        generator: torch.Generator | None,
        min_p: float | None = None,
        with_discriminator_mean: bool = False,
    ) -> tuple[Tensor, Samples]:
        """Return prompts (N, P) and ``each`` samples of every one (N * each, A), greedy ones without a generator."""
        prompts = torch.tensor(prompts_ids([problem.prompt for problem in asked], self.tokenizer))
        samples = sample(
            self.model,
            prompts,
            self.task.tokens,
            generator,
            self.eos,
            self.pad,
            each=each,
            min_p=min_p,
            with_discriminator_mean=with_discriminator_mean,
        )
        return prompts, samples

    def _right(self, samples: Samples, asked: Sequence[Question], each: int) -> Tensor:
        """Return which samples are correct, bool (N, each)."""
        texts = self._texts(samples)
        found = [self.task.is_right(text, asked[place // each].label) for place, text in enumerate(texts)]
        return torch.tensor(found).view(-1, each)

    def _distinct(self, samples: Samples, right: Tensor) -> Tensor:
        """Return the number of different correct responses (N,) among the samples of each question."""
        texts = self._texts(samples)
        each = right.shape[1]
        counts = [
            len({texts[question * each + place] for place, correct in enumerate(row) if correct})
            for question, row in enumerate(right.tolist())
        ]
        return torch.tensor(counts, dtype=torch.float32)

    def _texts(self, samples: Samples) -> list[str]:
        """Return the responses as texts, each with its end if it has one."""
        lengths = until_end(samples.responses, self.eos).sum(1).tolist()
        rows = zip(samples.responses.tolist(), lengths, strict=True)
        return [self._words(row[:length]) for row, length in rows]

    def _words(self, tokens: Sequence[int]) -> str:
        return "".join(self.words[token] for token in tokens)


def frozen(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a copy that nothing trains."""
    return copy.deepcopy(model).eval().requires_grad_(False)
