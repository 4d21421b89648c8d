from dataclasses import replace

import pytest
import torch
from example import LOG_PROBS, MASK, OLD, gradients, window_of_example, worked_out
from openrlhf.models import PolicyLoss, aggregate_loss
from planned import window_of

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.loss import policy_loss
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.window import plan_step


def config(alpha=-0.4, theta=0.5, **settings):
    return CovConfig(method="entropic", entropic_alpha=alpha, entropic_theta=theta, **settings)


# Probable are the first and the fourth token, exp(-0.1) and exp(-0.3). Weight: A' = 0.6, 1, 1, -1.4, -1, so that PPO's
# -0.221034 and 0.244281 become 0.6 and 1.4 times as much. Penalty: -0.4 * (-r |A|) / 2 adds 0.4 r / 2 to the gradient
# of either: 0.221034 and 0.244281.
@pytest.mark.parametrize(
    ("form", "loss", "gradient"),
    [
        ("weight", 0.008066, [-0.132621, -0.121306, 0, 0.341993, 0]),
        ("penalty", 0.287255, [0, -0.121306, 0, 0.488561, 0]),
    ],
)
def test_gradients_of_the_example(form, loss, gradient):
    assert gradients(config(entropic_form=form), eps=(0.2, 0.2), dual_clip=3.0) == worked_out(loss, gradient)


@pytest.mark.parametrize("form", ["weight", "penalty"])
def test_with_alpha_0_it_is_ppo(form):
    assert gradients(config(0.0, entropic_form=form)) == gradients(CovConfig())


def test_of_all_tokens_it_is_a_weight_of_positive_advantages():
    # theta near 0: all tokens are probable, and (1 + alpha) / (1 - alpha) = 0.6 / 1.4 is the weight, times 1.4
    found = gradients(config(theta=1e-9))[1]
    expected = gradients(CovConfig(method="positive_weight", positive_weight=0.6 / 1.4))[1]
    assert found == pytest.approx([1.4 * each for each in expected])


def test_probable_are_the_tokens_of_the_policy_before_the_update():
    window = window_of_example()
    (plans,) = plan_step(config(), window)
    assert plans[0].tokens.tolist() == [[True, False, False], [True, False, False]]
    window.items[0].batch.log_probs.fill_(-0.01)
    (plans,) = plan_step(config(), window)
    assert plans[0].tokens.tolist() == [[True] * 3, [True, True, False]]  # the last is padding
    assert plans[0].numbers["entropic/probable"].sum() == 5


def test_tokens_without_an_advantage_stay_without():
    window = window_of_example()
    window.items[0].batch.advantages.fill_(0.0)
    (plans,) = plan_step(config(), window)
    assert (plans[0].weight == 1).all()


def test_the_penalty_is_a_mean_over_the_probable_tokens_of_the_step_for_any_micro_batches():
    settings = config(entropic_form="penalty")
    old, mask = torch.tensor(OLD, dtype=torch.float64), torch.tensor(MASK)
    given = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).expand(2, 3)

    def gradient(parts):
        batches = [
            TokenBatch(torch.tensor(LOG_PROBS, dtype=torch.float64)[rows], old[rows], given[rows], mask[rows])
            for rows in parts
        ]
        keys = [torch.zeros(len(rows), 3, dtype=torch.int64) for rows in parts]
        total, found = torch.tensor(5), []
        for batch, plans in zip(batches, plan_step(settings, window_of(batches, keys)), strict=True):
            log_probs = batch.log_probs.clone().requires_grad_()
            loss = policy_loss(
                settings,
                PolicyLoss(0.2, 0.2),
                aggregate_loss,
                replace(batch, log_probs=log_probs),
                plans,
                batch_num_tokens=total,
            ).loss
            loss.backward()
            found.append(log_probs.grad)
        return torch.cat(found)

    torch.testing.assert_close(gradient([[0], [1]]), gradient([[0, 1]]))
    assert gradient([[0], [1]])[1, 0].item() == pytest.approx(0.488561, abs=1e-6)


def test_a_step_without_a_probable_token_has_no_penalty():
    found = gradients(config(theta=0.99, entropic_form="penalty"))
    assert found == gradients(CovConfig())


def test_below_the_target_alpha_falls_by_the_published_gains():
    # EntroPIC: K_p 1 and K_i 0.01 of [-1, 1]; 0.2 nats below the target alpha is -0.2, and the sum acts one step later
    controller = config(0.0, entropy_target=0.3, entropy_control_form="pi").controller()
    found = []
    for entropy in (0.1, 0.1):
        controller.step(entropy, 0.3)
        found.append(controller.applied["entropic_alpha"])
    assert found == pytest.approx([-0.2, -0.202])
