"""The flags of a training read as sizes: layout, models, engines, samples and tokens of a step (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf_cov.cluster.sizing.budget import Role
from openrlhf_cov.cluster.sizing.memory import Engine, Pass, Sharding
from openrlhf_cov.cluster.sizing.model_shape import ModelShape
from openrlhf_cov.cluster.sizing.placement import GpuLayout
from openrlhf_cov.models.cov_config import (
    has_critic,
    has_engines,
    has_process_reward,
    has_reference,
    has_reward_model,
    methods_of,
    process_reward_of,
)
from openrlhf_cov.models.method import fills
from openrlhf_cov.models.slots import EntropyBonus
from openrlhf_cov.utils.engine_limits import engine_limits

# --ds.param_dtype and --ds.grad_accum_dtype -> bytes of a number.
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

# CPUs of the trainer, sampler and queue actors that upstream starts beside the model actors.
CONTROLLER_CPUS = 4


@dataclass(frozen=True, kw_only=True)
class Step:
    """The samples, tokens and updates of one global step."""

    prompts: int
    samples_per_prompt: int
    updates: int
    # Tokens of the longest sample, prompt and response.
    longest: int
    longest_response: int
    # Mean over the data; None if they were not tokenized.
    prompt_tokens: float | None

    @property
    def samples(self) -> int:
        """Samples of the step."""
        return self.prompts * self.samples_per_prompt

    @property
    def worst(self) -> int:
        """Tokens if every sample is as long as it may be."""
        return self.samples * self.longest

    @property
    def expected(self) -> float:
        """Tokens if responses take half of what they may: prompts at their mean, or as long as they may be."""
        prompt = self.longest - self.longest_response if self.prompt_tokens is None else self.prompt_tokens
        return self.samples * (prompt + self.longest_response / 2)


def model_names(args: SimpleNamespace) -> dict[str, tuple[str, str]]:
    """Return role -> (flag, name) of every model that a run loads."""
    actor = ("--actor.model_name_or_path", args.actor.model_name_or_path)
    names: dict[str, tuple[str, str]] = {"actor": actor}
    process_reward = process_reward_of(args)
    start = actor
    if process_reward is not None and process_reward.model:
        start = (process_reward.model_flag, process_reward.model)
    if has_reference(args):
        names["ref"] = start
    if process_reward is not None:
        names["prm"] = start
    if has_critic(args):
        names["critic"] = ("--critic.model_name_or_path", args.critic.model_name_or_path)
    if has_reward_model(args) and args.reward.model_name_or_path:
        names["reward"] = ("--reward.model_name_or_path", args.reward.model_name_or_path)
    return names


def layout_of(args: SimpleNamespace) -> GpuLayout:
    """Return the GPUs of every group of processes."""
    return GpuLayout(
        engines=args.vllm.num_engines if has_engines(args) else 0,
        tensor_parallel=args.vllm.tensor_parallel_size,
        colocate_all=args.train.colocate_all,
        colocate_actor_ref=args.train.colocate_actor_ref,
        colocate_critic_reward=args.train.colocate_critic_reward,
        asynchronous=args.train.async_enable,
        prm=processes(args.actor) if has_process_reward(args) else None,
        **{name: processes(group) for name, group in process_groups(args).items()},
    )


def processes(group: SimpleNamespace) -> int:
    """Return the number of processes, one per GPU, of a group of training actors."""
    return group.num_nodes * group.num_gpus_per_node


def process_groups(args: SimpleNamespace) -> dict[str, SimpleNamespace]:
    """Return the groups of DeepSpeed processes of a run whose size has flags, by the name in these flags.

    The process reward model (``prm``) is not among them: it has as many processes as the policy.
    """
    exists = {
        "actor": True,
        "ref": has_reference(args),
        "critic": has_critic(args),
        "reward": has_reward_model(args),
    }
    return {name: getattr(args, name) for name, there in exists.items() if there}


def scoring_processes(args: SimpleNamespace) -> int:
    """Return how many processes, on all nodes, score a rollout at the same time.

    The process reward model waits for the others.
    """
    return sum(processes(group) for group in process_groups(args).values())


def training_processes(args: SimpleNamespace) -> int:
    """Return how many processes, on all nodes, make updates at the same time.

    Policy and critic train at once, unless one waits for the other (``--ds.enable_sleep``): then it is the number of
    processes of the larger one. The process reward model trains before them.
    """
    groups = process_groups(args)
    counts = [processes(groups[name]) for name in ("actor", "critic") if name in groups]
    return max(counts) if args.ds.enable_sleep else sum(counts)


def ranks_of(args: SimpleNamespace, name: str = "actor") -> int:
    """Return the number of data-parallel ranks of a model, at least 1.

    Args:
        args: The flags of a training.
        name: A key of ``process_groups``.
    """
    return max(1, processes(getattr(args, name)) // (args.ds.ring_attn_size * args.ds.tensor_parallel_size))


def roles_of(args: SimpleNamespace, shapes: Mapping[str, ModelShape], on_gpus: bool) -> dict[str, Role]:
    """Return the models that DeepSpeed holds, by their names.

    Args:
        args: The flags of a training.
        shapes: Name of a model, as in ``model_names`` -> its shape. Models whose shape is not known are left out.
        on_gpus: True on GPUs, where flash-attn's cross entropy saves logits and DeepSpeed's buffers count whole.
    """
    return {name: _role(name, args, shape, on_gpus) for name, shape in shapes.items()}


def engine_of(args: SimpleNamespace, gpu_bytes: float) -> Engine:
    """Return the vLLM engine on GPUs of a size. It generates in the type of the weights.

    Args:
        args: The flags of a training.
        gpu_bytes: Bytes of one GPU.
    """
    return Engine(
        tensor_parallel=args.vllm.tensor_parallel_size,
        utilization=args.vllm.gpu_memory_utilization,
        gpu_bytes=gpu_bytes,
        element=BYTES[args.ds.param_dtype],
        limits=engine_limits(args.vllm_max_num_seqs, args.vllm_max_num_batched_tokens, on_gpus=True),
    )


def step_of(args: SimpleNamespace, prompt_tokens: float | None) -> Step:
    """Return the samples and tokens of a global step.

    Args:
        args: The flags of a training.
        prompt_tokens: Mean length of the data's prompts in tokens; None if it is not known.
    """
    samples = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    return Step(
        prompts=args.rollout.batch_size,
        samples_per_prompt=args.rollout.n_samples_per_prompt,
        updates=samples // args.train.batch_size * args.train.max_epochs,
        longest=args.data.max_len,
        longest_response=min(args.rollout.max_new_tokens or args.data.max_len, args.data.max_len),
        prompt_tokens=prompt_tokens,
    )


def training_tokens(args: SimpleNamespace) -> int:
    """Return the most tokens of a training micro-batch on one GPU; a sequence is never split over micro-batches."""
    if not args.train.dynamic_batch_enable:
        return _per_gpu(args, args.train.micro_batch_size * args.data.max_len)
    return max(args.train.max_tokens_per_gpu * args.ds.tensor_parallel_size, _per_gpu(args, args.data.max_len))


def scoring_tokens(args: SimpleNamespace) -> int:
    """Return the most tokens of a scored micro-batch on one GPU.

    A sequence is never split over micro-batches. With several ranks, each of which gets as many micro-batches, some of
    two sequences may be above the limit where there are too few sequences for more micro-batches.
    """
    if not args.train.dynamic_batch_enable:
        return _per_gpu(args, args.rollout.micro_batch_size * args.data.max_len)
    limit = args.rollout.max_tokens_per_gpu or args.train.max_tokens_per_gpu
    sequences = 2 if ranks_of(args) > 1 else 1
    return max(limit * args.ds.tensor_parallel_size, _per_gpu(args, sequences * args.data.max_len))


def _role(name: str, args: SimpleNamespace, shape: ModelShape, on_gpus: bool) -> Role:
    element = BYTES[args.ds.param_dtype]
    trains = name in ("actor", "critic", "prm")
    longest = args.data.max_len if args.ds.attn_implementation == "eager" else 0
    common = {
        "element": element,
        "fused_loss": on_gpus,
        "score_length": longest,
        "head": name in ("actor", "ref", "prm"),
    }
    # In these cases ``CovActor`` leaves the log-probs to upstream, which computes them from all logits at once.
    splits_model = args.ds.ring_attn_size > 1 or args.ds.tensor_parallel_size > 1
    changes_head = args.ds.lora.rank > 0 and "lm_head" in (args.ds.lora.target_modules or ())
    common["whole_logits"] = splits_model or args.ds.deepcompile or changes_head
    sharding = Sharding(
        world=processes(args.actor if name == "prm" else getattr(args, name)),
        # Upstream gives models that only score a DeepSpeed engine without ZeRO, unless the stage is 3.
        stage=args.ds.zero_stage if trains or args.ds.zero_stage == 3 else 0,
        tensor_parallel=args.ds.tensor_parallel_size,
        element=element,
        grad_element=BYTES.get(args.ds.grad_accum_dtype),
        secondary=args.ds.zpg if trains else 1,
        optimizer_on_cpu=args.ds.adam_offload,
        weights_on_cpu=name in ("ref", "reward") and getattr(args, name).offload,
        trained=_adapter_parameters(args, shape) if trains and args.ds.lora.rank else None,
        whole_buffers=on_gpus,
    )
    # True if the entropy takes part in the gradient, in at least one step.
    methods = methods_of(args.cov_type, args.method)
    has_bonus = bool(args.actor.entropy_coef) or any(fills(each, EntropyBonus) for each in methods)
    training = Pass(
        tokens=training_tokens(args),
        # The flag of the policy holds for every trained model, as in upstream.
        checkpointing=args.actor.gradient_checkpointing_enable,
        entropy_gradient=name == "actor" and has_bonus,
        **common,
    )
    return Role(
        name=name,
        shape=shape,
        sharding=sharding,
        scoring=Pass(tokens=scoring_tokens(args), **common),
        training=training if trains else None,
        averaged=name == "actor" and args.train.enable_ema,
    )


def _adapter_parameters(args: SimpleNamespace, shape: ModelShape) -> int:
    """Return the parameters of the LoRA adapters: rank x (inputs + outputs) of every adapted matrix.

    A layer whose name is not one of Llama's counts as none of them.
    """
    inputs_and_outputs = {
        "q_proj": shape.hidden + shape.query_width,
        "k_proj": shape.hidden + shape.kv_width,
        "v_proj": shape.hidden + shape.kv_width,
        "o_proj": shape.query_width + shape.hidden,
        "gate_proj": shape.hidden + shape.intermediate,
        "up_proj": shape.hidden + shape.intermediate,
        "down_proj": shape.intermediate + shape.hidden,
    }
    modules = args.ds.lora.target_modules
    named = inputs_and_outputs if modules == "all-linear" or modules is None else modules
    sizes = shape.layers * sum(inputs_and_outputs.get(name, 0) for name in named)
    sizes += sum(shape.hidden + shape.vocab for name in ("lm_head", "embed_tokens") if name in named)
    return args.ds.lora.rank * sizes


def _per_gpu(args: SimpleNamespace, tokens: int) -> int:
    return -(-tokens // args.ds.ring_attn_size)
