"""Start vLLM engines as Ray actors in placement groups, for a training and for ``evaluate``."""

from types import SimpleNamespace
from typing import Any

import ray
from openrlhf.trainer.ray.utils import get_bundle_indices
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from transformers import AutoProcessor

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.connection import Needs, reserve
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.trainer.ray import warm_engines
from openrlhf_cov.trainer.ray.rollout_actor import CovRolloutActor
from openrlhf_cov.trainer.rollout.engine_health import wait_for_start
from openrlhf_cov.trainer.weights import weight_transfer
from openrlhf_cov.utils.engine_limits import engine_arguments

# --ds.param_dtype -> dtype of the engine.
VLLM_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

# Part of a GPU and of a CPU that Ray books for a process that shares them with processes of other roles.
SHARED_PART = 0.2


def needs_of_engines(num_engines: int, tensor_parallel_size: int) -> Needs:
    """Return the resources that the engines of an evaluation request from Ray.

    Args:
        num_engines: Engines to start.
        tensor_parallel_size: GPUs of one engine.
    """
    return Needs(
        [{"GPU": 1.0, "CPU": 1.0}] * (num_engines * tensor_parallel_size),
        way_out="lower --num_engines or --tensor_parallel_size",
    )


def start_engines(args: SimpleNamespace, shared: PlacementGroup | None) -> list[Any]:
    """Start the engines of a training.

    Args:
        args: The flags of the run.
        shared: The placement group of the models, which the engines share (``--train.colocate_all``). With None they
            get a placement group of their own.

    Returns:
        Their handles. With ``--vllm.enable_sleep`` the engines sleep: the models are loaded next on the same GPUs.

    Raises:
        RunStopped: With ``--vllm.enable_sleep``, an engine did not start.
    """
    engines = _place(
        training_arguments(args),
        num_engines=args.vllm.num_engines,
        tensor_parallel_size=args.vllm.tensor_parallel_size,
        seed=args.train.seed,
        shared=shared,
        warm=warm_engines.are_kept(args),
    )
    if args.vllm.enable_sleep:
        wait_for_start(engines)
        batch_vllm_engine_call(engines, "sleep")
    return engines


def start_evaluation_engines(
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
    """Start the engines of an evaluation on GPUs of their own. They grade nothing and receive no weights.

    Args:
        model: Folder of a Hugging Face model, or its name on the hub.
        num_engines: Engines to start.
        tensor_parallel_size: GPUs of one engine.
        max_model_len: Longest prompt and response together, in tokens.
        dtype: Type of the weights: bf16, fp16 or fp32.
        gpu_memory_utilization: Share of the memory of a GPU that an engine takes.
        enforce_eager: True for no CUDA graphs.
        seed: Seed of the engines.
        trust_remote_code: True to run the Python code that a model brings along.
        max_num_seqs: Sequences that an engine generates at once; 0 for the default of the host.
        max_num_batched_tokens: Tokens that an engine computes in one step; 0 for the default of the host.

    Returns:
        The handles of the engines.
    """
    on_gpus = not cpu_host.is_cpu_host()
    arguments = {
        "model": model,
        "max_model_len": max_model_len,
        "dtype": VLLM_DTYPES[dtype],
        "gpu_memory_utilization": gpu_memory_utilization,
        "enforce_eager": enforce_eager or not on_gpus,
        "disable_log_stats": True,  # nobody reads vLLM's own statistics
        "enable_prefix_caching": True,
        "enable_sleep_mode": False,
        "full_determinism": False,
        "trust_remote_code": trust_remote_code,
        "worker_extension_cls": "",
        # Upstream's engine actor asks for the arguments of rewards and images that follow; an evaluation has none.
        "agent_func_path": None,
        "remote_rm_url": None,
        "reward_config": RewardConfig(),
        "mm_pad_token_ids": set(),
        "computing": num_engines,
        **engine_arguments(max_num_seqs, max_num_batched_tokens, on_gpus=on_gpus, max_model_len=max_model_len),
    }
    return _place(arguments, num_engines=num_engines, tensor_parallel_size=tensor_parallel_size, seed=seed)


def training_arguments(args: SimpleNamespace) -> dict[str, Any]:
    """Return the arguments of ``CovRolloutActor`` that are equal for all engines of a training."""
    on_gpus = not cpu_host.is_cpu_host()
    arguments: dict[str, Any] = {
        "model": args.actor.model_name_or_path,
        "max_model_len": args.data.max_len,
        "dtype": VLLM_DTYPES[args.ds.param_dtype],
        "gpu_memory_utilization": args.vllm.gpu_memory_utilization,
        "enforce_eager": args.vllm.enforce_eager,
        "disable_log_stats": True,  # nobody reads vLLM's own statistics
        "enable_prefix_caching": args.vllm.enable_prefix_caching,
        "enable_sleep_mode": args.vllm.enable_sleep,
        "full_determinism": args.train.full_determinism_enable,
        "trust_remote_code": args.trust_remote_code,
        # Every run compares the log-probs of the engine with those of training (vllm_kl). Upstream asks for them with
        # its rollout correction alone.
        "log_probs": True,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": 1,
        "agent_func_path": args.train.agent_func_path,
        "remote_rm_url": args.reward.remote_url,
        "reward_config": RewardConfig.from_args(args),
        "mm_pad_token_ids": set(),
        # In asynchronous training the models train while the engines generate.
        "computing": args.vllm.num_engines * (2 if args.train.async_enable else 1),
        **engine_arguments(
            args.vllm_max_num_seqs,
            args.vllm_max_num_batched_tokens,
            on_gpus=on_gpus,
            max_model_len=args.data.max_len,
        ),
    }
    if args.data.max_images_per_prompt > 0:
        arguments["limit_mm_per_prompt"] = {"image": args.data.max_images_per_prompt}
        # By these ids the processor of a vision-language model marks the places of images and videos.
        model = args.actor.model_name_or_path
        processor = AutoProcessor.from_pretrained(model, trust_remote_code=args.trust_remote_code)
        ids = {getattr(processor, name, None) for name in ("image_token_id", "video_token_id")}
        arguments["mm_pad_token_ids"] = ids - {None}
    if args.vllm.sync_backend == "gloo":
        arguments["worker_extension_cls"] = weight_transfer.WORKER_EXTENSION
        arguments["weight_transfer_config"] = {"backend": weight_transfer.BACKEND}
    else:
        arguments["worker_extension_cls"] = f"{WorkerWrap.__module__}.{WorkerWrap.__qualname__}"
    return arguments


def _place(
    arguments: dict[str, Any],
    *,
    num_engines: int,
    tensor_parallel_size: int,
    seed: int,
    shared: PlacementGroup | None = None,
    warm: bool = False,
) -> list[Any]:
    """Start engines in a placement group; with ``warm``, first take engines that the last run of a study has left."""
    actor_class = ray.remote(CovRolloutActor)
    is_sharded = tensor_parallel_size > 1
    part = 1 if shared is None else SHARED_PART
    # The workers of a sharded engine are Ray tasks of its actor, in bundles of their own. The actor needs no GPU.
    booked = 0 if is_sharded else part
    group = reserve(num_engines * tensor_parallel_size) if shared is None else shared
    engines = []
    for number in range(num_engines):
        bundles = get_bundle_indices(group, number, tensor_parallel_size) if is_sharded else None
        of_engine = arguments | {
            "tensor_parallel_size": tensor_parallel_size,
            "distributed_executor_backend": "ray" if is_sharded else "uni",
            # Engines with one seed would sample the same responses to the same prompt.
            "seed": seed + number,
            "bundle_indices": bundles,
            "num_gpus": part,
        }
        of_engine = cpu_host.engine_arguments(of_engine)
        if warm:
            engines.append(warm_engines.engine(actor_class, of_engine))
            continue
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=group,
            placement_group_capture_child_tasks=True,
            placement_group_bundle_index=bundles[0] if bundles else number,
        )
        options = actor_class.options(num_cpus=booked, num_gpus=booked, scheduling_strategy=strategy)
        engines.append(options.remote(**of_engine))
    return engines
