"""The metrics of a step that its samples and its phases give: means, statistics, data sources and seconds."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from openrlhf_cov.models.method import CORRECT
from openrlhf_cov.trainer.records import Sample, TrainSample
from openrlhf_cov.utils.metric_table import OF_SOURCES

MAX_SOURCES = 30
OTHER = "other"
# Upstream's name for the source of a row without a column ``datasource``.
UNNAMED = "default"


class Clock:
    """Seconds of the phases of a step: ``timing/NAME``. A step begins when its clock is made."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._started = time.monotonic()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Measure the body as a phase."""
        started = time.monotonic()
        yield
        self._seconds[phase] = time.monotonic() - started

    def seconds(self, generation: float) -> dict[str, float]:
        """Return the metrics of a step that ends now.

        Args:
            generation: Seconds in which its rollout was generated. With ``--train.async_enable`` this was during
                earlier steps, so ``timing/step_total`` is not the sum of the phases.
        """
        phases = {"generation": generation, **self._seconds, "step_total": time.monotonic() - self._started}
        return {f"timing/{phase}": seconds for phase, seconds in phases.items()}


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


def source_metrics(samples: Sequence[Sample], trained: Sequence[TrainSample], rewards: Tensor) -> dict[str, float]:
    """Return ``source/NAME/...`` for every source of a step; nothing if no row names a source.

    Beyond ``MAX_SOURCES`` sources, the ones with the fewest samples of the step are counted as ``other``.
    The covariance is centred by the means of the whole step, so that ``cov/mean`` is the token-weighted mean of it.

    Args:
        samples: The samples of the step.
        trained: The same samples with log-probs, entropies and advantages.
        rewards: (N,), from which the advantages were estimated.
    """
    sources = [sample.source for sample in samples]
    counts = Counter(sources)
    if set(counts) <= {UNNAMED}:
        return {}
    by_size = sorted(counts, key=lambda name: (-counts[name], name))
    named = by_size if len(by_size) <= MAX_SOURCES else by_size[: MAX_SOURCES - 1]

    sources = [source if source in named else OTHER for source in sources]
    scores = _column([each.score for each in trained])
    graded = torch.tensor([not each.abstained for each in trained])

    # The action tokens of all samples one after another, n in all, and the place of the sample of each of them.
    mask = torch.cat([each.action_mask for each in trained])
    places = torch.arange(len(trained)).repeat_interleave(torch.tensor([len(each.action_mask) for each in trained]))
    places = places[mask]
    log_probs = torch.cat([each.log_probs for each in trained])[mask].double()
    advantages = torch.cat([each.advantages for each in trained])[mask].double()
    token_entropies = torch.cat([each.entropy for each in trained])[mask].double()

    # The means over the graded tokens are the centre of the covariance. Without such tokens no source logs one.
    is_graded = graded[places]
    token_covariances = (log_probs - log_probs[is_graded].mean()) * (advantages - advantages[is_graded].mean())

    def sums(values: Tensor) -> Tensor:
        """Return the sum (N,) over the tokens of each sample of values (n,)."""
        return torch.zeros(len(trained), dtype=torch.float64).index_add(0, places, values)

    lengths = sums(torch.ones_like(log_probs))
    entropies = sums(token_entropies)
    covariances = sums(token_covariances)
    metrics: dict[str, float] = {}
    for name in sorted(set(sources)):
        of_source = torch.tensor([source == name for source in sources])
        start = f"{OF_SOURCES}{name}/"
        metrics[f"{start}samples"] = float(of_source.sum())
        metrics[f"{start}response_length"] = float(lengths[of_source].mean())
        of_graded = of_source & graded
        if of_graded.any():
            metrics[f"{start}reward"] = float(rewards[of_graded].double().mean())
        of_scored = of_graded & ~scores.isnan()
        if of_scored.any():
            metrics[f"{start}pass_rate"] = float((scores[of_scored] > CORRECT).double().mean())
        tokens = lengths[of_graded].sum()
        if tokens:
            metrics[f"{start}entropy"] = float(entropies[of_graded].sum() / tokens)
            metrics[f"{start}cov"] = float(covariances[of_graded].sum() / tokens)
    return metrics


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
