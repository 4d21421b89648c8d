"""Flags of a run as upstream nests them, and shapes small enough to work out by hand."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from nested import nested

from openrlhf_cov.cluster.sizing.model_shape import ModelShape

FLAGS = {
    "actor.num_nodes": 1, "actor.num_gpus_per_node": 8, "actor.model_name_or_path": "policy", "actor.optim": "adam",
    "actor.gradient_checkpointing_enable": True, "actor.entropy_coef": None,
    "ref.num_nodes": 1, "ref.num_gpus_per_node": 8, "ref.offload": False,
    "critic.num_nodes": 1, "critic.num_gpus_per_node": 8, "critic.model_name_or_path": None, "critic.optim": "adam",
    "reward.num_nodes": 1, "reward.num_gpus_per_node": 8, "reward.model_name_or_path": None, "reward.offload": False,
    "reward.remote_url": ["reward.py"],
    "vllm.num_engines": 8, "vllm.tensor_parallel_size": 1, "vllm.gpu_memory_utilization": 0.8,
    "vllm.enable_sleep": True, "vllm_max_num_seqs": 0, "vllm_max_num_batched_tokens": 0,
    "ds.zero_stage": 3, "ds.param_dtype": "bf16", "ds.grad_accum_dtype": None, "ds.adam_offload": False, "ds.zpg": 1,
    "ds.ring_attn_size": 1, "ds.ring_attn_head_stride": 1, "ds.tensor_parallel_size": 1, "ds.enable_sleep": True,
    "ds.attn_implementation": "flash_attention_2", "ds.lora.rank": 0, "ds.lora.target_modules": None,
    "ds.deepcompile": False, "ds.load_in_4bit": False,
    "rollout_replay_dir": "", "eval.dataset": None,
    "train.colocate_all": True, "train.colocate_actor_ref": False, "train.colocate_critic_reward": False,
    "train.async_enable": False, "train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": 20480,
    "train.micro_batch_size": 1, "train.batch_size": 256, "train.max_epochs": 1,
    "rollout.batch_size": 256, "rollout.n_samples_per_prompt": 8, "rollout.micro_batch_size": 1,
    "rollout.max_tokens_per_gpu": 20480, "rollout.max_new_tokens": 8192,
    "data.max_len": 10240, "algo.kl.init_coef": 0.0, "cov_type": "none", "method": "none",
}  # fmt: skip


@pytest.fixture(scope="session")
def flags() -> Callable[..., SimpleNamespace]:
    """Function (changed flags) -> ``args``: 7B-like, colocated on 8 GPUs, dynamic batches of 20,480 tokens."""

    return lambda changes=(): nested(FLAGS | dict(changes))


@pytest.fixture
def tiny() -> ModelShape:
    """1,000 parameters and a bit: every sum can be done by hand."""
    return ModelShape(hidden=8, layers=2, heads=4, kv_heads=2, head_dim=2, intermediate=10, vocab=20, tied=False)
