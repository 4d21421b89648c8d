import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.control import Control, Controller
from openrlhf_cov.models.methods import METHODS

CONTROLS = {control.setting: control for method in METHODS.values() for control in method.controls}


def applied(setting, start, target, entropies, band=0.0):
    """The value in force after each of the steps with these entropies."""
    controller, values = Controller(CONTROLS[setting], start, band), []
    for entropy in entropies:
        controller.step(entropy, target)
        values.append(controller.applied[setting])
    return values


def test_the_coefficient_of_skywork():
    # c: 0 (kept at its bound), 1e-4, 2e-4, 1e-4, 2e-4; it counts after a step below the target alone
    found = applied("entropy_bonus", 0.0, 0.2, [0.25, 0.15, 0.15, 0.25, 0.15])
    assert found == pytest.approx([0, 1e-4, 2e-4, 0, 2e-4], abs=1e-12)


def test_the_weight_of_positive_advantages():
    # 0.05 down below the target, up above it, at most 1
    found = applied("positive_weight", 1.0, 0.3, [0.5, 0.2, 0.2, 0.4])
    assert found == pytest.approx([1, 0.95, 0.9, 0.95])


def test_the_upper_clip():
    found = applied("adaptive_clip_high", 0.0, 0.3, [0.5, 0.2, 0.2, 0.2, 0.4])
    assert found == pytest.approx([0, 0.25, 0.5, 0.75, 0.5])
    bounds = [1 + CovConfig(method="adaptive_clip", adaptive_clip_high=k).ppo_clip[1] for k in found]
    assert bounds == pytest.approx([2.5, 2.75, 3, 3.25, 3])
    assert CovConfig(method="adaptive_clip").ppo_clip[0] == 0.6


def test_the_ladder_of_repo():
    # down: 4e-4, 2e-4, 1e-4, then the sign flips; up again through it; from 0.9 to the bound and back to a half of it
    assert applied("repo_zeta", 8e-4, 0.3, [0.5] * 6) == pytest.approx([4e-4, 2e-4, 1e-4, -1e-4, -2e-4, -4e-4])
    assert applied("repo_zeta", -2e-4, 0.3, [0.1] * 4) == pytest.approx([-1e-4, 1e-4, 2e-4, 4e-4])
    assert applied("repo_zeta", 0.9, 0.3, [0.1, 0.1, 0.5]) == pytest.approx([1, 1, 0.5])
    assert applied("repo_zeta", 0.0, 0.3, [0.1, 0.1]) == pytest.approx([1e-4, 2e-4])
    assert applied("repo_zeta", 3e-4, 0.3, [0.5] * 3) == pytest.approx([1.5e-4, 1e-4, -1e-4])  # off the ladder


def test_the_strength_of_stare():
    assert applied("stare_strength", 0.1, 0.3, [0.2, 0.4]) == pytest.approx([0.11, 0.1])
    assert applied("stare_strength", 0.495, 0.3, [0.2, 0.2]) == pytest.approx([0.5, 0.5])


def test_a_ratio_is_doubled_and_halved_within_its_bounds():
    assert applied("kl_cov_ratio", 8e-3, 0.3, [0.2, 0.2]) == pytest.approx([1.6e-2, 2e-2])
    assert applied("kl_cov_ratio", 5e-5, 0.3, [0.4] * 3) == pytest.approx([2.5e-5, 2e-5, 2e-5])


def test_it_stays_within_the_band():
    assert applied("positive_weight", 0.5, 0.3, [0.3, 0.25, 0.35, 0.2, 0.4], band=0.06) == pytest.approx(
        [0.5, 0.5, 0.5, 0.45, 0.5]
    )


def test_at_the_target_it_does_as_published():
    # METHODS 2.1: c + step if h < H* else c - step; 2.11: weight - 0.05 if h < H* else weight + 0.05
    assert applied("entropy_bonus", 1e-3, 0.3, [0.3]) == [0.0]  # and its gate is closed
    assert applied("positive_weight", 0.5, 0.3, [0.3]) == pytest.approx([0.55])
    for setting in CONTROLS.keys() - {"entropy_bonus", "positive_weight"}:  # sign(0) = 0
        assert applied(setting, 0.015, 0.3, [0.3]) == [0.015]


@pytest.mark.parametrize("entropy", [math.nan, math.inf])
def test_an_entropy_that_is_no_number_moves_nothing(entropy):
    assert applied("positive_weight", 0.5, 0.3, [entropy]) == [0.5]


@given(
    control=st.sampled_from(list(CONTROLS.values())),
    start=st.floats(0, 1),
    entropies=st.lists(st.floats(0, 5) | st.just(math.nan), max_size=40),
    cut=st.integers(0, 40),
)
def test_it_stays_within_bounds_and_goes_on_from_its_state(control, start, entropies, cut):
    start = control.low + start * (control.high - control.low)
    straight, first, second = (Controller(control, start) for _ in range(3))
    expected = [straight.step(entropy, 0.3) for entropy in entropies]
    found = [first.step(entropy, 0.3) for entropy in entropies[:cut]]
    second.load_state_dict(first.state_dict())
    found += [second.step(entropy, 0.3) for entropy in entropies[cut:]]
    assert str(found) == str(expected)
    assert all(control.low <= step["control/value"] <= control.high for step in expected)


def test_a_foreign_state_is_no_start():
    controller = Controller(Control("x", 0.0, 1.0, 0.1), 0.5)
    controller.load_state_dict(None)
    controller.load_state_dict({"setting": "y", "value": 0.9, "open": False})
    assert controller.applied == {"x": 0.5}
    controller.load_state_dict({"setting": "x", "value": 7.0, "open": True})  # bounds of before
    assert controller.applied == {"x": 1.0}


def test_the_metrics_are_of_the_step_that_is_over():
    controller = Controller(CONTROLS["positive_weight"], 1.0)
    assert controller.step(0.1, 0.3) == {"control/value": 1.0, "control/gap": pytest.approx(0.2)}
    assert controller.step(0.1, 0.3)["control/value"] == 0.95
