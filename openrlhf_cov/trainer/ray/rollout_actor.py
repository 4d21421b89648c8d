"""The vLLM engine actor, with the calls that ``GlooWeightSender`` makes."""

from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

from openrlhf_cov.trainer.ray.seams import plain_class


class CovRolloutActor(plain_class(RolloutRayActor)):
    """Upstream's engine actor plus vLLM's own weight-transfer interface."""

    async def init_weight_transfer(self, init_info: dict) -> None:
        """Join the group of the weight sender."""
        await self.llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info))

    async def start_weight_update(self) -> None:
        """Open a weight update."""
        await self.llm.start_weight_update()

    async def update_weights(self, update_info: dict) -> None:
        """Receive one bucket."""
        await self.llm.update_weights(WeightTransferUpdateRequest(update_info))

    async def finish_weight_update(self) -> None:
        """Close a weight update; cached prefixes belong to the old weights and are dropped."""
        await self.llm.finish_weight_update()
        await self.llm.reset_prefix_cache()
