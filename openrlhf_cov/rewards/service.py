"""The reward service: upstream's remote-reward protocol over HTTP, as a FastAPI application.

``POST /`` and ``POST /get_reward`` take ``{"query": [...], "prompts": [...], "labels": [...]}`` and answer with the
lists ``rewards``, ``scores`` and ``truncated_rewards``, one number per query, and ``extra_logs``, a list per metric.
A bad request is answered with a 4xx status and ``{"detail": one line}``. ``GET /health`` has counters.

The service has a token and limits on the size of requests. It expects its clients in a trusted network: slow clients,
TLS and rates are the subject of a proxy in front of it (docs/rewards.md has an example).

A token comes as ``Authorization: Bearer TOKEN`` or as ``?token=TOKEN`` in the URL. The latter is for upstream's
client, which sends no header.
"""

import asyncio
import hmac
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards.limits import ServiceLimits
from openrlhf_cov.rewards.reward_func import STATUS_METRICS, make_check_label, make_reward_func
from openrlhf_cov.utils.json_lines import parse_json

logger = logging.getLogger(__name__)

REWARDS = ("rewards", "scores", "truncated_rewards")
# Status of a request whose client did not wait for the answer. Only ``/health`` shows it.
CLIENT_GONE = 499
MB = 10**6
# A client has this time to send the body of its request.
BODY_SECONDS = 60.0
SECONDS_BETWEEN_WARNINGS = 60.0
# Longest error message, in characters.
MAX_DETAIL = 300

# Query, prompt and label.
Row = tuple[str, str, Any]

T = TypeVar("T")


class RewardRequest(BaseModel):
    """A request: three lists of equal length. Other keys are ignored."""

    model_config = ConfigDict(strict=True)

    query: list[str]
    prompts: list[str]
    labels: list[Any]


class RewardService:
    """Grade requests with ``reward_func`` in threads, ``parallel`` rows of a request at a time.

    A row that hangs occupies one of these threads, and one request at most half of all threads, so that other
    requests are still answered.
    """

    def __init__(
        self,
        reward_func: Callable[..., dict[str, Any]],
        check_label: Callable[[Any], None],
        *,
        parallel: int,
        limits: ServiceLimits,
        token: str | None,
    ) -> None:
        self._reward_func = reward_func
        self._check_label = check_label
        self._parallel = parallel
        self._threads = ThreadPoolExecutor(2 * parallel, thread_name_prefix="grading")
        self._limits = limits
        self._token = token
        self._started = time.monotonic()
        self._requests = 0
        self._requests_in_work = 0
        self._rows_in_work = 0
        self._bytes_in_work = 0
        self._answers: Counter[int] = Counter()
        self._grades = Counter(dict.fromkeys(("graded", *STATUS_METRICS, "error"), 0))
        self._last_warning: dict[int, float] = {}

    def close(self) -> None:
        """Start no further row. Rows in work end on their own."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def health(self) -> JSONResponse:
        """Answer with the counters since the start. No token is needed."""
        return JSONResponse(
            {
                "status": "ok",
                "seconds_up": round(time.monotonic() - self._started, 3),
                "requests": self._requests,
                "requests_in_work": self._requests_in_work,
                "queries_in_work": self._rows_in_work,
                "answers": {str(status): count for status, count in sorted(self._answers.items())},
                "grades": dict(self._grades),
            }
        )

    async def get_reward(self, request: Request) -> JSONResponse:
        """Answer with the rewards of one request, or with the reason why it is refused."""
        self._requests += 1
        try:
            self._check_token(request)
            answer = await self._work(request)
        except HTTPException as refusal:
            self._answers[refusal.status_code] += 1
            self._warn(refusal)
            raise
        self._answers[200] += 1
        return JSONResponse(answer)

    def _check_token(self, request: Request) -> None:
        if self._token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else request.query_params.get("token", "")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise _refusal(
                401, "the token is missing or wrong: Authorization: Bearer TOKEN, or ?token=TOKEN in the URL"
            )

    async def _work(self, request: Request) -> dict[str, Any]:
        if self._requests_in_work >= self._limits.max_concurrent:
            raise _refusal(503, f"{self._requests_in_work} requests in work already (--max_concurrent)")
        self._requests_in_work += 1
        body = bytearray()
        try:
            await asyncio.wait_for(self._read(request, body), BODY_SECONDS)
            rows = parse_request(bytes(body), self._limits.max_queries)
            return answer_of([self._reward_func([], [], []), *await unless_gone(request, self._grade(rows))])
        except TimeoutError as error:
            raise _refusal(408, f"the request was not complete within {BODY_SECONDS:g} seconds") from error
        except ClientDisconnect as error:
            raise _refusal(CLIENT_GONE, "the client did not wait for the answer") from error
        except asyncio.CancelledError as error:
            # The server cancels requests after the time that it waits for them at its end.
            raise _refusal(503, "the service is stopping") from error
        finally:
            self._requests_in_work -= 1
            self._bytes_in_work -= len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        """Append the body of a request to ``body``, as far as the limits allow."""
        async for chunk in request.stream():
            body += chunk
            self._bytes_in_work += len(chunk)
            if len(body) > self._limits.max_request_mb * MB:
                raise _refusal(
                    413, f"the request is larger than {self._limits.max_request_mb * MB:,} bytes (--max_request_mb)"
                )
            if self._bytes_in_work > self._limits.max_total_mb * MB:
                total = f"{self._limits.max_total_mb * MB:,} bytes (--max_total_mb)"
                raise _refusal(503, f"the requests in work are larger than {total}")

    async def _grade(self, request: RewardRequest) -> list[dict[str, Any]]:
        """Return the result of ``reward_func`` for each row. The first row that is refused ends the request."""
        rows = list(zip(request.query, request.prompts, request.labels, strict=True))
        results: list[dict[str, Any]] = [{}] * len(rows)
        waiting = iter(enumerate(rows))
        graders = [
            asyncio.ensure_future(self._grade_next(waiting, results)) for _ in range(min(self._parallel, len(rows)))
        ]
        try:
            await asyncio.gather(*graders)
        finally:
            for grader in graders:
                grader.cancel()
        return results

    async def _grade_next(self, waiting: Iterator[tuple[int, Row]], results: list[dict[str, Any]]) -> None:
        """Grade one waiting row after the other. Several of these calls share ``waiting``."""
        loop = asyncio.get_running_loop()
        for index, row in waiting:
            self._rows_in_work += 1
            try:
                results[index] = await loop.run_in_executor(self._threads, self._grade_row, index, *row)
            except HTTPException as refusal:
                self._grades["error"] += refusal.status_code == 500
                raise
            finally:
                self._rows_in_work -= 1
            logs = results[index]["extra_logs"]
            statuses = [name for name, metric in STATUS_METRICS.items() if logs[metric][0] > 0]
            self._grades[statuses[0] if statuses else "graded"] += 1

    def _grade_row(self, index: int, query: str, prompt: str, label: Any) -> dict[str, Any]:
        """Run in a thread: return the result of ``reward_func`` for one row."""
        field = "labels"
        try:
            self._check_label(label)
            field = "query"
            return self._reward_func([query], [prompt], [label])
        except ValueError as error:
            raise _refusal(422, f"{field}[{index}]: {error}") from error
        except Exception as error:  # A fault of the grader is counted, and the client gets no reward instead of a 0.
            raise _refusal(500, f"{field}[{index}]: grading failed with {type(error).__name__}: {error}") from error

    def _warn(self, refusal: HTTPException) -> None:
        """Log a refusal, at most one of each status per minute: upstream's client does not show the reason."""
        status = refusal.status_code
        now = time.monotonic()
        if now - self._last_warning.get(status, -math.inf) >= SECONDS_BETWEEN_WARNINGS:
            self._last_warning[status] = now
            logger.warning("answered %d: %s (the next of this kind is logged in a minute)", status, refusal.detail)


def make_service(config: RewardConfig, limits: ServiceLimits, token: str | None) -> RewardService:
    """Make the service with the rewards of this package."""
    return RewardService(
        make_reward_func(config),
        make_check_label(config),
        parallel=config.reward_workers + 2,
        limits=limits,
        token=token,
    )


def make_app(service: RewardService) -> FastAPI:
    """Make the application, which closes the service when it ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(RefuseAmbiguousLength)
    app.add_api_route("/", service.get_reward, methods=["POST"])
    app.add_api_route("/get_reward", service.get_reward, methods=["POST"])
    app.add_api_route("/health", service.health, methods=["GET"])
    return app


class RefuseAmbiguousLength:
    """Refuse requests that say in two ways where the body ends, and close their connections.

    HTTP/1.1 lets Transfer-Encoding win over Content-Length. A proxy in front that decides otherwise would pass the
    rest of the body on as a request of its own. HTTP/1.0 has no Transfer-Encoding at all. The server itself refuses
    unequal lengths, and encodings other than chunked.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with 400."""
        names = [name for name, _ in scope.get("headers", ())]
        is_old = scope.get("http_version") == "1.0"
        if b"transfer-encoding" in names and (is_old or b"content-length" in names):
            detail = "the request has Transfer-Encoding beside Content-Length, or in HTTP/1.0; send one of them"
            response = JSONResponse({"detail": detail}, 400, {"Connection": "close"})
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def parse_request(body: bytes, max_queries: int) -> RewardRequest:
    """Return the request of a body. Raises the refusal of a body that is not as the protocol says."""
    try:
        request = RewardRequest.model_validate(parse_json(body))
    except ValidationError as error:
        first = error.errors()[0]
        name, *place = first["loc"] or ("the request",)
        raise _refusal(422, f"{name}{''.join(f'[{index}]' for index in place)}: {first['msg']}") from error
    except ValueError as error:
        raise _refusal(400, f"the request is not JSON: {error}") from error
    counts = {name: len(getattr(request, name)) for name in RewardRequest.model_fields}
    if len(set(counts.values())) > 1:
        got = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise _refusal(422, f"query, prompts and labels are lists of equal length, got {got}")
    if counts["query"] > max_queries:
        raise _refusal(422, f"query has {counts['query']} rows, at most {max_queries} are allowed (--max_queries)")
    return request


def answer_of(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join the results of ``reward_func`` to one answer: tensors become lists of numbers."""
    metrics = results[0]["extra_logs"]
    answer: dict[str, Any] = {
        name: [value for result in results for value in result[name].tolist()] for name in REWARDS
    }
    answer["extra_logs"] = {
        metric: [value for result in results for value in result["extra_logs"][metric].tolist()] for metric in metrics
    }
    return answer


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Return the result of ``work``, or cancel it and raise ClientDisconnect when the client closes the connection."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()


def _refusal(status: int, message: str) -> HTTPException:
    """Return the answer to a request that is not graded, with the message as one line of plain characters."""
    line = " ".join(message.split()).encode("ascii", "backslashreplace").decode()[:MAX_DETAIL]
    headers = {
        401: {"WWW-Authenticate": "Bearer"},
        408: {"Connection": "close"},
        503: {"Retry-After": "1"},
    }
    return HTTPException(status, line, headers.get(status))
