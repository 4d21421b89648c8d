import pytest
import torch
from example import example, gradients

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods.gmpo import METHOD


def gmpo(**settings):
    return CovConfig(method="gmpo", **settings)


def test_gradients_of_the_example():
    # log ratios 0.1, -0.5, 0.4 (A > 0: cut at 0.3 from above alone) and 0.2, -0.4 (A < 0: cut at -0.3 from below):
    # exp(-0.1 / 3) = 0.967216 and exp(-0.1 / 2) = 0.951229; / 3 / 2 and / 2 / 2; the cut tokens have none themselves
    _, gradient = gradients(gmpo(gmpo_clip=0.3), token_level_loss=False)
    assert gradient == pytest.approx([-0.161203, -0.161203, 0, 0.237807, 0], abs=1e-6)


def test_the_gradient_is_that_of_the_published_loss():
    batch = example()
    difference = batch.log_probs - batch.old_log_probs
    one_side = difference.clamp(-0.3, 0.3)
    kept = torch.where(batch.advantages > 0, difference.minimum(one_side), difference.maximum(one_side))
    mean = (kept * batch.action_mask).sum(1) / batch.action_mask.sum(1)
    loss = (-batch.advantages[:, 0] * mean.exp()).mean()
    loss.backward()
    assert loss.item() == pytest.approx(-0.007993, abs=1e-6)
    _, gradient = gradients(gmpo(gmpo_clip=0.3), token_level_loss=False)
    assert gradient == pytest.approx(batch.log_probs.grad.flatten()[:-1].tolist(), abs=1e-9)


@pytest.mark.parametrize("other", [{"cov_type": "clip_cov"}, {"method": "gmpo,top_entropy"}])
def test_no_other_method_tells_the_tokens_of_a_response_apart(other):
    with pytest.raises(ValueError, match="--method gmpo has one advantage for all tokens"):
        CovConfig(**({"method": "gmpo"} | other))


def test_a_penalty_goes_with_it():
    assert gmpo(cov_type="kl_cov").methods


def test_advantages_of_tokens_are_refused():
    assert "--algo.advantage.estimator gae" in METHOD.refuses(gmpo(), {"algo.advantage.estimator": "gae"})
    assert METHOD.refuses(gmpo(), {"algo.advantage.estimator": "group_norm"}) is None
