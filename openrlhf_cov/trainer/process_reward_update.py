"""All updates of the process reward model in one global step, on one rank."""

from collections import defaultdict
from collections.abc import Sequence

import torch

from openrlhf_cov.models.cov_config import process_reward_of
from openrlhf_cov.models.process_rewards import correctness_losses
from openrlhf_cov.trainer.batches.windows import loss_normalizers, start_micro_batch, windows_of_epoch
from openrlhf_cov.trainer.model.trained_model import TrainedModel
from openrlhf_cov.trainer.records import MicroBatch, StepResult, StepSettings, TrainSample
from openrlhf_cov.trainer.step_seed import seed_step


def update_process_reward(model: TrainedModel, settings: StepSettings, samples: Sequence[TrainSample]) -> StepResult:
    """Train the process reward model on the samples that this rank got in a global step, once.

    The loss of an update is the mean cross-entropy of its responses, over all ranks and micro-batches.

    Args:
        model: The model of this rank.
        settings: What the ranks are told about the step.
        samples: Samples made by ``openrlhf_cov.trainer.process_reward_scores.labelled_samples``: ``score`` is 1 for a
            correct response and 0 for an incorrect one, ``base_log_probs`` are those of the reference. A sample
            without an action token does not count.

    Returns:
        Means over the updates, and the number of skipped updates; equal on all ranks.

    Raises:
        RunStopped: As ``update.update_policy``.
    """
    ranks = model.ranks
    layout = model.layout
    options = process_reward_of(settings.config)
    assert options is not None  # a run with this model has its settings
    seed_step(model.strategy, settings.step)
    skipped_before = model.bad_updates.total
    sums: defaultdict[str, float] = defaultdict(float)
    updates = 0

    model.model.train()
    for window in windows_of_epoch(samples, layout, ranks, step=settings.step, epoch=0, device=model.device):
        normalizers = loss_normalizers(window, layout, ranks)
        # A window in which all reward functions abstained has no loss.
        responses = normalizers["global_batch_size"].clamp(min=1e-6)
        loss_of_rank = torch.zeros((), device=model.device)
        for number, of_micro_batch in enumerate(window.micro_batches):
            ends_update = number + 1 == len(window.micro_batches)
            micro_batch = MicroBatch.of(of_micro_batch).to(model.device)
            correct = torch.tensor([sample.score for sample in of_micro_batch], device=model.device)
            start_micro_batch(model.engine, layout, ends_update=ends_update)
            log_probs = model.model(
                micro_batch.tokens,
                micro_batch.action_mask,
                attention_mask=micro_batch.attention_mask,
                ring_attn_group=model.strategy.ring_attn_group,
            )
            mask = micro_batch.action_mask
            losses = correctness_losses(log_probs.float() - micro_batch.base_log_probs, mask, correct, options.beta)
            # A response without action tokens is one whose reward function abstained.
            total = losses.masked_fill(~mask.any(1), 0.0).sum()
            loss = total * normalizers["dp_size"] / responses
            model.end_micro_batch(loss, micro_batch, step=settings.step, ends_update=ends_update)
            if ends_update:
                sums["prm/grad_norm"] += model.strategy.get_grad_norm(model.model)
            loss_of_rank += total.detach()
        # Every rank holds a part of the window's responses.
        loss_of_window = ranks.all_reduce_sum(loss_of_rank) / window.samples.clamp(min=1)
        sums["prm/loss"] += float(loss_of_window)
        updates += 1

    metrics = {name: total / updates for name, total in sums.items()} if updates else {}
    metrics["prm/lr"] = model.scheduler.get_last_lr()[0]
    metrics["prm/skipped_updates"] = float(model.bad_updates.total - skipped_before)
    return StepResult(metrics, updates=updates)
