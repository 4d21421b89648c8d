"""What the reward service accepts: its limits with their defaults, and a rate limit. No heavy import."""

import math
import time
from dataclasses import dataclass

from openrlhf_cov.settings import Settings, setting

REWARD_TOKEN = "OPENRLHF_COV_REWARD_TOKEN"
"""Environment variable with the token of the reward service, on both sides."""


@dataclass(frozen=True, kw_only=True)
class ServiceLimits(Settings):
    """Limits of the reward service. Raises ValueError, naming the flag, when a value is out of range."""

    max_request_mb: int = setting(64, "size of a request, in 10^6 bytes; a larger one is refused with 413")
    max_total_mb: int = setting(
        1024, "size of all requests in work together, in 10^6 bytes; one that does not fit is refused with 503"
    )
    max_connections: int = setting(2048, "open connections; more are refused with 503")
    max_queries: int = setting(4096, "queries of one request; more are refused with 422")
    max_concurrent: int = setting(
        1024,
        "requests in work at a time, one per finished response of the rollouts; more are refused with 503. Upstream's "
        "client tries five times, a second apart, and then the response has no reward",
    )
    max_requests_per_second: float = setting(0.0, "requests per second on average; more are refused with 429; 0: any")

    def check(self) -> None:
        for name in ("max_request_mb", "max_total_mb", "max_connections", "max_queries", "max_concurrent"):
            self.require(name, lambda count: 1 <= count <= 1 << 20, "lies between 1 and 2^20")
        self.require(
            "max_requests_per_second", lambda rate: 0.0 <= rate < math.inf, "is a finite number of at least 0"
        )


class TokenBucket:
    """At most ``rate`` requests per second on average; after a pause as many at once as a second allows, or one."""

    def __init__(self, rate: float, now: float | None = None) -> None:
        self._rate = rate
        self._room = self._size = max(1.0, rate)
        self._then = time.monotonic() if now is None else now

    def seconds_to_wait(self, now: float | None = None) -> float:
        """0 for a request that may come now, which then counts; else how long until one may. Rate 0: always 0."""
        if self._rate == 0:
            return 0.0
        now = time.monotonic() if now is None else now
        self._room = min(self._size, self._room + (now - self._then) * self._rate)
        self._then = now
        if self._room < 1.0:
            return (1.0 - self._room) / self._rate
        self._room -= 1.0
        return 0.0
