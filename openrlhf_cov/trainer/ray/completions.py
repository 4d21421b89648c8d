"""Answers of vLLM engines to the requests of an evaluation, whether they are its own or those of a training."""

from collections.abc import Iterator, Sequence
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from openrlhf_cov.evaluation.plan import Completion, Request
from openrlhf_cov.trainer.rollout.generation import EngineGroup, finished
from openrlhf_cov.utils.json_lines import json_number

# Requests under way on one engine for each sequence that it generates at once, so that it never waits for one.
IN_FLIGHT = 2


def generate(
    engines: EngineGroup, requests: Sequence[Request], sequences: int
) -> Iterator[tuple[Request, Completion]]:
    """Yield completions as they finish, from the engines with the fewest unfinished requests.

    Args:
        engines: The engines that answer.
        requests: The requests. Those that the caller appends meanwhile are sent as well.
        sequences: Number of responses that one engine generates at once (``EngineLimits.sequences``).

    Yields:
        A request and its completion.

    Raises:
        RunStopped: See ``openrlhf_cov.trainer.rollout.generation.finished``.
    """

    def dispatch(engine: Any, batch: list[Request]) -> list[Any]:
        return [engine.complete.remote(request) for request in batch]

    window = IN_FLIGHT * sequences * max(1, len(engines.unfinished))
    for place, completion in finished(requests, engines, dispatch, Request.described, window):
        yield requests[place], completion


def sampling_params(request: Request) -> SamplingParams:
    """Return vLLM's sampling parameters of a request. Special tokens stay in the text: a rule may ask for the end."""
    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        max_tokens=request.max_tokens,
        logprobs=0 if request.log_probs else None,
        skip_special_tokens=False,
        include_stop_str_in_output=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def completion_of(output: Any) -> Completion:
    """Return the part of a ``vllm.RequestOutput`` that is kept."""
    (response,) = output.outputs
    ids = list(response.token_ids)
    # Mean of -log p of the tokens, in nats; None without log-probs or tokens, and for NaN.
    surprisal = None
    if response.logprobs:
        log_probs = [scores[token].logprob for token, scores in zip(ids, response.logprobs, strict=True)]
        surprisal = json_number(-sum(log_probs) / len(ids))
    return Completion(
        text=response.text,
        tokens=len(ids),
        prompt_tokens=len(output.prompt_token_ids),
        truncated=response.finish_reason == "length",
        surprisal=surprisal,
    )
