import dataclasses
import math
from types import SimpleNamespace

import pytest

from openrlhf_cov.config import LARGE_COV_RATIO, CovConfig


def test_defaults_are_the_published_settings():
    assert dataclasses.asdict(CovConfig()) == {
        "cov_type": "none",
        "cov_scope": "micro_batch",
        "clip_cov_ratio": 2e-4,  # arXiv 2505.22617, section 4.3; fractions, never percent
        "clip_cov_lb": 1.0,
        "clip_cov_ub": 5.0,
        "kl_cov_ratio": 2e-3,  # 7B
        "ppo_kl_coef": 1.0,
        "kl_cov_keep_ppo_clip": False,
        "allow_large_cov_ratio": False,
    }


def test_settings_cannot_change_after_they_are_checked():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CovConfig().kl_cov_ratio = 0.5


@pytest.mark.parametrize("name", ["clip_cov_ratio", "kl_cov_ratio"])
@pytest.mark.parametrize("value", [0.0, -1e-9, 1.0 + 1e-9, 20.0, math.nan, math.inf])
def test_a_fraction_lies_in_its_range(name, value):
    with pytest.raises(ValueError, match=rf"^--{name} is a fraction of tokens in \(0, 1\], got {value}"):
        CovConfig(**{name: value}, allow_large_cov_ratio=True)


@pytest.mark.parametrize("name", ["clip_cov_ratio", "kl_cov_ratio"])
def test_a_fraction_that_looks_like_percent_must_be_meant(name):
    assert LARGE_COV_RATIO == 0.05
    assert getattr(CovConfig(**{name: 0.05}), name) == 0.05
    with pytest.raises(ValueError, match=rf"^--{name} 0\.2 selects 20\.0% .* --allow_large_cov_ratio"):
        CovConfig(**{name: 0.2})
    for value in (0.2, 1.0):
        assert getattr(CovConfig(**{name: value}, allow_large_cov_ratio=True), name) == value


@pytest.mark.parametrize(("lower", "upper"), [(5.0, 5.0), (2.0, 1.0), (math.nan, 1.0), (1.0, math.nan)])
def test_the_band_is_not_empty(lower, upper):
    with pytest.raises(ValueError, match=f"^--clip_cov_lb must lie below --clip_cov_ub, got {lower} and {upper}"):
        CovConfig(clip_cov_lb=lower, clip_cov_ub=upper)


@pytest.mark.parametrize(("lower", "upper"), [(-math.inf, math.inf), (-2.0, -1.0), (0.0, 1e-9)])
def test_any_band_that_is_not_empty_will_do(lower, upper):
    assert CovConfig(clip_cov_lb=lower, clip_cov_ub=upper).clip_cov_ub == upper


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_the_coefficient_is_finite_and_not_negative(value):
    with pytest.raises(ValueError, match=f"^--ppo_kl_coef is a finite number of at least 0, got {value}"):
        CovConfig(ppo_kl_coef=value)
    assert CovConfig(ppo_kl_coef=0.0).ppo_kl_coef == 0.0


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [("cov_type", "klcov", "none, clip_cov, kl_cov"), ("cov_scope", "batch", "micro_batch, global")],
)
def test_a_name_is_one_of_its_choices(name, value, choices):
    with pytest.raises(ValueError, match=f"^--{name} is one of {choices}, got '{value}'"):
        CovConfig(**{name: value})


def test_the_global_scope_is_announced_but_not_there():
    with pytest.raises(ValueError, match=r"^--cov_scope global is not available yet; use --cov_scope micro_batch"):
        CovConfig(cov_scope="global")


def test_config_of_parsed_flags_ignores_other_flags():
    settings = dataclasses.asdict(CovConfig(cov_type="kl_cov", kl_cov_ratio=1e-3))
    args = SimpleNamespace(**settings, actor=SimpleNamespace(), something_else=1)
    assert CovConfig.from_args(args) == CovConfig(cov_type="kl_cov", kl_cov_ratio=1e-3)


def test_every_setting_has_a_help_text_and_names_its_method():
    choices = {"clip_cov", "kl_cov"}
    for setting in dataclasses.fields(CovConfig):
        assert setting.metadata["help"]
        assert setting.metadata["only"] in {None, *choices}
        owner = next((method for method in choices if setting.name.startswith(method)), None)
        assert owner is None or setting.metadata["only"] == owner
