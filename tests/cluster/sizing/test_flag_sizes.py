import pytest

from openrlhf_cov.cluster.sizing.flag_sizes import (
    layout_of,
    model_names,
    ranks_of,
    roles_of,
    scoring_processes,
    scoring_tokens,
    step_of,
    training_processes,
    training_tokens,
)
from openrlhf_cov.cluster.sizing.model_shape import KNOWN
from openrlhf_cov.cluster.sizing.placement import GpuLayout
from openrlhf_cov.models.cov_config import CovConfig

QWEN_7B = KNOWN["Qwen/Qwen2.5-7B"]
P = QWEN_7B.parameters
ALL = {
    "algo.kl.init_coef": 0.1,
    "critic.model_name_or_path": "value",
    "reward.remote_url": None,
    "reward.model_name_or_path": "judge",
}


def test_models_that_a_run_loads(flags):
    assert model_names(flags()) == {"actor": ("--actor.model_name_or_path", "policy")}
    assert model_names(flags(ALL)) == {
        "actor": ("--actor.model_name_or_path", "policy"),
        "ref": ("--actor.model_name_or_path", "policy"),
        "critic": ("--critic.model_name_or_path", "value"),
        "reward": ("--reward.model_name_or_path", "judge"),
    }


def test_layout(flags):
    assert layout_of(flags()) == GpuLayout(actor=8, engines=8, colocate_all=True)
    changes = {"actor.num_nodes": 2, "ref.num_gpus_per_node": 4, "train.async_enable": True}
    assert layout_of(flags(ALL | changes)) == GpuLayout(
        actor=16, engines=8, ref=4, critic=8, reward=8, colocate_all=True, asynchronous=True
    )


@pytest.mark.parametrize(
    ("changes", "scoring", "training"),
    [
        ({}, 8, 8),
        # Policy, reference, critic and reward model score; policy and critic train.
        (ALL | {"ds.enable_sleep": False}, 32, 16),
        (ALL | {"ds.enable_sleep": False, "critic.num_gpus_per_node": 2}, 26, 10),
        (ALL | {"ds.enable_sleep": True, "critic.num_gpus_per_node": 2}, 26, 8),  # one after the other
        ({"actor.num_nodes": 2}, 16, 16),
    ],
)
def test_processes_that_compute_at_the_same_time(flags, changes, scoring, training):
    args = flags(changes)
    assert scoring_processes(args) == scoring
    assert training_processes(args) == training


def test_a_process_reward_model_has_the_size_and_the_start_of_the_policy(flags):
    # with a reference, also without a KL term
    prime = vars(CovConfig(method="prime")) | {"actor.num_nodes": 2, "ref.num_nodes": 2}
    args = flags(prime)
    start = ("--actor.model_name_or_path", "policy")
    assert model_names(args) == {"actor": start, "ref": start, "prm": start}
    assert layout_of(args) == GpuLayout(actor=16, engines=8, ref=16, prm=16, colocate_all=True)
    (role,) = roles_of(args, {"prm": QWEN_7B}, on_gpus=True).values()
    assert (role.sharding.world, role.scoring.head, role.training is not None) == (16, True, True)
    other = model_names(flags(prime | {"prime_model": "other"}))
    assert other == {"actor": start, "ref": ("--prime_model", "other"), "prm": ("--prime_model", "other")}


def test_a_reward_group_exists_without_a_model_of_its_own(flags):
    # upstream starts the actors of --reward.num_gpus_per_node wherever there is no --reward.remote_url
    assert layout_of(flags({"reward.remote_url": None})).reward == 8


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [({}, 8), ({"ds.ring_attn_size": 2}, 4), ({"ds.ring_attn_size": 2, "ds.tensor_parallel_size": 4}, 1)],
)
def test_ranks(flags, changes, ranks):
    assert ranks_of(flags(changes)) == ranks


FIXED = {"train.dynamic_batch_enable": False, "train.micro_batch_size": 2, "rollout.micro_batch_size": 4}


@pytest.mark.parametrize(
    ("changes", "training", "scoring"),
    [
        ({}, 20_480, 20_480),
        ({"rollout.max_tokens_per_gpu": 30_720}, 20_480, 30_720),
        ({"rollout.max_tokens_per_gpu": None}, 20_480, 20_480),
        ({"actor.num_gpus_per_node": 1}, 20_480, 20_480),
        # a sequence is longer than the limit, and there may be one too few for another micro-batch on each of 8 ranks
        ({"train.max_tokens_per_gpu": 4096, "rollout.max_tokens_per_gpu": 4096}, 10_240, 20_480),
        (
            {"train.max_tokens_per_gpu": 4096, "rollout.max_tokens_per_gpu": 4096, "actor.num_gpus_per_node": 1},
            *(10_240, 10_240),
        ),
        # a ring of 2 halves it; the limit is per GPU
        ({"ds.ring_attn_size": 2, "train.max_tokens_per_gpu": 4096}, 5120, 20_480),
        # tensor parallelism does not: all its GPUs compute the same tokens
        ({"ds.tensor_parallel_size": 2}, 40_960, 40_960),
        # fixed numbers of padded samples
        (FIXED, 20_480, 40_960),
        (FIXED | {"ds.ring_attn_size": 3}, 6827, 13_654),
    ],
)
def test_tokens_of_a_micro_batch(flags, changes, training, scoring):
    args = flags(changes)
    assert (training_tokens(args), scoring_tokens(args)) == (training, scoring)


def test_roles_follow_the_flags(flags):
    args = flags(ALL | {"ref.offload": True, "ds.zpg": 8, "actor.entropy_coef": 0.01, "ds.grad_accum_dtype": "fp32"})
    roles = roles_of(args, dict.fromkeys(("actor", "ref", "critic", "reward"), QWEN_7B), on_gpus=True)
    actor, ref, critic, reward = roles.values()
    assert (actor.sharding.world, actor.sharding.stage, actor.sharding.secondary) == (8, 3, 8)
    assert (actor.sharding.element, actor.sharding.grad_element) == (2, 4)
    assert actor.training.tokens == 20_480
    assert actor.training.checkpointing
    assert actor.training.entropy_gradient
    assert not critic.training.entropy_gradient
    moved = roles_of(flags({"method": "adaptive_entropy"}), {"actor": QWEN_7B}, on_gpus=True)["actor"]
    assert moved.training.entropy_gradient  # 0 in the first step only
    assert (ref.training, reward.training) == (None, None)
    assert (ref.sharding.weights_on_cpu, reward.sharding.weights_on_cpu) == (True, False)
    assert [each.scoring.head for each in roles.values()] == [True, True, False, False]


@pytest.mark.parametrize(
    ("changes", "whole"),
    [
        ({}, False),
        ({"ds.lora.rank": 8, "ds.lora.target_modules": ["q_proj"]}, False),
        ({"ds.lora.rank": 8, "ds.lora.target_modules": ["q_proj", "lm_head"]}, True),
        ({"ds.lora.target_modules": ["lm_head"]}, False),
        ({"ds.ring_attn_size": 2}, True),
        ({"ds.tensor_parallel_size": 2}, True),
        ({"ds.deepcompile": True}, True),
    ],
)
def test_logits_stand_side_by_side_where_upstream_computes(flags, changes, whole):
    roles = roles_of(flags(changes), {"actor": QWEN_7B, "ref": QWEN_7B}, on_gpus=True)
    passes = roles["actor"].scoring, roles["actor"].training, roles["ref"].scoring
    assert [each.whole_logits for each in passes] == [whole] * 3


@pytest.mark.parametrize(
    ("modules", "per_layer", "beside"),
    [
        # hidden 3584, queries 3584, keys and values 512 wide, MLP 18944: inputs and outputs of every matrix
        (["q_proj"], 3584 + 3584, 0),
        (["k_proj", "o_proj"], (3584 + 512) + (3584 + 3584), 0),
        ("all-linear", 2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944), 0),
        (["v_proj", "lm_head"], 3584 + 512, 3584 + 152064),
    ],
)
def test_adapters_alone_have_gradients_and_a_state_of_the_optimizer(flags, modules, per_layer, beside):
    trained = 8 * (28 * per_layer + beside)  # rank x (28 layers and what is beside them)
    args = flags({"ds.lora.rank": 8, "ds.lora.target_modules": modules, "ds.zero_stage": 2})
    roles = roles_of(args, {"actor": QWEN_7B, "ref": QWEN_7B}, on_gpus=True)
    sharding = roles["actor"].sharding
    assert sharding.weights(QWEN_7B) == 2 * (P + trained)
    assert sharding.gradients(QWEN_7B) == 2 * trained / 8
    assert sharding.optimizer(QWEN_7B) == 12 * trained / 8
    assert roles["ref"].sharding.weights(QWEN_7B) == 2 * P  # the model without adapters


def test_models_that_do_not_train_are_whole_below_stage_3(flags):
    roles = roles_of(flags(ALL | {"ds.zero_stage": 2}), {"actor": QWEN_7B, "ref": QWEN_7B}, on_gpus=True)
    assert roles["ref"].weights == roles["actor"].weights == 2 * P
    assert roles["ref"].sharding.stage == 0


def test_written_out_attention_counts_its_scores(flags):
    eager, flash = (
        roles_of(flags({"ds.attn_implementation": name}), {"actor": QWEN_7B}, on_gpus=True)["actor"]
        for name in ("eager", "flash_attention_2")
    )
    assert (eager.scoring.score_length, flash.scoring.score_length) == (10_240, 0)


def test_a_step_by_hand(flags):
    step = step_of(flags(), prompt_tokens=100.0)
    assert (step.samples, step.updates) == (2048, 8)
    assert step.worst == 2048 * 10_240
    assert step.expected == 2048 * (100 + 4096)
    assert step_of(flags(), None).expected == 2048 * (2048 + 4096)


def test_responses_without_a_limit_may_fill_the_sequence(flags):
    step = step_of(flags({"rollout.max_new_tokens": None, "train.max_epochs": 2}), 10.0)
    assert (step.longest_response, step.updates) == (10_240, 16)
