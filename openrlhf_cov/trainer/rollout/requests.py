"""The requests for responses to prompts, as rollouts and evaluations send them to the engine actors."""

import uuid
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from vllm import SamplingParams

from openrlhf_cov.trainer.records import Sample
from openrlhf_cov.trainer.rollout.generation import EngineGroup, generate_groups, sample_seeds
from openrlhf_cov.trainer.rollout.prompts import Prompt
from openrlhf_cov.trainer.rollout.rollouts import sample_of


class RolloutRequests:
    """Sends prompts to engines and returns groups of samples.

    Args:
        args: The parsed flags.
        tokenizer: The tokenizer, or its reference from ``openrlhf_cov.trainer.shared_argument.share``. Every request
            carries it, and a shared one is pickled once and unpickled once by every engine.
    """

    def __init__(self, args: SimpleNamespace, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.max_len = args.data.max_len
        self.max_new_tokens = args.rollout.max_new_tokens
        self.top_p = args.rollout.top_p
        self.with_log_probs = args.algo.advantage.is_correction_level != "off"
        # Seed of the run; None where samples have no seeds of their own.
        self.seed = args.train.seed if args.rollout_seeded else None

    def groups(
        self,
        prompts: list[Prompt],
        engines: EngineGroup,
        *,
        samples_per_prompt: int,
        temperature: float,
        window: int | None = None,
    ) -> Iterator[tuple[int, list[Sample]]]:
        """Yield (place in ``prompts``, samples) of each prompt as it finishes; see ``generate_groups``.

        Args:
            prompts: May be appended to meanwhile.
            engines: The engines that answer.
            samples_per_prompt: Responses to each prompt.
            temperature: Temperature of sampling.
            window: Number of prompts that may be under way at once; None for all.
        """
        common = {
            "sampling_params": self._sampling_params(temperature),
            "max_length": self.max_len,
            "hf_tokenizer": self.tokenizer,
            "num_samples": samples_per_prompt,
        }

        def send(engine: Any, batch: Sequence[Prompt]) -> list[Any]:
            return self._send(engine, [self._request(prompt, samples_per_prompt) for prompt in batch], common)

        for place, responses in generate_groups(prompts, engines, send, window):
            yield place, [sample_of(response, prompts[place], self.max_len) for response in responses]

    def _sampling_params(self, temperature: float) -> SamplingParams:
        return SamplingParams(
            temperature=temperature,
            top_p=self.top_p,
            max_tokens=self.max_new_tokens,
            # The first token may end the response. Upstream forbids that, and samples are then not the policy's: the
            # probability of an early end is never sampled, so nothing pushes it down, and it grows with every
            # response that is pushed down.
            min_tokens=0,
            # A rule may ask for the end of the response.
            skip_special_tokens=False,
            logprobs=1 if self.with_log_probs else None,
        )

    def _send(self, engine: Any, requests: list[dict[str, Any]], common: dict[str, Any]) -> list[Any]:
        """Return the Ray reference of the responses to each prompt.

        Several prompts are begun by one message, so that the engine gets them together. Each group is a call of its
        own, which ends with the group.
        """
        if len(requests) == 1:
            return [engine.generate_responses.remote(**requests[0], **common)]
        keyed = {uuid.uuid4().hex: request for request in requests}
        begun = engine.begin_groups.remote(keyed, **common)
        return [engine.group.remote(key, begun) for key in keyed]

    def _request(self, prompt: Prompt, samples: int) -> dict[str, Any]:
        """Return the arguments of ``generate_responses`` of one prompt that other prompts do not share."""
        return {
            "prompt": prompt.text,
            "label": prompt.label,
            "images": prompt.images,
            "seeds": None if self.seed is None else sample_seeds(self.seed, prompt, samples),
        }
