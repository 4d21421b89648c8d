"""Completions from an OpenAI-compatible server, such as ``vllm serve``: retried, and limited in number at a time."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.evaluation.plan import Completion, Request
from openrlhf_cov.utils.json_lines import json_number, valid_text
from openrlhf_cov.utils.record_checks import checked_value

# Seconds for one response: 32,768 tokens at 20 a second.
TIMEOUT = 1800.0

# Statuses of the 400s after which the client repeats a request, as after all of the 500s.
RETRIED = (408, 409, 429)

# The ``finish_reason`` of a response that reached the limit: OpenAI's, and those of other servers, in any case.
CUT_OFF = ("length", "max_tokens", "model_length")
# The ``finish_reason`` of a response that the server gave up.
BROKEN_OFF = ("abort", "error")

# Parameters of a vLLM server beside OpenAI's. With them it answers as engines started here: without the defaults of
# the model's ``generation_config.json``, and with special tokens in the text.
VLLM = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
VLLM |= {"skip_special_tokens": False, "include_stop_str_in_output": True}


class NoRoom(RunStopped):
    """The server has no room for a prompt and the requested tokens."""


class Endpoint:
    """The model ``model`` behind ``base_url`` (``http://host:port/v1``).

    Prompts go to ``/completions``; with ``chat`` to ``/chat/completions``, as one user message. A request that fails
    by rate limit, timeout, broken connection or an error of the server is repeated up to ``max_retries`` times, after
    waits that double. ``chat_template_kwargs`` go to the server, which puts the template around the message; vLLM and
    SGLang know the field.

    Raises:
        UsageError: The server does not answer, or does not serve the model.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        chat: bool,
        concurrency: int,
        max_retries: int,
        api_key: str,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        import openai

        self.openai = openai
        self.model = model
        self.chat = chat
        self.concurrency = concurrency
        self.max_retries = max_retries
        self.server: dict[str, Any] = {"base_url": base_url, "api_key": api_key}
        served = self._served()
        if model not in served:
            raise UsageError(
                f"--model {model} is not served at {base_url}; it serves {', '.join(map(str, served)) or 'nothing'}"
            )
        # The number of tokens for prompt and response; None if the server does not report it.
        length = getattr(served[model], "max_model_len", None)
        self.max_model_len: int | None = length if type(length) is int and 0 < length < 2**53 else None
        self.more: dict[str, Any] = VLLM if getattr(served[model], "owned_by", None) == "vllm" else {}
        if chat_template_kwargs:
            self.more = self.more | {"chat_template_kwargs": dict(chat_template_kwargs)}

    def generate(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Completion | None]]:
        """Yield completions as they arrive; None for a prompt that leaves no room for one.

        What arrived before a failure is yielded first. Requests that are under way when the caller stops are dropped
        at once, however long the server would take.

        Args:
            requests: The requests. At most ``concurrency`` of them are under way at a time.

        Raises:
            RunStopped: A request failed in all its attempts, or the server refuses it.
        """
        waiting = iter(requests)
        under_way: dict[asyncio.Task, Request] = {}
        loop = asyncio.new_event_loop()
        client = self.openai.AsyncOpenAI(**self.server, max_retries=self.max_retries, timeout=TIMEOUT)
        try:
            while True:
                for request in islice(waiting, self.concurrency - len(under_way)):
                    under_way[loop.create_task(self._complete(client, request))] = request
                if not under_way:
                    return
                done, _ = loop.run_until_complete(asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED))
                for task in sorted(done, key=lambda task: task.exception() is not None):
                    completion = task.result()
                    yield under_way.pop(task), completion
        finally:
            loop.run_until_complete(_drop(under_way))
            loop.run_until_complete(client.close())
            loop.close()

    def _served(self) -> dict[str, Any]:
        """Return the models of the server, by name."""
        try:
            with self.openai.OpenAI(**self.server, max_retries=0, timeout=20.0) as client:
                return {each.id: each for each in client.models.list()}
        except Exception as error:  # what listens there may answer anything
            reason = str(error).strip() or type(error).__name__
            raise UsageError(
                f"--base_url {self.server['base_url']} does not answer as an OpenAI server: {reason}"
            ) from error

    async def _complete(self, client: Any, request: Request) -> Completion | None:
        """Return the response to a request, within the length of the model; None if the prompt leaves no room.

        A server may not say how long its model is, and a prompt may be too long for the tokens of the request. The
        number of tokens is then reduced, as if the length of the prompt were known here.
        """
        try:
            return await self._ask(client, request, min(request.max_tokens, self.max_model_len or request.max_tokens))
        except NoRoom as error:
            refusal = error
        try:
            prompt_tokens = (await self._ask(client, request, 1)).prompt_tokens
        except NoRoom:
            return None
        if self.max_model_len is None:
            raise RunStopped(f"{refusal}; lower --max_tokens {request.max_tokens}") from refusal
        return await self._ask(client, request, self.max_model_len - prompt_tokens)

    async def _ask(self, client: Any, request: Request, max_tokens: int) -> Completion:
        try:
            return self._completion(request, await self._send(client, request, max_tokens))
        except self.openai.OpenAIError as error:
            status = getattr(error, "status_code", 500)
            if status >= 500 or status in RETRIED:
                times = f"{self.max_retries + 1} times, last with " if self.max_retries else "with "
                raise RunStopped(f"{request.described()} failed {times}{_one_line(error)}") from error
            kind = NoRoom if status == 400 and "context length" in str(error) else RunStopped
            raise kind(f"the server refuses {request.described()}: {_one_line(error)}") from error
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:  # of any form, or none
            raise RunStopped(
                f"the server answers {request.described()} in a form of its own: {_one_line(error)}"
            ) from error

    async def _send(self, client: Any, request: Request, max_tokens: int) -> Any:
        sampling: dict[str, Any] = {"temperature": request.temperature, "top_p": request.top_p, "model": self.model}
        sampling |= {"max_tokens": max_tokens} | ({} if request.seed is None else {"seed": request.seed})
        sampling["extra_body"] = self.more
        if self.chat:
            logged = {"logprobs": True} if request.log_probs else {}
            message = {"role": "user", "content": request.prompt}
            return await client.chat.completions.create(messages=[message], **sampling, **logged)
        logged = {"logprobs": 1} if request.log_probs else {}
        return await client.completions.create(prompt=request.prompt, **sampling, **logged)

    def _completion(self, request: Request, answer: Any) -> Completion:
        choice = _choice(answer)
        log_probs: list[float] = []
        if request.log_probs:
            if getattr(choice, "logprobs", None) is None:
                raise RunStopped("the server gives no log-probs; drop --log_probs")
            logged = choice.logprobs
            log_probs = [each.logprob for each in logged.content or []] if self.chat else logged.token_logprobs
        values = {
            "text": valid_text(_text(choice, self.chat)),
            "tokens": answer.usage.completion_tokens,
            "prompt_tokens": answer.usage.prompt_tokens,
            "truncated": str(choice.finish_reason).lower() in CUT_OFF,
            "surprisal": json_number(-sum(log_probs) / len(log_probs)) if log_probs else None,
        }
        return checked_value(Completion, values)


def _choice(answer: Any) -> Any:
    """Return the first choice of a reply.

    Raises:
        ValueError: The reply has no choice, or gaps that would falsify a record; the message says what is missing.
    """
    if isinstance(answer, str):
        start = answer.strip()[:80]
        raise ValueError(f"the reply is text, not a JSON object of OpenAI's form: {start!r}")
    choices = getattr(answer, "choices", None)
    if not isinstance(choices, list) or not choices:
        error = getattr(answer, "error", None)
        told = f"; the server reports: {error}" if error else ""
        raise ValueError(f"the reply has no choices{told}")
    choice = choices[0]
    if getattr(choice, "finish_reason", None) is None:
        raise ValueError(
            "the reply has no finish_reason, so a response that was cut at the limit cannot be told apart"
        )
    if str(choice.finish_reason).lower() in BROKEN_OFF:
        raise ValueError(f"the server did not finish the response (finish_reason {choice.finish_reason!r})")
    usage = getattr(answer, "usage", None)
    if usage is None:
        raise ValueError("the reply has no usage, so its token counts are unknown; have the server return usage")
    for name in ("completion_tokens", "prompt_tokens"):
        if getattr(usage, name, None) is None:
            raise ValueError(f"the usage of the reply has no {name}; have the server return it")
    return choice


def _text(choice: Any, chat: bool) -> str:
    """Return the text of a choice; a chat message whose content is null, as after cut-off thinking, is empty."""
    if chat:
        message = getattr(choice, "message", None)
        if message is None:
            raise ValueError("the choice has no message; drop --chat if the server has no chat")
        return message.content or ""
    text = getattr(choice, "text", None)
    if text is None:
        raise ValueError("the choice has no text")
    return text


def _one_line(error: Exception) -> str:
    """Return the message of an error as one line of at most 300 characters; servers put whole pages into it."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"


async def _drop(tasks: Iterable[asyncio.Task]) -> None:
    """Cancel the tasks that still run. Errors of finished tasks are ignored."""
    rest = {*tasks, *asyncio.all_tasks()} - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
