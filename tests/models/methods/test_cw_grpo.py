import pytest
import torch
from example import gradients, window_of_example, worked_out

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods.cw_grpo import plan

CW_GRPO = CovConfig(method="cw_grpo")


def test_gradients_of_the_example():
    # covariances 0.64, -0.24, -0.88, -0.72, 0 of mean -0.24: sigma^2 = 1.76 / 5 - 0.24^2 = 0.2944. exp(-c^2 / 0.5888)
    # over its mean; population sigma, the sample's would give a loss of -0.071047
    (found,) = plan(CW_GRPO, window_of_example())
    assert found.weight.flatten()[:5].tolist() == pytest.approx(
        [0.807410, 1.468002, 0.434531, 0.671188, 1.618870], abs=1e-6
    )
    assert gradients(CW_GRPO) == worked_out(-0.044805, [-0.178465, -0.178078, 0, 0.163958, 0])


@pytest.mark.parametrize("advantage", [0.0, 0.1, -1 / 3])
def test_equal_covariances_weigh_1(advantage):
    window = window_of_example()
    window.items[0].batch.advantages.fill_(advantage)
    window = type(window)(window.items, (0.2, 0.28))  # its means
    (found,) = plan(CW_GRPO, window)
    assert found.weight.tolist() == torch.ones(2, 3).tolist()


def test_covariances_far_from_0_weigh_finitely():
    # all about -100, with a deviation of 1e-3: exp(-1e10 / 2) is 0 for each of them, but not beside each other
    window = window_of_example()
    cov = -100 + 1e-3 * torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 9.0]], dtype=torch.float64)
    window.covariance = lambda: [cov]
    (found,) = plan(CW_GRPO, window)
    kept = found.weight.flatten()[:5]
    assert kept.isfinite().all()
    assert kept.mean().item() == pytest.approx(1.0, abs=1e-6)
