import pytest
import torch
from example import gradients, window_of_example, worked_out

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods.steer import changes, plan


def steer(**settings):
    return CovConfig(method="steer", **settings)


def test_the_changes_of_the_example():
    # p (1 - p) (log p + H) A / q: the third token has log p + H = -2 + 2
    (found,) = changes(window_of_example())
    expected = [0.042068, 0.127154, 0, 0.031657, 0.039779, 0]
    assert found.flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_gradients_of_the_example():
    # 0.8 to the power of |Omega| / 0.127154 weighs -ratio * A / 5
    (found,) = plan(steer(), window_of_example())
    assert found.weight.flatten()[:5].tolist() == pytest.approx([0.928833, 0.8, 1, 0.945961, 0.932573], abs=1e-6)
    assert gradients(steer()) == worked_out(-0.178057, [-0.205304, -0.097045, 0, 0.231080, 0])


def test_the_linear_form():
    # 1.2 at |Omega| = 0, 0.8 at the largest
    settings = steer(steer_form="linear")
    (found,) = plan(settings, window_of_example())
    assert found.weight.flatten()[:5].tolist() == pytest.approx([1.067662, 0.8, 1.2, 1.100415, 1.074864], abs=1e-6)
    assert gradients(settings)[0] == pytest.approx(-0.199446, abs=1e-6)


@pytest.mark.parametrize(("form", "weight"), [("exponential", 1.0), ("linear", 1.0)])
def test_where_no_token_would_change_the_entropy_all_weigh_alike(form, weight):
    window = window_of_example()
    window.items[0].batch.advantages.zero_()
    (found,) = plan(steer(steer_form=form), window)
    assert found.weight.flatten()[:5].tolist() == pytest.approx([weight] * 5)


def test_equal_changes_weigh_the_middle_of_the_range():
    # One token alone: its change is both the smallest and the largest. (0.8 + 1.4) / 2 = 1.1
    window = window_of_example()
    window.items[0].mask.zero_()
    window.items[0].mask[0, 0] = True
    (found,) = plan(steer(steer_form="linear", steer_max=1.4), window)
    assert found.weight[0, 0].item() == pytest.approx(1.1)


def test_small_changes_are_measured_by_the_floor():
    # A tenth of the example's: the largest is 0.0127 and counts as 0.02, so 0.8 ^ (0.0127154 / 0.02)
    window = window_of_example()
    window.items[0].batch.advantages.mul_(0.1)
    (found,) = plan(steer(), window)
    assert found.weight[0, 1].item() == pytest.approx(0.8 ** (0.0127154 / 0.02), abs=1e-6)


def test_probabilities_of_0_and_1_weigh_finitely():
    window = window_of_example()
    window.items[0].batch.log_probs.copy_(torch.tensor([[0.0, -90.0, -2.0], [-0.3, -0.9, 0.0]]))
    window.items[0].batch.old_log_probs[0, 1] = -200.0
    (found,) = plan(steer(), window)
    assert found.weight.isfinite().all()
    assert found.weight.min() >= 0.8
