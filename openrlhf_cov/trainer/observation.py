"""Collects the metrics of a global step: of its rollouts and of its updates."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from openrlhf_cov.models.diagnostics import empty_update_frac, update_metrics
from openrlhf_cov.models.dynamics import EntropyDynamics
from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.rollout import (
    Rollout,
    group_sums,
    mean_entropy,
    rollout_metrics,
    selection_metrics,
    token_sums,
)
from openrlhf_cov.models.window import ALONE, Ranks
from openrlhf_cov.trainer.sample_info import PROXY, abstentions, sample_ids
from openrlhf_cov.utils.metrics import AllReduce, Mean, MetricBuffer

OLD_OVERLAP = "cov/old_overlap"


def rollout_of(items: Sequence[Any], device: torch.device | str) -> Rollout:
    """The samples of upstream's replay buffer, each with its ``entropy``, and ``proxy`` if any, as padded tensors."""

    def padded(name: str) -> Tensor:
        return pad_sequence([getattr(item, name) for item in items], batch_first=True).to(device)

    scores = [torch.nan if item.scores is None else float(item.scores) for item in items]
    return Rollout(
        log_probs=padded("action_log_probs"),
        entropy=padded("entropy"),
        advantages=padded("advantages"),
        action_mask=padded("action_mask").bool(),
        scores=torch.tensor(scores, device=device),
        sample_ids=torch.cat([sample_ids(item.info) for item in items]).to(device),
        proxy=padded(PROXY) if hasattr(items[0], PROXY) else None,
        abstained=torch.cat([abstentions(item.info, 1) for item in items]).to(device),
    )


def all_reduce_over(ranks: Ranks, device: torch.device | str) -> AllReduce:
    """What ``MetricBuffer.reduce`` needs, by the collectives of the data-parallel ranks."""

    def all_reduce(tensor: Tensor, op: str) -> Tensor:
        tensor = tensor.to(device)
        if op == "sum":
            return ranks.all_reduce_sum(tensor).cpu()
        return ranks.all_gather(tensor).view(-1, len(tensor)).amax(0).cpu()

    return all_reduce


class StepDiagnostics:
    """The diagnostics of one rank: ``start`` before the updates of a global step, ``observe`` after each micro-batch,
    ``finish`` after the last. Every rank must call ``start`` and ``finish``, which use collectives."""

    def __init__(self, samples_per_prompt: int, ranks: Ranks = ALONE) -> None:
        self.metrics = MetricBuffer()
        self.samples_per_prompt = samples_per_prompt
        self.ranks = ranks
        self.dynamics = EntropyDynamics()

    @torch.no_grad()
    def start(self, items: Sequence[Any], device: torch.device | str) -> None:
        """Measure the policy that produced the rollouts, over the samples that wait for training."""
        self.rollout = rollout = rollout_of(items, device)
        self.selected = torch.zeros_like(rollout.action_mask)
        """(B, A), tokens that any update of this step selected."""
        self._sorted_ids, self._rows = rollout.sample_ids.sort()
        self._selected_counts: dict[int, Tensor] = {}

        last_id = self.ranks.all_gather(rollout.sample_ids.max().view(1)).max()
        groups = int(last_id) // self.samples_per_prompt + 1
        totals = self.ranks.all_reduce_sum(group_sums(rollout, self.samples_per_prompt, groups))
        self.sums = self.ranks.all_reduce_sum(token_sums(rollout))
        self.metrics.add(*rollout_metrics(rollout, self.sums, totals, self.samples_per_prompt))
        self.metrics.add(Mean(OLD_OVERLAP, self.sums.new_zeros(()), self.sums.new_zeros(())))  # null unless compared

    @torch.no_grad()
    def observe(self, ids: Tensor, record: LossRecord) -> None:
        """Note what the loss did with a micro-batch of samples ``ids`` (B,). Nothing here waits for the device."""
        self.metrics.add(*update_metrics(record))
        picked, update = record.selected, record.update
        self._selected_counts[update] = self._selected_counts.get(update, 0) + picked.sum()
        self.selected[self._rows_of(ids), : picked.shape[1]] |= picked

    @property
    def mean_entropy(self) -> Tensor:
        """Of the policy that produced the rollouts, over the tokens of all ranks, 0-d."""
        return mean_entropy(self.sums)

    @torch.no_grad()
    def compare(self, current: Sequence[Tensor], old: Sequence[Tensor]) -> None:
        """Note what an update selects by the log-probs of the policy before it, and by those of the rollout; masks."""
        both = torch.stack([(one & other).sum() for one, other in zip(current, old, strict=True)]).sum()
        self.metrics.add(Mean(OLD_OVERLAP, both, torch.stack([one.sum() for one in current]).sum()))

    def entropies(self, ids: Tensor, width: int) -> Tensor:
        """Entropies (B, width) of samples ``ids`` (B,) under the policy that produced the rollouts, 0 beyond them."""
        return self.rollout.entropy[self._rows_of(ids), :width]

    def proxies(self, ids: Tensor, width: int) -> Tensor | None:
        """Likewise the log-probs that a method with ``proxy_min_p`` asks for, None without one."""
        return None if self.rollout.proxy is None else self.rollout.proxy[self._rows_of(ids), :width]

    def _rows_of(self, ids: Tensor) -> Tensor:
        return self._rows[torch.searchsorted(self._sorted_ids, ids)]

    def finish(self, eta: float) -> dict[str, float]:
        """Values of the step over all ranks; ``eta`` is its learning rate times its number of updates."""
        rollout = self.rollout
        self.metrics.add(*selection_metrics(rollout.entropy, rollout.action_mask, self.selected))
        values = self.metrics.reduce(all_reduce_over(self.ranks, rollout.log_probs.device))
        none = rollout.sample_ids.new_zeros(0)  # on the policy's device, which is where ranks exchange tensors
        counts = torch.cat([none, *(count.view(1) for count in self._selected_counts.values())])
        values["cov/empty_update_frac"] = empty_update_frac(self.ranks.all_reduce_sum(counts))
        predictions = values["cov/prob_weighted_mean"], values["cov/mean"]
        return values | self.dynamics.step(values["entropy/mean"], *predictions, eta)
