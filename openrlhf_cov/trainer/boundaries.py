"""Where an optimizer step ends: upstream's replay buffer, DeepSpeed and our windows must agree on it."""

from typing import Any

from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.rank_batches import shuffled

logger = init_logger(__name__)


class StepBoundaries:
    """Mixin over upstream's trainers of actor and critic, which have ``args``, ``strategy`` and ``replay_buffer``.

    With static micro-batches DeepSpeed counts them and steps after every ``accumulated_gradient``; its count goes on
    over rollouts, so one rollout that is no whole number of updates would shift all that follow. With dynamic ones
    upstream tells DeepSpeed that every micro-batch is a whole step, and DeepSpeed then keeps the gradient of the last
    one only; it is told the truth here.
    """

    max_epochs = 1
    """Upstream's trainers set it to ``--train.max_epochs``."""
    epoch = 0
    """Epochs over the replay buffer that this global step has completed; ``ppo_train`` starts it at 0."""

    def ends_step(self, number: int) -> bool:
        """True if micro-batch ``number`` of an epoch is the last one of its optimizer step."""
        if self.args.train.dynamic_batch_enable:
            return bool(self.replay_buffer.dynamic_optimizer_step[number])
        return (number + 1) % self._micro_batches_of_a_step == 0

    def align(self, engine: Any, number: int) -> None:
        """Let the DeepSpeed ``engine`` end its step where ours ends; call it before the forward of micro-batch
        ``number``. Raises RunStopped if it would end elsewhere."""
        ends = self.ends_step(number)
        if self.args.train.dynamic_batch_enable:
            engine.set_gradient_accumulation_boundary(ends)
        elif engine.is_gradient_accumulation_boundary() != ends:
            raise RunStopped(
                f"DeepSpeed {'does not end' if ends else 'ends'} an update at micro-batch {number + 1} of an epoch, "
                f"against --train.batch_size {self.args.train.batch_size}: an earlier rollout was no whole number of "
                "updates"
            )

    def shuffle_next_epoch(self, number: int) -> None:
        """Reorder the samples if micro-batch ``number`` is the last one of an epoch of dynamic batches.

        Upstream shuffles static batches anew in every epoch of a rollout, but repeats the updates of dynamic batches.
        Call this at the end of each ``training_step``, when the data loader has nothing left to read.

        All ranks move their samples in the same way. A rank holds the samples of an update from the longest to the
        shortest, so the samples at one place have similar lengths on all ranks, and the ranks stay balanced.
        """
        buffer = self.replay_buffer
        if not self.args.train.dynamic_batch_enable or number + 1 < len(buffer.dynamic_optimizer_step):
            return
        self.epoch += 1
        if self.epoch >= self.max_epochs:
            return
        count = sum(map(len, buffer.dynamic_indices))  # samples that make no whole update stay at the end
        order = shuffled(count, self.args.train.seed, self.global_step, self.epoch)
        buffer.items[:count] = [buffer.items[place] for place in order]
        buffer.setup_dynamic_batch(self.strategy)

    def check_whole_steps(self) -> None:
        """Every sample of the replay buffer belongs to an optimizer step, or a warning says how many do not.

        With static micro-batches a remainder would go into the next update. Raises RunStopped there.
        """
        samples = len(self.replay_buffer.items)
        if self.args.train.dynamic_batch_enable:
            left = samples - sum(map(len, self.replay_buffer.dynamic_indices))
            if left and self.strategy.is_rank_0():
                logger.warning(f"{left} of {samples} samples of rank 0 make no whole update and are left out")
            return
        of_a_step = self.replay_buffer.sample_batch_size * self._micro_batches_of_a_step
        if samples % of_a_step:
            raise RunStopped(
                f"this rank got {samples} samples, no multiple of the {of_a_step} that it trains on in an update of "
                f"--train.batch_size {self.args.train.batch_size}"
            )

    @property
    def _micro_batches_of_a_step(self) -> int:
        return max(1, self.strategy.accumulated_gradient)
