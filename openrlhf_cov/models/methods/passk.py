"""Pass@k training (arXiv 2508.10751): rewards sets of k responses, of which one has to be correct.

Traps: ``grpo_passk`` of verl and EasyR1 is another method (arXiv 2503.19595), in which the best response alone has an
advantage. k has to be below the size of a group, or there is one set and no advantage. Rewards between correct and
incorrect have no place in the count. With fewer than k incorrect responses every set has a correct one and no response
trains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Groups, Method
from openrlhf_cov.models.responses import right
from openrlhf_cov.models.slots import Estimator
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor

# Beside the standard deviation, as published.
EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class PasskSettings(Settings):
    """Flags of pass@k training. Raises ValueError, naming the flag, when a value is out of range."""

    passk_k: int = setting(4, "responses in a set; 1 is GRPO with the population standard deviation")

    def check(self) -> None:
        self.require("passk_k", lambda k: k >= 1, "must be a number of responses of at least 1")


def estimate(settings: PasskSettings, groups: Groups) -> Tensor:
    """Return advantages (G, K): the mean, over all sets of k responses with this one in it, of the set's advantage.

    All advantages are 0 where a group has fewer than k graded responses.

    Arguments and result are described at ``Estimator.estimate``.
    """
    is_right = right(groups.rewards)
    n = groups.rewards.shape[1]
    if n < settings.passk_k:  # abstentions left fewer responses than a set has
        return groups.rewards.new_zeros(groups.rewards.shape)
    # The advantages depend on the number of correct responses alone: (n + 1, 2), looked up by that number.
    table = [advantages(n, c, settings.passk_k) for c in range(n + 1)]
    of_right, of_wrong = groups.rewards.new_tensor(table)[is_right.sum(1)].T[:, :, None]
    return of_right.where(is_right, of_wrong)


def advantages(n: int, c: int, k: int) -> tuple[float, float]:
    """Return the advantages of a correct and of an incorrect response to one prompt; the published closed form.

    A set has the reward 1 if it has a correct response, so the mean reward is pass@k. A correct response is in such
    sets only, an incorrect one also in those of k - 1 other incorrect ones.

    Args:
        n: Responses to the prompt.
        c: Correct responses among them.
        k: Responses of a set, at most n.
    """
    # The share of sets of k responses with a correct one.
    mean = 1 - math.comb(n - c, k) / math.comb(n, k)
    deviation = math.sqrt(mean * (1 - mean)) + EPSILON
    # Of the sets with a given incorrect response, the share with no correct one.
    failing = math.comb(n - c - 1, k - 1) / math.comb(n - 1, k - 1) if c < n else 0.0
    return (1 - mean) / deviation, (1 - mean - failing) / deviation


def refuses(settings: PasskSettings, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with pass@k training: a group needs more responses than a set.

    Arguments and result are described at ``Method.refuses``.
    """
    n = flags["rollout.n_samples_per_prompt"]
    if settings.passk_k < n:
        return None
    return (
        f"--passk_k {settings.passk_k}: must be below --rollout.n_samples_per_prompt, which is {n}; a group that is "
        "one set has no advantages"
    )


METHOD = Method(
    name="passk",
    title="Pass@k training",
    source="arXiv 2508.10751",
    summary="rewards sets of k responses to a prompt if at least one of them is correct",
    settings=PasskSettings,
    slot=Estimator(estimate=estimate, stands_for="group_norm", two_valued=True),
    refuses=refuses,
)
