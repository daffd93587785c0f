"""How many threads the libraries that compute may take. Importing this imports none of them.

The number is the one that was chosen, else one for each core that this process may use, or fewer by OMP_NUM_THREADS:
torch's own default.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_CORES = Path("/sys/devices/system/cpu")
_chosen: int | None = None


def count() -> int:
    """Return how many threads a product of matrices may take."""
    if _chosen is not None:
        return _chosen
    of_torch = getattr(sys.modules.get("torch"), "get_num_threads", None)  # who has torch may have told it a number
    return of_torch() if of_torch is not None else usual()


def choose(number: int) -> None:
    """Let torch, and who asks for the number, take so many threads, here and where torch is imported later.

    A product of NumPy takes one from then on (`shares`): its other threads wait for work busily, and take the processor
    from those who have some.
    """
    global _chosen  # of the process, as the libraries' own numbers are
    _chosen = number
    _numpys_products_in_one()
    if "torch" in sys.modules:
        tell_torch()


@contextmanager
def only_one() -> Iterator[None]:
    """Let all products take one thread in the block. Several wait for each other while the machine has other work."""
    global _chosen
    chosen, number = _chosen, count()
    try:
        with _numpys_products_in_one():
            _chosen = 1
            if "torch" in sys.modules:
                tell_torch()
            yield
    finally:
        _chosen = number
        if "torch" in sys.modules:
            tell_torch()
        _chosen = chosen


def _numpys_products_in_one() -> Any:
    """Limit NumPy's BLAS to one thread; at the end of a block that is entered with this, to what it had before."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(threading_layer="pthreads").limit(limits=1)  # that of FAISS has OpenMP


def shares() -> int:
    """Return among how many threads to divide work that consists of NumPy's products, which else divides them."""
    return _chosen or 1


def tell_torch() -> None:
    """Let torch take as many threads as were chosen; imports torch."""
    import torch

    if _chosen is not None and torch.get_num_threads() != _chosen:
        torch.set_num_threads(_chosen)


def usual() -> int:
    """Return the number where nobody has chosen one."""
    cores = _cores()
    with suppress(ValueError):  # of several numbers the first counts, as for OpenMP
        if (number := int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0])) > 0:
            return min(number, cores)
    return cores


def _cores() -> int:
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return len({_core(number) for number in os.sched_getaffinity(0)})


def _core(processor: int) -> str:
    """Name the core of a processor; those that share one are threads of it."""
    with suppress(OSError):
        return (_CORES / f"cpu{processor}" / "topology" / "thread_siblings_list").read_text().strip()
    return str(processor)
