"""A builder on a host of its own: no lock reaches it, and it stops like a paused machine before a step of its build.

Run as a script: STORE REDIS_URL STEP. It ends like the command line: 0, or 1 with one line on standard error.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from fakes import HashEncoder, pool

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.store import locks, switch
from polyrank.model.errors import RankingError

COUNT = 20
LEASE_SECONDS = 0.5


@contextmanager
def lock_of_another_host(_path: Path, *, within_seconds: float = 0.0) -> Iterator[bool]:
    """A lock on a file system whose locks end at the host, where nobody else is."""
    yield True


def main() -> int:
    """Build, and stop once on the way."""
    root, url, step = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    switch.locked = locks.try_locked = lock_of_another_host
    locks._machine = lambda: token_hex(8)
    locks.LEASE_SECONDS, locks.RENEW_SECONDS = LEASE_SECONDS, LEASE_SECONDS / 4
    stops = [step]

    def pause(stage: str, _done: int, _total: int | None) -> None:
        if stage in stops:
            stops.remove(stage)
            os.kill(os.getpid(), signal.SIGSTOP)

    try:
        build(HashEncoder(), pool(COUNT, "paused-"), root, BuildOptions(index="flat", redis_url=url), progress=pause)
    except RankingError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
