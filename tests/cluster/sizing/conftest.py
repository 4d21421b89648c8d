"""Flags of a run as upstream nests them, and shapes small enough to work out by hand."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from run_flags import run_flags

from openrlhf_cov.cluster.sizing.model_shape import ModelShape

FLAGS = {
    "actor.num_gpus_per_node": 8, "actor.gradient_checkpointing_enable": True, "ref.num_gpus_per_node": 8,
    "critic.num_gpus_per_node": 8, "reward.num_gpus_per_node": 8, "vllm.num_engines": 8,
    "vllm.gpu_memory_utilization": 0.8, "vllm.enable_sleep": True, "ds.zero_stage": 3, "ds.enable_sleep": True,
    "train.colocate_all": True, "train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": 20480,
    "train.micro_batch_size": 1, "train.batch_size": 256, "rollout.batch_size": 256, "rollout.n_samples_per_prompt": 8,
    "rollout.micro_batch_size": 1, "rollout.max_tokens_per_gpu": 20480, "rollout.max_new_tokens": 8192,
    "data.max_len": 10240,
}  # fmt: skip


@pytest.fixture(scope="session")
def flags() -> Callable[..., SimpleNamespace]:
    """Function (changed flags) -> ``args``: 7B-like, colocated on 8 GPUs, dynamic batches of 20,480 tokens."""

    return lambda changes=(): run_flags(FLAGS | dict(changes))


@pytest.fixture
def tiny() -> ModelShape:
    """1,000 parameters and a bit: every sum can be done by hand."""
    return ModelShape(hidden=8, layers=2, heads=4, kv_heads=2, head_dim=2, intermediate=10, vocab=20, tied=False)
