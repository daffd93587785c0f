"""The threads of another process: how much processor time each has had, and py-spy, which looks at them."""

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path


def spy() -> str:
    """Return the path of py-spy; raises SystemExit where it is not installed."""
    found = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if found is None:
        raise SystemExit("py-spy is not installed: pip install py-spy")
    return found


def spent(pid: int) -> dict[int, float]:
    """Return the processor seconds of each thread of a process, by the thread's number."""
    found = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            fields = (thread / "stat").read_text().rpartition(")")[2].split()
            found[int(thread.name)] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return found
