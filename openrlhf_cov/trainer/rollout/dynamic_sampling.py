"""Decisions of dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): which groups train, how many to ask for."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from openrlhf_cov.trainer.records import Group
from openrlhf_cov.utils.shares import ceil_share

# Rounds over which the pass rate is taken.
WINDOW = 4

# Standard deviations that are asked for beyond the mean: what a round lacks costs a whole longest response, what it
# has too much waits for the next step.
MARGIN = 2.0


def keep_group(scores: Sequence[float], low: float, high: float) -> bool:
    """Return True if the mean score of one prompt's responses is strictly inside (low, high).

    With the range (0, 1) and scores of 0 and 1, this drops the groups whose responses are all correct or all
    incorrect, so that their advantages are 0. A narrower range also drops groups with other advantages. A group
    without scores, whose rewards all abstained, is not kept.

    Args:
        scores: Scores of the graded responses.
        low: Lower bound (``--algo.dynamic_filtering_range``).
        high: Upper bound.
    """
    if not scores:
        return False
    return low < sum(scores) / len(scores) < high


def groups_to_dispatch(missing: int, pass_rate: float | None, oversample_max: float) -> int:
    """Return how many groups to request in one round so that ``missing`` of them probably pass; at least 1.

    With the pass rate p this is missing / p, plus ``MARGIN`` standard deviations of that number, each
    (missing (1 - p))^0.5 / p.

    Args:
        missing: Groups that the batch still needs.
        pass_rate: Share of the groups that pass the filter. None before the first decision: then ``missing`` groups
            are requested. At 0 as many as allowed are requested.
        oversample_max: Most groups to request for each missing one; the product is rounded up.
    """
    if not pass_rate:
        # Nothing passed so far: ask for as many as are allowed.
        wanted = missing if pass_rate is None else math.inf
    else:
        wanted = (missing + MARGIN * math.sqrt(missing * (1.0 - pass_rate))) / pass_rate
    most = ceil_share(missing, oversample_max)
    return max(1, math.ceil(min(wanted, most)))


def groups_to_add(missing: int, under_way: int, pass_rate: float | None, oversample_max: float) -> int:
    """Return how many more groups to request in a round of dynamic sampling.

    Args:
        missing: Groups that the batch still needs.
        under_way: Groups that were requested and are undecided.
        pass_rate: Share of the groups that passed the filter so far; None before the first decision.
        oversample_max: Most groups to request for each missing one.

    Returns:
        0 while the groups under way probably hold enough (``under_way * pass_rate``, and always before there is a pass
        rate); else the number that ``groups_to_dispatch`` still lacks.
    """
    if missing <= 0 or (under_way and (pass_rate is None or under_way * pass_rate >= missing)):
        return 0
    return max(0, groups_to_dispatch(missing, pass_rate, oversample_max) - under_way)


def first_rate(kept: Sequence[bool], missing: int) -> float | None:
    """Return the share of the finished groups of the first round that were kept; None before half of ``missing``.

    Fewer say little, and short responses finish first.

    Args:
        kept: For each group that has finished in the round, True if it was kept.
        missing: Groups that the batch still needed when the round began.
    """
    return sum(kept) / len(kept) if kept and 2 * len(kept) >= missing else None


class PassRate:
    """Share of groups that were kept in the last ``WINDOW`` rounds; None before the first."""

    def __init__(self) -> None:
        self.rounds: deque[tuple[int, int]] = deque(maxlen=WINDOW)

    def add(self, kept: int, tried: int) -> None:
        """Count one round.

        Args:
            kept: Groups that passed the filter.
            tried: Groups that finished.
        """
        self.rounds.append((kept, tried))

    @property
    def value(self) -> float | None:
        """kept / tried over the window."""
        tried = sum(tried for _, tried in self.rounds)
        return sum(kept for kept, _ in self.rounds) / tried if tried else None


@dataclass
class SamplingCounts:
    """The attempts since the last batch, for which ``missing`` groups were needed at first.

    Tokens are those of responses; ``tokens`` includes the groups that were dropped as stale.
    """

    missing: int = 0
    rounds: int = 0
    tried: int = 0
    kept: int = 0
    all_right: int = 0
    all_wrong: int = 0
    all_abstained: int = 0
    tokens: int = 0
    wasted_tokens: int = 0
    failed_rewards: int = 0

    def add(self, group: Group, kept: bool) -> None:
        """Count one finished group.

        Args:
            group: The group.
            kept: True if it passed the filter; otherwise its tokens are wasted.
        """
        self.tried += 1
        self.kept += kept
        if group.scores:
            self.all_right += min(group.scores) >= 1.0
            self.all_wrong += max(group.scores) <= 0.0
        else:
            self.all_abstained += 1
        self.tokens += group.tokens
        self.wasted_tokens += 0 if kept else group.tokens

    def add_stale(self, group: Group) -> None:
        """Count one kept group that was dropped unused."""
        self.tokens += group.tokens
        self.wasted_tokens += group.tokens

    def __str__(self) -> str:
        counts = (
            f"{self.tried} prompts tried in {self.rounds} rounds, {self.kept} groups kept, "
            f"{self.all_right} all correct, {self.all_wrong} all incorrect"
        )
        if self.all_abstained:
            counts += f", {self.all_abstained} without a reward, as the reward function abstained"
        return counts


@dataclass
class GroupBuffer:
    """Groups that were kept and have not trained yet, in the order in which their prompts were drawn."""

    groups: list[Group] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.groups)

    def drop_stale(self, step: int, max_staleness: int) -> list[Group]:
        """Remove and return the groups that step ``step`` may not train on.

        The policy of step n has the weights of version n. A group is stale if the weights that sampled it are more
        than ``max_staleness`` versions older.

        Args:
            step: Number of the global step, from 0.
            max_staleness: Largest difference of versions that is accepted.
        """
        stale = [group for group in self.groups if step - group.version > max_staleness]
        self.groups = [group for group in self.groups if step - group.version <= max_staleness]
        return stale

    def take(self, count: int) -> list[Group]:
        """Remove and return the oldest ``count`` groups."""
        taken = self.groups[:count]
        self.groups = self.groups[count:]
        return taken


def sampling_metrics(counts: SamplingCounts, batch: list[Group], waiting: int) -> dict[str, float]:
    """Return the ``sampling/*`` metrics of the batch of one step; shares of nothing are NaN.

    All groups of a batch may have waited, so that none was tried for it.

    Args:
        counts: What was tried for the batch.
        batch: Groups of the batch.
        waiting: Kept groups that wait for a later step.
    """
    tried = counts.tried or math.nan
    return {
        "sampling/kept_frac": counts.kept / tried,
        "sampling/all_right_frac": counts.all_right / tried,
        "sampling/all_wrong_frac": counts.all_wrong / tried,
        "sampling/rounds": float(counts.rounds),
        "sampling/oversample": counts.tried / (counts.missing or math.nan),
        "sampling/wasted_token_frac": counts.wasted_tokens / (counts.tokens or math.nan),
        "sampling/groups": float(len(batch)),
        "sampling/buffer_groups": float(waiting),
    }


def staleness(batch: Sequence[Group], step: int) -> dict[str, float]:
    """Return the metric of how many versions the weights that train are ahead of those that sampled, mean over groups.

    Args:
        batch: Groups of the batch of one step.
        step: Number of the step, which is the version of the policy's weights before its updates.
    """
    return {"sampling/staleness_mean": sum(step - group.version for group in batch) / max(len(batch), 1)}
