"""Conditions on the sizes of a run that upstream would only find violated deep in the run (pure).

Each fault is one line: what, flag, value, what to do. Notes are lines that do not stop a run.
"""

import os
from collections.abc import Iterator
from types import SimpleNamespace

from openrlhf_cov.cluster.sizing.flag_sizes import process_groups, processes, ranks_of
from openrlhf_cov.cluster.sizing.model_shape import ModelShape
from openrlhf_cov.cluster.sizing.prose import counted
from openrlhf_cov.cluster.sizing.updates import ranks_in_step, ranks_without_chunk
from openrlhf_cov.models.cov_config import has_critic, has_reward_model


def faults(args: SimpleNamespace) -> Iterator[str]:
    """Yield a line for each fault of colocation and of tensor parallelism in training."""
    yield from _colocation_faults(args)
    if args.ds.tensor_parallel_size > 1 and args.ds.param_dtype != "bf16":
        yield (
            f"--ds.tensor_parallel_size {args.ds.tensor_parallel_size} needs --ds.param_dtype bf16, got "
            f"{args.ds.param_dtype}"
        )


def rollout_faults(args: SimpleNamespace) -> Iterator[str]:
    """Yield a fault for each model whose ranks cannot share the rollouts as upstream needs it.

    Ranks that wait for each other need equal shares; every other rank needs at least one chunk. A model with one rank
    takes any number of samples. Updates of whole groups have a fault if groups do not fit into them.
    """
    if args.train_shuffle == "groups":
        yield from _cut_groups(args)
    if args.train.dynamic_batch_enable:
        yield from _uneven_dynamic_batches(args)
        return
    samples = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    micro = args.rollout.micro_batch_size
    for name, ranks in ranks_in_step(args).items():
        if ranks > 1 and samples % (micro * ranks):
            yield (
                f"--rollout.batch_size {args.rollout.batch_size} x --rollout.n_samples_per_prompt "
                f"{args.rollout.n_samples_per_prompt} = {samples} samples are no multiple of "
                f"--rollout.micro_batch_size {micro} x {ranks} ranks of the {name} = {micro * ranks}: ranks would get "
                "unequal shares and wait for ever; change one of them"
            )
    for name in ranks_without_chunk(samples, args):
        if name not in ranks_in_step(args):
            yield (
                f"--rollout.batch_size {args.rollout.batch_size} x --rollout.n_samples_per_prompt "
                f"{args.rollout.n_samples_per_prompt} = {samples} samples make fewer chunks of "
                f"--rollout.micro_batch_size {micro} than the {name} has ranks, {ranks_of(args, name)}; change one of "
                "them"
            )


def _cut_groups(args: SimpleNamespace) -> Iterator[str]:
    """Yield a fault if updates cannot hold all responses to their prompts.

    Ranks cut dynamic batches out of whole updates, and static ones out of the samples that each rank has.
    """
    batch = args.train.batch_size
    ranks = 1 if args.train.dynamic_batch_enable else ranks_of(args)
    samples = args.rollout.n_samples_per_prompt
    if batch // ranks % samples:
        of_a_rank = f" / {counted(ranks, 'rank')} of the actor = {batch // ranks}" if ranks > 1 else ""
        yield (
            f"--train.shuffle groups: --train.batch_size {batch}{of_a_rank} is no multiple of "
            f"--rollout.n_samples_per_prompt {samples}, so updates would cut groups; change one of them, or take "
            "--train.shuffle samples"
        )


def _uneven_dynamic_batches(args: SimpleNamespace) -> Iterator[str]:
    """Yield a fault for each model whose ranks cannot share the dynamic batches evenly.

    Upstream makes a multiple of the actor's ranks of these batches, and shares them among the ranks of every model.
    """
    for name in process_groups(args):
        if ranks_of(args) % ranks_of(args, name):
            yield (
                f"--train.dynamic_batch_enable: {counted(ranks_of(args, name), 'rank')} of {name} cannot share evenly "
                f"what is made for {counted(ranks_of(args), 'rank')} of actor; use a divisor, "
                f"--{name}.num_nodes x --{name}.num_gpus_per_node"
            )


def notes(args: SimpleNamespace, shape: ModelShape | None) -> Iterator[str]:
    """Yield a line for each flag that is legal and whose effect the user may not expect.

    Args:
        args: The flags of a training.
        shape: Shape of the actor; None if it is not known.
    """
    dynamic = args.train.dynamic_batch_enable
    for name in ("train", "rollout"):
        limit = getattr(args, name).max_tokens_per_gpu
        # Ranks of one ring or tensor-parallel group share the tokens of a micro-batch.
        room = (limit or 0) * args.ds.ring_attn_size * args.ds.tensor_parallel_size
        if dynamic and limit and room < args.data.max_len:
            yield (
                f"--{name}.max_tokens_per_gpu {limit} is less than one sequence of --data.max_len {args.data.max_len} "
                "needs: such a sequence is a micro-batch of its own"
            )
    if "muon" in (args.actor.optim, args.critic.optim):
        yield "--actor.optim muon, --critic.optim muon: estimated as Adam, which keeps one more buffer"
    if shape is not None and args.ds.tensor_parallel_size > shape.kv_heads:
        yield (
            f"--ds.tensor_parallel_size {args.ds.tensor_parallel_size} is more than the model's {shape.kv_heads} "
            "heads of keys: the ranks beyond them do no attention"
        )


def _colocation_faults(args: SimpleNamespace) -> Iterator[str]:
    if not args.train.colocate_all:
        return
    actor = processes(args.actor)
    # Critic and reward model then have GPUs of their own.
    apart = has_critic(args) and args.train.colocate_critic_reward
    there = {"critic": has_critic(args), "reward": has_reward_model(args)}
    for name in there:
        group = getattr(args, name)
        size = processes(group)
        if there[name] and not apart and size > actor:
            yield (
                f"--train.colocate_all: --{name}.num_nodes {group.num_nodes} x --{name}.num_gpus_per_node "
                f"{group.num_gpus_per_node} = {size} processes on the {counted(actor, 'GPU')} of the actor; make "
                f"it {actor} or less"
            )


def shape_faults(args: SimpleNamespace, shape: ModelShape) -> Iterator[str]:
    """Yield the faults of the flags with an actor of this shape.

    Args:
        args: The flags of a training.
        shape: Shape of the actor.
    """
    shards = args.vllm.tensor_parallel_size
    stride = args.ds.ring_attn_head_stride
    if not _divides(shards, shape):
        fitting = ", ".join(str(n) for n in range(1, shape.heads + 1) if _divides(n, shape))
        yield (
            f"--vllm.tensor_parallel_size {shards} does not divide the model: {shape.heads} heads, {shape.kv_heads} "
            f"of keys, MLP {shape.intermediate}; use one of {fitting}"
        )
    if args.ds.ring_attn_size > 1 and shape.kv_heads % stride:
        yield (
            f"--ds.ring_attn_head_stride {stride} does not divide the model's {shape.kv_heads} heads of keys; "
            "use a divisor"
        )
    # vLLM's own switch for models that do without position embeddings of that length.
    allowed = os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in ("0", "")
    if shape.max_positions and args.data.max_len > shape.max_positions and not allowed:
        yield (
            f"--data.max_len {args.data.max_len} is more than the {shape.max_positions} positions of the model "
            "(max_position_embeddings), which vLLM refuses; lower it, and --rollout.max_new_tokens with it"
        )


def _divides(shards: int, shape: ModelShape) -> bool:
    """Return True if vLLM can split the model: heads and MLP evenly, heads of keys evenly or as whole copies."""
    # With more shards than heads of keys, vLLM puts a copy of a head on several of them.
    even_keys = shape.kv_heads % shards == 0 or shards % shape.kv_heads == 0
    return shape.heads % shards == 0 and shape.intermediate % shards == 0 and even_keys
