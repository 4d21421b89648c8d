import pytest
from example import gradients

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.methods.positive_weight import refuses
from openrlhf_cov.settings import Schedule


def test_gradients_of_the_example():
    # half of the right tokens' -1.105171 / 5 and -0.606531 / 5; the third is clipped, wrong ones are as they were
    value, gradient = gradients(CovConfig(method="positive_weight", positive_weight=0.5))
    assert value == pytest.approx(0.105110, abs=1e-6)
    assert gradient == pytest.approx([-0.110517, -0.060653, 0, 0.244281, 0], abs=1e-6)


def test_at_0_wrong_tokens_train_alone():
    _, gradient = gradients(CovConfig(method="positive_weight", positive_weight=0.0))
    assert gradient == pytest.approx([0, 0, 0, 0.244281, 0], abs=1e-6)


def test_a_weight_that_stays_1_is_refused():
    for settings in ({}, {"positive_weight": Schedule(1.0, 1.0, 9)}):
        assert "--positive_weight 1" in refuses(CovConfig(**settings), {})
    message = "--method positive_weight changes nothing beside nsr, which has no positive advantages; drop one"
    assert refuses(CovConfig(method="nsr", positive_weight=0.5), {}) == message
    for settings in ({"positive_weight": 0.5}, {"positive_weight": Schedule(0.0, 1.0, 9)}):
        assert refuses(CovConfig(**settings), {}) is None
    assert refuses(CovConfig(method="positive_weight", entropy_target=0.3), {}) is None


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), Schedule(0.5, 2.0, 9)])
def test_a_weight_out_of_range_is_named(value):
    with pytest.raises(ValueError, match=r"--positive_weight .*: must be a factor in"):
        CovConfig(positive_weight=value)
