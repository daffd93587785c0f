"""A process that may open no more files, or few."""

import gc
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptors(but: int = 0) -> Iterator[None]:
    """Let this process open nothing for the block, `but` so many files at a time; what is open stays open."""
    gc.collect()  # else leftovers of other tests may be closed in the block, which makes room below the limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Another thread may hold a file for a moment, which makes room when it closes it: the lowest of many counts it is.
    limit = min(_limit(but) for _ in range(20))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _limit(but: int) -> int:
    """Return the limit under which `but` more files can be opened, after a moment in which other threads may close."""
    time.sleep(0.005)
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(but + 1)]
    for descriptor in free:
        os.close(descriptor)
    return max(free)  # what another thread closed in between comes out of order
