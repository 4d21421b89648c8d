"""The part of verl that a policy loss meets, with the signatures that verl 0.9.1 documents.

verl pins other versions than requirements-cpu.txt, so CI does not install it. Tests take the real package where there
is one.
"""

import sys
from importlib.util import find_spec
from types import ModuleType

import torch

REGISTRY = {}


def register_policy_loss(name):
    def decorator(function):
        REGISTRY[name] = function
        return function

    return decorator


def get_policy_loss_fn(name):
    return REGISTRY[name]


def agg_loss(loss_mat, loss_mask, loss_agg_mode, dp_size=1, batch_num_tokens=None, global_batch_size=None, **_):
    if loss_agg_mode == "token-mean":
        return (loss_mat * loss_mask).sum() / batch_num_tokens * dp_size
    if loss_agg_mode == "seq-mean-token-mean":
        return ((loss_mat * loss_mask).sum(-1) / loss_mask.sum(-1)).sum() / global_batch_size * dp_size
    raise ValueError(loss_agg_mode)


@register_policy_loss("vanilla")
def vanilla(
    old_log_prob,
    log_prob,
    advantages,
    response_mask,
    loss_agg_mode="token-mean",
    config=None,
    rollout_is_weights=None,
):
    """PPO with a clip and a dual clip."""
    ratio = (log_prob - old_log_prob).clamp(-20, 20).exp()
    clipped = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    gain = torch.minimum(ratio * advantages, clipped * advantages)
    lowest = config.get("clip_ratio_c", 3.0) * advantages
    losses = -torch.where(advantages < 0, gain.maximum(lowest), gain)
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    return agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info), {"actor/ppo_kl": 0.0}


class BaseEngine:
    """One optimizer step of verl, and a pass over the same micro-batches without gradient."""

    def train_batch(self, data, loss_function):
        self.optimizer_zero_grad()
        outputs = self.forward_backward_batch(data, loss_function, forward_only=False)
        self.optimizer_step()
        return outputs

    def infer_batch(self, data, loss_function=None):
        with torch.no_grad():
            return self.forward_backward_batch(data, loss_function, forward_only=True)


def install(monkeypatch):
    """Make verl importable; return True if it is the real package."""
    if find_spec("verl") is not None:
        return True
    contents = {
        "verl": {},
        "verl.trainer": {},
        "verl.trainer.ppo": {},
        "verl.trainer.ppo.core_algos": {
            "register_policy_loss": register_policy_loss,
            "get_policy_loss_fn": get_policy_loss_fn,
            "POLICY_LOSS_REGISTRY": REGISTRY,
            "agg_loss": agg_loss,
        },
        "verl.workers": {},
        "verl.workers.engine": {},
        "verl.workers.engine.base": {"BaseEngine": BaseEngine},
    }
    for name, values in contents.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    return False
