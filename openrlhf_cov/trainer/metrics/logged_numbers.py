"""The numbers of a step that follow from its samples: means over the samples, and statistics of the rollout."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from openrlhf_cov.trainer.records import Sample


def sample_means(samples: Sequence[Sample], numbers: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the mean of every number over the samples that have it.

    Args:
        samples: The samples of a step. A metric may be that of some samples only.
        numbers: Name -> (N,), in the order of the samples.
    """
    names = dict.fromkeys(name for sample in samples for name in sample.metrics)
    columns = {name: _column([sample.metrics[name] for sample in samples if name in sample.metrics]) for name in names}
    # Where the reward function abstained the reward is the mean of the other ones, but there is no score.
    scores = [sample.score for sample in samples if not sample.abstained and sample.score is not None]
    if all(sample.score is not None for sample in samples):
        columns["score"] = _column(scores or [0.0])
    columns["response_length"] = _column([sample.response_length for sample in samples])
    columns["truncated"] = _column([float(sample.truncated) for sample in samples])
    columns["total_length"] = _column([len(sample.tokens) for sample in samples])
    columns |= {name: values.double() for name, values in numbers.items()}
    graded = [not sample.abstained for sample in samples]
    if "return" in numbers and any(graded):  # an abstention has no return, and 0 would pull the mean toward 0
        columns["return"] = columns["return"][torch.tensor(graded)]
    return {name: float(values.mean()) for name, values in columns.items()}


def rollout_statistics(samples: Sequence[Sample], rewards: Tensor) -> dict[str, float]:
    """Return the ``rollout/*`` metrics of a step.

    Args:
        samples: The samples of the step, N of them.
        rewards: The rewards (N,) that advantages are estimated from, with upstream's length penalties.
    """
    lengths = _column([sample.response_length for sample in samples])
    # An abstention has the mean reward of the other samples, which would make their deviation too small.
    graded = rewards.double()[torch.tensor([not sample.abstained for sample in samples])]
    return {
        "rollout/reward_mean": float(rewards.double().mean()),
        "rollout/reward_std": float(graded.std()) if len(graded) > 1 else 0.0,
        "rollout/response_length_mean": float(lengths.mean()),
        "rollout/truncated_rate": float(_column([float(sample.truncated) for sample in samples]).mean()),
        "rollout/num_samples": float(len(samples)),
    }


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
