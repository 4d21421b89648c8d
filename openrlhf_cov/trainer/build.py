"""Build a training from its flags: placement groups, engines, roles and the controller; then run it."""

from types import SimpleNamespace
from typing import Any

import ray
from openrlhf.trainer.ray.launcher import RayActorGroup
from ray.util.placement_group import PlacementGroup

from openrlhf_cov.cluster.connection import reserve
from openrlhf_cov.models.cov_config import (
    has_critic,
    has_engines,
    has_process_reward,
    has_reference,
    has_reward_model,
    reference_model,
)
from openrlhf_cov.trainer.controller import TrainingController
from openrlhf_cov.trainer.model.strategy import CovStrategy, make_strategy
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.ray.engines import SHARED_PART, start_engines
from openrlhf_cov.trainer.ray.roles import (
    CriticRole,
    ModelRole,
    PolicyRole,
    ProcessRewardRole,
    ReferenceRole,
    RewardRole,
)
from openrlhf_cov.trainer.rollout.engine_health import wait_for_start
from openrlhf_cov.trainer.rollout.prompts import frozen_updates
from openrlhf_cov.utils.redaction import redact_arguments


def train(args: SimpleNamespace) -> None:
    """Train with these flags, on the Ray that this process has joined, until the run is over.

    The flags have passed the checks of ``openrlhf_cov/trainer/preflight/preflight.py``. Errors of the roles and the
    controller are raised inside of Ray's errors.
    """
    strategy = make_strategy(args)
    strategy.print(redact_arguments(args))

    # GPUs that the policy shares with other models. Engines share them only if they wait while the policy trains.
    shared = None
    if args.train.colocate_all or args.train.colocate_actor_ref:
        shared = reserve(_ranks(args.actor))
    engines_share = args.train.colocate_all and not args.train.async_enable

    engines = []
    if has_engines(args):
        engines = start_engines(args, shared if engines_share else None)
    groups = make_groups(args, shared)

    # The controller is an actor: under `ray job submit` this process runs on the head node, which may be small.
    # Ray's types do not know the methods of an actor.
    controller: Any = TrainingController.remote(args, groups, engines)
    max_steps: int = ray.get(controller.max_steps.remote())
    load_models(strategy, groups, engines, max_steps)

    ray.get(controller.run.remote())
    save_models(args, groups)


def make_groups(args: SimpleNamespace, shared: PlacementGroup | None) -> ModelGroups:
    """Start the processes of all roles; return their groups, None for a role that the run does not have.

    Args:
        args: The flags of the run.
        shared: The placement group of the policy and the models beside it. With None every role has GPUs of its own.
    """
    policy = _start_group(args, args.actor, PolicyRole, shared)
    reference = _start_group(args, args.ref, ReferenceRole, shared) if has_reference(args) else None
    # The process reward model has as many GPUs as the policy: the same ones, or its own.
    process_reward = _start_group(args, args.actor, ProcessRewardRole, shared) if has_process_reward(args) else None

    # Critic and reward model share the GPUs of the policy, GPUs of their own, or nothing.
    beside = shared if args.train.colocate_all else None
    if has_critic(args) and args.train.colocate_critic_reward:
        beside = reserve(_ranks(args.critic))
    critic = _start_group(args, args.critic, CriticRole, beside) if has_critic(args) else None
    reward = _start_group(args, args.reward, RewardRole, beside) if has_reward_model(args) else None
    return ModelGroups(args, policy, reference, critic, reward, process_reward)


def load_models(strategy: CovStrategy, groups: ModelGroups, engines: list[Any], max_steps: int) -> None:
    """Load the models of all roles, and return when all ranks have theirs.

    Args:
        strategy: The strategy of the run, which carries the flags to the ranks.
        groups: The groups of Ray actors whose models are loaded.
        engines: Handles of the vLLM engines that the policy sends its weights to; empty if the run needs none.
        max_steps: Number of optimizer steps of the run, from which learning rates are scheduled.

    Raises:
        RunStopped: An engine did not start.
    """
    args = strategy.args
    model = args.actor.model_name_or_path
    policy_steps = max(1, max_steps - frozen_updates(args))
    loading = groups.policy.async_run_method("load", strategy, model, policy_steps, engines)
    if groups.reference is not None:
        loading += groups.reference.async_run_method("load", strategy, reference_model(args))
    if groups.reward is not None and args.reward.model_name_or_path:
        loading += groups.reward.async_run_method("load", strategy, args.reward.model_name_or_path)
    wait_for_start(engines, loading)  # the policy joins the engines
    # Upstream loads the critic when the other models are loaded. On shared GPUs this order bounds the memory, also of
    # the process reward model.
    if groups.critic is not None:
        ray.get(groups.critic.async_run_method("load", strategy, args.critic.model_name_or_path, max_steps))
    if groups.process_reward is not None:
        ray.get(groups.process_reward.async_run_method("load", strategy, reference_model(args), max_steps))


def save_models(args: SimpleNamespace, groups: ModelGroups) -> None:
    """Export the policy and, with ``--critic.save_value_network``, the critic at the end of a run."""
    ray.get(groups.policy.async_run_method("save_model"))
    if groups.critic is not None and args.critic.save_value_network:
        ray.get(groups.critic.async_run_method("save_model"))


def _ranks(size: SimpleNamespace) -> int:
    return size.num_nodes * size.num_gpus_per_node


def _start_group(
    args: SimpleNamespace, size: SimpleNamespace, role: type[ModelRole], shared: PlacementGroup | None
) -> RayActorGroup:
    """Start the ranks of a role.

    Args:
        args: The flags of the run.
        size: The flags of the role, with ``num_nodes`` and ``num_gpus_per_node``.
        role: The class of its ranks.
        shared: The placement group in which a rank books a part of a GPU; with None a rank has a whole one.
    """
    return RayActorGroup(
        size.num_nodes,
        size.num_gpus_per_node,
        ray.remote(role),
        pg=shared,
        num_gpus_per_actor=1 if shared is None else SHARED_PART,
        # Ranks of one ring or of one tensor-parallel group get the same samples.
        duplicate_actors=args.ds.ring_attn_size * args.ds.tensor_parallel_size,
    )
