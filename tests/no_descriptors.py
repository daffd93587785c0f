"""A process that may open no more files, or few."""

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptors(but: int = 0) -> Iterator[None]:
    """Let this process open nothing for the block, `but` so many files at a time; what is open stays open."""
    gc.collect()  # else leftovers of other tests may be closed in the block, which makes room below the limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(but + 1)]
    for descriptor in free:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
