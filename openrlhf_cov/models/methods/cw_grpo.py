"""CW-GRPO (arXiv 2605.11538): tokens of extreme covariance weigh less, by a Gaussian."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openrlhf_cov.models.method import Method, Plan
from openrlhf_cov.models.slots import TokenWeight
from openrlhf_cov.settings import Settings

if TYPE_CHECKING:
    from openrlhf_cov.models.window import Window

# A deviation of covariances below this is rounding, where the largest advantage is 1: they are all equal.
ROUNDING = 1e-6
# Size of advantages that are all 0.
TINY = 1e-300


def plan(settings: Settings, window: Window) -> list[Plan]:
    """Weigh by exp(-c^2 / 2 sigma^2), divided by its mean over all tokens; sigma is the population deviation of c.

    c is the covariance of log-prob and advantage (paper eq. 10 of 2505.22617). All means run over the optimizer step:
    the paper says batch and group in turn, and there is no code. Where all covariances are equal, weights are 1. They
    do not depend on the size of the advantages, by the largest of which c is divided.

    Arguments and result are described at ``TokenSlot.plan``.
    """
    # By the largest advantage of the step, so that equal rewards in another unit give equal weights.
    size = window.maximum([item.batch.advantages.double().abs() for item in window.items]).clamp(min=TINY)
    covariances = [c.double() / size for c in window.covariance()]
    centre = window.mean(covariances)
    variance = window.mean([(c - centre).square() for c in covariances])
    exponents = [-c.square() / (2 * variance.clamp(min=ROUNDING**2)) for c in covariances]
    highest = window.maximum(exponents)  # without it all weights may be too small to be told from 0
    raw = [(exponent - highest).clamp(max=0.0).exp() for exponent in exponents]
    mean = window.mean(raw)
    equal = variance < ROUNDING**2
    plans = []
    for item, relative in zip(window.items, raw, strict=True):
        weight = (relative / mean).masked_fill(equal | ~item.mask, 1.0).to(item.batch.advantages.dtype)
        plans.append(Plan(item.mask & (weight != 1), weight=weight))
    return plans


METHOD = Method(
    name="cw_grpo",
    title="CW-GRPO",
    source="arXiv 2605.11538",
    summary="tokens are weighted by a Gaussian of their covariance; the mean weight is 1",
    settings=Settings,
    slot=TokenWeight(plan=plan, log_probs_policy="current", of_all_tokens=lambda settings: True),
)
