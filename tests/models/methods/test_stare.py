import pytest
from example import gradients, window_of_example, worked_out

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods.stare import plan


def stare(**settings):
    return CovConfig(method="stare", stare_frac=0.4, **settings)


@pytest.mark.parametrize(
    ("on", "loss", "weights"),
    [
        # ceil(0.4 * 3) = 2 right tokens, those of log-probs -2 and -1.2, weigh 1.1: the third is clipped at 1.28
        ("positive", -0.231790, [1, 1.1, 1.1, 1, 1]),
        # ceil(0.4 * 2) = 1 wrong token, that of -0.9, weighs 0.9; PPO clips it
        ("both", -0.247790, [1, 1.1, 1.1, 1, 0.9]),
    ],
)
def test_gradients_of_the_example(on, loss, weights):
    settings = stare(stare_on=on)
    (found,) = plan(settings, window_of_example())
    assert found.weight.flatten()[:5].tolist() == pytest.approx(weights)
    assert gradients(settings) == worked_out(loss, [-0.221034, -0.133437, 0, 0.244281, 0])


@pytest.mark.parametrize(
    ("settings", "acts"),
    [
        ({"stare_gate": 0.3}, True),  # the rollouts have 0.25 nats
        ({"stare_gate": 0.25}, False),
        ({"stare_gate": 0.2}, False),
        ({"stare_gate": 0.2, "entropy_target": 0.3}, True),  # then that is the target
    ],
)
def test_the_gate_is_the_entropy_of_the_rollouts(settings, acts):
    (found,) = plan(stare(**settings), window_of_example())
    assert bool(found.tokens.any()) is acts
    assert found.numbers["stare/open"].flatten()[:5].tolist() == [acts] * 5
    assert found.weight.unique().numel() == 1 + acts


def test_without_a_right_token_nothing_is_weighed():
    window = window_of_example()
    window.items[0].batch.advantages.fill_(-1.0)
    (found,) = plan(stare(), window)
    assert not found.tokens.any()
