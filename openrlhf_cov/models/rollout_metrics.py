"""The metrics of one rollout and its updates, of whichever trainer; docs/metrics.md defines each name."""

import torch
from torch import Tensor

from openrlhf_cov.models.diagnostics import empty_update_frac, update_metrics
from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.rollout import (
    RolloutTokens,
    entropy_covariance_metrics,
    group_sums,
    mean_entropy,
    positive_share,
    positive_sums,
    selection_metrics,
    token_sums,
)
from openrlhf_cov.models.window import Ranks
from openrlhf_cov.utils.metrics import Metric, MetricBuffer


class RolloutMetrics:
    """Collect the metrics of one rollout and its updates on one rank.

    Every rank makes the object before the first update, calls ``observe`` for its micro-batches, and calls ``finish``
    after the last update.

    Args:
        rollout: The responses of this rank, at least one.
        samples_per_prompt: Number K of responses to a prompt.
        ranks: The collectives of the data-parallel ranks.
    """

    @torch.no_grad()
    def __init__(self, rollout: RolloutTokens, samples_per_prompt: int, ranks: Ranks) -> None:
        self.rollout = rollout
        self.samples_per_prompt = samples_per_prompt
        self.ranks = ranks
        self.buffer = MetricBuffer()
        # (B, A): the tokens that any update of this rollout has selected so far.
        self.selected = torch.zeros_like(rollout.action_mask, dtype=torch.bool)
        self._sorted_ids, self._rows = rollout.sample_ids.sort()
        self._selected_counts: dict[int, Tensor] = {}

        # Sample ids number the whole rollout, so the largest one gives the number of prompts on all ranks. The
        # responses to one prompt may lie on several of them.
        last_id = ranks.all_gather(rollout.sample_ids.max().view(1)).max()
        self._prompts = int(last_id) // samples_per_prompt + 1
        groups = ranks.all_reduce_sum(group_sums(rollout, samples_per_prompt, self._prompts))
        # ``token_sums`` (7,) of all ranks.
        self.sums = ranks.all_reduce_sum(token_sums(rollout))
        self.add(*entropy_covariance_metrics(rollout, self.sums, groups, samples_per_prompt))

    @property
    def mean_entropy(self) -> Tensor:
        """Mean entropy of the policy that sampled, over the tokens of all ranks, 0-d, in nats."""
        return mean_entropy(self.sums)

    @torch.no_grad()
    def positive_prompts(self) -> Tensor:
        """Return the share of the prompts of all ranks with a positive advantage, 0-d; all ranks call it together."""
        own = positive_sums(self.rollout, self.samples_per_prompt, self._prompts)
        return positive_share(self.ranks.all_reduce_sum(own))

    def add(self, *metrics: Metric) -> None:
        """Add metrics; every rank must add the same names."""
        self.buffer.add(*metrics)

    @torch.no_grad()
    def observe(self, sample_ids: Tensor, record: LossRecord) -> None:
        """Note what the loss did with a micro-batch; the host waits for nothing here.

        Args:
            sample_ids: Ids (b,) of its samples, which may stand in any order.
            record: What ``policy_loss`` recorded; its tensors are (b, a), where a is at most A.
        """
        self.add(*update_metrics(record))
        picked = record.selected
        # The count stays a tensor, because reading a number would make every micro-batch wait for the device.
        self._selected_counts[record.update] = self._selected_counts.get(record.update, 0) + picked.sum()
        self.selected[self.rows_of(sample_ids), : picked.shape[1]] |= picked

    def rows_of(self, sample_ids: Tensor) -> Tensor:
        """Return the rows (b,) of ``rollout`` that hold the samples with these ids (b,)."""
        # A look-up on the host would wait for the device.
        return self._rows[torch.searchsorted(self._sorted_ids, sample_ids)]

    @torch.no_grad()
    def finish(self) -> dict[str, float]:
        """Return the value of each metric over all ranks; all ranks call it together."""
        rollout = self.rollout
        self.add(*selection_metrics(rollout.entropy, rollout.action_mask, self.selected))
        values = self.buffer.reduce(self._all_reduce)
        # An update is empty only if no rank selected a token in it. Without an update the tensor is empty.
        none = rollout.sample_ids.new_zeros(0)
        counts = torch.cat([none, *(count.view(1) for count in self._selected_counts.values())])
        return values | {"cov/empty_update_frac": empty_update_frac(self.ranks.all_reduce_sum(counts))}

    def _all_reduce(self, tensor: Tensor, op: str) -> Tensor:
        # Metrics that were made of Python numbers are on the CPU, where NCCL cannot reduce them.
        tensor = tensor.to(self.rollout.log_probs.device)
        if op == "sum":
            return self.ranks.all_reduce_sum(tensor)
        # ``Ranks`` has no maximum of its own: take it over the parts of all ranks.
        return self.ranks.all_gather(tensor).view(-1, len(tensor)).amax(0)
