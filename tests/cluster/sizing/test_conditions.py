import pytest

from openrlhf_cov.cluster.sizing.conditions import faults, notes, rollout_faults, shape_faults
from openrlhf_cov.cluster.sizing.model_shape import KNOWN

QWEN_7B = KNOWN["Qwen/Qwen2.5-7B"]
STATIC = {"train.dynamic_batch_enable": False}


def said(args):
    return [*faults(args), *shape_faults(args, QWEN_7B)]


def test_the_recipe_has_neither(flags):
    assert said(flags()) == list(notes(flags(), QWEN_7B)) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"vllm.tensor_parallel_size": 3},
            "--vllm.tensor_parallel_size 3 does not divide the model: 28 heads, 4 of keys, MLP 18944; use one of "
            "1, 2, 4",
        ),
        # 7 divides 28 heads; 4 heads of keys are neither split nor copied evenly over 7
        (
            {"vllm.tensor_parallel_size": 7},
            "--vllm.tensor_parallel_size 7 does not divide the model: 28 heads, 4 of keys, MLP 18944; use one of "
            "1, 2, 4",
        ),
        (
            {"ds.tensor_parallel_size": 2, "ds.param_dtype": "fp32"},
            "--ds.tensor_parallel_size 2 needs --ds.param_dtype bf16, got fp32",
        ),
        (
            {"data.max_len": 131_073},
            "--data.max_len 131073 is more than the 131072 positions of the model (max_position_embeddings), which "
            "vLLM refuses; lower it, and --rollout.max_new_tokens with it",
        ),
        (
            {"ds.ring_attn_size": 2, "ds.ring_attn_head_stride": 3},
            "--ds.ring_attn_head_stride 3 does not divide the model's 4 heads of keys; use a divisor",
        ),
        (
            {"critic.model_name_or_path": "value", "critic.num_nodes": 2},
            "--train.colocate_all: --critic.num_nodes 2 x --critic.num_gpus_per_node 8 = 16 processes on the 8 GPUs "
            "of the actor; make it 8 or less",
        ),
        (
            {"reward.remote_url": None, "reward.num_gpus_per_node": 9},
            "--train.colocate_all: --reward.num_nodes 1 x --reward.num_gpus_per_node 9 = 9 processes on the 8 GPUs of "
            "the actor; make it 8 or less",
        ),
    ],
)
def test_every_fault_names_flag_value_and_way_out(flags, changes, message):
    assert said(flags(changes)) == [message]


@pytest.mark.parametrize(
    "changes",
    [
        {"vllm.tensor_parallel_size": 4},
        {"data.max_len": 131_072},
        {"ds.ring_attn_head_stride": 3},  # no ring
        {"ds.ring_attn_size": 2, "ds.ring_attn_head_stride": 2},
        {"critic.num_nodes": 2},  # no critic
        {"critic.model_name_or_path": "value"},
        # a group of their own
        {"critic.model_name_or_path": "value", "critic.num_nodes": 2, "train.colocate_critic_reward": True},
        {"critic.model_name_or_path": "value", "critic.num_nodes": 2, "train.colocate_all": False},
    ],
)
def test_what_works_is_no_fault(flags, changes):
    assert said(flags(changes)) == []


SAMPLES = "--rollout.batch_size 256 x --rollout.n_samples_per_prompt 8 = 2048 samples are no multiple of "
ONE_RANK = {"actor.num_gpus_per_node": 1}
REF = {"algo.kl.init_coef": 0.01, "ref.num_gpus_per_node": 3}
CRITIC = {"critic.model_name_or_path": "value"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (  # 512 micro-batches on 24 ranks
            STATIC | {"rollout.micro_batch_size": 4, "actor.num_nodes": 3},
            SAMPLES + "--rollout.micro_batch_size 4 x 24 ranks of the actor = 96: ranks would get unequal shares and "
            "wait for ever; change one of them",
        ),
        (  # with ZeRO-3 the ranks of every model wait for each other
            STATIC | REF,
            SAMPLES + "--rollout.micro_batch_size 1 x 3 ranks of the ref = 3: ranks would get unequal shares and wait "
            "for ever; change one of them",
        ),
        (
            CRITIC | {"critic.num_gpus_per_node": 3},
            "--train.dynamic_batch_enable: 3 ranks of critic cannot share evenly what is made for 8 ranks of actor; "
            "use a divisor, --critic.num_nodes x --critic.num_gpus_per_node",
        ),
        (  # more ranks than micro-batches
            CRITIC | {"critic.num_nodes": 2},
            "--train.dynamic_batch_enable: 16 ranks of critic cannot share evenly what is made for 8 ranks of actor; "
            "use a divisor, --critic.num_nodes x --critic.num_gpus_per_node",
        ),
    ],
)
def test_rollouts_that_ranks_cannot_share_evenly(flags, changes, message):
    assert list(rollout_faults(flags(changes))) == [message]


@pytest.mark.parametrize(
    "changes",
    [
        STATIC,
        STATIC | {"rollout.micro_batch_size": 4},
        {"rollout.micro_batch_size": 3},  # dynamic batches do not use it
        STATIC | ONE_RANK | {"rollout.micro_batch_size": 3},  # a last micro-batch of 2 samples: nobody waits
        STATIC | REF | {"ds.zero_stage": 2},  # a reference model that is whole on every rank
        CRITIC | {"critic.num_gpus_per_node": 4},
    ],
)
def test_rollouts_that_are_shared_evenly(flags, changes):
    assert list(rollout_faults(flags(changes))) == []


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        (
            {"train.max_tokens_per_gpu": 8192},
            "--train.max_tokens_per_gpu 8192 is less than one sequence of --data.max_len 10240 needs: such a sequence "
            "is a micro-batch of its own",
        ),
        (
            {"rollout.max_tokens_per_gpu": 8192},
            "--rollout.max_tokens_per_gpu 8192 is less than one sequence of --data.max_len 10240 needs: such a "
            "sequence is a micro-batch of its own",
        ),
        (
            {"actor.optim": "muon"},
            "--actor.optim muon, --critic.optim muon: estimated as Adam, which keeps one more buffer",
        ),
        (
            {"ds.tensor_parallel_size": 8},
            "--ds.tensor_parallel_size 8 is more than the model's 4 heads of keys: the ranks beyond them do no "
            "attention",
        ),
    ],
)
def test_notes(flags, changes, note):
    assert list(notes(flags(changes), QWEN_7B)) == [note]
