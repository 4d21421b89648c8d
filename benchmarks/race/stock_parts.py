"""Send weights to engines for stock OpenRLHF without a GPU, beside the parts of ``openrlhf_cov.cluster.cpu_host``.

None of the project's actors, trainers or generators; the engine borrows four calls that take weights.
"""

import torch
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor

from openrlhf_cov.cluster.workers import plain_class
from openrlhf_cov.trainer.ray.rollout_actor import CovRolloutActor
from openrlhf_cov.trainer.weights.weight_transfer import GlooWeightSender, transfer_weights


class StockEngine(plain_class(RolloutRayActor)):
    """Upstream's engine."""

    init_weight_transfer = CovRolloutActor.init_weight_transfer
    start_weight_update = CovRolloutActor.start_weight_update
    update_weights = CovRolloutActor.update_weights
    finish_weight_update = CovRolloutActor.finish_weight_update


class StockTrainer(ActorPPOTrainer):
    """Upstream's trainer; upstream's broadcast needs NCCL."""

    def _init_vllm_sync_group(self, backend: str) -> None:
        self.sender = GlooWeightSender(self.vllm_engines, self.args.vllm.tensor_parallel_size)

    def broadcast_to_vllm(self) -> None:
        """Send the current weights to every engine."""
        transfer_weights(self.actor.model.module, self.sender, self.args.ds.zero_stage)
        torch.distributed.barrier()
