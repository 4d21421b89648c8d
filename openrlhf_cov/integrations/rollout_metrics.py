"""The metrics of one rollout and its updates in another trainer; docs/metrics.md defines each name."""

import torch
from torch import Tensor

from openrlhf_cov.models.diagnostics import empty_update_frac, update_metrics
from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.rollout import (
    RolloutTokens,
    group_sums,
    mean_entropy,
    positive_share,
    positive_sums,
    rollout_metrics,
    selection_metrics,
    token_sums,
)
from openrlhf_cov.models.window import Ranks
from openrlhf_cov.utils.metrics import Metric, MetricBuffer


class RolloutMetrics:
    """Collect the metrics of one rollout and its updates on one rank.

    Every rank makes the object before the first update of a rollout, calls ``observe`` for its micro-batches, and
    calls ``finish`` after the last update.

    Args:
        rollout: The responses of this rank. Their ``sample_ids`` are consecutive.
        samples_per_prompt: Number K of responses to a prompt.
        ranks: The collectives of the data-parallel ranks.
    """

    @torch.no_grad()
    def __init__(self, rollout: RolloutTokens, samples_per_prompt: int, ranks: Ranks) -> None:
        self.rollout = rollout
        self.ranks = ranks
        # (B, A): the tokens that an update of this rollout has selected so far.
        self.selected = torch.zeros_like(rollout.action_mask, dtype=torch.bool)
        self._buffer = MetricBuffer()
        self._selected_counts: dict[int, Tensor] = {}

        # The prompts of all ranks: the responses to one prompt may lie on several of them.
        prompts = len(rollout.sample_ids) * ranks.size // samples_per_prompt
        sums = ranks.all_reduce_sum(token_sums(rollout))
        groups = ranks.all_reduce_sum(group_sums(rollout, samples_per_prompt, prompts))
        # Mean entropy of the policy that sampled, over the tokens of all ranks, 0-d.
        self.mean_entropy = mean_entropy(sums)
        # Share of the prompts of all ranks with a positive advantage, 0-d.
        self.positive_prompts = positive_share(
            ranks.all_reduce_sum(positive_sums(rollout, samples_per_prompt, prompts))
        )
        self._buffer.add(*rollout_metrics(rollout, sums, groups, samples_per_prompt))

    def add(self, *metrics: Metric) -> None:
        """Add metrics; every rank must add the same names."""
        self._buffer.add(*metrics)

    @torch.no_grad()
    def observe(self, sample_ids: Tensor, record: LossRecord) -> None:
        """Note what the loss did with a micro-batch.

        Args:
            sample_ids: Ids (B,) of its samples, which may stand in any order.
            record: What ``policy_loss`` recorded; its tensors are (B, A).
        """
        self._buffer.add(*update_metrics(record))
        # The count stays a tensor, because reading a number would make every micro-batch wait for the device.
        before = self._selected_counts.get(record.update, 0)
        self._selected_counts[record.update] = before + record.selected.sum()
        # A trainer may have shuffled the rollout. Ids of a rank are consecutive, so the distance to the first id is
        # the row.
        self.selected[sample_ids - self.rollout.sample_ids[0]] |= record.selected

    @torch.no_grad()
    def finish(self) -> dict[str, float]:
        """Return the value of each metric over all ranks."""
        rollout = self.rollout
        self._buffer.add(*selection_metrics(rollout.entropy, rollout.action_mask, self.selected))
        values = self._buffer.reduce(self._all_reduce)
        # An update is empty only if no rank selected a token in it.
        counts = self.ranks.all_reduce_sum(torch.stack(list(self._selected_counts.values())))
        return values | {"cov/empty_update_frac": empty_update_frac(counts)}

    def _all_reduce(self, tensor: Tensor, op: str) -> Tensor:
        # Metrics that were made of Python numbers are on the CPU, where NCCL cannot reduce them.
        tensor = tensor.to(self.rollout.log_probs.device)
        if op == "sum":
            return self.ranks.all_reduce_sum(tensor)
        # ``Ranks`` has no maximum of its own: take it over the parts of all ranks.
        return self.ranks.all_gather(tensor).view(-1, len(tensor)).amax(0)
