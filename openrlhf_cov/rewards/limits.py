"""The limits of the reward service, with their defaults."""

from dataclasses import dataclass

from openrlhf_cov.settings import Settings, setting

# Environment variable with the token of the reward service, on both sides.
REWARD_TOKEN = "OPENRLHF_COV_REWARD_TOKEN"


@dataclass(frozen=True, kw_only=True)
class ServiceLimits(Settings):
    """Limits of the reward service.

    Raises:
        ValueError: A value is out of range; the message names its flag.
    """

    max_request_mb: int = setting(64, "largest request, in 10^6 bytes; larger ones are refused with 413")
    max_total_mb: int = setting(
        1024, "largest size of all requests in work, in 10^6 bytes; further ones are refused with 503"
    )
    max_connections: int = setting(
        2048,
        "most open connections (one per finished response); further ones are refused with 503. OpenRLHF's client "
        "tries five times, a second apart, and then the response has no reward",
    )
    max_queries: int = setting(4096, "most queries in a request; larger requests are refused with 422")

    def check(self) -> None:
        """Check every limit, as ``Settings`` describes it."""
        for name in ("max_request_mb", "max_total_mb", "max_connections", "max_queries"):
            self.require(name, lambda count: 1 <= count <= 1 << 20, "must lie between 1 and 2^20")
