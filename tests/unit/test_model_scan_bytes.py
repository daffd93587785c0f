"""Products of bytes by OpenVINO and by torch, and what is imported for them."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.model.errors import VectorsDamaged
from polyrank.model.search.scan import Query, product
from polyrank.model.search.scan.openvino_bytes import OpenVinoProduct
from polyrank.model.search.scan.product import Library, Multiplier
from polyrank.model.search.scan.quantised import QuantisedScan
from polyrank.model.search.scan.torch_bytes import TorchProduct

pytestmark = pytest.mark.skipif(not product.multiplies_bytes(), reason="this processor does not multiply bytes fast")

both = pytest.mark.parametrize("make", [OpenVinoProduct, TorchProduct])
Make = Callable[[NDArray[np.int8], int], Multiplier]


def products(multiplier: Multiplier, rows: NDArray[np.uint8], p: int) -> NDArray[np.float32]:
    """Multiply rows (n, D) by p codes, each of a context of its own, (n, p)."""
    return multiplier.largest(rows, np.ones(p, np.float32), np.zeros(p, np.float32)).copy()


def drawn(n: int, p: int, d: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int8], NDArray[np.int64]]:
    """Draw rows and codes, some of them of the largest bytes, and multiply them exactly."""
    rng = np.random.default_rng(seed)
    rows, codes = rng.integers(0, 256, (n, d)), rng.integers(-127, 128, (p, d))
    rows[0], codes[0], codes[1] = 255, 127, -127
    return rows.astype(np.uint8), codes.astype(np.int8), rows @ codes.T


@both
@pytest.mark.parametrize("d", [1, 3, 384, 1025])
@pytest.mark.parametrize(("n", "p"), [(1, 8), (40, 64), (300, 360)])
def test_products_are_the_exact_sums_rounded_to_float32(make: Make, n: int, p: int, d: int) -> None:
    rows, codes, exact = drawn(n, p, d)
    found = products(make(codes, p), rows, p)
    np.testing.assert_array_max_ulp(found, exact.astype(np.float32), maxulp=1)
    if 255 * 127 * d < 2**24:
        np.testing.assert_array_equal(found, exact)


@both
@pytest.mark.parametrize("contexts", [1, 2, 16])
def test_the_largest_of_each_context_is_found_after_factors_and_terms(make: Make, contexts: int) -> None:
    rows, codes, exact = drawn(50, 16, 48)
    factors, terms = 2.0 ** np.arange(-8, 8), -np.arange(16.0) * 1000
    terms[2] = np.inf
    found = make(codes, contexts).largest(rows, factors.astype(np.float32), terms.astype(np.float32))
    expected = (exact * factors + terms).reshape(50, contexts, -1).max(axis=2)
    np.testing.assert_array_equal(found, expected.astype(np.float32))


@both
def test_threads_multiply_beside_each_other(make: Make) -> None:
    """Each has its own rows and codes, and reads its product while the others multiply."""

    def multiply(seed: int) -> bool:
        rows, codes, exact = drawn(200 + seed, 8 * (1 + seed % 3), 64, seed)
        multiplier = make(codes, len(codes))
        return all(np.array_equal(products(multiplier, rows, len(codes)), exact) for _ in range(5))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(multiply, range(24)))


@both
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_no_number_is_an_error(make: Make, row: int, value: float, dtype: type, monkeypatch) -> None:
    """The mean that bytes are counted from is made of some rows, row 0 among them."""
    monkeypatch.setattr(product, "multiplying_library", lambda: Library("chosen", make))
    rng = np.random.default_rng(0)
    matrix, codes = rng.normal(size=(9000, 16)).astype(dtype), rng.normal(size=(8, 16)).astype(np.float32)
    matrix[row, 3] = value
    with pytest.raises(VectorsDamaged):
        QuantisedScan(matrix).top_k([Query(codes, 5)])


@pytest.mark.skipif(sys.platform != "linux", reason="the stack for signals is asked of glibc")
def test_products_and_forward_passes_share_one_core() -> None:
    """Each core would give this thread a stack of its own for signals, and free it when it ends."""
    code = """
import ctypes
import numpy as np
from polyrank.model.inference.openvino_backend import is_supported
from polyrank.model.search.scan.openvino_bytes import OpenVinoProduct

def stack():
    told = (ctypes.c_void_p * 3)()
    ctypes.CDLL(None).sigaltstack(None, told)
    return told[0]

is_supported("bfloat16")
first = stack()
ones = np.ones(8, np.float32)
OpenVinoProduct(np.ones((8, 4), np.int8), 1).largest(np.ones((8, 4), np.uint8), ones, ones)
print(stack() == first)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"


def test_a_scan_on_a_cpu_imports_no_torch() -> None:
    """Of a small pool nothing that multiplies bytes either."""
    code = """
import sys
import numpy as np
from polyrank.model.search.scan import Query, prepare, product
from polyrank.model.search.topk import scores_of, top_k

pool = np.random.default_rng(0).normal(size=(5000, 16)).astype(np.float16)
codes = np.ones((16, 16), np.float32)
top_k(pool, codes, 3), scores_of(pool, codes), prepare(pool[:4000]).top_k([Query(codes, 3)])
print(sorted({"torch", "openvino"} & set(sys.modules)))
scan = prepare(pool)
scan.top_k([Query(codes, 3)])
print(scan.status.kind, product.multiplying_library().name, "torch" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["[]", "bytes OpenVINO False"]


def test_torch_multiplies_where_it_is_imported_already() -> None:
    code = "import torch; from polyrank.model.search.scan import product; print(product.multiplying_library().name)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "torch\n"
