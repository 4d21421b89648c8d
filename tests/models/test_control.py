import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.models.control import Control, Controller, Gains
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods import METHODS

CONTROLS = {control.setting: control for method in METHODS.values() for control in method.controls}


def applied(setting, start, target, entropies, band=0.0):
    """The value in force after each of the steps with these entropies."""
    controller, values = Controller(CONTROLS[setting], start, band), []
    for entropy in entropies:
        controller.step(entropy, target)
        values.append(controller.applied[setting])
    return values


@pytest.mark.parametrize(
    ("setting", "start", "target", "entropies", "expected"),
    [
        # Skywork's c: 0 (kept at its bound), 1e-4, 2e-4, 1e-4, 2e-4; it counts after a step below the target alone
        ("entropy_bonus", 0.0, 0.2, [0.25, 0.15, 0.15, 0.25, 0.15], [0, 1e-4, 2e-4, 0, 2e-4]),
        # 0.05 down below the target, up above it, at most 1
        ("positive_weight", 1.0, 0.3, [0.5, 0.2, 0.2, 0.4], [1, 0.95, 0.9, 0.95]),
        # the ladder of REPO, down: 4e-4, 2e-4, 1e-4, then the sign flips; up again through it
        ("repo_zeta", 8e-4, 0.3, [0.5] * 6, [4e-4, 2e-4, 1e-4, -1e-4, -2e-4, -4e-4]),
        ("repo_zeta", -2e-4, 0.3, [0.1] * 4, [-1e-4, 1e-4, 2e-4, 4e-4]),
        ("repo_zeta", 0.9, 0.3, [0.1, 0.1, 0.5], [1, 1, 0.5]),  # to the bound, and back to a half of it
        ("repo_zeta", 0.0, 0.3, [0.1, 0.1], [1e-4, 2e-4]),
        ("repo_zeta", 3e-4, 0.3, [0.5] * 3, [1.5e-4, 1e-4, -1e-4]),  # off the ladder
        ("stare_strength", 0.1, 0.3, [0.2, 0.4], [0.11, 0.1]),
        ("stare_strength", 0.495, 0.3, [0.2, 0.2], [0.5, 0.5]),
        # a ratio is doubled and halved within its bounds
        ("kl_cov_ratio", 8e-3, 0.3, [0.2, 0.2], [1.6e-2, 2e-2]),
        ("kl_cov_ratio", 5e-5, 0.3, [0.4] * 3, [2.5e-5, 2e-5, 2e-5]),
        # an entropy that is no number moves nothing
        ("positive_weight", 0.5, 0.3, [math.nan, math.inf], [0.5, 0.5]),
    ],
)
def test_a_setting_moves_as_published(setting, start, target, entropies, expected):
    assert applied(setting, start, target, entropies) == pytest.approx(expected, abs=1e-12)


def test_the_upper_clip():
    found = applied("adaptive_clip_high", 0.0, 0.3, [0.5, 0.2, 0.2, 0.2, 0.4])
    assert found == pytest.approx([0, 0.25, 0.5, 0.75, 0.5])
    bounds = [1 + CovConfig(method="adaptive_clip", adaptive_clip_high=k).ppo_clip[1] for k in found]
    assert bounds == pytest.approx([2.5, 2.75, 3, 3.25, 3])
    assert CovConfig(method="adaptive_clip").ppo_clip[0] == 0.6


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


# gaps -0.2, 0.1, 0.2, -0.1; the sums before them are 0, -0.2, -0.1, 0.1. First row, s = -1: 1 * 0.2, -(0.1 - 0.02),
# -(0.2 - 0.01), 0.1 - 0.01. Second row, from 1 downward: 1 + 0.4 is cut, 1 - (0.2 - 0.1), 1 - (0.4 - 0.05), and 1.15
# is cut.
@pytest.mark.parametrize(
    ("start", "gains", "bounds", "expected"),
    [
        (0.0, Gains(1.0, 0.1), (-1.0, 1.0), [0.2, -0.08, -0.19, 0.09]),
        (1.0, Gains(2.0, 0.5), (0.0, 1.0), [1.0, 0.9, 0.65, 1.0]),
    ],
)
def test_a_pi_loop_answers_to_the_gap_and_to_the_sum_of_those_before(start, gains, bounds, expected):
    control = Control("x", *bounds, step=0.1, raises=-1)
    controller, values, sums = Controller(control, start, gains=gains), [], []
    for entropy in (0.5, 0.2, 0.1, 0.4):
        controller.step(entropy, 0.3)
        values.append(controller.applied["x"])
        sums.append(controller.state_dict()["integral"])
    assert values == pytest.approx(expected)
    assert sums == pytest.approx([-0.2, -0.1, 0.1, 0.0])


def test_a_pi_loop_has_no_gate_and_no_step():
    controller = Controller(CONTROLS["entropy_bonus"], 1e-3, gains=Gains(1e-3, 0.0))
    controller.step(0.5, 0.3)
    assert controller.applied == {"entropy_bonus": pytest.approx(8e-4)}  # 1e-3 - 1e-3 * 0.2, not 0


def test_the_sum_of_gaps_has_a_limit_if_given():
    def overshoot(limit):
        # 30 steps far below the target at the upper bound, then steps 0.1 nats above it, until the bound is left
        controller = Controller(Control("x", 0.0, 1.0, 0.1), 0.5, gains=Gains(0.5, 0.1, limit))
        for _ in range(30):
            controller.step(0.1, 1.1)
        assert controller.applied == {"x": 1.0}
        for step in range(1000):
            controller.step(1.2, 1.1)
            if controller.applied["x"] < 1.0:
                return step
        return None

    # x < 1 where 0.1 * sum < 0.55: from 30 nats that takes 246 steps of 0.1, from 6 nats six
    assert overshoot(math.inf) == pytest.approx(246, abs=1)
    assert overshoot(6.0) == pytest.approx(6, abs=1)


def test_a_pi_loop_at_a_bound_warns_once_after_20_steps():
    controller, warned = Controller(Control("x", 0.0, 1.0, 0.1), 0.5, gains=Gains(9.0, 0.1)), []
    for step in range(1, 41):
        controller.step(0.1, 1.1)
        if controller.warning:
            warned.append(step)
    assert warned == [20]
    assert Controller(Control("x", 0.0, 1.0, 0.1), 1.0).warning is None


def test_within_a_band_a_proportional_loop_stays():
    controller = Controller(Control("x", 0.0, 1.0, 0.1), 0.5, band=0.06, gains=Gains(1.0, 0.0))
    controller.step(0.2, 0.3)
    controller.step(0.25, 0.3)
    assert controller.applied == {"x": pytest.approx(0.6)}


@given(
    control=st.sampled_from(list(CONTROLS.values())),
    start=st.floats(0, 1),
    entropies=st.lists(st.floats(0, 5) | st.just(math.nan), max_size=40),
    cut=st.integers(0, 40),
    gains=st.sampled_from([None, Gains(1.0, 0.1)]),
)
def test_it_stays_within_bounds_and_goes_on_from_its_state(control, start, entropies, cut, gains):
    start = control.low + start * (control.high - control.low)
    straight, first, second = (Controller(control, start, gains=gains) for _ in range(3))
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
    controller.load_state_dict(
        {"setting": "x", "value": 7.0, "open": True, "integral": 0.0, "at_bound": 0}
    )  # beyond the bound
    assert controller.applied == {"x": 1.0}


def test_the_metrics_are_of_the_step_that_is_over():
    controller = Controller(CONTROLS["positive_weight"], 1.0)
    assert controller.step(0.1, 0.3) == {"control/value": 1.0, "control/gap": pytest.approx(0.2)}
    assert controller.step(0.1, 0.3)["control/value"] == 0.95
