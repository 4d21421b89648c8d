from dataclasses import replace

import pytest

from openrlhf_cov.cluster.sizing.budget import PHASES, Role, budget
from openrlhf_cov.cluster.sizing.memory import ENGINE_ASLEEP, GIB, PROCESS, Engine, Pass, Sharding
from openrlhf_cov.cluster.sizing.model_shape import KNOWN

QWEN_7B = KNOWN["Qwen/Qwen2.5-7B"]
P = QWEN_7B.parameters


def role(name, trains=True, tokens=20_480, head=True, whole_logits=False):
    """A 7B model on 8 GPUs with ZeRO-3."""
    return Role(
        name=name,
        shape=QWEN_7B,
        sharding=Sharding(world=8, stage=3),
        scoring=Pass(tokens=tokens, head=head, whole_logits=whole_logits),
        training=Pass(tokens=tokens, checkpointing=True, head=head, whole_logits=whole_logits) if trains else None,
    )


ENGINE = Engine(tensor_parallel=1, utilization=0.8, gpu_bytes=80 * GIB)


def table(roles, **settings):
    return {row.name: row.values for row in budget(roles, **settings).rows}


def test_colocated_7b_by_hand():
    rows = table([role("actor")], engine=ENGINE, engine_shape=QWEN_7B, engine_sleeps=True, states_sleep=True)
    weights, states = 2 * P / 8, (12 + 2) * P / 8 + 2 * 5e8
    # forward and backward of 20,480 tokens and a tenth for the allocator, beside 1e9 gathered weights: the outputs of
    # 28 layers, what one layer keeps and what its backward adds; without gradient five outputs and three of the MLP
    layer = 2 * 8 * 3584 + 2 * 2 * (3584 + 512) + 4 * 2 * 18_944
    training = 2e9 + 1.1 * 20_480 * (28 * 3584 * 2 + layer + (2 * 18_944 + 2 * 3584) * 2)
    scoring = 2e9 + 1.1 * 20_480 * (3 * 18_944 + 5 * 3584) * 2
    assert rows == {
        "actor: weights": (weights,) * 4,
        "actor: optimizer, gradients": (0, 0, states, 0),
        "micro-batch, gathered weights": (0, scoring, training, 2 * 2 * 152_064 * 3584),
        "engine, asleep outside generation": (64 * GIB, ENGINE_ASLEEP, ENGINE_ASLEEP, ENGINE_ASLEEP + 2 * P),
        "CUDA, NCCL": (2 * PROCESS,) * 4,
    }


def in_fp32(name, **settings):
    """A role whose gradients accumulate in fp32."""
    given = role(name, **settings)
    return replace(given, sharding=replace(given.sharding, grad_element=4))


def test_a_buffer_stays_on_the_gpu_where_states_sleep_and_gradients_do_not_fit_into_it():
    # 7.6e9 parameters on 4 GPUs: 1.9e9 on each, whose gradients in fp32 are larger than a sub-group of 1e9
    four = replace(in_fp32("actor").sharding, world=4)
    actor, critic = replace(in_fp32("actor"), sharding=four), replace(in_fp32("critic", head=False), sharding=four)
    rows = table([actor, critic], states_sleep=True)
    # fp32: 12 bytes of optimizer and 4 of gradient; the reduce bucket in bf16 and its part of a rank in fp32
    states = 16 * P / 4 + 2 * 5e8 + 4 * 5e8 / 4
    assert rows["actor: optimizer, gradients"] == pytest.approx((4e9, 4e9, states, 4e9))
    assert rows["critic: optimizer, gradients"] == pytest.approx((4e9,) * 4)
    # The actor scores in the buffer, too.
    assert rows["micro-batch, gathered weights"][1] == max(actor.scores, critic.scores) - 4e9
    assert table([actor])["actor: optimizer, gradients"] == pytest.approx((states,) * 4)
    assert table([actor])["micro-batch, gathered weights"][1] == actor.scores


def test_a_model_that_needs_less_than_the_buffer_scores_for_nothing():
    few = in_fp32("actor", tokens=1)
    few = replace(few, sharding=replace(few.sharding, world=4))
    assert 2e9 < few.scores < 4e9
    assert table([few], states_sleep=True)["micro-batch, gathered weights"][1] == 0


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"world": 4}, 4e9),
        ({"world": 8}, 0),  # 0.95e9 parameters: the gradients of all of them take the place of the buffer
        ({"world": 4, "grad_element": None}, 0),  # 3.8e9 bytes in bf16 fit into 4e9
        ({"world": 2, "grad_element": None}, 4e9),  # 7.6e9 bytes do not
        ({"world": 4, "stage": 2}, 0),
        ({"world": 4, "optimizer_on_cpu": True}, 0),
        ({"world": 4, "whole_buffers": False}, 0),
    ],
)
def test_states_leave_a_buffer_into_which_their_gradients_do_not_fit(change, left):
    assert replace(in_fp32("actor").sharding, **change).left_over(QWEN_7B) == left


def test_the_model_of_the_moving_average_stays_on_the_gpu_below_stage_3():
    averaged = replace(role("actor"), averaged=True)
    assert "actor: average" not in table([averaged])  # DeepSpeed offloads it
    below = replace(averaged, sharding=Sharding(world=8, stage=2))
    assert table([below])["actor: average"] == (2 * P,) * 4


def test_sums_and_peak():
    both = budget([role("actor")], ENGINE, QWEN_7B, engine_sleeps=True, states_sleep=True)
    assert both.totals == tuple(sum(row.values[i] for row in both.rows) for i in range(len(PHASES)))
    assert max(both.totals) == both.totals[0]  # generation, with 64 GiB for the engine
    assert 67 * GIB < max(both.totals) < 69 * GIB


def test_models_that_share_a_gpu_score_one_after_the_other():
    alone = table([role("actor")])["micro-batch, gathered weights"][1]
    rows = table([role("actor"), role("ref", trains=False)])
    assert rows["micro-batch, gathered weights"][1] == alone
    assert rows["ref: weights"] == rows["actor: weights"]
    assert "ref: optimizer, gradients" not in rows
    assert rows["CUDA, NCCL"] == (2 * PROCESS,) * 4


def test_policy_and_critic_train_together_unless_their_states_sleep():
    actor, critic = role("actor", whole_logits=True), role("critic", head=False)
    assert table([actor, critic])["micro-batch, gathered weights"][2] == actor.trains + critic.trains
    in_turn = table([actor, critic], states_sleep=True)
    assert actor.states + actor.trains > critic.states + critic.trains
    assert in_turn["micro-batch, gathered weights"][2] == actor.trains
    # It is on the host while the policy, which needs more, trains.
    assert "critic: optimizer, gradients" not in in_turn


def test_a_process_reward_model_trains_before_the_policy_and_not_beside_it():
    actor, prm = role("actor"), role("prm", whole_logits=True)
    rows = table([actor, prm])
    assert rows["micro-batch, gathered weights"][2] == max(actor.trains, prm.trains)
    assert rows["prm: optimizer, gradients"] == (prm.states,) * 4


def test_an_update_can_be_the_peak_of_training():
    few = role("actor", tokens=1)
    assert few.trains == max(few.sharding.update(QWEN_7B), 2e9 + 1.1 * few.training.training(QWEN_7B))
    alone = replace(few, sharding=Sharding(world=1, stage=2))
    assert alone.trains == 6 * P  # all gradients, flattened and in fp32


@pytest.mark.parametrize(("name", "sends"), [("actor", 4 * 152_064 * 3584), ("ref", 0), ("critic", 0)])
def test_only_the_policy_is_sent(name, sends):
    assert role(name).sends == sends


def test_without_sleep_everything_stays():
    rows = table([role("actor")], engine=ENGINE, engine_shape=QWEN_7B)
    assert rows["engine"] == (64 * GIB,) * 4
    assert len(set(rows["actor: optimizer, gradients"])) == 1
    assert rows["actor: optimizer, gradients"][0] > 14 * P / 8
