import math

import pytest
import torch

from openrlhf_cov.models.covariance import TokenMeans, token_covariance

GARBAGE = [math.nan, math.inf, -math.inf, 1e30]

# Means over the 4 unmasked tokens: log_probs (-1 - 2 - 3 - 6) / 4 = -3, advantages (2 - 1 + 0 + 3) / 4 = 1.
LOG_PROBS = [[-1.0, -2.0, 9.0], [-3.0, -6.0, 9.0]]
ADVANTAGES = [[2.0, -1.0, 9.0], [0.0, 3.0, 9.0]]
MASK = torch.tensor([[1, 1, 0], [1, 1, 0]])


def test_token_covariance_by_hand():
    cov = token_covariance(torch.tensor(LOG_PROBS), torch.tensor(ADVANTAGES), MASK)
    # (-1 + 3)(2 - 1) = 2, (-2 + 3)(-1 - 1) = -2, (-3 + 3)(0 - 1) = 0, (-6 + 3)(3 - 1) = -6; masked: 0
    torch.testing.assert_close(cov, torch.tensor([[2.0, -2.0, 0.0], [0.0, -6.0, 0.0]]), rtol=0, atol=1e-6)


def test_token_covariance_around_given_means():
    means = TokenMeans(log_prob=torch.tensor(-2.0), advantage=torch.tensor(0.0))
    cov = token_covariance(torch.tensor(LOG_PROBS), torch.tensor(ADVANTAGES), MASK, means)
    # (-1 + 2) 2 = 2, (-2 + 2)(-1) = 0, (-3 + 2) 0 = 0, (-6 + 2) 3 = -12
    torch.testing.assert_close(cov, torch.tensor([[2.0, 0.0, 0.0], [0.0, -12.0, 0.0]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", GARBAGE)
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32])
def test_masked_values_never_reach_the_covariance(value, mask_dtype):
    log_probs, advantages = torch.tensor(LOG_PROBS), torch.tensor(ADVANTAGES)
    clean = token_covariance(log_probs, advantages, MASK)
    log_probs[MASK == 0] = value
    advantages[MASK == 0] = -value
    assert torch.equal(token_covariance(log_probs, advantages, MASK.to(mask_dtype)), clean)


def test_covariance_is_zero_where_every_token_is_masked():
    cov = token_covariance(torch.full((2, 3), -1.5), torch.ones(2, 3), torch.zeros(2, 3))
    assert torch.equal(cov, torch.zeros(2, 3))


def test_covariance_carries_no_gradient():
    log_probs = torch.tensor(LOG_PROBS, requires_grad=True)
    advantages = torch.tensor(ADVANTAGES, requires_grad=True)
    assert not token_covariance(log_probs, advantages, MASK).requires_grad
