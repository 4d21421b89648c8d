"""Optimizer steps of verl's engine over a model that is a table of log-probs."""

import functools
from types import SimpleNamespace

import torch
import torch.distributed as dist

SHAPE = (8, 6)


class Config(SimpleNamespace):
    """What a policy loss reads of verl's ActorConfig."""

    def get(self, name, default=None):
        return getattr(self, name, default)


def config_for(name, **changes):
    values = dict(
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.2,
        clip_ratio_c=3.0,
        policy_loss={"loss_mode": name},
        loss_agg_mode="token-mean",
        global_batch_info={},
    )
    return Config(**(values | changes))


def some_samples():
    """Old log-probs, log-probs, advantages and mask of eight responses of two to six tokens."""
    torch.manual_seed(0)
    old = -torch.rand(SHAPE) * 2
    now = old + torch.randn(SHAPE) * 0.2
    lengths = torch.tensor([6, 5, 4, 6, 2, 3, 6, 5])
    mask = torch.arange(SHAPE[1]) < lengths[:, None]
    advantages = torch.randn(SHAPE[0], 1).expand(SHAPE) * mask
    return old, now, advantages, mask


def policy_loss_of_verl(config, rows, policy):
    """The call that verl's ppo_loss makes for a micro-batch."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    old, advantages, mask = rows["old"], rows["advantages"], rows["mask"]
    loss, metrics = get_policy_loss_fn(config.policy_loss["loss_mode"])(
        old_log_prob=old,
        log_prob=policy[rows["places"]],
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=None,
    )
    return loss, metrics


def engine_for(policy):
    """An engine of verl whose model is a table of log-probs."""
    from verl.workers.engine.base import BaseEngine

    class Engine(BaseEngine):
        def __init__(self):
            self.passes = []

        def forward_backward_batch(self, data, loss_function, forward_only=False):
            self.passes.append(forward_only)
            metrics = []
            for rows in data["micro_batches"]:
                loss, found = loss_function(rows=rows, policy=policy)
                metrics.append(found)
                if not forward_only:
                    loss.backward()
            return {"metrics": {"each": metrics}}

        def optimizer_zero_grad(self):
            policy.grad = None

        def optimizer_step(self):
            return 0.0

        def is_mp_src_rank_with_outputs(self):
            return True

        def get_data_parallel_size(self):
            return dist.get_world_size() if dist.is_initialized() else 1

        def get_data_parallel_rank(self):
            return dist.get_rank() if dist.is_initialized() else 0

        def get_data_parallel_group(self):
            return dist.group.WORLD

    return Engine()


def trained_by_verl(name, samples, micro_batch=4, rows=slice(None), dp_size=1, **changes):
    """Gradient of the log-probs after one optimizer step of verl, the passes it made, and metrics.

    A rank has ``rows`` of the samples.
    """
    tokens, count = int(samples[3].sum()), len(samples[3])
    old, now, advantages, mask = (each[rows] for each in samples)
    policy = now.clone().requires_grad_()
    batch_info = {"dp_size": dp_size, "batch_num_tokens": tokens, "global_batch_size": count}
    config = config_for(name, global_batch_info=batch_info, **changes)
    micro_batches = [
        {"places": places, "old": old[places], "advantages": advantages[places], "mask": mask[places]}
        for places in torch.arange(len(old)).split(micro_batch)
    ]
    engine = engine_for(policy)
    output = engine.train_batch(
        {"micro_batches": micro_batches}, loss_function=functools.partial(policy_loss_of_verl, config=config)
    )
    return policy.grad, engine.passes, output["metrics"]["each"]
