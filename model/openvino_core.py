"""What all models that OpenVINO compiles in this process share. Importing this does not import OpenVINO."""

import threading
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino as ov

# How many kernels, each made for one shape, a model keeps. OpenVINO's default is thousands: memory grew by 500 MiB.
# With 64 a shape that came before took no extra time, with 16 a third more.
CACHED_KERNELS = "64"
_one_thread = threading.Lock()  # guards the core, which all threads share


def core() -> "ov.Core":
    """Return the only core of this process.

    A core gives its thread a stack for signals, and frees that stack when it ends. If two cores do not end in reverse
    order, the thread keeps a freed stack, and the next signal kills the process.
    """
    with _one_thread:
        return _first_core()


@cache
def _first_core() -> "ov.Core":
    import openvino as ov

    return ov.Core()


def properties(threads: int, precision: str = "f32") -> dict[str, Any]:
    """Return what to compile a model for the CPU with. precision: OpenVINO's name of that of products of floats."""
    return {
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision,  # else AMX would silently mean bf16
        "ENABLE_CPU_PINNING": False,  # several processes would be pinned to the same cores
        "CPU_RUNTIME_CACHE_CAPACITY": CACHED_KERNELS,
    }
