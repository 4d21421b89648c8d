"""Log-probs of given tokens from vLLM engines, through upstream's ``generate``."""

from typing import Any

import ray
import torch
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from ray.exceptions import RayError
from torch import Tensor
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from openrlhf_cov.trainer.rollout.engine_health import is_death


def score_texts(engines: list[Any], texts: list[list[int]], asleep: bool) -> list[Tensor] | None:
    """Return for every engine the log-probs (N,) of all tokens but the first of each text; None if an engine died.

    An engine gets one text after another: what it computes together would change the rounding. The one token that
    vLLM insists on generating is greedy, so that no random number is drawn and rollouts stay as they are.

    Args:
        engines: Handles of the engines.
        texts: The token ids of each text, at least two per text.
        asleep: True if the engines sleep; they are woken, and sleep again afterwards (``--vllm.enable_sleep``).
    """
    settings = SamplingParams(
        temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
    )
    scores: list[list[float]] = [[] for _ in engines]
    try:
        if asleep:
            batch_vllm_engine_call(engines, "wake_up")
        for text in texts:
            outputs = ray.get([engine.generate.remote(text, settings) for engine in engines])
            for kept, output in zip(scores, outputs, strict=True):
                kept += [
                    found[token].logprob for token, found in zip(text[1:], output.prompt_logprobs[1:], strict=True)
                ]
        if asleep:
            batch_vllm_engine_call(engines, "sleep")
    except RayError as error:
        if is_death(error):  # the next transfer looks for dead engines and says which
            return None
        raise
    return [torch.tensor(each, dtype=torch.float64) for each in scores]
