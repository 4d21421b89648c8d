import pytest
from example import gradients, worked_out
from method_loss import MethodLoss
from openrlhf.models import PolicyLoss, aggregate_loss

from openrlhf_cov.models.cov_config import CovConfig


def test_gradients_of_the_example():
    # [0.8, 1 / 0.8 + 0.1] = [0.8, 1.35]: the third token is clipped at 1.35 instead of 1.28
    config = CovConfig(method="adaptive_clip", adaptive_clip_eps=0.2, adaptive_clip_high=0.1)
    assert gradients(config) == worked_out(-0.208060, [-0.221034, -0.121306, 0, 0.244281, 0])


def test_each_step_has_its_clip():
    config = CovConfig(method="adaptive_clip", entropy_target=0.3)
    loss = MethodLoss(config, policy_loss=PolicyLoss(*config.ppo_clip), aggregate=aggregate_loss)
    controller, clips = config.controller(), []
    for step, entropy in enumerate([0.5, 0.2, 0.2]):
        loss.start_step(config.at(step, controller), seed=1, global_step=step, rank=0)
        clips.append(loss.ppo_clip)
        controller.step(entropy, 0.3)
    assert [low for low, _ in clips] == [0.6] * 3
    assert [high for _, high in clips] == pytest.approx([1.5, 1.5, 1.75])
