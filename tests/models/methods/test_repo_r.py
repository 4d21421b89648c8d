import pytest
from example import gradients, window_of_example, worked_out

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import transformed
from openrlhf_cov.models.methods.repo_r import plan


@pytest.mark.parametrize(
    ("zeta", "expected"),
    [
        # log-probs -0.1, -1.2, -2 where A = 1: 1 + zeta * 0.1 ...; -0.3, -0.9 where A = -1: -(1 - zeta * 0.3) ...
        (0.1, [1.01, 1.12, 1.2, -0.97, -0.91]),
        (1.5, [1.15, 2.8, 4, -0.55, 0]),  # 1 - 1.5 * 0.9 is below 0
        (-1.0, [0.9, 0, 0, -1.3, -1.9]),  # 1 - 1.2 and 1 - 2 are
    ],
)
def test_advantages_of_the_example(zeta, expected):
    window = window_of_example()
    (found,) = plan(CovConfig(repo_zeta=zeta), window)
    assert transformed(window.items[0].batch.advantages, [found]).flatten()[:5].tolist() == pytest.approx(expected)
    assert found.add[1, 2] == 0
    zeroed = found.numbers["repo_r/zeroed_frac"].flatten().tolist()
    assert zeroed == [*(each == 0 for each in expected), False]


def test_gradients_of_the_example():
    # ratio * A' / 5 where PPO does not clip: 1.105171 * 1.01 / 5, 0.606531 * 1.12 / 5, 1.221403 * 0.97 / 5
    config = CovConfig(method="repo_r", repo_zeta=0.1)
    assert gradients(config) == worked_out(-0.283755, [-0.223245, -0.135863, 0, 0.236952, 0])
