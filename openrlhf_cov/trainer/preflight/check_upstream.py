"""Flags of upstream that cannot work here, or that something would ignore: refused before anything starts.

``docs/upstream_flags.md`` lists every flag of upstream and what is known of it.
"""

import math
import os
import warnings
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.utils import get_strategy

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.host.software import architecture_fault
from openrlhf_cov.cluster.sizing.prose import counted
from openrlhf_cov.errors import UsageError
from openrlhf_cov.models.cov_config import has_critic
from openrlhf_cov.trainer.flags.upstream import DEEPSPEED


def upstream_faults(args: SimpleNamespace) -> Iterator[str]:
    """Yield one line for each flag of upstream that a run cannot keep."""
    if args.vllm.sync_with_ray:
        yield (
            "--vllm.sync_with_ray is not supported: weights go to the engines through gloo, NCCL or CUDA IPC; drop it"
        )
    if args.ds.load_in_4bit:
        yield (
            "--ds.load_in_4bit is not supported: the 4-bit blocks of the weights would be sent to the engines, which "
            "expect whole weights; drop it"
        )
    yield from _lora_faults(args)
    yield from _ema_faults(args)
    yield from _muon_faults(args)
    yield from _mixture_faults(args.data)
    yield from _reward_faults(args)


def check_strategy(args: SimpleNamespace) -> None:
    """Check that upstream accepts the ``--ds`` flags, and that DeepSpeed can compile. The call imports DeepSpeed.

    Raises:
        UsageError: Upstream refuses a combination of ``--ds`` flags, or DeepSpeed the architectures to compile for.
    """
    if not cpu_host.is_cpu_host() and (fault := architecture_fault(os.environ)):
        raise UsageError(f"{fault}; unset the variable")
    try:
        get_strategy(args)
    except AssertionError as error:  # on combinations of --ds flags
        raise UsageError(f"upstream refuses the settings of DeepSpeed: {error}") from error


# Flag of LoRA -> value without it.
LORA_DEFAULTS = {flag.name: flag.default for flag in DEEPSPEED if flag.name.startswith("ds.lora.")}


def _lora_faults(args: SimpleNamespace) -> Iterator[str]:
    """Yield faults of LoRA flags.

    Only our sender over gloo merges adapters. Upstream's senders use the names that PEFT gives, which vLLM refuses.
    """
    rank = args.ds.lora.rank
    if not rank:
        for flag, default in LORA_DEFAULTS.items():
            value = getattr(args.ds.lora, flag.removeprefix("ds.lora."))
            if value != default:
                shown = " ".join(value) if isinstance(value, list) else value
                yield (
                    f"--{flag} {shown} has no effect without --ds.lora.rank: all weights would be trained; add "
                    "--ds.lora.rank, or drop it"
                )
        return
    if args.vllm.sync_backend != "gloo":
        yield (
            f"--ds.lora.rank {rank} needs --vllm.sync_backend gloo, got {args.vllm.sync_backend}: OpenRLHF sends "
            "adapters over NCCL and CUDA IPC under names that vLLM does not know"
        )
    if has_critic(args):
        yield (
            f"--ds.lora.rank {rank} does not train a critic: OpenRLHF freezes its untrained value head, too; choose "
            "an --algo.advantage.estimator other than gae"
        )
    if args.ds.tensor_parallel_size > 1:
        yield (
            f"--ds.lora.rank {rank} and --ds.tensor_parallel_size {args.ds.tensor_parallel_size}: adapters of split "
            "layers cannot be merged; use --ds.tensor_parallel_size 1"
        )
    if args.train.enable_ema:
        yield (
            f"--train.enable_ema and --ds.lora.rank {rank}: the averaged model has no adapters, and OpenRLHF would "
            "average weights that do not belong together; drop one of the two"
        )


def _ema_faults(args: SimpleNamespace) -> Iterator[str]:
    if not args.train.enable_ema:
        return
    if cpu_host.is_cpu_host() and not args.dry_run_gpu_memory:
        yield "--train.enable_ema needs a GPU: the averaged model is offloaded from one; drop it"
    if args.ckpt.load_enable:
        yield (
            "--train.enable_ema with --ckpt.load_enable: checkpoints do not hold the average, which would begin again "
            "with the weights of --actor.model_name_or_path; drop --train.enable_ema"
        )


def _muon_faults(args: SimpleNamespace) -> Iterator[str]:
    """Yield faults of flags of Muon that DeepSpeed ignores: it has 5 Newton-Schulz steps and Nesterov's momentum."""
    for name in ("actor", "critic"):
        muon = getattr(args, name).muon
        if muon.ns_steps != 5:
            yield f"--{name}.muon.ns_steps {muon.ns_steps} has no effect: DeepSpeed always takes 5 steps; drop it"
        if not muon.nesterov:
            yield f"--{name}.muon.no_nesterov has no effect: DeepSpeed always uses Nesterov's momentum; drop it"


def _mixture_faults(data: SimpleNamespace) -> Iterator[str]:
    """Yield a fault unless each data set of ``--data.prompt_dataset`` has one probability."""
    if data.prompt_probs is None:
        return
    count = len((data.prompt_dataset or "").split(","))
    try:
        probabilities = [float(word) for word in data.prompt_probs.split(",")]
    except ValueError:
        probabilities = []
    add_up = math.isclose(sum(probabilities), 1, abs_tol=1e-8)
    if len(probabilities) != count or min(probabilities) < 0 or not add_up:
        yield (
            f"--data.prompt_probs {data.prompt_probs}: give one probability for each of the "
            f"{counted(count, 'data set')} of --data.prompt_dataset, separated by commas, with a sum of 1"
        )


def _reward_faults(args: SimpleNamespace) -> Iterator[str]:
    """Yield faults of two sources of rewards, of which a run reads one, and of normalization."""
    reward = args.reward
    if args.train.agent_func_path and reward.model_name_or_path:
        yield (
            f"--reward.model_name_or_path {reward.model_name_or_path} has no effect with --train.agent_func_path, "
            "which gives rewards; drop it"
        )
    elif reward.remote_url and reward.model_name_or_path:
        yield (
            f"--reward.model_name_or_path {reward.model_name_or_path} has no effect with --reward.remote_url, which "
            "takes its place; drop one of the two"
        )
    if reward.normalize_enable:
        yield (
            "--reward.normalize_enable is not supported: transformers 5 does not load the mean and the deviation that "
            "OpenRLHF would normalize with, and values would be divided by what stands in memory; drop it"
        )


def lora_model_fault(args: SimpleNamespace, config: Mapping[str, Any]) -> str | None:
    """Return why the model of ``config`` cannot have the adapters that the flags ask for; None if it can.

    The model is built without memory for its weights.

    Args:
        args: The flags of the run, of which ``--ds.lora`` is read.
        config: The config of the model, name -> value.
    """
    import torch
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    from openrlhf_cov.trainer.weights.lora_weights import adapted_layers

    lora = args.ds.lora
    settings = dict(config)
    modules = lora.target_modules
    shown = modules if isinstance(modules, str) else " ".join(modules)
    flag = f"--ds.lora.target_modules {shown}"
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    except Exception:  # another kind of model, or one with code of its own: its own checks say what is wrong
        return None
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tied weights, which are refused below
            model = get_peft_model(
                model,
                LoraConfig(task_type=TaskType.CAUSAL_LM, r=lora.rank, lora_alpha=lora.alpha, target_modules=modules),
            )
        adapted_layers(model)
    except ValueError as error:
        return f"{flag}: {' '.join(str(error).split())[:300]}; name linear layers such as q_proj v_proj, or all-linear"
    return None
