"""vLLM engines of an evaluation's own, in placement groups."""

from typing import Any

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.trainer.ray.cluster import Needs
from openrlhf_cov.trainer.ray.seams import VLLM_DTYPES, install_engines
from openrlhf_cov.utils.engine_limits import engine_arguments


def needs_of_engines(num_engines: int, tensor_parallel_size: int) -> Needs:
    """What the engines ask of Ray."""
    return Needs(
        [{"GPU": 1.0, "CPU": 1.0}] * (num_engines * tensor_parallel_size),
        training_processes=1,
        way_out="lower --num_engines or --tensor_parallel_size",
    )


def start_engines(
    model: str,
    *,
    num_engines: int,
    tensor_parallel_size: int,
    max_model_len: int,
    dtype: str,
    gpu_memory_utilization: float,
    enforce_eager: bool,
    seed: int,
    trust_remote_code: bool,
    max_num_seqs: int = 0,
    max_num_batched_tokens: int = 0,
) -> list[Any]:
    """Handles of engines that hold ``model``, made by upstream's ``create_vllm_engines`` in a placement group."""
    settings = {"dtype": VLLM_DTYPES[dtype], "reward_config": RewardConfig(), "worker_extension_cls": ""}
    settings |= engine_arguments(
        max_num_seqs, max_num_batched_tokens, on_gpus=not cpu_host.is_cpu_host(), max_model_len=max_model_len
    )
    install_engines(settings | {"trust_remote_code": trust_remote_code})
    from openrlhf.trainer.ray.vllm_engine import create_vllm_engines

    return create_vllm_engines(
        num_engines=num_engines,
        tensor_parallel_size=tensor_parallel_size,
        pretrain=model,
        seed=seed,
        full_determinism=False,
        enable_prefix_caching=True,
        enforce_eager=enforce_eager or cpu_host.is_cpu_host(),
        max_model_len=max_model_len,
        gpu_memory_utilization=gpu_memory_utilization,
    )
