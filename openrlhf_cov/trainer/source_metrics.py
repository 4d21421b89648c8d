"""Metrics of a global step by the data source of its prompts."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from openrlhf_cov.models.method import CORRECT
from openrlhf_cov.trainer.sample_info import ENTROPY, abstentions
from openrlhf_cov.utils.metric_table import OF_SOURCES

MAX_SOURCES = 30
OTHER = "other"
UNNAMED = "default"
"""Upstream's name for the source of a row without a column ``datasource``."""
NAMELESS = (None, "", UNNAMED)
"""Values of the column ``datasource`` that name no source."""


def source_of(sample: Any) -> str:
    """Return the data source: the column ``datasource``, else the ``source`` of the label, else ``default``."""
    source = getattr(sample, "datasource", UNNAMED)
    label = sample.labels[0] if sample.labels else None
    if source in NAMELESS and isinstance(label, dict):
        source = label.get("source")
    is_null = isinstance(source, float) and math.isnan(source)  # a null beside numbers
    return UNNAMED if source is None or is_null else re.sub(r"[^\w.@-]", "_", str(source).strip()) or UNNAMED


def source_metrics(experiences: Sequence[Any], sources: Sequence[str]) -> dict[str, float]:
    """Return ``source/NAME/...`` for every source of a step; nothing if no row names a source.

    ``sources`` has the source of each sample by its place in the rollout, to which ``index`` of an experience refers.
    Beyond ``MAX_SOURCES`` sources, the ones with the fewest samples of the step are counted as ``other``.
    The covariance is centred by the means of the whole step, so that ``cov/mean`` is the token-weighted mean of it.
    """
    counts = Counter(sources)
    if set(counts) <= {UNNAMED}:
        return {}
    by_size = sorted(counts, key=lambda name: (-counts[name], name))
    named = by_size if len(by_size) <= MAX_SOURCES else by_size[: MAX_SOURCES - 1]

    # Means over all tokens of the step, the centre of the covariance.
    masks = [experience.action_mask.bool() for experience in experiences]
    rows = list(zip(experiences, masks, strict=True))
    log_prob_mean = torch.cat([e.action_log_probs[mask].double() for e, mask in rows]).mean()
    advantage_mean = torch.cat([e.advantages[mask].double() for e, mask in rows]).mean()

    found: dict[str, list[dict[str, float]]] = {}
    for experience, mask in rows:
        apart = experience.action_log_probs.double() - log_prob_mean
        covariances = (apart * (experience.advantages.double() - advantage_mean)).masked_fill(~mask, 0.0)
        entropies = torch.stack(list(experience.info[ENTROPY])).double().masked_fill(~mask, 0.0)
        abstained = abstentions(experience.info, len(mask)).tolist()
        for place, index in enumerate(experience.index):
            name = sources[index] if sources[index] in named else OTHER
            sample = {
                "samples": 1.0,
                "tokens": float(mask[place].sum()),
                "entropy": float(entropies[place].sum()),
                "cov": float(covariances[place].sum()),
            }
            if not abstained[place]:
                sample |= {"rewarded": 1.0, "reward": float(experience.info["reward"][place])}
                if experience.scores is not None and not experience.scores[place].isnan():
                    sample |= {"scored": 1.0, "passed": float(experience.scores[place] > CORRECT)}
            found.setdefault(name, []).append(sample)

    metrics: dict[str, float] = {}
    for name in sorted(found):
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
