"""The environment of a builder's process."""

import os
from collections.abc import Mapping


def of_builder(redis_url: str | None, backend: str) -> Mapping[str, str]:
    """The server's own, with the Redis and the back-end that the server was given, and with this very package."""
    kept = {name: value for name, value in os.environ.items() if name != "POLYRANK_REDIS_URL"}
    given = {"POLYRANK_BACKEND": backend, **({"POLYRANK_REDIS_URL": redis_url} if redis_url else {})}
    return {**kept, **given}
