"""The numbers of a step that follow from its samples: means over the samples, and statistics of the rollout."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from openrlhf_cov.trainer.records import Sample

# Numbers of a sample that mean nothing where its reward function abstained.
OF_GRADED = ("reward", "score")


def sample_means(samples: Sequence[Sample], numbers: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the mean over samples of every number that they have.

    Args:
        samples: The samples of a step, with metrics of equal names.
        numbers: Name -> (N,), in the order of the samples.
    """
    columns = {name: values.double() for name, values in numbers.items()}
    for name in samples[0].metrics:
        columns[name] = _column([sample.metrics[name] for sample in samples])
    if all(sample.score is not None for sample in samples):
        columns["score"] = _column([float(sample.score or 0.0) for sample in samples])
    columns["response_length"] = _column([sample.response_length for sample in samples])
    columns["truncated"] = _column([float(sample.truncated) for sample in samples])
    columns["total_length"] = _column([len(sample.tokens) for sample in samples])
    graded = torch.tensor([not sample.abstained for sample in samples])
    return {name: _mean(values[graded] if name in OF_GRADED else values) for name, values in columns.items()}


def rollout_statistics(samples: Sequence[Sample], rewards: Tensor) -> dict[str, float]:
    """Return the ``rollout/*`` metrics of a step; ``rewards`` (N,) are those that advantages are estimated from."""
    lengths = _column([sample.response_length for sample in samples])
    return {
        "rollout/reward_mean": _mean(rewards.double()),
        "rollout/reward_std": float(rewards.double().std()) if len(rewards) > 1 else 0.0,
        "rollout/response_length_mean": _mean(lengths),
        "rollout/truncated_rate": _mean(_column([float(sample.truncated) for sample in samples])),
        "rollout/num_samples": float(len(samples)),
    }


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else math.nan
