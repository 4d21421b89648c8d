import math

import pytest
import torch
from example import gradients, worked_out
from planned import select_given

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods.kl_cov import idle

# Measured: mean absolute log ratio of a first update whose micro-batches are padded otherwise than the scoring.
ROUNDING_IN_FLOAT32 = 4.8e-7


def test_gradients_of_the_example():
    # means of the 5 tokens: log-probs -0.9, advantages 0.2; the covariance of the first, 0.8 * 0.8, is the largest.
    # It gets + 1 / 5 beside -1.105171 / 5, no token is clipped
    config = CovConfig(cov_type="kl_cov", kl_cov_ratio=0.2, allow_large_cov_ratio=True)
    assert gradients(config) == worked_out(-0.242361, [-0.021034, -0.121306, -0.298365, 0.244281, 0.134064])


def test_what_ppo_clips_is_selected_like_the_rest():
    config = CovConfig(cov_type="kl_cov", kl_cov_ratio=0.5, allow_large_cov_ratio=True)
    cov, clipped = torch.tensor([[0.5, 2.0, 3.0, 8.0]]), torch.tensor([[False, False, True, False]])
    # the floor(0.5 * 4) = 2 largest
    assert select_given(config, cov, torch.ones(1, 4), clipped).tolist() == [[False, False, True, True]]


@pytest.mark.parametrize(
    ("drift", "updates", "flag"),
    [
        (0.0, 1, "--train.max_epochs"),
        (ROUNDING_IN_FLOAT32, 1, "--train.max_epochs"),
        (0.01, 1, "--train.max_epochs"),  # bfloat16: rounding as large as what training moves
        (ROUNDING_IN_FLOAT32, 4, "--train.max_epochs"),  # a learning rate of 0
        (1e-4, 4, None),
        (math.nan, 4, None),
    ],
)
def test_doing_nothing_is_explained(drift, updates, flag):
    message = idle({"cov/selected_abs_log_ratio": drift}, updates)
    assert message is None if flag is None else flag in message
