import pytest
from example import example, gradients, worked_out

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods.cispo import METHOD


def cispo(**settings):
    return CovConfig(method="cispo", **settings)


# -ratio * A / 5, no token without one: -1.105171 / 5, -0.606531 / 5, -1.491825 / 5, 1.221403 / 5, 0.670320 / 5. The
# logged value is that of the weights, their sum: -(1.105171 + 0.606531 + 1.491825 - 1.221403 - 0.670320) / 5.
@pytest.mark.parametrize(
    ("settings", "loss", "gradient"),
    [
        ({}, -0.262361, [-0.221034, -0.121306, -0.298365, 0.244281, 0.134064]),
        # the cap is a ratio: 1.28 instead of 1.491825
        ({"cispo_cap": 1.28}, -0.219996, [-0.221034, -0.121306, -0.256, 0.244281, 0.134064]),
        # the floor is a ratio: 0.8 instead of 0.606531 and 0.670320
        ({"cispo_floor": 0.8}, -0.275119, [-0.221034, -0.16, -0.298365, 0.244281, 0.16]),
    ],
)
def test_gradients_of_the_example(settings, loss, gradient):
    assert gradients(cispo(**settings)) == worked_out(loss, gradient)


@pytest.mark.parametrize(("cap", "published"), [(5.0, 0.570459), (1.28, 0.485729)])
def test_the_published_loss_has_the_log_probs_as_a_factor(cap, published):
    # -weight * A * log-prob: (0.110517 + 0.727837 + 2.983649 - 0.366421 - 0.603288) / 5; with the cap 2.56 is third
    batch = example()
    terms = -METHOD.slot.coefficient(cispo(cispo_cap=cap), batch) * batch.advantages * batch.log_probs
    assert terms.flatten()[:5].mean().item() == pytest.approx(published, abs=1e-6)
