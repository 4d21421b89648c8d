import math

import pytest
from example import gradients, worked_out

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods.clip_cov import idle


def test_gradients_of_the_example():
    # means of the 5 tokens: log-probs -0.9, advantages 0.2; covariances 0.64, -0.24, -0.88, -0.72, 0: the first is in
    # the band and loses its gradient, the clip of 1 / 1 clips no ratio of the example
    config = CovConfig(
        cov_type="clip_cov", clip_cov_ratio=0.2, clip_cov_lb=0.5, clip_cov_ub=1.0, allow_large_cov_ratio=True
    )
    assert gradients(config) == worked_out(-0.041327, [0, -0.121306, -0.298365, 0.244281, 0.134064])


@pytest.mark.parametrize(
    ("empty", "flag"),
    [
        (0.25, "--clip_cov_lb"),
        (0.0, None),  # the first update after a rollout
        (math.nan, None),  # no update at all
    ],
)
def test_doing_nothing_is_explained(empty, flag):
    message = idle({"cov/empty_update_frac": empty}, 4)
    assert message is None if flag is None else flag in message
