"""One of two ranks with our policy model in a DeepSpeed engine, for ``test_actor_model_of_ranks.py``.

A task: folder of the model, ZeRO stage, folder for what this rank has computed.
"""

import os
from pathlib import Path

from rank_group import serve

from openrlhf_cov.cluster import cpu_host

cpu_host.install()
import deepspeed  # noqa: E402
import torch  # noqa: E402

from openrlhf_cov.cluster.extension_locks import remove_stale_locks  # noqa: E402
from openrlhf_cov.trainer.model import actor_model  # noqa: E402
from openrlhf_cov.trainer.model.actor_model import CovActor  # noqa: E402

RANK = int(os.environ.get("RANK", 0))
cpu_host.accept_fp32()


def batch(rank):
    """(sequences, attention mask (2, 24), action mask (2, 5), a weight of each action) of a rank.

    Those of the first rank are the same up to their last token, so that it reads them side by side; those of the other
    one have nothing in common.
    """
    draw = torch.Generator().manual_seed(rank)
    sequences, attention = torch.randint(2, 50, (2, 24), generator=draw), torch.ones(2, 24, dtype=torch.long)
    action = torch.ones(2, 5, dtype=torch.long)
    action[rank:, :4] = 0
    if rank == 0:
        sequences[1, :23] = sequences[0, :23]
    return sequences, attention, action, torch.randn(2, 5, generator=draw)


def loss_of(actor, sequences, attention, action, weights):
    """(log-probs, a loss in log-probs and entropies)."""
    log_probs, output = actor(sequences, action, attention, return_output=True, return_entropy=True)
    return log_probs, (log_probs * weights + 0.1 * output.entropy[:, -action.shape[1] :] * action).sum()


def main(folder, stage, out):
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "zero_optimization": zero}
    config |= {"gradient_clipping": 0.0, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    actor = CovActor(folder, attn_implementation="sdpa", param_dtype="fp32", temperature=0.9, ds_config=config)
    actor.gradient_checkpointing_enable()
    sgd = torch.optim.SGD(actor.model.parameters(), lr=0.1)
    actor.model, *_ = deepspeed.initialize(model=actor.model, optimizer=sgd, config=config)
    actor.train()
    layouts, layout_of = [], actor_model.shared_layout
    actor_model.shared_layout = lambda *args, **kwargs: layouts.append(layout_of(*args, **kwargs)) or layouts[-1]
    for _ in range(2):
        log_probs, loss = loss_of(actor, *batch(RANK))
        actor.model.backward(loss)
        actor.model.step()
    with torch.no_grad():
        scored, _ = loss_of(actor.eval(), *batch(RANK))
    parameters = dict(actor.model.module.named_parameters())
    with deepspeed.zero.GatheredParameters(list(parameters.values())):
        after = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    shared = [layout is not None for layout in layouts[-1:]]
    torch.save((log_probs.detach(), scored, after, actor._plain_head() is not None, shared), Path(out) / f"{RANK}.pt")


if __name__ == "__main__":
    remove_stale_locks()
    cpu_host.adapt_deepspeed()
    deepspeed.init_distributed("gloo")
    serve(main)
