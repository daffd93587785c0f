"""The scan of a GPU, run by Triton's interpreter on the CPU, against brute force: the same rows and the same scores."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from additions import LATE_WEIGHTS, VALUES, additions_of
from brute_force import paper_scores
from numpy.typing import NDArray

from polyrank.model.representations import Additions
from polyrank.model.search.scan.gpu import GpuScan, Tiles
from polyrank.model.search.scan.plain import Query
from polyrank.model.search.topk import TopK, top_k

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs Triton and its interpreter: make test-kernels", allow_module_level=True)

# Small, so that few rows are many blocks, and few codes and dimensions more than one tile.
TILES = Tiles(rows=32, contexts=2, codes=16, dims=16, warps=4, stages=2)
D = 40
SHARED_KIB = 99  # what a program may take on consumers' GPUs; on those of data centres it is 163 and more


@dataclass
class Case:
    matrix: NDArray[np.floating]
    codes: list[NDArray[np.float32]]
    k: int = 7


def unit(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)


def codes_of(rng: np.random.Generator, m: int, scale: float | NDArray[np.float64] = 20) -> NDArray[np.float32]:
    return (unit(rng, m, D) * scale).astype(np.float32)


def halves(rng: np.random.Generator, n: int) -> NDArray[np.float16]:
    return unit(rng, n, D).astype(np.float16)


def duplicates(rng: np.random.Generator) -> NDArray[np.float16]:
    """Twenty rows and their copies, and rows a bit away from them."""
    matrix = halves(rng, 20)[rng.integers(20, size=200)]
    nudged = rng.random(200) < 0.3
    matrix[nudged, 0] = np.nextafter(matrix[nudged, 0], np.float16(1))
    return matrix


def on_a_plane(rng: np.random.Generator) -> Case:
    """Rows whose product with the code is the same but for their rounding to float16, which the code's own changes."""
    rows, code = unit(rng, 150, D), codes_of(rng, 1)
    rows -= (rows @ code.T - 5) / (code @ code.T) * code
    return Case(rows.astype(np.float16), [code], k=5)


def with_giants(rng: np.random.Generator) -> NDArray[np.float32]:
    """Some rows are so far down that their products, but not their scores, are no numbers of float32."""
    matrix = unit(rng, 100, D)
    matrix[::9] = -1e37
    return matrix


def cases() -> dict[str, Case]:
    rng = np.random.default_rng(0)
    one = unit(rng, 1, D)
    return {
        "several blocks": Case(halves(rng, 150), [codes_of(rng, 16)]),
        "one code": Case(halves(rng, 150), [codes_of(rng, 1)]),
        "codes that fill no tile": Case(halves(rng, 150), [codes_of(rng, 21)]),
        "one row": Case(halves(rng, 1), [codes_of(rng, 3)]),
        "one row more than a block": Case(halves(rng, 33), [codes_of(rng, 3)], k=40),
        "copies": Case(duplicates(rng), [codes_of(rng, 5)], k=15),
        "nothing but copies": Case(np.tile(halves(rng, 1), (40, 1)), [codes_of(rng, 5)], k=3),
        "float32": Case(unit(rng, 150, D), [codes_of(rng, 20)]),
        "closer than float32 can tell": Case(
            (one * (1 + 2e-7 * rng.normal(size=(40, D)))).astype(np.float32), [codes_of(rng, 2)]
        ),
        "huge": Case(halves(rng, 100) * np.float16(30_000), [codes_of(rng, 5, 1e5)]),
        "closer than float16 can tell": on_a_plane(rng),
        "below what is not there": Case(abs(halves(rng, 150)), [-abs(codes_of(rng, 5, 3))]),
        "rows that overflow": Case(with_giants(rng), [abs(codes_of(rng, 3, 1))]),
        "many products that may overflow": Case(unit(rng, 40, D) * np.float32(1e30), [codes_of(rng, 5, 1e5)]),
        "denormal rows": Case(halves(rng, 40) * np.float16(3e-7), [codes_of(rng, 5)]),
        "denormal codes": Case(halves(rng, 40), [codes_of(rng, 5, 1e-41)]),
        "zeros": Case(np.zeros((40, D), np.float16), [np.zeros((5, D), np.float32)]),
        "codes of rank 1": Case(halves(rng, 150), [np.outer(rng.normal(size=9) * 20, one[0]).astype(np.float32)]),
        "codes of many lengths": Case(halves(rng, 150), [codes_of(rng, 9, np.geomspace(1e-6, 1e3, 9)[:, None])]),
        "several contexts": Case(halves(rng, 150), [codes_of(rng, 5), codes_of(rng, 33, 1), codes_of(rng, 1, 100)]),
    }


CASES = cases()


def expected(
    case: Case, codes: NDArray[np.float32], allowed: NDArray[np.bool_] | None = None, additions: Additions | None = None
) -> TopK:
    """Every row scored and sorted; the scan of a CPU says the same to the bit."""
    rows = np.arange(len(case.matrix)) if allowed is None else np.flatnonzero(allowed)
    scores = paper_scores(case.matrix, codes, additions)
    order = rows[np.lexsort((rows, -scores[rows]))][: case.k]
    reference = top_k(case.matrix, codes, case.k, rows, additions=additions)
    np.testing.assert_array_equal(reference.rows, order)
    np.testing.assert_array_max_ulp(reference.scores, scores[order], maxulp=1)
    return reference


def assert_same(found: TopK, reference: TopK) -> None:
    assert (found.rows.dtype, found.scores.dtype) == (np.int64, np.float32)
    np.testing.assert_array_equal(found.rows, reference.rows)
    np.testing.assert_array_equal(found.scores, reference.scores)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.parametrize("name", CASES)
def test_equals_brute_force(name: str) -> None:
    case = CASES[name]
    answers = GpuScan(case.matrix, "cpu", TILES).top_k([Query(codes, case.k) for codes in case.codes])
    assert len(answers) == len(case.codes)
    for found, codes in zip(answers, case.codes, strict=True):
        assert_same(found, expected(case, codes))


@pytest.mark.parametrize("m", [3, 64, 100])
@pytest.mark.parametrize(("contexts", "dtype"), [(1, np.float16), (3, np.float16), (1, np.float32)])
def test_the_tiles_that_are_served_with(m: int, contexts: int, dtype: type) -> None:
    rng = np.random.default_rng(m)
    case = Case(unit(rng, 150, D).astype(dtype), [codes_of(rng, m) for _ in range(contexts)])
    answers = GpuScan(case.matrix, "cpu").top_k([Query(codes, case.k) for codes in case.codes])
    for found, codes in zip(answers, case.codes, strict=True):
        assert_same(found, expected(case, codes))


def test_each_context_has_its_own_rows_and_its_own_number() -> None:
    rng = np.random.default_rng(1)
    case = CASES["copies"]
    n = len(case.matrix)
    allowed = [None, rng.random(n) < 0.5, np.arange(n) == 190, np.zeros(n, bool), np.ones(n, bool)]
    queries = [Query(codes_of(rng, 4), k, rows) for k, rows in zip((1, 30, 5, 5, 0), allowed, strict=True)]
    for found, query in zip(GpuScan(case.matrix, "cpu", TILES).top_k(queries), queries, strict=True):
        assert_same(found, expected(Case(case.matrix, [], query.k), query.codes, query.allowed))


@pytest.mark.parametrize("late_weight", LATE_WEIGHTS)
@pytest.mark.parametrize("kind", VALUES)
def test_with_additions_equals_brute_force(kind: str, late_weight: float) -> None:
    """Queries with additions, with a mask besides, and without additions share a pass."""
    rng = np.random.default_rng(2)
    case = CASES["copies"]
    n = len(case.matrix)
    queries = [
        Query(codes_of(rng, 4), k, allowed, added)
        for k, allowed, added in (
            (5, None, additions_of(kind, late_weight, n, rng)),
            (9, rng.random(n) < 0.5, additions_of(kind, late_weight, n, rng)),
            (5, None, None),
        )
    ]
    for found, query in zip(GpuScan(case.matrix, "cpu", TILES).top_k(queries), queries, strict=True):
        assert_same(found, expected(Case(case.matrix, [], query.k), query.codes, query.allowed, query.additions))


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.parametrize("name", ["float32", "closer than float32 can tell", "closer than float16 can tell", "huge"])
def test_additions_to_rows_that_are_hard_to_order(name: str) -> None:
    case, rng = CASES[name], np.random.default_rng(3)
    for kind, late_weight in (("all equal", 1e3), ("a little for each", 0.83), ("one far above", 1e-3)):
        additions = additions_of(kind, late_weight, len(case.matrix), rng)
        [found] = GpuScan(case.matrix, "cpu", TILES).top_k([Query(case.codes[0], case.k, None, additions)])
        assert_same(found, expected(case, case.codes[0], None, additions))


def test_more_contexts_than_fit_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.model.search.scan.gpu._MOST_SCORES", 90)
    case = Case(CASES["copies"].matrix[:40], [codes for each in ("copies", "one code") for codes in CASES[each].codes])
    answers = GpuScan(case.matrix, "cpu", TILES).top_k([Query(codes, case.k) for codes in case.codes * 2])
    for found, codes in zip(answers, case.codes * 2, strict=True):
        assert_same(found, expected(case, codes))


def test_more_finalists_than_are_fetched_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.model.search.scan.gpu._FEW", 2)
    case = CASES["copies"]
    [found] = GpuScan(case.matrix, "cpu", TILES).top_k([Query(case.codes[0], case.k)])
    assert_same(found, expected(case, case.codes[0]))


def test_an_empty_pool() -> None:
    [found] = GpuScan(np.empty((0, D), np.float16), "cpu").top_k([Query(np.ones((2, D), np.float32), 3)])
    assert (found.rows.shape, found.scores.shape) == ((0,), (0,))


def test_the_kernels_compile_for_gpus_and_fit_on_them() -> None:
    """What the interpreter takes the compiler may refuse; that needs no GPU, but a process without the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compiled.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(each["kernel"], each["capability"]) for each in compiled} == {
        (kernel, capability) for kernel in ("scan", "finalists") for capability in (80, 90)
    }
    assert not [each for each in compiled if each["shared"] > SHARED_KIB * 1024]
    assert not [each for each in compiled if each["stack"]], "registers were spilled"
