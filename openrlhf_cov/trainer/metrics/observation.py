"""The metrics of a global step on one rank: of its rollouts and of its updates."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from openrlhf_cov.models.diagnostics import empty_update_frac, update_metrics
from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.planning import WindowPart
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
from openrlhf_cov.trainer.records import MicroBatch, TrainSample
from openrlhf_cov.utils.metrics import AllReduce, Mean, Metric, MetricBuffer

OLD_OVERLAP = "cov/old_overlap"


def rollout_of(samples: Sequence[TrainSample], device: torch.device | str) -> RolloutTokens:
    """Return the samples of a rank as tensors, padded on the right.

    Args:
        samples: The samples of the rank, at least one. Fields are None in all of them or in none.
        device: Where the tensors lie.
    """

    def padded(name: str) -> Tensor:
        return pad_sequence([getattr(sample, name) for sample in samples], batch_first=True).to(device)

    return RolloutTokens(
        log_probs=padded("log_probs"),
        entropy=padded("entropy"),
        advantages=padded("advantages"),
        action_mask=padded("action_mask"),
        scores=torch.tensor([sample.score for sample in samples], device=device),
        sample_ids=torch.tensor([sample.sample_id for sample in samples], device=device),
        proxy=None if samples[0].proxy is None else padded("proxy"),
        discriminator_mean=None if samples[0].discriminator_mean is None else padded("discriminator_mean"),
        abstained=torch.tensor([sample.abstained for sample in samples], device=device),
    )


def all_reduce_over(ranks: Ranks, device: torch.device | str) -> AllReduce:
    """Return the function by which ``MetricBuffer.reduce`` adds over the ranks or takes the maximum.

    Args:
        ranks: The data-parallel ranks; all of them must call the function together.
        device: Where tensors lie when ranks exchange them. Results lie on the CPU.
    """

    def all_reduce(tensor: Tensor, op: str) -> Tensor:
        tensor = tensor.to(device)
        if op == "sum":
            return ranks.all_reduce_sum(tensor).cpu()
        return ranks.all_gather(tensor).view(-1, len(tensor)).amax(0).cpu()

    return all_reduce


class StepDiagnostics:
    """The diagnostics of one rank in one global step.

    They are made before the first update and measure the policy that produced the rollouts; ``observe`` notes every
    micro-batch and ``finish`` reduces everything over the ranks. Every rank must make and finish them together.

    Args:
        samples: The samples that this rank trains on.
        samples_per_prompt: K, by which the numbers of samples tell their prompts.
        ranks: The data-parallel ranks.
        device: Where the tensors lie.
    """

    @torch.no_grad()
    def __init__(
        self, samples: Sequence[TrainSample], samples_per_prompt: int, ranks: Ranks, device: torch.device | str
    ) -> None:
        self.samples_per_prompt = samples_per_prompt
        self.ranks = ranks
        self.metrics = MetricBuffer()
        self.rollout = rollout = rollout_of(samples, device)
        # (B, A): the tokens that any update of this step selected.
        self.selected = torch.zeros_like(rollout.action_mask)
        self._sorted_ids, self._rows = rollout.sample_ids.sort()
        self._selected_counts: dict[int, Tensor] = {}

        # Sample ids number the whole rollout, so the largest one says how many prompts all ranks have together.
        last_id = ranks.all_gather(rollout.sample_ids.max().view(1)).max()
        self.groups = groups = int(last_id) // samples_per_prompt + 1
        totals = ranks.all_reduce_sum(group_sums(rollout, samples_per_prompt, groups))
        self.sums = ranks.all_reduce_sum(token_sums(rollout))
        self.metrics.add(*rollout_metrics(rollout, self.sums, totals, samples_per_prompt))
        self.metrics.add(Mean(OLD_OVERLAP, self.sums.new_zeros(()), self.sums.new_zeros(())))  # null unless compared

    def add(self, *metrics: Metric) -> None:
        """Add metrics of a micro-batch."""
        self.metrics.add(*metrics)

    @torch.no_grad()
    def observe(self, ids: Tensor, record: LossRecord) -> None:
        """Note what the loss did with a micro-batch; the host waits for nothing here.

        Args:
            ids: Numbers (B,) of the samples.
            record: The record of the loss on these samples, tensors (B, A).
        """
        self.metrics.add(*update_metrics(record))
        picked = record.selected
        update = record.update
        self._selected_counts[update] = self._selected_counts.get(update, 0) + picked.sum()
        self.selected[self._rows_of(ids), : picked.shape[1]] |= picked

    @property
    def mean_entropy(self) -> Tensor:
        """Mean entropy of the policy that produced the rollouts, over the tokens of all ranks, 0-d."""
        return mean_entropy(self.sums)

    @torch.no_grad()
    def positive_prompts(self) -> Tensor:
        """Return the share of the prompts of all ranks with a positive advantage, 0-d; all ranks call it together."""
        own = positive_sums(self.rollout, self.samples_per_prompt, self.groups)
        return positive_share(self.ranks.all_reduce_sum(own))

    @torch.no_grad()
    def compare(self, current: Sequence[Tensor], old: Sequence[Tensor]) -> None:
        """Note the share of selected tokens that the log-probs of the rollout select as well (``cov/old_overlap``).

        Args:
            current: Masks (B, A) of the tokens selected by the log-probs of the policy before the update, one for each
                micro-batch.
            old: The same by the log-probs of the rollout.
        """
        both = torch.stack([(one & other).sum() for one, other in zip(current, old, strict=True)]).sum()
        self.metrics.add(Mean(OLD_OVERLAP, both, torch.stack([one.sum() for one in current]).sum()))

    def window_part(self, micro_batch: MicroBatch, with_entropy: bool) -> WindowPart:
        """Return a micro-batch as it was sampled, with what the methods ask for of the policy that sampled.

        Args:
            micro_batch: Samples of this step.
            with_entropy: Whether a method asks for entropies.
        """
        rows = self._rows_of(micro_batch.sample_ids)
        width = micro_batch.action_mask.shape[1]

        def of_samples(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows, :width]

        return WindowPart(
            sample_ids=micro_batch.sample_ids,
            log_probs=micro_batch.log_probs,
            advantages=micro_batch.advantages,
            action_mask=micro_batch.action_mask,
            entropy=of_samples(self.rollout.entropy) if with_entropy else None,
            # None where no method asks for them.
            proxy=of_samples(self.rollout.proxy),
            discriminator_mean=of_samples(self.rollout.discriminator_mean),
        )

    def _rows_of(self, ids: Tensor) -> Tensor:
        # Rows of samples by their ids, without a look-up on the host, which would wait for the GPU.
        return self._rows[torch.searchsorted(self._sorted_ids, ids)]

    def finish(self) -> dict[str, float]:
        """Return the values of the step over all ranks."""
        rollout = self.rollout
        self.metrics.add(*selection_metrics(rollout.entropy, rollout.action_mask, self.selected))
        values = self.metrics.reduce(all_reduce_over(self.ranks, rollout.log_probs.device))
        none = rollout.sample_ids.new_zeros(0)  # on the policy's device, which is where ranks exchange tensors
        counts = torch.cat([none, *(count.view(1) for count in self._selected_counts.values())])
        values["cov/empty_update_frac"] = empty_update_frac(self.ranks.all_reduce_sum(counts))
        return values
