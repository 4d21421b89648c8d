"""A flag that nothing would read ends the run before it starts."""

from dataclasses import fields

import pytest

from openrlhf_cov.models.methods import METHODS

KL = ("--cov_type", "kl_cov")
OUR_REWARD = ["--reward.remote_url", "openrlhf_cov/rewards/reward_func.py"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([*KL, "--clip_cov_rat", "1e-3"], ["--clip_cov_ratio", "got --method kl_cov"]),
        ([*KL, "--actor.dual", "10"], ["--actor.dual_clip", "--kl_cov_keep_ppo_clip"]),
        (["--sampling_max_stale", "2"], ["--sampling_max_staleness", "--algo.dynamic_filtering_enable"]),
        ([*OUR_REWARD, "--code_timeout", "9"], ["--code_timeout", "got math"]),
    ],
)
def test_a_shortened_flag_without_effect_is_refused(parse, refused, flags, named):
    line = refused(parse, *flags)
    assert all(text in line for text in named), line


@pytest.mark.parametrize("more", [["--reward_source", "row"], ["--eval.dataset", "bench:code_basics"]])
def test_limits_of_programs_are_taken_where_programs_run(parse, more):
    assert parse(*OUR_REWARD, "--code_timeout", "9", *more).code_timeout == 9.0
    assert parse("--reward.remote_url", "mine/reward_func.py", "--code_timeout", "9").code_timeout == 9.0


def flag_of(setting):
    """The flag of a setting with a value that it takes: its default, or a number where that is None."""
    if isinstance(setting.default, bool):
        return [f"--{setting.name}"]
    default = 9.0 if setting.default is None else setting.default
    values = default if isinstance(default, tuple) else [default]
    return [f"--{setting.name}", *(str(value) for value in values)]


OF_METHODS = [(setting, method) for method in METHODS.values() for setting in fields(method.settings)]


@pytest.mark.parametrize(("setting", "method"), OF_METHODS, ids=[setting.name for setting, _ in OF_METHODS])
def test_a_setting_that_nothing_reads_is_refused(parse, refused, setting, method):
    others = [each for each in METHODS.values() if each is not method and setting not in fields(each.settings)]
    line = refused(parse, *others[0].flag.split(), *flag_of(setting))
    assert f"--{setting.name} only applies to {method.flag}" in line
