"""The vLLM engine actor: rewards that are never lost, seeded samples, and the calls of ``GlooWeightSender``."""

import asyncio
import os
from collections.abc import Mapping
from copy import copy
from functools import partial
from typing import Any

from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from openrlhf.utils.agent import MultiTurnAgentExecutor
from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind
from vllm.utils import random_uuid

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.workers import plain_class
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.evaluation.plan import Completion, Request
from openrlhf_cov.trainer.ray.completions import completion_of, sampling_params
from openrlhf_cov.trainer.rollout.agent_engine import SeededEngine
from openrlhf_cov.trainer.rollout.reward_executor import MultiTurnExecutor, RewardExecutor
from openrlhf_cov.utils import garbage_collection

# vLLM's reasons for the end of a response that the model did not end, and no limit either.
ENDED_EARLY = ("abort", "error")


class CovRolloutActor(plain_class(RolloutRayActor)):
    """Upstream's engine actor with our reward executor, plus vLLM's own weight-transfer interface.

    With ``log_probs`` every response carries the log-probs of its tokens, as with upstream's rollout correction.
    ``computing`` is for a CPU host: the number of processes that compute while the engine generates.
    """

    log_probs = False
    # ``waits``: True while no run uses the engine. ``has_new_weights``: True if its weights differ from its files.
    waits = has_new_weights = False

    async def __init__(
        self,
        *args,
        reward_config: RewardConfig,
        remote_rm_url=None,
        agent_func_path=None,
        log_probs: bool = False,
        computing: int = 1,
        **kwargs,
    ):
        self.log_probs = log_probs
        # Requests of ``begin_groups`` by their keys, until ``group`` asks for their responses.
        self.begun: dict[str, asyncio.Task] = {}
        cpu_host.prepare_engine(kwargs, computing)
        await super().__init__(*args, agent_func_path=agent_func_path, **kwargs)
        if agent_func_path is None:
            self.new_executor = partial(RewardExecutor, remote_rm_url, reward_config)
            self.executor = self.new_executor()
        elif type(self.executor).execute is MultiTurnAgentExecutor.execute:
            # An executor with a method of its own tokenizes its prompts as its author wants.
            self.executor = MultiTurnExecutor(self.executor)
        garbage_collection.resume()

    async def generate_responses(
        self, *, sampling_params, num_samples: int = 1, seeds: list[int] | None = None, **request
    ):
        """Return upstream's group of responses to one prompt.

        vLLM hands over each response once it is whole, and not with every token, which nobody reads.

        Args:
            sampling_params: vLLM's sampling parameters; a copy of them is changed.
            num_samples: Number of responses; has no effect with ``seeds``.
            seeds: One seed for each response; None for responses without seeds of their own. The later turns of an
                agent have seeds that ``turn_seed`` derives.
            request: The other arguments of upstream's method: prompt, label, images, tokenizer and largest length.

        Returns:
            One dict for each response, as the executor of the actor returns it.
        """
        sampling_params = _changed(sampling_params, output_kind=RequestOutputKind.FINAL_ONLY)
        # Our executor decodes a response itself, for the reward, and reads the log-prob of each sampled token alone.
        # Upstream gives every request of it a deep copy of the parameters, so that vLLM needs no further one.
        # An agent may read the text and the most probable token as well, and change its parameters.
        reads_tokens_only = isinstance(self.executor, RewardExecutor)
        if reads_tokens_only:
            sampling_params = _changed(sampling_params, detokenize=False, skip_clone=True)
        if self.log_probs:
            sampling_params = _changed(sampling_params, logprobs=0 if reads_tokens_only else 1)
        if seeds is None:
            return await super().generate_responses(
                sampling_params=sampling_params, num_samples=num_samples, **request
            )
        # vLLM takes one seed per request, so every sample is a request of its own, and so is every turn of an agent.
        arguments: dict[str, Any] = {"images": None} | request
        samples = [
            self.executor.execute(
                sampling_params=_changed(sampling_params, seed=seed), llm_engine=SeededEngine(self, seed), **arguments
            )
            for seed in seeds
        ]
        return await asyncio.gather(*samples)

    async def begin_groups(self, requests: Mapping[str, dict[str, Any]], **common: Any) -> None:
        """Begin with the responses to several prompts, which ``group`` returns.

        All prompts come in one message, so that the engine has them sooner than with a message for each.

        Args:
            requests: Key, which no other request has -> arguments of ``generate_responses`` of one prompt.
            common: The other arguments, which all prompts have in common.
        """
        for key, request in requests.items():
            self.begun[key] = asyncio.create_task(self.generate_responses(**request, **common))

    async def group(self, key: str, begun: None) -> list[Any]:
        """Return what ``generate_responses`` returns to one request of ``begin_groups``.

        Args:
            key: Key of the request.
            begun: The reference of the call of ``begin_groups``. With it as an argument Ray keeps the order of the
                calls, and this one fails if that one has failed.
        """
        return await self.begun.pop(key)

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None) -> Any:
        """Return vLLM's output of one request, as upstream's method does.

        A prompt without images is given in vLLM's own form, which needs no preparation in another thread. A shallow
        copy of the sampling parameters keeps out what an agent changes later; vLLM makes a deep one itself unless
        they have ``skip_clone``.

        Raises:
            RuntimeError: vLLM ended the response before its end, for a reason of its own.
        """
        if multi_modal_data:
            output: Any = await super().generate(prompt_token_ids, sampling_params, multi_modal_data)
        else:
            prompt = tokens_input(prompt_token_ids)
            outputs = self.llm.generate(prompt, copy(sampling_params), request_id=random_uuid())
            output = [output async for output in outputs][-1]
        if any(response.finish_reason in ENDED_EARLY for response in output.outputs):
            raise RuntimeError(f"vLLM ended a response early ({output.outputs[0].finish_reason})")
        return output

    async def complete(self, request: Request) -> Completion:
        """Return the response to one request of an evaluation."""
        return completion_of(await self.generate(list(request.prompt_ids or ()), sampling_params(request)))

    async def check_health(self) -> None:
        """Raise vLLM's EngineDeadError if the engine behind this actor died."""
        await self.llm.check_health()

    async def begin_a_run(self) -> dict[str, int] | None:
        """Give the engine to a new run if it waits for one, and load the reward function anew.

        Returns:
            The files that get the output of this process -> their bytes so far; None if it does not wait for a run.

        Raises:
            EngineDeadError: See ``check_health``.
        """
        if not self.waits:
            return None
        self.waits = False
        await self.check_health()
        self.executor = self.new_executor()
        return {os.readlink(f"/proc/self/fd/{number}"): os.fstat(number).st_size for number in (1, 2)}

    async def wait_for_a_run(self) -> None:
        """Note that the run that had the engine has ended well."""
        self.waits = True

    async def needs_weights(self) -> bool:
        """Return True if the weights are not those of the files of the model, with which a run begins."""
        return self.has_new_weights

    async def init_weight_transfer(self, init_info: dict) -> None:
        """Join the group of the weight sender."""
        # The trainer imports this module too, and needs nothing of what vLLM imports here.
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self.llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info))

    async def start_weight_update(self) -> None:
        """Open a weight update."""
        await self.llm.start_weight_update()

    async def update_weights(self, update_info: dict) -> None:
        """Receive one bucket."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self.llm.update_weights(WeightTransferUpdateRequest(update_info))

    async def finish_weight_update(self) -> None:
        """Close a weight update; cached prefixes belong to the old weights and are dropped.

        Raises:
            RunStopped: A response that is being generated still reads one of them.
        """
        await self.llm.finish_weight_update()
        self.has_new_weights = True
        if not await self.llm.reset_prefix_cache():
            raise RunStopped(
                "vLLM keeps prefixes of the old weights, which responses on their way read; drop "
                "--vllm.enable_prefix_caching"
            )


def _changed(sampling_params, **values):
    changed = copy(sampling_params)
    for name, value in values.items():
        setattr(changed, name, value)
    return changed
