"""Metrics of a global step by the data source of its prompts."""

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from openrlhf_cov.models.method import CORRECT
from openrlhf_cov.trainer.records import Sample, TrainSample
from openrlhf_cov.utils.metric_table import OF_SOURCES

MAX_SOURCES = 30
OTHER = "other"
# Upstream's name for the source of a row without a column ``datasource``.
UNNAMED = "default"


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

    # Means over all tokens of the step, the centre of the covariance.
    log_prob_mean = torch.cat([each.log_probs[each.action_mask].double() for each in trained]).mean()
    advantage_mean = torch.cat([each.advantages[each.action_mask].double() for each in trained]).mean()

    found: dict[str, list[dict[str, float]]] = {}
    for source, each, reward in zip(sources, trained, rewards.tolist(), strict=True):
        mask = each.action_mask
        # (n,) of the n action tokens of this sample.
        apart = each.log_probs[mask].double() - log_prob_mean
        numbers = {
            "samples": 1.0,
            "tokens": float(mask.sum()),
            "entropy": float(each.entropy[mask].double().sum()),
            "cov": float((apart * (each.advantages[mask].double() - advantage_mean)).sum()),
        }
        if not each.abstained:
            numbers |= {"rewarded": 1.0, "reward": reward}
            if not math.isnan(each.score):
                numbers |= {"scored": 1.0, "passed": float(each.score > CORRECT)}
        found.setdefault(source if source in named else OTHER, []).append(numbers)

    metrics: dict[str, float] = {}
    for name in sorted(found):
        # Sums over the samples of the source. A sample without a reward or a score lacks the key and is no part of
        # that mean.
        totals: Counter[str] = Counter()
        for sample in found[name]:
            totals.update(sample)
        start = f"{OF_SOURCES}{name}/"
        metrics[f"{start}samples"] = totals["samples"]
        metrics[f"{start}response_length"] = totals["tokens"] / totals["samples"]
        if totals["rewarded"]:
            metrics[f"{start}reward"] = totals["reward"] / totals["rewarded"]
        if totals["scored"]:
            metrics[f"{start}pass_rate"] = totals["passed"] / totals["scored"]
        if totals["tokens"]:
            metrics[f"{start}entropy"] = totals["entropy"] / totals["tokens"]
            metrics[f"{start}cov"] = totals["cov"] / totals["tokens"]
    return metrics
