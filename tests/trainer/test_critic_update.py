"""All updates of the critic in a global step, through ``update_critic``; upstream's are the oracle elsewhere."""

import math
from dataclasses import replace

import pytest
import torch
from rank_models import LEARNING_RATE, flags, make_critic, make_samples, order_of

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.critic_update import update_critic

pytestmark = pytest.mark.usefixtures("one_process")


def with_returns(*returns):
    """Single-token responses of token 1, each with a return; the value was 0."""
    (sample,) = make_samples(1)
    one = dict(
        tokens=torch.tensor([0, 1]), action_mask=torch.ones(1, dtype=torch.bool), values=torch.zeros(1),
        log_probs=torch.zeros(1), entropy=torch.zeros(1), advantages=torch.zeros(1),
    )  # fmt: skip
    return [
        replace(sample, sample_id=number, returns=torch.tensor([value]), **one) for number, value in enumerate(returns)
    ]


def test_values_move_toward_returns(tmp_path):
    args = flags(tmp_path, micro_batch_size=1, train__batch_size=2, value_clip=None, max_epochs=1)
    critic = make_critic(args)
    result = update_critic(critic, order_of(args), with_returns(1.0, 3.0))
    # loss = mean of (v - R)^2 / 2, so the gradient at v = 0 is -(1 + 3) / 2 = -2
    assert critic.engine.table.tolist() == pytest.approx([0, 2 * LEARNING_RATE, 0, 0, 0, 0])
    # loss = (1 + 9) / 2 / 2 tokens = 2.5
    assert result.metrics == {
        "critic_loss": pytest.approx(2.5),
        "values": 0.0,
        "critic_lr": LEARNING_RATE,
        "critic_grad_norm": pytest.approx(2.0),
        "critic_skipped_updates": 0.0,
    }
    assert result.mean_entropy is None


def test_a_micro_batch_without_action_tokens_leaves_no_trace_in_the_metrics(tmp_path):
    args = flags(tmp_path, micro_batch_size=1, train__batch_size=2, value_clip=None, max_epochs=1)
    empty, one = with_returns(1.0, 3.0)
    empty = replace(empty, action_mask=torch.zeros(1, dtype=torch.bool))
    critic = make_critic(args)
    critic.engine.table.data[1] = 0.5
    metrics = update_critic(critic, order_of(args), [empty, one]).metrics
    assert metrics["values"] == 0.5  # of the one sample with a token, before the update
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_sample_that_abstained_trains_no_critic_in_any_epoch(tmp_path):
    tables = []
    metrics = []
    # Both samples have the token 1, so that the critic moves away from the value that the abstained one had.
    graded, abstained = with_returns(1.0, 0.0)
    for samples in ([graded], [graded, replace(abstained, abstained=True)]):
        args = flags(tmp_path, micro_batch_size=1, train__batch_size=len(samples), value_clip=None, max_epochs=4)
        critic = make_critic(args)
        metrics.append(update_critic(critic, order_of(args), samples).metrics)
        tables.append(critic.engine.table.tolist())
    assert tables[1] == pytest.approx(tables[0], rel=1e-6)
    assert tables[0][1] != 0.0
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-5)


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_updates_of_a_critic_whose_gradient_is_nan_are_counted_kept_and_end_the_run(tmp_path, on_nan):
    args = flags(tmp_path, micro_batch_size=1, train__batch_size=1, max_epochs=1, tensor_parallel_size=2)
    args.on_nan = on_nan
    critic = make_critic(args)
    # never three in a row
    result = update_critic(critic, order_of(args, 7), with_returns(1.0, math.nan, math.nan, 2.0))
    assert result.metrics["critic_skipped_updates"] == 2.0
    folder = tmp_path / "bad_updates" / "critic"
    assert sorted(path.name for path in folder.iterdir()) == ["step8_1_rank0.pt", "step8_2_rank0.pt"]
    assert critic.engine.table.isfinite().all()
    infinite = with_returns(*[math.inf] * 3)
    if on_nan == "stop":
        with pytest.raises(RunStopped, match=r"global step 9: the gradient of the critic is NaN .*; 3 in a row end"):
            update_critic(critic, order_of(args, 8), infinite)
    else:  # of each step, not of the run
        assert update_critic(critic, order_of(args, 8), infinite).metrics["critic_skipped_updates"] == 3.0
    assert critic.bad_updates.total == 5


def test_a_step_repeats_and_steps_differ(tmp_path):
    args, tables = flags(tmp_path, train__batch_size=2), []
    for step in (3, 4, 3):
        critic = make_critic(args)
        torch.rand(7)
        update_critic(critic, order_of(args, step), make_samples(drift=0.5))
        tables.append(critic.engine.table)
    assert torch.equal(tables[0], tables[2])
    assert not torch.equal(tables[0], tables[1])


def test_logged_numbers_do_not_depend_on_the_micro_batches(tmp_path):
    """Samples of different lengths in one update, whose first forward pass has the same critic in all layouts."""
    layouts = [
        {"micro_batch_size": 8},
        {"micro_batch_size": 2},
        {"micro_batch_size": 1, "dynamic_batch_enable": True},
        {"dynamic_batch_enable": True, "max_tokens_per_gpu": 20},
    ]
    found = []
    for layout in layouts:
        args = flags(tmp_path, **layout, train__batch_size=8, max_epochs=1)
        critic = make_critic(args)
        critic.engine.table.data[:] = torch.arange(6) / 10
        found.append(update_critic(critic, order_of(args), make_samples(drift=0.4)).metrics)
    assert found[0]["critic_loss"] > 0.1
    assert found[0]["critic_grad_norm"] > 0.1
    for each in found[1:]:
        assert each == pytest.approx(found[0], rel=1e-5)
