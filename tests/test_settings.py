import math
from dataclasses import dataclass

import pytest

from openrlhf_cov.config import DryRunConfig, RewardConfig, SamplingConfig
from openrlhf_cov.settings import Schedule, Scheduled, Settings, help_with_default, setting


@dataclass(frozen=True, kw_only=True)
class Sizes(Settings):
    size: Scheduled = setting(1.0, "", scheduled=True)

    def check(self) -> None:
        self.require("size", lambda size: 0.0 < size < 2.0, "must lie in (0, 2)", "; 1 will do")


@pytest.mark.parametrize("value", [1.5, Schedule(0.5, 1.5, 10)])
def test_what_fits_is_taken(value):
    assert Sizes(size=value).size == value


@pytest.mark.parametrize("value", [0.0, 2.0, math.nan, Schedule(2.0, 1.0, 10), Schedule(1.0, 2.0, 10)])
def test_a_value_or_an_end_of_a_schedule_that_does_not_fit_is_refused(value):
    with pytest.raises(ValueError, match=r"^--size (0.0|2.0|nan): must lie in \(0, 2\); 1 will do$"):
        Sizes(size=value)


@pytest.mark.parametrize(
    ("default", "shown"),
    [
        ((0.2, 0.3), "share, 2 %% (default: 0.2 0.3)\na: one\nb: two"),  # a pair as the command line has it
        (0.5, "share, 2 %% (default: 0.5)\na: one\nb: two"),
        (False, "share, 2 %%\na: one\nb: two"),  # a switch is off without its flag
        (None, "share, 2 %%\na: one\nb: two"),
        ("", "share, 2 %%\na: one\nb: two"),
    ],
)
def test_help_shows_the_default_before_the_choices(default, shown):
    # argparse writes one percent sign for two.
    assert help_with_default("share, 2 %\na: one\nb: two", default) == shown


RANGES = [  # settings, name, the last values inside, the first outside
    (RewardConfig, "code_timeout", (0.1, 3600.0), (0.0, 3600.1, math.nan)),
    (RewardConfig, "code_budget", (0.1, 3600.0), (0.0, 3600.1, math.nan)),
    (RewardConfig, "code_memory_mb", (128, 1 << 20), (127, (1 << 20) + 1)),
    (RewardConfig, "code_output_mb", (1, 1024), (0, 1025)),
    (RewardConfig, "code_float_tolerance", (0.0, 0.99), (-0.1, 1.0, math.nan)),
    (RewardConfig, "reward_timeout", (0.1, 86400.0), (0.0, 86401.0, math.inf, math.nan)),
    (RewardConfig, "reward_workers", (1,), (0,)),
    (RewardConfig, "reward_max_error_frac", (0.0, 1.0), (-0.1, 1.1, math.nan)),
    (RewardConfig, "reward_incorrect", (-1.0, 0.99), (1.0, math.nan, -math.inf)),
    (RewardConfig, "reward_format_bonus", (-1.0, 2.0), (math.nan, math.inf)),
    (SamplingConfig, "sampling_oversample_max", (1.0, 9.0), (0.9, math.inf, math.nan)),
    (SamplingConfig, "sampling_max_staleness", (0,), (-1,)),
    (SamplingConfig, "rollout_limit", (0, 1200), (-1,)),
    (SamplingConfig, "sampling_max_rounds", (1,), (0,)),
    (DryRunConfig, "dry_run_gpu_memory", (0.0,), (-1.0, math.nan, math.inf)),
]


@pytest.mark.parametrize(("settings", "name", "inside", "outside"), RANGES, ids=lambda value: str(value)[:30])
def test_ranges(settings, name, inside, outside):
    for value in inside:
        assert getattr(settings(**{name: value}), name) == value
    for value in outside:
        with pytest.raises(ValueError, match=rf"^--{name} {value}: must "):
            settings(**{name: value})
