import pytest
from example import gradients, worked_out

from openrlhf_cov.models.cov_config import CovConfig


def test_gradients_of_the_example():
    # half of the right tokens' -1.105171 / 5 and -0.606531 / 5; the third is clipped, wrong ones are as they were
    config = CovConfig(method="positive_weight", positive_weight=0.5)
    assert gradients(config) == worked_out(0.105110, [-0.110517, -0.060653, 0, 0.244281, 0])


def test_at_0_wrong_tokens_train_alone():
    _, gradient = gradients(CovConfig(method="positive_weight", positive_weight=0.0))
    assert gradient == pytest.approx([0, 0, 0, 0.244281, 0], abs=1e-6)
