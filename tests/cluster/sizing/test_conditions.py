"""Flags that cannot work or that a reader should know about, and the line that says so."""

import pytest

from openrlhf_cov.cluster.sizing.conditions import faults, notes, rollout_faults, shape_faults
from openrlhf_cov.cluster.sizing.model_shape import KNOWN

QWEN_7B = KNOWN["Qwen/Qwen2.5-7B"]
STATIC = {"train.dynamic_batch_enable": False}
CRITIC = {"critic.model_name_or_path": "value"}
TWO_CRITICS = CRITIC | {"critic.num_nodes": 2}
REF = {"algo.kl.init_coef": 0.01, "ref.num_gpus_per_node": 3}


def of_models(args):
    return [*faults(args), *shape_faults(args, QWEN_7B)]


def of_rollouts(args):
    return list(rollout_faults(args))


def noted(args):
    return list(notes(args, QWEN_7B))


# Flags -> what the only line says.
FAULTS = [
    ({"vllm.tensor_parallel_size": 3}, "does not divide the model: 28 heads, 4 of keys, MLP 18944; use one of 1, 2"),
    # 7 divides 28 heads; 4 heads of keys are neither split nor copied evenly over 7
    ({"vllm.tensor_parallel_size": 7}, "--vllm.tensor_parallel_size 7 does not divide the model"),
    ({"ds.tensor_parallel_size": 2, "ds.param_dtype": "fp32"}, "needs --ds.param_dtype bf16, got fp32"),
    ({"data.max_len": 131_073}, "--data.max_len 131073 is more than the 131072 positions of the model"),
    ({"ds.ring_attn_size": 2, "ds.ring_attn_head_stride": 3}, "3 does not divide the model's 4 heads of keys"),
    (TWO_CRITICS, "--critic.num_nodes 2 x --critic.num_gpus_per_node 8 = 16 processes on the 8 GPUs of the actor"),
    ({"reward.remote_url": None, "reward.num_gpus_per_node": 9}, "= 9 processes on the 8 GPUs of the actor"),
]
WORKING = [
    {},
    {"vllm.tensor_parallel_size": 4},
    {"data.max_len": 131_072},
    {"ds.ring_attn_head_stride": 3},  # no ring
    {"ds.ring_attn_size": 2, "ds.ring_attn_head_stride": 2},
    {"critic.num_nodes": 2},  # no critic
    TWO_CRITICS | {"train.colocate_critic_reward": True},  # a group of their own
    TWO_CRITICS | {"train.colocate_all": False},
]
GROUPS = {"train_shuffle": "groups"}
UNEQUAL = [
    # 32 samples of an update are 4 on each of 8 ranks, half a group
    (STATIC | GROUPS | {"train.batch_size": 32}, "--train.batch_size 32 / 8 ranks of the actor = 4 is no multiple of"),
    (GROUPS | {"train.batch_size": 36}, "--train.batch_size 36 is no multiple of --rollout.n_samples_per_prompt 8"),
    # 512 micro-batches on 24 ranks
    (STATIC | {"rollout.micro_batch_size": 4, "actor.num_nodes": 3}, "2048 samples are no multiple of"),
    # with ZeRO-3 the ranks of every model wait for each other
    (STATIC | REF, "x 3 ranks of the ref = 3: ranks would get unequal shares and wait for ever"),
    (CRITIC | {"critic.num_gpus_per_node": 3}, "3 ranks of critic cannot share evenly what is made for 8 ranks of"),
    (TWO_CRITICS, "16 ranks of critic cannot share evenly"),  # more ranks than micro-batches
]
EQUAL = [
    STATIC,
    STATIC | GROUPS | {"train.batch_size": 64},
    GROUPS | {"train.batch_size": 32},
    {"train.batch_size": 36},
    STATIC | {"rollout.micro_batch_size": 4},
    {"rollout.micro_batch_size": 3},  # dynamic batches do not use it
    # a last micro-batch of 2 samples: nobody waits
    STATIC | {"actor.num_gpus_per_node": 1, "rollout.micro_batch_size": 3},
    STATIC | REF | {"ds.zero_stage": 2},  # a reference model that is whole on every rank
    CRITIC | {"critic.num_gpus_per_node": 4},
]
NOTED = [
    ({"train.max_tokens_per_gpu": 8192}, "8192 is less than one sequence of --data.max_len 10240 needs"),
    ({"rollout.max_tokens_per_gpu": 8192}, "--rollout.max_tokens_per_gpu 8192 is less than one sequence"),
    ({"actor.optim": "muon"}, "--actor.optim muon"),
    ({"ds.tensor_parallel_size": 8}, "8 is more than the model's 4 heads of keys"),
]
UNNOTED = [{}, STATIC | {"actor.num_nodes": 3}, {"train.max_tokens_per_gpu": 5120, "ds.ring_attn_size": 2}]


CASES = [
    *((of_models, *row) for row in FAULTS),
    *((of_rollouts, *row) for row in UNEQUAL),
    *((noted, *row) for row in NOTED),
    *((of_models, changes, None) for changes in WORKING),
    *((of_rollouts, changes, None) for changes in EQUAL),
    *((noted, changes, None) for changes in UNNOTED),
]


@pytest.mark.parametrize(("said", "changes", "part"), CASES)
def test_conditions(flags, said, changes, part):
    lines = said(flags(changes))
    assert len(lines) == (part is not None), lines
    assert part is None or part in lines[0]
