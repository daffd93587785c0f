"""How much processor time each thread of another process has had."""

import os
from contextlib import suppress
from pathlib import Path


def spent(pid: int) -> dict[int, float]:
    """Return the processor seconds of each thread of a process, by the thread's number."""
    found = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            fields = (thread / "stat").read_text().rpartition(")")[2].split()
            found[int(thread.name)] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return found
