"""Upstream's way to send weights to vLLM over NCCL and CUDA IPC. The only module that imports upstream's trainer.

These paths need GPUs, so they are called and not written anew. ``ActorPPOTrainer`` is held for two methods: its
constructor joins the process group of the engines, and ``broadcast_to_vllm`` sends the weights. It never trains.
"""

from typing import Any, Protocol

from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer

from openrlhf_cov.trainer.model.model_loading import LoadedPolicy


class WeightSender(Protocol):
    """The part of upstream's trainer that is used."""

    def broadcast_to_vllm(self) -> None:
        """Send the current weights to every engine; called on every rank."""


def make_upstream_sender(strategy: Any, loaded: LoadedPolicy, engines: list[Any] | None) -> WeightSender:
    """Return upstream's trainer around the policy of this rank; called on every rank, because they wait for another.

    Args:
        strategy: The strategy of the rank, after ``setup_distributed``.
        loaded: The policy whose weights are sent.
        engines: Handles of the vLLM engines.
    """
    return ActorPPOTrainer(
        strategy,
        loaded.actor,
        ema_model=loaded.ema_model,
        actor_optim=loaded.optimizer,
        actor_scheduler=loaded.scheduler,
        micro_train_batch_size=strategy.args.train.micro_batch_size,
        tokenizer=loaded.tokenizer,
        eps_clip=strategy.args.actor.eps_clip,
        ema_beta=strategy.args.train.ema_beta,
        vllm_engines=engines,
    )
