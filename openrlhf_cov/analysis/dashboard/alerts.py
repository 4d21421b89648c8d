"""Alerts about a run: what is wrong, how much, since when and what to do (pure)."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.analysis.runs import METHOD_FLAGS
from openrlhf_cov.analysis.table import Table
from openrlhf_cov.models.cov_config import methods_of
from openrlhf_cov.utils.metric_table import ENTROPY, limit

# The entropy at the start is the median of the first START_POINTS steps. The entropy of a step is the median of this
# step and the steps before it, LEVEL_POINTS in all.
START_POINTS = 5
LEVEL_POINTS = 3
# Share of the entropy at the start below which little entropy is left for gains of reward.
LOW_ENTROPY = 0.1
# Steps whose mean reward is compared with that of as many before them; a tenth of a long run.
HALF_WINDOW = 20
HALF_SHARE = 0.1
# The entropy must fall between the two windows by this share, and by FALL_ERRORS standard errors.
ENTROPY_FALL = 0.1
FALL_ERRORS = 3
# Steps over which failures of the grader and empty bands are averaged.
RECENT = 10
# Steps for which a skipped update and a large ratio are remembered.
SKIPS_WITHIN = 20
RATIOS_WITHIN = 5
# Metric of the grader, what is wrong, what to do. The limit of the metric holds for its mean over RECENT steps.
GRADER = (
    ("reward/error_frac", "rewards fail", "see the errors of the reward function or server in the log of the run"),
    ("reward/timeout_frac", "grading times out", "raise --reward_timeout or --reward_workers"),
    (
        "reward/unparsable_frac",
        "answers do not have the form of their label",
        "read some responses; name the form in the prompt, check --reward_format",
    ),
)

# Metrics that the alerts need.
COLUMNS = (
    *(ENTROPY, "reward", "ppo/skipped_updates", "ppo/ratio_p99", "cov/empty_update_frac", "cov/selected_count"),
    *(name for name, *_ in GRADER),
)


@dataclass(frozen=True)
class Alert:
    """An alert: ``what`` is wrong, its ``value``, and the ``advice``.

    The condition of the alert has held without a break since step ``since``.
    """

    code: str
    what: str
    value: str
    since: int
    advice: str

    @property
    def short(self) -> str:
        """The alert without its advice, as one line."""
        return f"{self.what}: {self.value}, since step {self.since}"

    @property
    def line(self) -> str:
        """The alert with its advice, as one line."""
        return f"{self.short}; {self.advice}"


def find_alerts(table: Table, settings: Mapping[str, str]) -> list[Alert]:
    """Return the alerts of a run at its last step, the most urgent first.

    Args:
        table: Training metrics of the run.
        settings: Settings of the run, flag -> value; empty if they are not known.
    """
    found = (
        *_grader(table),
        _skipped_updates(table),
        _large_ratio(table),
        _low_entropy(table),
        _flat_reward(table),
        _empty_band(table, settings),
    )
    return [alert for alert in found if alert is not None]


def _low_entropy(table: Table) -> Alert | None:
    steps, (entropy,) = _complete(table, ENTROPY)
    if len(entropy) < START_POINTS + LEVEL_POINTS:
        return None
    # Medians: one step with unusual prompts neither hides nor causes an alert.
    start = float(np.median(entropy[:START_POINTS]))
    level = np.median(np.lib.stride_tricks.sliding_window_view(entropy, LEVEL_POINTS), axis=1)
    since = _holding(steps[LEVEL_POINTS - 1 :], level < LOW_ENTROPY * start)
    if since is None:
        return None
    value = f"{level[-1]:.3g} of {start:.3g} nats, {level[-1] / start:.1%}"
    advice = "little entropy is left for gains: use an earlier checkpoint, a lower --actor.adam.lr or --method kl_cov"
    return Alert("entropy_low", "entropy below 10 % of its start", value, since, advice)


def _flat_reward(table: Table) -> Alert | None:
    """Return an alert if the reward gains less than one standard error while the entropy falls."""
    steps, (entropy, reward) = _complete(table, ENTROPY, "reward")
    half = max(HALF_WINDOW, int(HALF_SHARE * len(steps)))
    if len(steps) < 2 * half:
        return None
    gain, gain_error = _halves(reward, half)
    change, change_error = _halves(entropy, half)
    fall = -change
    # The mean of the first of the two stretches, for each place of the second one.
    before = _means(entropy, half)[:-half]
    falls = (fall > ENTROPY_FALL * before) & (fall > FALL_ERRORS * change_error)
    since = _holding(steps[2 * half - 1 :], falls & (gain < gain_error))
    if since is None:
        return None
    value = f"reward {gain[-1]:+.2g} (± {gain_error[-1]:.2g}) for {fall[-1] / before[-1]:.0%} of the entropy"
    advice = f"means of {half} steps; use harder prompts, or stop: the entropy falls without a gain"
    return Alert("reward_flat", "reward flat while entropy falls", value, since, advice)


def _grader(table: Table) -> Iterator[Alert | None]:
    for name, what, advice in GRADER:
        steps, (share,) = _complete(table, name)
        # With a limit of 0, whole numbers are averaged: running sums of shares leave rounding that would count as
        # above 0.
        holds = _recent_mean(share > 0 if limit(name) == 0 else share, RECENT) > limit(name)
        since = _holding(steps, holds)
        if since is not None:
            value = f"{_percent(share[-RECENT:].mean())} of the responses of the last {_steps(share[-RECENT:])}"
            yield Alert(name, what, value, since, advice)


def _skipped_updates(table: Table) -> Alert | None:
    steps, (skipped,) = _complete(table, "ppo/skipped_updates")
    since = _holding(steps, _recent_mean(skipped > limit("ppo/skipped_updates"), SKIPS_WITHIN) > 0)
    if since is None:
        return None
    value = f"{skipped[-SKIPS_WITHIN:].sum():.0f} in the last {_steps(skipped[-SKIPS_WITHIN:])}"
    advice = "lower --actor.adam.lr or --actor.max_norm; look for broken data"
    return Alert("updates_skipped", "updates skipped, NaN gradient", value, since, advice)


def _large_ratio(table: Table) -> Alert | None:
    steps, (ratio,) = _complete(table, "ppo/ratio_p99")
    since = _holding(steps, _recent_mean(ratio > limit("ppo/ratio_p99"), RATIOS_WITHIN) > 0)
    if since is None:
        return None
    value = f"ppo/ratio_p99 {ratio[-RATIOS_WITHIN:].max():.3g}"
    advice = "lower --actor.adam.lr, use fewer updates per rollout, or keep the PPO clip"
    return Alert("ratio_large", "the policy runs away from its rollouts", value, since, advice)


def _empty_band(table: Table, settings: Mapping[str, str]) -> Alert | None:
    """Return an alert for Clip-Cov; a run of an unknown method counts if it selected tokens at some step."""
    steps, (empty,) = _complete(table, "cov/empty_update_frac")
    if any(flag in settings for flag in METHOD_FLAGS):
        cov_type, method = (settings.get(flag, "none") for flag in METHOD_FLAGS)
        if "clip_cov" not in [each.name for each in methods_of(cov_type, method)]:
            return None
    elif not np.nansum(table.column("cov/selected_count")):
        return None
    since = _holding(steps, _recent_mean(empty, RECENT) > limit("cov/empty_update_frac"))
    if since is None:
        return None
    value = f"none in {empty[-RECENT:].mean():.0%} of the updates"
    advice = "nothing is clipped: lower --clip_cov_lb towards cov/top_2e-3, or raise --clip_cov_ub"
    return Alert("band_empty", "no candidates in Clip-Cov's band", value, since, advice)


def _complete(table: Table, *names: str) -> tuple[NDArray[np.int64], list[Floats]]:
    """Return the steps (n,) that have all of these metrics, and the metrics (n,)."""
    columns = [table.column(name) for name in names]
    there = np.isfinite(columns).all(axis=0)
    return table.steps[there], [column[there] for column in columns]


def _holding(steps: NDArray[np.int64], holds: NDArray[np.bool_]) -> int | None:
    """Return the first step of the stretch of True that lasts to the end; None if the last value is False."""
    if not len(holds) or not holds[-1]:
        return None
    # The stretch begins after the last place where the condition did not hold.
    broken = np.flatnonzero(~holds)
    return int(steps[broken[-1] + 1 if len(broken) else 0])


def _recent_mean(values: Floats | NDArray[np.bool_], window: int) -> Floats:
    """Return the mean of the last ``window`` values, of fewer at the start."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    first = np.maximum(np.arange(len(values)) + 1 - window, 0)
    return (total[1:] - total[first]) / (np.arange(len(values)) + 1 - first)


def _means(values: Floats, window: int) -> Floats:
    """Return the means of all stretches of ``window`` values, (n - window + 1,)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return (total[window:] - total[:-window]) / window


def _halves(values: Floats, half: int) -> tuple[Floats, Floats]:
    """Return the mean of each stretch minus the mean of the stretch before, (n - 2 half + 1,), and its standard error.

    The noise of a value is estimated from the differences of neighbors, which a trend hardly changes.
    """
    means = _means(values, half)
    # The difference of two neighbours has twice the variance of a value.
    variance = _means(np.diff(values) ** 2, 2 * half - 1) / 2
    return means[half:] - means[:-half], np.sqrt(np.maximum(variance, 0.0) * 2 / half)


def _steps(values: Floats) -> str:
    return f"{len(values)} steps" if len(values) > 1 else "step"


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "under 0.1 %"
    digits = 1 if math.isfinite(share) and share < 0.1 else 0
    return f"{100 * share:.{digits}f} %"
