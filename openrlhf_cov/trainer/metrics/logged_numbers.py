"""The numbers of a step that follow from its samples: means over the samples, and statistics of the rollout."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from openrlhf_cov.trainer.records import Sample


def sample_means(samples: Sequence[Sample], numbers: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the mean over samples of every number that they have.

    Args:
        samples: The samples of a step, with metrics of equal names.
        numbers: Name -> (N,), in the order of the samples.
    """
    columns = {name: _column([sample.metrics[name] for sample in samples]) for name in samples[0].metrics}
    # Where the reward function abstained the reward is the mean of the other ones, but there is no score.
    scores = [sample.score for sample in samples if not sample.abstained and sample.score is not None]
    if all(sample.score is not None for sample in samples):
        columns["score"] = _column(scores or [0.0])
    columns["response_length"] = _column([sample.response_length for sample in samples])
    columns["truncated"] = _column([float(sample.truncated) for sample in samples])
    columns["total_length"] = _column([len(sample.tokens) for sample in samples])
    columns |= {name: values.double() for name, values in numbers.items()}
    return {name: float(values.mean()) for name, values in columns.items()}


def rollout_statistics(samples: Sequence[Sample], rewards: Tensor) -> dict[str, float]:
    """Return the ``rollout/*`` metrics of a step.

    Args:
        samples: The samples of the step, N of them.
        rewards: The rewards (N,) that advantages are estimated from, with upstream's length penalties.
    """
    lengths = _column([sample.response_length for sample in samples])
    return {
        "rollout/reward_mean": float(rewards.double().mean()),
        "rollout/reward_std": float(rewards.double().std()) if len(rewards) > 1 else 0.0,
        "rollout/response_length_mean": float(lengths.mean()),
        "rollout/truncated_rate": float(_column([float(sample.truncated) for sample in samples]).mean()),
        "rollout/num_samples": float(len(samples)),
    }


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
