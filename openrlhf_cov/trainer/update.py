"""All updates of the policy in one global step, on one rank.

The samples of the step are cut into windows, one per optimizer step. For every window:

1. Each method of the run makes a plan: which tokens it drops, weighs or penalises. It sees all tokens of the window,
   those of other ranks included; with ``--cov_scope micro_batch`` it sees one micro-batch at a time.
2. Each micro-batch of the window runs forward; its loss is PPO's with the plans, the KL loss and the entropy bonus.
3. DeepSpeed steps at the end of the window, unless the gradient is not finite.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from openrlhf.models import aggregate_loss
from tqdm import tqdm

from openrlhf_cov.models.loss import clip_of, draws_of_step, policy_loss
from openrlhf_cov.models.planning import PlanningStep
from openrlhf_cov.trainer.batches.windows import loss_normalizers, start_micro_batch, windows_of_epoch
from openrlhf_cov.trainer.intervals import is_due
from openrlhf_cov.trainer.losses import (
    filter_share,
    means_over_tokens,
    means_over_updates,
    token_batch,
    whole_loss,
)
from openrlhf_cov.trainer.metrics.observation import StepDiagnostics
from openrlhf_cov.trainer.metrics.token_dump import dump_tokens
from openrlhf_cov.trainer.model.policy import Policy
from openrlhf_cov.trainer.records import MicroBatch, StepResult, StepSettings, TrainSample
from openrlhf_cov.trainer.step_seed import seed_step
from openrlhf_cov.trainer.window_plans import window_plans


def update_policy(policy: Policy, settings: StepSettings, samples: Sequence[TrainSample]) -> StepResult:
    """Train the policy on the samples that this rank got in a global step.

    Every rank calls this function with its own samples. All of them make the same number of updates.

    Returns:
        The metrics of the step over all ranks, its mean entropy, and the number and learning rate of its updates.

    Raises:
        RunStopped: The samples make no whole number of updates, or the gradient stays NaN (``--train.on_nan stop``).
    """
    config = settings.config
    args = policy.args
    rank = seed_step(policy.strategy, settings.step)
    ppo_loss = policy.ppo_loss(config)
    # The coefficient of the entropy bonus. None: entropies are not computed; 0: they are only logged.
    bonus = config.entropy_bonus_in_force
    bonus = args.actor.entropy_coef if bonus is None else bonus
    updates_before = policy.engine.global_steps
    skipped_before = policy.bad_updates.total
    norms: list[float] = []

    # Entropy and covariance of the step are measured once, with the policy before its first update.
    diagnostics = StepDiagnostics(samples, args.rollout.n_samples_per_prompt, policy.ranks, policy.device)
    planning = PlanningStep(
        config,
        policy.strategy.seed,
        settings.step,
        clip_of(ppo_loss),
        diagnostics.mean_entropy,
        policy.ranks,
        diagnostics.positive_prompts() if config.uses_positive_prompts else None,
    )
    draws = draws_of_step(policy.strategy.seed, settings.step, rank, policy.device)

    policy.actor.train()  # models are loaded, and score, in evaluation mode
    moved = False
    for epoch in range(args.train.max_epochs):
        planning = replace(planning, epoch=epoch)
        windows = windows_of_epoch(
            samples, policy.layout, policy.ranks, step=settings.step, epoch=epoch, device=policy.device
        )
        title = f"Train epoch [{epoch + 1}/{args.train.max_epochs}]"
        for window in tqdm(windows, desc=title, unit="update", disable=not policy.strategy.is_rank_0()):
            micro_batches = [MicroBatch.of(each).to(policy.device) for each in window.micro_batches]
            samples_of_window = sum(map(len, window.micro_batches))
            normalizers = loss_normalizers(window, policy.layout, policy.ranks)
            # Where the reward function abstained, advantages are 0. The policy loss is a mean over the other samples.
            of_graded = loss_normalizers(window, policy.layout, policy.ranks, graded=True)

            plans_of = window_plans(policy, planning, diagnostics, micro_batches, moved, draws)

            for index, micro_batch in enumerate(micro_batches):
                ends_update = index + 1 == len(micro_batches)
                start_micro_batch(policy.engine, policy.layout, ends_update=ends_update)
                forward = policy.forward(micro_batch, with_entropy=bonus is not None)
                batch = token_batch(micro_batch, forward.log_probs)
                plans = plans_of(index, batch)

                # Policy loss, and the whole loss, which is differentiated.
                update = policy.engine.global_steps
                result = policy_loss(config, ppo_loss, aggregate_loss, batch, plans, update=update, **of_graded)
                # DeepSpeed divides by the number of static micro-batches. Dynamic ones have shares of their own.
                share = len(micro_batch.tokens) / samples_of_window if policy.layout.dynamic else 1.0
                loss, losses, numbers, logprobs_diff = whole_loss(
                    policy, settings, micro_batch, forward, result, bonus=bonus, share=share, normalizers=normalizers
                )
                policy.backward(loss)
                policy.end_micro_batch(ends_update=ends_update)

                if ends_update:
                    norms.append(policy.strategy.get_grad_norm(policy.actor))
                    policy.bad_updates.check(settings.step, micro_batch)
                diagnostics.observe(micro_batch.sample_ids, result.record)
                tokens = micro_batch.action_mask.sum()
                diagnostics.add(*means_over_updates(losses, tokens, len(micro_batches), policy.layout.dynamic))
                diagnostics.add(*means_over_tokens({"logprobs_diff": logprobs_diff}, tokens))
                diagnostics.add(*means_over_tokens(numbers, batch.action_mask.sum()))
                of_sequences = args.algo.advantage.is_correction_level == "seq"
                diagnostics.add(*filter_share(result.filtered_frac, batch.action_mask, of_sequences))
            moved = True

    # One reduction over the ranks for all metrics.
    updates = policy.engine.global_steps - updates_before
    metrics = diagnostics.finish()
    metrics["actor_lr"] = learning_rate = policy.scheduler.get_last_lr()[0]
    metrics["actor_grad_norm"] = norms[-1] if norms else math.nan
    metrics["gradient/norm"] = sum(norms) / len(norms) if norms else math.nan
    metrics["ppo/skipped_updates"] = float(policy.bad_updates.total - skipped_before)
    for method in config.methods:
        policy.warn_once(method.idle(metrics, updates))
    if is_due(settings.step + 1, config.cov_dump_every):
        dump_tokens(diagnostics, samples, policy.tokenizer, config, policy.strategy, settings.step)
    return StepResult(metrics, float(diagnostics.mean_entropy), updates, learning_rate)
