"""Reads what passes through upstream's modules, by PyTorch hooks, without changing it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from openrlhf_cov.models.diagnostics import update_metrics
from openrlhf_cov.models.objectives import TokenBatch
from openrlhf_cov.utils.metrics import MetricBuffer


def observe_loss(loss: nn.Module, metrics: MetricBuffer) -> None:
    """Record ``update_metrics`` of every call of a policy loss: upstream's ``PolicyLoss`` or ``CovPolicyLoss``."""
    ppo = getattr(loss, "policy_loss", loss)

    def record(module: nn.Module, args: tuple, kwargs: dict, output: tuple) -> None:
        log_probs, old_log_probs, advantages = args
        batch = TokenBatch(log_probs.detach(), old_log_probs, advantages, kwargs["action_mask"])
        selected = getattr(module, "selected", None)
        metrics.add(*update_metrics(batch, selected, ppo.clip_eps_low, ppo.clip_eps_high))

    loss.register_forward_hook(record, with_kwargs=True)


@contextmanager
def record_entropy(actor: nn.Module, num_actions: int) -> Iterator[list[Tensor]]:
    """While open, every call of upstream's ``Actor`` appends its token entropies (B, num_actions) to the list.

    The caller of the actor still gets the log-probs alone. Entropy is upstream's: over the full vocabulary, of the
    temperature-scaled policy, in nats.
    """
    entropies: list[Tensor] = []

    def ask(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return args, kwargs | {"return_output": True, "return_entropy": True}

    def take(module: nn.Module, args: tuple, kwargs: dict, output: tuple) -> Tensor:
        log_probs, model_output = output
        entropies.append(model_output.entropy[:, -num_actions:])
        return log_probs

    hooks = [
        actor.register_forward_pre_hook(ask, with_kwargs=True),
        actor.register_forward_hook(take, with_kwargs=True),
    ]
    try:
        yield entropies
    finally:
        for hook in hooks:
            hook.remove()
