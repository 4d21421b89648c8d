"""All updates of the critic in one global step, on one rank (``--algo.advantage.estimator gae``)."""

from collections.abc import Sequence

from openrlhf.models import ValueLoss
from openrlhf.models.utils import masked_mean

from openrlhf_cov.trainer.batches.windows import loss_normalizers, start_micro_batch, windows_of_epoch
from openrlhf_cov.trainer.losses import means_over_tokens, means_over_updates
from openrlhf_cov.trainer.model.trained_model import TrainedModel
from openrlhf_cov.trainer.records import MicroBatch, StepResult, StepSettings, TrainSample
from openrlhf_cov.trainer.step_seed import seed_step
from openrlhf_cov.utils.metrics import Mean, MetricBuffer


def update_critic(critic: TrainedModel, settings: StepSettings, samples: Sequence[TrainSample]) -> StepResult:
    """Train the critic on the samples that this rank got in a global step: values toward returns.

    Every rank calls this function with its own samples. All of them make the same number of updates.

    Args:
        critic: The critic of this rank.
        settings: The settings of the step, of which the number of the step is used.
        samples: The samples of this rank, with values and returns.

    Returns:
        Loss, learning rate and gradient norm as means over the updates, the mean of the values over the action tokens
        of all ranks, and the number of skipped updates.

    Raises:
        RunStopped: As ``openrlhf_cov.trainer.update.update_policy``.
    """
    args = critic.args
    ranks = critic.ranks
    layout = critic.layout
    seed_step(critic.strategy, settings.step)
    value_loss = ValueLoss(args.critic.value_clip)
    skipped_before = critic.bad_updates.total
    metrics = MetricBuffer()

    critic.engine.train()  # models are loaded in evaluation mode
    for epoch in range(args.train.max_epochs):
        for window in windows_of_epoch(samples, layout, ranks, step=settings.step, epoch=epoch, device=critic.device):
            micro_batches = [MicroBatch.of(each).to(critic.device) for each in window.micro_batches]
            samples_of_window = sum(map(len, window.micro_batches))
            normalizers = loss_normalizers(window, layout, ranks, graded=True)
            for number, micro_batch in enumerate(micro_batches):
                ends_update = number + 1 == len(micro_batches)
                start_micro_batch(critic.engine, layout, ends_update=ends_update)
                values, output = critic.engine(
                    micro_batch.tokens,
                    action_mask=micro_batch.action_mask,
                    attention_mask=micro_batch.attention_mask,
                    return_output=True,
                    ring_attn_group=critic.strategy.ring_attn_group,
                )
                # Samples whose reward function abstained have no return to learn.
                graded = micro_batch.graded_mask
                loss = value_loss(
                    values,
                    micro_batch.values,
                    micro_batch.returns,
                    action_mask=graded,
                    **normalizers,
                )
                total = loss
                # As in upstream, the critic's experts are balanced by the flag of the policy.
                if args.actor.aux_loss_coef > 1e-8:
                    share = len(micro_batch.tokens) / samples_of_window if layout.dynamic else 1.0
                    total = loss + output.aux_loss * args.actor.aux_loss_coef * share
                critic.end_micro_batch(total, micro_batch, step=settings.step, ends_update=ends_update)
                tokens = graded.sum()
                metrics.add(
                    *means_over_updates({"critic_loss": loss}, tokens, len(micro_batches), layout.dynamic),
                    *means_over_tokens({"values": masked_mean(values, graded)}, tokens),
                )
                if ends_update:
                    metrics.add(
                        Mean("critic_lr", critic.scheduler.get_last_lr()[0], 1),
                        Mean("critic_grad_norm", critic.strategy.get_grad_norm(critic.engine), 1),
                    )

    # All metrics are means, which add up over the ranks.
    found = metrics.reduce(lambda sums, _: ranks.all_reduce_sum(sums.to(critic.device)))
    found["critic_skipped_updates"] = float(critic.bad_updates.total - skipped_before)
    return StepResult(found)
