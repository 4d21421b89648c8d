"""Which setting ``--entropy_target`` moves, and what it is refused for."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.settings import Schedule


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"cov_type": "kl_cov"}, "kl_cov_ratio"),
        ({"cov_type": "kl_cov", "entropy_control": "ppo_kl_coef"}, "ppo_kl_coef"),
        ({"cov_type": "clip_cov"}, "clip_cov_ratio"),
        ({"method": "top_entropy,repo_r"}, "repo_zeta"),
        ({"method": "adaptive_entropy,positive_weight", "entropy_control": "positive_weight"}, "positive_weight"),
    ],
)
def test_the_main_setting_or_the_one_that_is_named(settings, setting):
    config = CovConfig(entropy_target=0.3, **settings)
    assert config.controller().applied == {setting: getattr(config, setting)}


def test_step_and_bounds_are_published_or_given():
    config = CovConfig(method="stare", entropy_target=0.3, entropy_step=0.02, entropy_high=0.2, entropy_band=0.01)
    control = config.controller().control
    assert (control.step, control.low, control.high) == (0.02, 0.0, 0.2)
    assert config.controller().band == 0.01


def test_a_step_has_the_value_in_force_and_the_target_of_its_schedule():
    config = CovConfig(method="positive_weight", entropy_target=Schedule(0.6, 0.4, 10))
    controller = config.controller()
    assert config.at(5, controller).entropy_target == pytest.approx(0.5)
    controller.step(0.1, 0.6)
    assert config.at(5, controller).positive_weight == 0.95


def test_without_a_target_nothing_is_controlled():
    assert CovConfig(method="positive_weight", positive_weight=0.5).controller() is None


def test_where_the_bounds_do_not_let_a_setting_change_its_sign_it_stays_at_a_step():
    config = CovConfig(cov_type="clip_cov", entropy_target=0.3, entropy_step=1e-4)  # from 2e-4, not below 2e-5
    controller, values = config.controller(), []
    for step in range(4):
        controller.step(0.5, 0.3)  # more entropy than asked for: fewer tokens are clipped
        values.append(config.at(step, controller).clip_cov_ratio)
    assert values == [1e-4] * 4


@given(
    chosen=st.sampled_from([(n, c) for n, m in METHODS.items() for c in m.controls]),
    sizes=st.fixed_dictionaries(
        {}, optional={name: st.floats(-5, 0.5).map(lambda x: 10**x) for name in ("start", "step", "low", "high")}
    ),
    below=st.booleans(),
    entropies=st.lists(st.sampled_from([0.1, 0.3, 0.5]), max_size=25),
    kept=st.floats(-3, 3),
)
def test_whatever_a_run_accepts_it_can_be_moved_to(chosen, sizes, below, entropies, kept):
    """Every value that the loop takes, also from the state of a run with other bounds, is one that is allowed."""
    name, control = chosen
    flags = {"cov_type" if METHODS[name].by_covariance else "method": name, "entropy_control": control.setting}
    flags |= {f"entropy_{n}": size for n, size in sizes.items() if n != "start"}
    if "start" in sizes:
        flags[control.setting] = sizes["start"]
    if below and control.low < 0 and "low" in sizes:
        flags["entropy_low"] = -sizes["low"]
    try:
        config = CovConfig(entropy_target=0.3, allow_large_cov_ratio=True, **flags)
    except ValueError:
        return
    for state in (None, {"setting": control.setting, "value": kept, "open": True, "integral": 0.0, "at_bound": 0}):
        controller = config.controller()
        controller.load_state_dict(state)
        config.at(0, controller)
        for step, entropy in enumerate(entropies):
            controller.step(entropy, 0.3)
            config.at(step, controller)


@pytest.mark.parametrize("bound", ["low", "high"])
@pytest.mark.parametrize(("name", "control"), [(n, c) for n, m in METHODS.items() for c in m.controls])
def test_every_method_takes_the_bounds_of_its_settings(name, control, bound):
    chosen = {"cov_type" if METHODS[name].by_covariance else "method": name}
    CovConfig(**chosen, **{control.setting: getattr(control, bound)})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"entropy_target": 0.3}, ["--entropy_target", "--entropy_control"]),
        ({"entropy_target": 0.3, "method": "cispo"}, ["--entropy_target", "--entropy_control"]),
        ({"entropy_target": 0.0, "method": "repo_r"}, ["--entropy_target 0.0: must be"]),
        ({"entropy_target": -0.3, "method": "repo_r"}, ["--entropy_target -0.3: must be"]),
        ({"entropy_target": float("nan"), "method": "repo_r"}, ["--entropy_target", "nan"]),
        ({"entropy_target": Schedule(0.5, 0.0, 9), "method": "repo_r"}, ["--entropy_target 0.0: must be"]),
        ({"entropy_target": 0.3, "method": "repo_r,positive_weight"}, ["--entropy_control", "--method repo_r"]),
        (
            {"entropy_target": 0.3, "method": "repo_r", "entropy_control": "kl_cov_ratio"},
            ["--entropy_control kl_cov_ratio", "repo_zeta"],
        ),
        ({"entropy_target": 0.3, "method": "cispo", "entropy_control": "cap"}, ["--entropy_control cap"]),
        (
            {"entropy_target": 0.3, "method": "positive_weight", "positive_weight": Schedule(0.0, 1.0, 9)},
            ["--positive_weight", "schedule"],
        ),
        ({"entropy_target": 0.3, "method": "repo_r", "entropy_band": -1.0}, ["--entropy_band"]),
        (
            {"entropy_target": 0.3, "cov_type": "kl_cov", "entropy_low": 1e-5},  # published: down to 2e-5
            ["--entropy_low", "--entropy_step 2e-05 is above 1e-05"],
        ),
        (
            {"entropy_target": 0.3, "method": "repo_r", "repo_zeta": 0.0, "entropy_step": 1.5},
            ["--entropy_low", "--entropy_step 1.5 is above 1"],
        ),
        ({"entropy_target": 0.3, "method": "repo_r", "entropy_step": 0.0}, ["--entropy_step"]),
        (
            {"entropy_target": 0.3, "cov_type": "kl_cov", "entropy_step": 1e-2},
            ["--entropy_step 0.01", "--kl_cov_ratio 0.002"],
        ),
        (
            {"entropy_target": 0.3, "method": "stare", "entropy_low": 0.2},
            ["--stare_strength 0.1", "--entropy_low 0.2"],
        ),
        ({"entropy_target": 0.3, "cov_type": "kl_cov", "entropy_high": 0.2}, ["--kl_cov_ratio", "20.0%"]),
        ({"entropy_target": 0.3, "method": "positive_weight", "entropy_high": 2.0}, ["--positive_weight", "2.0"]),
        ({"method": "repo_r", "entropy_step": 0.1}, ["--entropy_step", "--entropy_target"]),
        ({"method": "repo_r", "entropy_control": "repo_zeta"}, ["--entropy_control", "--entropy_target"]),
    ],
)
def test_what_no_loop_can_do_is_refused(settings, words):
    with pytest.raises(ValueError, match="--") as found:
        CovConfig(**settings)
    assert all(word in str(found.value) for word in words), found.value


PI = {"method": "positive_weight", "entropy_target": 0.3, "entropy_control_form": "pi"}


def test_gains_are_shares_of_the_range_between_the_bounds():
    # from 1 downward in [0.5, 1] with a gap of 0.2 nats: 1 - (0.5 * 0.5) * 0.2
    config = CovConfig(**PI, entropy_gain_p=0.5, entropy_gain_i=0.0, entropy_low=0.5)
    controller = config.controller()
    controller.step(0.1, 0.3)
    assert controller.applied == {"positive_weight": pytest.approx(0.95)}


def test_with_the_published_gains_of_a_range_of_two():
    controller = CovConfig(**PI, entropy_gain_p=1.0, entropy_gain_i=0.1).controller()
    assert (controller.gains.proportional, controller.gains.integral) == (1.0, 0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entropy_gain_p": -0.1}, "--entropy_gain_p -0.1: must be a finite number of at least 0"),
        ({"entropy_gain_i": math.inf}, "--entropy_gain_i inf: must be a finite number of at least 0"),
        ({"entropy_gain_p": 0.0, "entropy_gain_i": 0.0}, "--entropy_gain_p 0 and --entropy_gain_i 0: nothing"),
        ({"entropy_band": 0.05}, "--entropy_band 0.05: gaps inside of the band would add up"),
        ({"entropy_integral_limit": 0.0}, "--entropy_integral_limit 0.0: must be a finite number of nats above 0"),
        ({"method": "repo_r"}, "--entropy_control_form pi: --repo_zeta is doubled and halved, so no gain fits it"),
        ({"entropy_target": None}, "--entropy_control_form only applies with --entropy_target"),
        ({"entropy_high": math.inf}, "its gains are shares of the range .*; give finite bounds"),
    ],
)
def test_what_no_pi_loop_can_do_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CovConfig(**(PI | settings))


def test_a_proportional_loop_may_have_a_band():
    CovConfig(**PI, entropy_gain_i=0.0, entropy_band=0.05)
