"""What one step hands to the next one, and what of it a checkpoint keeps."""

import math
import pickle

import pytest
from scored_samples import flags

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.checkpoint.checkpoints import ROLLOUTS
from openrlhf_cov.trainer.loop_state import LoopState
from openrlhf_cov.trainer.records import StepResult

CONTROLLED = CovConfig(method="positive_weight", entropy_target=0.3)


def fresh(config=None, **settings):
    args = flags(**settings)
    args.ckpt = type("Ckpt", (), {"best_metric_key": "accuracy"})()
    return LoopState.fresh(args, config or CovConfig())


def step(state, entropy=0.5, config=None, reward=0.5, kl=0.0):
    result = StepResult({}, mean_entropy=entropy, updates=2, learning_rate=0.1)
    metrics = {"kl": kl, "reward": reward, "entropy/mean": entropy, "cov/prob_weighted_mean": 0.2, "cov/mean": 0.4}
    return state.finish_step(metrics, result, config or CovConfig(), samples=64)


def test_the_theory_predicts_with_the_updates_of_the_step():
    state = fresh()
    first = step(state, 0.5)
    # Two updates with the learning rate 0.1: -0.2 times the covariances 0.2 and 0.4.
    assert first["entropy/delta_theorem1"] == pytest.approx(-0.04)
    assert first["entropy/delta_theorem2"] == pytest.approx(-0.08)
    assert math.isnan(first["entropy/delta"])
    assert step(state, 0.4)["entropy/delta"] == pytest.approx(-0.1)


def test_the_law_of_all_steps_so_far_is_logged_from_the_20th_and_survives_a_restart():
    # R = -0.2 exp(H) + 0.9 exactly, H = 1/step: ceiling 0.9 - 0.2 = 0.7, R² 1
    def of_step(number):
        return {"entropy": 1 / number, "reward": 0.9 - 0.2 * math.exp(1 / number)}

    state = fresh()
    for number in range(1, 20):
        found = step(state, **of_step(number))
        assert math.isnan(found["law/ceiling"])
        assert math.isnan(found["law/r2"])
    saved = pickle.loads(pickle.dumps(state.state_dict({"is_over": False})))
    resumed = fresh()
    resumed.load_state_dict(saved)
    found = step(resumed, **of_step(20))
    assert resumed.step == 20
    assert found["law/ceiling"] == pytest.approx(0.7, abs=1e-12)
    assert found["law/r2"] == pytest.approx(1.0, abs=1e-12)


def test_the_kl_coefficient_adapts():
    # The KL is half of the target: -0.5, cut at -0.2, times 64 of 640 samples.
    state = fresh(algo__kl__init_coef=0.1, algo__kl__target=6.0, algo__kl__horizon=640)
    step(state, kl=3.0)
    assert state.kl.value == pytest.approx(0.1 * 0.98)
    fixed = fresh(algo__kl__init_coef=0.1)
    step(fixed, kl=3.0)
    assert fixed.kl.value == 0.1


def test_the_closed_loop_moves_its_setting_by_the_exact_entropy():
    state = fresh(CONTROLLED)
    found = step(state, 0.1, CONTROLLED)
    assert found["control/gap"] == pytest.approx(0.2)
    assert found["control/value"] == 1.0
    # The entropy is too low: the weight of positive advantages, which lowers it, goes one step of 0.05 down.
    assert CONTROLLED.at(1, state.control).positive_weight == pytest.approx(0.95)
    assert step(state, 0.1, CONTROLLED)["control/value"] == pytest.approx(0.95)
    assert "control/value" not in step(fresh(), 0.1)


def test_a_resumed_run_has_the_state_of_the_run_that_was_stopped():
    settings = {"algo__kl__init_coef": 0.1, "algo__kl__target": 6.0, "algo__kl__horizon": 640}
    state = fresh(CONTROLLED, **settings)
    for entropy in (0.5, 0.1, 0.2):
        step(state, entropy, CONTROLLED, kl=3.0)
    state.best = state.best.after({"accuracy": 0.5})
    saved = pickle.loads(pickle.dumps(state.state_dict({"groups": [], "is_over": True})))
    assert saved[ROLLOUTS] == {"groups": [], "is_over": True}
    resumed = fresh(CONTROLLED, **settings)
    resumed.load_state_dict(saved)
    assert resumed.state_dict({}) == state.state_dict({})
    assert resumed.best == state.best
    one, other = step(state, 0.3, CONTROLLED, kl=3.0), step(resumed, 0.3, CONTROLLED, kl=3.0)
    assert {name: repr(value) for name, value in one.items()} == {name: repr(value) for name, value in other.items()}
