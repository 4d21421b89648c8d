"""The reward service: upstream's remote-reward protocol over HTTP, as a FastAPI application.

``POST /`` and ``POST /get_reward`` take ``{"query": [...], "prompts": [...], "labels": [...]}`` and answer with the
lists ``rewards``, ``scores`` and ``truncated_rewards``, one number per query, and ``extra_logs``: metric -> such a
list.
Whatever is wrong with a request is answered with a 4xx and ``{"detail": one line}``. ``GET /health`` counts.

A token may come as ``Authorization: Bearer TOKEN`` or as ``?token=TOKEN`` in the URL. The latter is for upstream's
client, which sends no header; it also writes the URLs of failed requests to its log.
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
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards.limits import ServiceLimits, TokenBucket
from openrlhf_cov.rewards.reward_func import STATUS_METRICS, make_check_label, make_reward_func
from openrlhf_cov.utils.json_lines import parse_json

logger = logging.getLogger(__name__)

FIELDS = ("query", "prompts", "labels")
REWARDS = ("rewards", "scores", "truncated_rewards")
CLIENT_GONE = 499
"""Status of a request whose client did not wait for the answer; nobody gets to see it but ``/health``."""

MB = 10**6

BODY_SECONDS = 60.0
"""Time that a client has to send its request."""

SECONDS_BETWEEN_WARNINGS = 60.0
MAX_DETAIL = 300
"""Characters of an error message."""

Row = tuple[str, str, Any]
"""Query, prompt and label."""

T = TypeVar("T")


class RewardService:
    """Grades requests with ``reward_func`` in threads, ``parallel`` rows of a request at a time.

    A stuck row holds one of these threads, and one request half of all threads, so that other requests go on.
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
        self._rate = TokenBucket(limits.max_requests_per_second)
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
        """Grade nothing any more; rows in work end on their own."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def health(self) -> JSONResponse:
        """What the service has done since it started; needs no token."""
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
        """The rewards of one request, or the reason why there are none."""
        self._requests += 1
        try:
            self._admit(request)
            answer = await self._work(request)
        except HTTPException as refusal:
            self._answers[refusal.status_code] += 1
            self._warn(refusal)
            raise
        self._answers[200] += 1
        return JSONResponse(answer)

    def _admit(self, request: Request) -> None:
        """Raise the refusal of a request without the token, or of one too many."""
        if self._token is not None:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            given = given.strip() if scheme.lower() == "bearer" else request.query_params.get("token", "")
            if not hmac.compare_digest(given.encode(), self._token.encode()):
                raise _refusal(
                    401, "the token is missing or wrong: Authorization: Bearer TOKEN, or ?token=TOKEN in the URL"
                )
        if self._requests_in_work >= self._limits.max_concurrent:
            raise _refusal(503, f"{self._requests_in_work} requests in work already (--max_concurrent)", retry_after=1)
        seconds = self._rate.seconds_to_wait()
        if seconds:
            rate = f"{self._limits.max_requests_per_second:g} requests per second (--max_requests_per_second)"
            raise _refusal(429, f"more than {rate}", retry_after=math.ceil(seconds))

    async def _work(self, request: Request) -> dict[str, Any]:
        self._requests_in_work += 1
        size = 0

        def admit(count: int) -> None:
            nonlocal size
            size += count
            self._bytes_in_work += count
            self._admit_bytes(size)

        try:
            rows = parse_rows(await read_body(request, admit), self._limits.max_queries)
            return answer_of([self._reward_func([], [], []), *await unless_gone(request, self._grade(rows))])
        except ClientDisconnect as error:
            raise _refusal(CLIENT_GONE, "the client did not wait for the answer") from error
        except asyncio.CancelledError as error:  # only the server does that, when it has waited long enough to stop
            raise _refusal(503, "the service is stopping", retry_after=1) from error
        finally:
            self._requests_in_work -= 1
            self._bytes_in_work -= size

    def _admit_bytes(self, size: int) -> None:
        """Raise the refusal of a request that is too large by itself, or beside the others."""
        if size > self._limits.max_request_mb * MB:
            limit = f"{self._limits.max_request_mb * MB:,} bytes (--max_request_mb)"
            raise _refusal(413, f"the request is larger than {limit}", close=True)
        if self._bytes_in_work > self._limits.max_total_mb * MB:
            limit = f"{self._limits.max_total_mb * MB:,} bytes (--max_total_mb)"
            raise _refusal(503, f"the requests in work are larger than {limit}", retry_after=1, close=True)

    async def _grade(self, rows: list[Row]) -> list[dict[str, Any]]:
        """The result of ``reward_func`` for each row. The first row that is refused ends it."""
        results: list[dict[str, Any]] = [{}] * len(rows)
        graders = [
            asyncio.ensure_future(self._grade_next(waiting, results))
            for waiting in [iter(enumerate(rows))] * min(self._parallel, len(rows))
        ]
        try:
            await asyncio.gather(*graders)
        finally:
            for grader in graders:
                grader.cancel()
        return results

    async def _grade_next(self, waiting: Iterator[tuple[int, Row]], results: list[dict[str, Any]]) -> None:
        """Grade one waiting row after the other; several of these share ``waiting``."""
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
            self._grades[next((s for s, metric in STATUS_METRICS.items() if logs[metric][0] > 0), "graded")] += 1

    def _grade_row(self, index: int, query: str, prompt: str, label: Any) -> dict[str, Any]:
        """In a thread: ``reward_func`` of one row."""
        field = "labels"
        try:
            self._check_label(label)
            field = "query"
            return self._reward_func([query], [prompt], [label])
        except ValueError as error:
            raise _refusal(422, f"{field}[{index}]: {error}") from error
        except Exception as error:  # model output; it is counted, and the client knows that it has no reward
            raise _refusal(500, f"{field}[{index}]: grading failed with {type(error).__name__}: {error}") from error

    def _warn(self, refusal: HTTPException) -> None:
        """Log a refusal, at most one of each status per minute: upstream's client does not show the reason."""
        status, now = refusal.status_code, time.monotonic()
        if now - self._last_warning.get(status, -math.inf) >= SECONDS_BETWEEN_WARNINGS:
            self._last_warning[status] = now
            logger.warning("answered %d: %s (the next of this kind is logged in a minute)", status, refusal.detail)


def make_service(config: RewardConfig, limits: ServiceLimits, token: str | None) -> RewardService:
    """The service with the rewards of this package."""
    return RewardService(
        make_reward_func(config),
        make_check_label(config),
        parallel=config.reward_workers + 2,
        limits=limits,
        token=token,
    )


def make_app(service: RewardService) -> FastAPI:
    """The application; it closes the service when it ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(OneLength)
    app.add_api_route("/", service.get_reward, methods=["POST"])
    app.add_api_route("/get_reward", service.get_reward, methods=["POST"])
    app.add_api_route("/health", service.health, methods=["GET"])
    return app


class OneLength:
    """Refuse requests with two ways to say where the body ends, and close their connections.

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


async def read_body(request: Request, admit: Callable[[int], None]) -> bytes:
    """The body of a request; ``admit`` hears the size of each part and may refuse it. A slow client is refused."""

    async def read() -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            admit(len(chunk))
            body += chunk
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), BODY_SECONDS)
    except TimeoutError as error:
        raise _refusal(408, f"the request was not complete within {BODY_SECONDS:g} seconds", close=True) from error


def parse_rows(body: bytes, max_queries: int) -> list[Row]:
    """The rows of a request. Raises the refusal of one that is not as the protocol says, naming field and row."""
    try:
        fields = parse_json(body)
    except ValueError as error:
        raise _refusal(400, f"the request is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise _refusal(422, f"the request is an object with {', '.join(FIELDS)}, got {_json_type(fields)}")
    for name in FIELDS:
        if name not in fields:
            raise _refusal(422, f"{name} is missing")
        if not isinstance(fields[name], list):
            raise _refusal(422, f"{name} is a list, got {_json_type(fields[name])}")
    lengths = [len(fields[name]) for name in FIELDS]
    if len(set(lengths)) > 1:
        counts = ", ".join(f"{count} {name}" for count, name in zip(lengths, FIELDS, strict=True))
        raise _refusal(422, f"query, prompts and labels are lists of equal length, got {counts}")
    if lengths[0] > max_queries:
        raise _refusal(422, f"query has {lengths[0]} rows, at most {max_queries} are allowed (--max_queries)")
    for name in ("query", "prompts"):
        for index, value in enumerate(fields[name]):
            if not isinstance(value, str):
                raise _refusal(422, f"{name}[{index}] is a string, got {_json_type(value)}")
    return list(zip(*(fields[name] for name in FIELDS), strict=True))


def answer_of(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The results of ``reward_func`` as one answer: their tensors, one after the other, as lists of numbers."""

    def join(tensors: Iterator[Any]) -> list[float]:
        return [value for tensor in tensors for value in tensor.tolist()]

    metrics = list(results[0]["extra_logs"])
    answer: dict[str, Any] = {name: join(result[name] for result in results) for name in REWARDS}
    answer["extra_logs"] = {metric: join(result["extra_logs"][metric] for result in results) for metric in metrics}
    return answer


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled when the client closes the connection: ClientDisconnect."""

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


def _refusal(status: int, message: str, *, retry_after: int | None = None, close: bool = False) -> HTTPException:
    """The answer to a request that is not graded; the message is made one line of plain characters."""
    line = " ".join(message.split()).encode("ascii", "backslashreplace").decode()[:MAX_DETAIL]
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    headers |= {"Connection": "close"} if close else {}
    headers |= {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return HTTPException(status, line, headers)


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
