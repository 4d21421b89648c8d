"""What vLLM returns for a request, made of its own classes."""

from collections.abc import Sequence

from vllm import CompletionOutput, RequestOutput
from vllm.logprobs import Logprob

# For each token the log-probs that vLLM gives of some ids.
LogProbs = Sequence[dict[int, float]]


def request_output(
    ids: Sequence[int] = (),
    text: str = "",
    *,
    log_probs: LogProbs | None = None,
    finish_reason: str = "stop",
    prompt: Sequence[int] = (5, 6, 7),
    prompt_log_probs: LogProbs | None = None,
) -> RequestOutput:
    """Return the output of a finished request.

    Args:
        ids: Token ids of the response.
        text: Text of the response.
        log_probs: Log-probs of the response, one entry per token.
        finish_reason: ``stop`` or ``length``.
        prompt: Token ids of the prompt.
        prompt_log_probs: Log-probs of the prompt without its first token, which has none.
    """
    found = None if log_probs is None else [given(each) for each in log_probs]
    response = CompletionOutput(0, text, list(ids), None, found, finish_reason=finish_reason)
    of_prompt = None if prompt_log_probs is None else [None, *map(given, prompt_log_probs)]
    return RequestOutput("request", None, list(prompt), of_prompt, [response], finished=True)


def given(log_probs: dict[int, float]) -> dict[int, Logprob]:
    """Return the log-probs of one position as vLLM has them."""
    return {token: Logprob(value) for token, value in log_probs.items()}
