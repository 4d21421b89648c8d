"""A bandit with two peaks whose initial policy sits on the lower one (pure).

One response is one of 100 arms. Arm i pays 1 with the probability ``MEANS[i]``, else 0. The policy begins on the lower
peak and gives each arm of the higher peak a small probability. A policy that becomes certain too early stays there.

The policy is a table of logits without any network, which is the setting of the theorems of arXiv 2505.22617. A
question is one replica of the bandit with logits of its own, so that one run of the lab trains ``REPLICAS`` seeds.
"""

import math
from dataclasses import dataclass

ARMS = 100
REPLICAS = 256
# Places and heights of the two peaks, and their common width, in arms.
LOWER_PEAK = 25
HIGHER_PEAK = 75
LOWER_HEIGHT = 0.5
HIGHER_HEIGHT = 0.9
WIDTH = 5.0


def _bump(arm: int, peak: int) -> float:
    return math.exp(-((arm - peak) ** 2) / (2 * WIDTH**2))


# Probability that an arm pays 1.
MEANS = tuple(
    max(LOWER_HEIGHT * _bump(arm, LOWER_PEAK), HIGHER_HEIGHT * _bump(arm, HIGHER_PEAK)) for arm in range(ARMS)
)
# A policy that always pulls the best arm earns this on average.
OPTIMUM = max(MEANS)
# The arms that pay more than any arm of the lower peak.
BETTER_ARMS = frozenset(arm for arm, mean in enumerate(MEANS) if mean > LOWER_HEIGHT)
ARM_WORDS = tuple(f"a{arm:02d}" for arm in range(ARMS))
REPLICA_WORDS = tuple(f"r{replica:03d}" for replica in range(REPLICAS))


@dataclass(frozen=True)
class Replica:
    """One copy of the bandit.

    Attributes:
        prompt: The word of the replica, which selects its logits.
        label: Empty, because the reward depends on the arm alone.
    """

    prompt: str
    label: str = ""


def initial_policy(uniform_part: float) -> tuple[float, ...]:
    """Return the probability of each arm under the base policy: a Gaussian on the lower peak plus a uniform part.

    Args:
        uniform_part: Probability, from 0 to 1, that is uniform over all arms.
    """
    bumps = [_bump(arm, LOWER_PEAK) for arm in range(ARMS)]
    return tuple((1 - uniform_part) * bump / sum(bumps) + uniform_part / ARMS for bump in bumps)


def mean_reward(response: str) -> float:
    """Return the probability that a response is rewarded; 0 for a response that is not an arm."""
    arm = _arm(response)
    return 0.0 if arm is None else MEANS[arm]


def is_better_arm(response: str) -> bool:
    """Return True for an arm of the higher peak that pays more than every arm of the lower peak."""
    return _arm(response) in BETTER_ARMS


def _arm(response: str) -> int | None:
    return ARM_WORDS.index(response) if response in ARM_WORDS else None
