"""The reward service: upstream's remote-reward protocol over HTTP, as a FastAPI application.

``POST /`` and ``POST /get_reward`` take ``{"query": [...], "prompts": [...], "labels": [...]}`` and answer with the
lists ``rewards``, ``scores`` and ``truncated_rewards``, one number per query, and ``extra_logs``, a list per metric.
A bad request is answered with a 4xx status and ``{"detail": one line}``. ``GET /health`` has counters.

The service has a token and limits on the size of requests. It expects its clients in a trusted network: slow clients,
TLS and rates are the subject of a proxy in front of it (docs/reward_settings.md has an example).

A token comes as ``Authorization: Bearer TOKEN`` or as ``?token=TOKEN`` in the URL. The latter is for upstream's
client, which sends no header.
"""

import asyncio
import hmac
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, model_validator
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards.limits import ServiceLimits
from openrlhf_cov.rewards.reward_func import make_check_label, make_reward_func
from openrlhf_cov.utils.json_lines import parse_json
from openrlhf_cov.utils.record_checks import StopsAtFirstError, checked_value

logger = logging.getLogger(__name__)

REWARDS = ("rewards", "scores", "truncated_rewards")
# Status of a request whose client did not wait for the answer. Only ``/health`` shows it.
CLIENT_GONE = 499
MB = 10**6
# Longest error message, in characters.
MAX_DETAIL = 300


class RewardRequest(BaseModel):
    """A request: three lists of equal length. Other keys are ignored."""

    query: Annotated[list[str], StopsAtFirstError()]
    prompts: Annotated[list[str], StopsAtFirstError()]
    labels: list[Any]

    @model_validator(mode="after")
    def check_lengths(self) -> "RewardRequest":
        """Raise ValueError for lists of different lengths."""
        counts = {name: len(getattr(self, name)) for name in RewardRequest.model_fields}
        if len(set(counts.values())) > 1:
            got = ", ".join(f"{count} {name}" for name, count in counts.items())
            raise ValueError(f"query, prompts and labels must be lists of equal length; got {got}")
        return self


@dataclass
class RewardService:
    """Grade requests in threads, ``parallel`` rows of a request at a time.

    A row that hangs occupies one of these threads, and one request at most half of all threads, so that other
    requests are still answered.
    """

    reward_func: Callable[..., dict[str, Any]]
    # Raises ValueError for a label that cannot be graded.
    check_label: Callable[[Any], None]
    parallel: int
    limits: ServiceLimits
    token: str | None
    requests_in_work: int = 0
    bytes_in_work: int = 0
    # Number of answers by status.
    answers: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.threads = ThreadPoolExecutor(2 * self.parallel, thread_name_prefix="grading")

    def close(self) -> None:
        """Start no further row. Rows in work end on their own."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def health(self) -> JSONResponse:
        """Answer with the number of requests in work, and of answers by status. No token is needed."""
        answers = {str(status): count for status, count in sorted(self.answers.items())}
        return JSONResponse({"status": "ok", "requests_in_work": self.requests_in_work, "answers": answers})

    async def get_reward(self, request: Request) -> JSONResponse:
        """Answer with the rewards of one request, or with the reason why it is refused."""
        try:
            self._check_token(request)
            answer = await self._work(request)
        except HTTPException as refusal:
            self.answers[refusal.status_code] += 1
            # The client of upstream does not show the reason.
            logger.warning("answered %d: %s", refusal.status_code, refusal.detail)
            raise
        self.answers[200] += 1
        return JSONResponse(answer)

    def _check_token(self, request: Request) -> None:
        if self.token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else request.query_params.get("token", "")
        # ``==`` would end at the first difference, and its time would tell how much of a token is right.
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise _refusal(401, "the token is missing or wrong: send Authorization: Bearer TOKEN, or ?token=TOKEN")

    async def _work(self, request: Request) -> dict[str, Any]:
        self.requests_in_work += 1
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                self.bytes_in_work += len(chunk)
                if len(body) > self.limits.max_request_mb * MB:
                    raise _refusal(413, f"the request is larger than --max_request_mb {self.limits.max_request_mb}")
                if self.bytes_in_work > self.limits.max_total_mb * MB:
                    raise _refusal(503, f"the requests in work exceed --max_total_mb {self.limits.max_total_mb}")
            rows = parse_request(bytes(body), self.limits.max_queries)
            # The empty result gives the answer its keys where a request has no row.
            return answer_of([self.reward_func([], [], []), *await self._grade(request, rows)])
        except ClientDisconnect as error:
            raise _refusal(CLIENT_GONE, "the client did not wait for the answer") from error
        except asyncio.CancelledError as error:
            # The server cancels requests after the time that it waits for them at its end.
            raise _refusal(503, "the service is stopping") from error
        finally:
            self.requests_in_work -= 1
            self.bytes_in_work -= len(body)

    async def _grade(self, request: Request, rows: RewardRequest) -> list[dict[str, Any]]:
        """Return the result of ``reward_func`` for each row. The first row that is refused ends the request."""
        loop = asyncio.get_running_loop()
        slots = asyncio.Semaphore(self.parallel)

        async def grade(index: int) -> dict[str, Any]:
            async with slots:
                if await request.is_disconnected():
                    raise ClientDisconnect
                row = (rows.query[index], rows.prompts[index], rows.labels[index])
                return await loop.run_in_executor(self.threads, self._grade_row, index, *row)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(grade(index)) for index in range(len(rows.query))]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    def _grade_row(self, index: int, query: str, prompt: str, label: Any) -> dict[str, Any]:
        """Run in a thread: return the result of ``reward_func`` for one row."""
        name = "labels"
        try:
            self.check_label(label)
            name = "query"
            return self.reward_func([query], [prompt], [label])
        except ValueError as error:
            raise _refusal(422, f"{name}[{index}]: {error}") from error
        except Exception as error:  # The client gets no reward instead of a 0 for a fault of the grader.
            raise _refusal(500, f"{name}[{index}]: grading failed with {type(error).__name__}: {error}") from error


class RefuseAmbiguousLength:
    """Refuse requests that say in two ways where the body ends, and close their connections.

    A proxy in front that decides otherwise than this server would pass a part of the body on as a request of its own.
    The server itself refuses unequal lengths, and encodings other than chunked.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request with 400, or forward it to the application."""
        names = [name for name, _ in scope.get("headers", ())]
        is_old = scope.get("http_version") == "1.0"
        if b"transfer-encoding" in names and (is_old or b"content-length" in names):
            detail = "the request has Transfer-Encoding beside Content-Length, or in HTTP/1.0; send one of them"
            response = JSONResponse({"detail": detail}, 400, {"Connection": "close"})
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def make_service(config: RewardConfig, limits: ServiceLimits, token: str | None) -> RewardService:
    """Return the service with the rewards of this package; the caller closes it.

    Args:
        config: Settings of the rewards.
        limits: Limits on requests.
        token: What every request must bring; None to answer any request.
    """
    # Two threads more than grading processes, so that a process never waits for a thread.
    return RewardService(make_reward_func(config), make_check_label(config), config.reward_workers + 2, limits, token)


def make_app(service: RewardService) -> FastAPI:
    """Return the application that answers by a service."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(RefuseAmbiguousLength)
    app.add_api_route("/", service.get_reward, methods=["POST"])
    app.add_api_route("/get_reward", service.get_reward, methods=["POST"])
    app.add_api_route("/health", service.health, methods=["GET"])
    return app


def parse_request(body: bytes, max_queries: int) -> RewardRequest:
    """Return the request of a body.

    Args:
        body: The body, JSON in UTF-8.
        max_queries: Largest number of queries.

    Raises:
        HTTPException: The body is not as the protocol says; its status is 422.
    """
    try:
        request = checked_value(RewardRequest, parse_json(body))
    except ValueError as error:
        raise _refusal(422, str(error)) from error
    if len(request.query) > max_queries:
        raise _refusal(422, f"query has {len(request.query)} rows, at most {max_queries} are allowed (--max_queries)")
    return request


def answer_of(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join the results of ``reward_func`` to one answer: tensors become lists of numbers."""
    logs = [result["extra_logs"] for result in results]
    return {**_joined(results, REWARDS), "extra_logs": _joined(logs, logs[0])}


def _joined(columns: Sequence[dict[str, Any]], names: Iterable[str]) -> dict[str, list[float]]:
    return {name: [value for each in columns for value in each[name].tolist()] for name in names}


def _refusal(status: int, message: str) -> HTTPException:
    """Return the answer to a request that is not graded, with the message as one line of plain characters."""
    line = " ".join(message.split()).encode("ascii", "backslashreplace").decode()[:MAX_DETAIL]
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}
    return HTTPException(status, line, headers.get(status))
