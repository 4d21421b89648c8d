import pytest
from example import gradients

from openrlhf_cov.models.cov_config import CovConfig


def test_gradients_of_the_example():
    # log ratios 0.1, -0.5, 0.4 (A > 0: cut at 0.3 from above alone) and 0.2, -0.4 (A < 0: cut at -0.3 from below):
    # exp(-0.1 / 3) = 0.967216 and exp(-0.1 / 2) = 0.951229; / 3 / 2 and / 2 / 2; the cut tokens have none themselves
    _, gradient = gradients(CovConfig(method="gmpo", gmpo_clip=0.3), token_level_loss=False)
    assert gradient == pytest.approx([-0.161203, -0.161203, 0, 0.237807, 0], abs=1e-6)
