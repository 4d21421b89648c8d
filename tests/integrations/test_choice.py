"""Methods and settings that are chosen in Python."""

import pytest

from openrlhf_cov.integrations.choice import choose
from openrlhf_cov.settings import Schedule

# Case -> method, settings, and the setting that has no effect.
WITHOUT_EFFECT = {
    "a setting of another method": ("clip_cov", {"kl_cov_ratio": 2e-3}, "kl_cov_ratio"),
    "a scope without such a method": ("positive_weight", {"positive_weight": 0.5, "cov_scope": "global"}, "cov_scope"),
    "a gain of another form": ("entropic", {"entropy_target": 0.3, "entropy_gain_p": 2.0}, "entropy_gain_p"),
    "a gate that the target replaces": ("stare", {"entropy_target": 0.3, "stare_gate": 0.5}, "stare_gate"),
    "files that another trainer does not write": ("kl_cov", {"cov_dump_every": 10}, "cov_dump_every"),
}


@pytest.mark.parametrize("case", WITHOUT_EFFECT)
def test_a_setting_without_effect_is_refused(case):
    method, settings, name = WITHOUT_EFFECT[case]
    with pytest.raises(ValueError, match=name):
        choose(method, settings)
    # The same without it is taken.
    choose(method, {other: value for other, value in settings.items() if other != name})


def test_settings_with_an_effect_are_taken():
    config = choose(
        "kl_cov,positive_weight",
        {"kl_cov_ratio": 0.1, "allow_large_cov_ratio": True, "cov_log_probs": "old", "positive_weight": "0:1:500"},
    )
    assert (config.kl_cov_ratio, config.cov_log_probs) == (0.1, "old")
    assert config.positive_weight == Schedule(0.0, 1.0, 500)
