"""What the processor says of itself; on Linux the kernel tells it, elsewhere nothing is known."""

import hashlib
import platform
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
# What its model and abilities are called; the last three are names of Arm's.
_IDENTITY = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU part", "Features"),
)


@cache
def cpuinfo() -> dict[str, str]:
    """Return what the kernel tells of the first processor, by its names; empty: nothing."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def has(flag: str) -> bool:
    """Whether an x86 processor has an ability, by the kernel's name of it, as `avx512_vnni`."""
    return flag in cpuinfo().get("flags", "").split()


def identity() -> str:
    """Identify model and abilities; where the kernel tells nothing, Python's own words must do."""
    if not (facts := cpuinfo()):
        return f"{platform.machine()} {platform.processor()}"
    return hashlib.sha256("\n".join(facts.get(name, "") for name in _IDENTITY).encode()).hexdigest()
