"""Seeds that depend on what they are for, and on nothing else."""

import hashlib


def seed_of(*parts: object) -> int:
    """Return a 63-bit integer from SHA-256 of the texts of ``parts``, joined by slashes."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
