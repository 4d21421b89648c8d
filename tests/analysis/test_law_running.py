"""The law fitted again at every step of a run."""

import json
import math

import pytest

from openrlhf_cov.analysis.law import fit_law
from openrlhf_cov.models.dynamics import RunningLaw


def test_running_fit_is_the_fit_of_all_points(law_curve):
    points, running = law_curve(60, 0.5, 9), RunningLaw()
    values = [running.add(H, R) for H, R in zip(points.entropy, points.reward, strict=True)]
    assert all(math.isnan(number) for value in values[:19] for number in value.values())
    for count in (20, 43, 60):
        fit = fit_law(points[:count], resamples=10)
        found = values[count - 1]
        assert found == pytest.approx({"law/ceiling": fit.ceiling.estimate, "law/r2": fit.r2}, rel=1e-9)


def test_running_fit_goes_on_after_a_checkpoint(law_curve):
    points = law_curve(40, 0.5, 10)
    whole, first, second = RunningLaw(), RunningLaw(), RunningLaw()
    for H, R in zip(points.entropy[:25], points.reward[:25], strict=True):
        whole.add(H, R), first.add(H, R)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.load_state_dict(None)
    for H, R in zip(points.entropy[25:], points.reward[25:], strict=True):
        assert second.add(H, R) == whole.add(H, R)


def test_running_fit_ignores_entropies_that_none_can_have(law_curve):
    # 800 nats: the exponential is out of bounds
    points, running, other = law_curve(30, 0.5, 11), RunningLaw(), RunningLaw()
    for H, R in zip(points.entropy, points.reward, strict=True):
        expected = other.add(H, R)
        running.add(800.0, R), running.add(-math.inf, R), running.add(50.0, R)
        assert running.add(H, R) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(("spread", "finite"), [(1e-8, False), (0.9e-6, False), (1.1e-6, True)])
def test_running_fit_of_an_entropy_that_varies_by_rounding_has_no_ceiling(spread, finite):
    # exp(H) = 2 (1 +- spread): its standard deviation is `spread` of its mean
    running = RunningLaw(fewest_points=2)
    values = [running.add(math.log(2) + math.log1p(sign * spread), 0.5 + 0.1 * sign) for sign in (1, -1) * 10]
    assert math.isfinite(values[-1]["law/ceiling"]) is finite
    assert math.isfinite(values[-1]["law/r2"]) is finite
