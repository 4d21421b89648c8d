"""The metrics of a global step on one rank: of its rollouts and of its updates."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from openrlhf_cov.models.planning import WindowPart
from openrlhf_cov.models.rollout import RolloutTokens
from openrlhf_cov.models.rollout_metrics import RolloutMetrics
from openrlhf_cov.models.window import Ranks
from openrlhf_cov.trainer.records import MicroBatch, TrainSample
from openrlhf_cov.utils.metrics import Mean

OLD_OVERLAP = "cov/old_overlap"


def rollout_of(samples: Sequence[TrainSample], device: torch.device | str) -> RolloutTokens:
    """Return the samples of a rank as tensors, padded on the right; an abstained sample has no action tokens.

    Args:
        samples: The samples of the rank, at least one. Fields are None in all of them or in none.
        device: Where the tensors lie.
    """

    def padded(name: str) -> Tensor:
        return pad_sequence([getattr(sample, name) for sample in samples], batch_first=True).to(device)

    abstained = torch.tensor([sample.abstained for sample in samples], device=device)
    return RolloutTokens(
        log_probs=padded("log_probs"),
        entropy=padded("entropy"),
        advantages=padded("advantages"),
        action_mask=padded("action_mask") & ~abstained[:, None],
        scores=torch.tensor([sample.score for sample in samples], device=device),
        sample_ids=torch.tensor([sample.sample_id for sample in samples], device=device),
        proxy=None if samples[0].proxy is None else padded("proxy"),
        discriminator_mean=None if samples[0].discriminator_mean is None else padded("discriminator_mean"),
    )


class StepDiagnostics(RolloutMetrics):
    """The metrics of one global step on one rank, and its samples as the methods see them.

    ``RolloutMetrics`` says when the ranks make it and call its functions.

    Args:
        samples: The samples that this rank trains on, at least one.
        samples_per_prompt: Number K of responses to a prompt.
        ranks: The collectives of the data-parallel ranks.
        device: Where the tensors lie.
    """

    def __init__(
        self, samples: Sequence[TrainSample], samples_per_prompt: int, ranks: Ranks, device: torch.device | str
    ) -> None:
        super().__init__(rollout_of(samples, device), samples_per_prompt, ranks)
        # The value stays NaN unless ``compare`` is called.
        self.add(Mean(OLD_OVERLAP, self.sums.new_zeros(()), self.sums.new_zeros(())))

    @torch.no_grad()
    def compare(self, current: Sequence[Tensor], old: Sequence[Tensor]) -> None:
        """Note the share of selected tokens that the log-probs of the rollout select as well (``cov/old_overlap``).

        Args:
            current: Masks (B, A) of the tokens selected by the log-probs of the policy before the update, one for each
                micro-batch.
            old: The same by the log-probs of the rollout.
        """
        both = torch.stack([(one & other).sum() for one, other in zip(current, old, strict=True)]).sum()
        self.add(Mean(OLD_OVERLAP, both, torch.stack([one.sum() for one in current]).sum()))

    def window_part(self, micro_batch: MicroBatch, with_entropy: bool) -> WindowPart:
        """Return a micro-batch as it was sampled, with what the methods ask for of the policy that sampled.

        Args:
            micro_batch: Samples of this step.
            with_entropy: Whether a method asks for entropies.
        """
        rows = self.rows_of(micro_batch.sample_ids)
        width = micro_batch.action_mask.shape[1]

        def of_samples(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows, :width]

        return WindowPart(
            sample_ids=micro_batch.sample_ids,
            log_probs=micro_batch.log_probs,
            advantages=micro_batch.advantages,
            action_mask=micro_batch.graded_mask,
            entropy=of_samples(self.rollout.entropy) if with_entropy else None,
            # None where no method asks for them.
            proxy=of_samples(self.rollout.proxy),
            discriminator_mean=of_samples(self.rollout.discriminator_mean),
        )
