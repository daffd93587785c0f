"""Which scan `prepare` chooses, and how a GPU's failures are handled."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

import polyrank.model.search.scan.gpu
from polyrank.model import threads
from polyrank.model.errors import VectorsDamaged
from polyrank.model.representations import Additions
from polyrank.model.search.scan import Query, Scan, Status, faster, prepare, product
from polyrank.model.search.scan.gpu import GuardedScan
from polyrank.model.search.scan.plain import PlainScan
from polyrank.model.search.topk import TopK, longest_row, top_k

LIBRARY = product.multiplying_library().name

needs_bytes = pytest.mark.skipif(not product.multiplies_bytes(), reason="this processor does not multiply bytes fast")


def test_what_a_gpu_cannot_scan_the_cpu_does_and_it_is_said(monkeypatch, caplog) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError("768 bytes are needed on the GPU, and 5 are free")

    monkeypatch.setattr(polyrank.model.search.scan.gpu, "GpuScan", refuse)
    rng = np.random.default_rng(0)
    matrix, codes = rng.normal(size=(50, 8)).astype(np.float16), rng.normal(size=(3, 8)).astype(np.float32)
    with caplog.at_level(logging.WARNING):
        [found] = prepare(matrix, "cuda").top_k([Query(codes, 5)])
    assert found.rows.tolist() == top_k(matrix, codes, 5).rows.tolist()
    [record] = caplog.records
    assert record.getMessage() == "a slower scan serves than this machine should run"
    fields = record.__dict__["fields"]
    assert fields["kind"] == "stored rows"
    assert fields["why"].startswith("the GPU does not scan: 768 bytes are needed on the GPU, and 5 are free; ")


class Gpu(PlainScan):
    """A fake GPU that fails or gives wrong scores on demand."""

    fails = False
    wrong_by = 0.0

    def top_k(self, queries: Sequence[Query]) -> list[TopK]:
        if self.fails:
            raise MemoryError("CUDA out of memory")
        return [found._replace(scores=found.scores * np.float32(1 + self.wrong_by)) for found in super().top_k(queries)]


def guarded() -> tuple[GuardedScan, Gpu, Query]:
    rng = np.random.default_rng(0)
    matrix, codes = rng.normal(size=(300, 8)).astype(np.float16), rng.normal(size=(3, 8)).astype(np.float32)
    gpu = Gpu(matrix, longest_row(matrix), Status("gpu", "a fake"))
    return GuardedScan(gpu, PlainScan(matrix, longest_row(matrix))), gpu, Query(codes, 5)


def assert_same(found: list[TopK], expected: TopK) -> None:
    [own] = found
    np.testing.assert_array_equal(own.rows, expected.rows)
    np.testing.assert_array_equal(own.scores, expected.scores)


def test_the_cpu_stands_in_for_a_gpu_that_fails_and_for_good_after_three_times_in_a_row() -> None:
    scan, gpu, query = guarded()
    [expected] = scan.top_k([query])
    for fails in (True, True, False, True, True):
        gpu.fails = fails
        assert_same(scan.top_k([query]), expected)
        assert (scan.status, scan.status.shares(64)) == (gpu.status, True)
    scan.top_k([query])
    assert scan.status == Status("stored rows", "the GPU failed 3 times in a row: CUDA out of memory", True)
    assert not scan.status.shares(1)
    gpu.fails, gpu.wrong_by = False, 1.0
    assert_same(scan.top_k([query]), expected)  # it is not asked again


def test_a_gpu_that_computes_something_else_is_not_relied_upon() -> None:
    scan, gpu, _ = guarded()
    scan.try_out(300, 8)
    gpu.wrong_by = 1e-3
    with pytest.raises(RuntimeError, match="its scores are not those of the CPU"):
        scan.try_out(300, 8)


@pytest.fixture
def looked_at_again() -> Iterator[None]:
    """Clear what was found out about the product of bytes before and after the test."""
    product.refusal.cache_clear()
    product._timed_again_at.clear()
    yield
    product.refusal.cache_clear()
    product._timed_again_at.clear()


class Machine:
    """Clocks that only the product of bytes and the test move; a product in float32 takes a second.

    takes: seconds of each product of bytes, one after the other; the last one stays.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *takes: float) -> None:
        self.now, self.spent, self.takes = 0.0, 0.0, list(takes)
        right = product.ByteProduct.largest

        def largest(own: product.ByteProduct, rows: NDArray[np.uint8], block: int) -> NDArray[np.float32]:
            self.spent += (self.takes.pop(0) if len(self.takes) > 1 else self.takes[0]) - 1.0
            return right(own, rows, block)

        def thread_time() -> float:
            self.spent += 1.0
            return self.spent

        monkeypatch.setattr(product.ByteProduct, "largest", largest)
        monkeypatch.setattr(product, "thread_time", thread_time)
        monkeypatch.setattr(product, "monotonic", lambda: self.now)


def wrong(right: Callable[..., NDArray[np.float32]], *arguments: object) -> NDArray[np.float32]:
    return right(*arguments) * 1.0001


def missing(*_: object) -> NDArray[np.float32]:
    raise RuntimeError("no such operator")


def broken(*_: object) -> NDArray[np.float32]:
    raise OSError("libtbb.so.12: cannot open shared object file")


@needs_bytes
@pytest.mark.parametrize(("changed", "why"), [
    (wrong, f"{LIBRARY}'s product of bytes is wrong for vectors of 8 components"),
    (missing, f"{LIBRARY} has no product of bytes here: no such operator"),
    (broken, f"{LIBRARY} has no product of bytes here: libtbb.so.12"),
])  # fmt: skip
@pytest.mark.usefixtures("looked_at_again")
def test_bytes_are_not_relied_upon_where_they_are_wrong_or_missing_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    changed: Callable[..., NDArray[np.float32]],
    why: str,
) -> None:
    multiplier = product.multiplying_library().multiplier
    right = multiplier.largest
    monkeypatch.setattr(multiplier, "largest", lambda self, *given: changed(right, self, *given))
    with caplog.at_level(logging.WARNING):
        scan = prepare(np.ones((10_000, 8), np.float16))
    assert isinstance(scan, PlainScan)
    assert (scan.status.kind, scan.status.is_fallback, scan.status.is_timed) == ("stored rows", True, False)
    assert scan.status.why.startswith(why)
    [record] = caplog.records
    assert (record.levelno, record.__dict__["fields"]["why"]) == (logging.WARNING, scan.status.why)


POOL = np.random.default_rng(0).normal(size=(10_000, 16)).astype(np.float16)


@needs_bytes
@pytest.mark.parametrize("takes", [(1.2,), (100.0,), (4000.0, 4000.0, 4000.0, 4000.0, 3.0)])
@pytest.mark.usefixtures("looked_at_again")
def test_a_product_of_bytes_that_is_a_little_slow_or_was_held_up_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, takes: tuple[float, ...]
) -> None:
    Machine(monkeypatch, *takes)
    assert prepare(POOL).status.kind == "bytes"
    assert not caplog.records


@needs_bytes
@pytest.mark.usefixtures("looked_at_again")
def test_a_product_of_bytes_without_a_fast_kernel_is_refused_loudly_and_timed_again(monkeypatch, caplog) -> None:
    machine = Machine(monkeypatch, 100.1)
    scan = prepare(POOL)
    why = f"{LIBRARY}'s product of bytes takes far longer than that of float32 for vectors of 16 components"
    assert scan.status == Status("stored rows", why, is_fallback=True, is_timed=True)
    [record] = caplog.records
    assert record.getMessage() == "a slower scan serves than this machine should run"
    machine.takes = [1.0]
    machine.now += 0.9 * product.TIMED_AGAIN_SECONDS
    assert faster(scan, POOL) is scan
    machine.now += 0.2 * product.TIMED_AGAIN_SECONDS
    now = faster(scan, POOL)
    assert now.status.kind == "bytes"
    assert caplog.messages[1:] == ["the faster scan serves that a timing had refused"]
    query = Query(np.random.default_rng(1).normal(size=(32, 16)).astype(np.float32), 5)
    assert_same(now.top_k([query]), scan.top_k([query])[0])
    machine.takes = [4000.0]
    machine.now += 2 * product.TIMED_AGAIN_SECONDS
    assert prepare(POOL).status.kind == "bytes", "what was fast once has a fast kernel"


@needs_bytes
@pytest.mark.usefixtures("looked_at_again")
def test_a_product_of_bytes_that_stays_slow_is_timed_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 4000.0)
    scan = prepare(POOL)
    spent = []
    for _ in range(20):
        machine.now += product.TIMED_AGAIN_SECONDS / 4
        assert faster(scan, POOL) is scan
        spent.append(machine.spent)
    assert len(set(spent)) == 6, "at first, and in every fourth look"


def test_a_scan_that_no_timing_refused_is_kept() -> None:
    for scan in (prepare(POOL, with_bytes=False), prepare(POOL[:100]), guarded()[0]):
        assert faster(scan, POOL) is scan


@pytest.mark.usefixtures("looked_at_again")
def test_a_processor_without_fast_bytes_is_no_fault(monkeypatch, caplog) -> None:
    monkeypatch.setattr(product, "multiplies_bytes", lambda: False)
    status = prepare(np.ones((10_000, 8), np.float16)).status
    assert status == Status("stored rows", "the processor has no instructions that multiply bytes fast (VNNI, AMX)")
    assert not caplog.records


@needs_bytes
def test_a_scan_says_why_it_serves() -> None:
    pool = np.random.default_rng(0).normal(size=(10_000, 64)).astype(np.float16)
    assert prepare(pool).status == Status("bytes", "the processor multiplies bytes fast")
    assert prepare(pool, with_bytes=False).status == Status("stored rows", "a copy in bytes was not asked for")
    assert prepare(pool[:100]).status.why == "a copy in bytes saves nothing for fewer than 4096 rows"


@needs_bytes
def test_a_pool_in_bytes_is_scanned_in_no_more_time_than_one_without() -> None:
    """If the library has no fast kernel for these types, a pass takes seconds."""
    matrix = (np.random.default_rng(0).normal(size=(20_000, 64)) / 8).astype(np.float16)
    query = Query(np.ones((64, 64), np.float32), 10)
    scans = [prepare(matrix, with_bytes=with_bytes) for with_bytes in (True, False)]
    with threads.only_one():
        rounds = [[seconds_of(scan, query) for scan in scans] for _ in range(6)]  # in turns
    in_bytes, as_stored = np.min(rounds, axis=0)
    assert in_bytes < 5 * as_stored


def seconds_of(scan: Scan, query: Query) -> float:
    began = time.thread_time()  # what else runs does not count
    scan.top_k([query])
    return time.thread_time() - began


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("value", [np.nan, np.inf, 300.0])
@pytest.mark.parametrize("rows", [100, 5000])
def test_rows_that_change_under_a_scan_are_an_error_where_they_would_be_in_the_answer(
    dtype: type, value: float, rows: int
) -> None:
    rng = np.random.default_rng(0)
    matrix, codes = rng.normal(size=(rows, 16)).astype(dtype), rng.normal(size=(3, 16)).astype(np.float32)
    scan = prepare(matrix)
    [before] = scan.top_k([Query(codes, 5)])
    matrix[before.rows[0]] = value * np.sign(codes.sum(axis=0))  # in the direction of the codes: its score is large
    with pytest.raises(VectorsDamaged, match="changed while it was in use"):
        scan.top_k([Query(codes, 5)])
    matrix[:] = value
    with pytest.raises(VectorsDamaged, match="changed while it was in use"):
        scan.top_k([Query(codes, 5)])


@pytest.mark.parametrize("added", [1e6, -1e6])
@pytest.mark.parametrize("rows", [100, 5000])
def test_what_is_added_is_not_taken_for_damage_and_hides_none(rows: int, added: float) -> None:
    """Added numbers exceed whatever the lengths of the vectors allow for a score by attention."""
    rng = np.random.default_rng(0)
    matrix, codes = rng.normal(size=(rows, 16)).astype(np.float32), rng.normal(size=(3, 16)).astype(np.float32)
    query = Query(codes, 5, None, Additions(0.5, np.full(rows, added, np.float32)))
    scan = prepare(matrix)
    [before] = scan.top_k([query])
    assert np.abs(before.scores - added).max() < 100
    matrix[before.rows[0]] = 300 * np.sign(codes.sum(axis=0))
    with pytest.raises(VectorsDamaged, match="changed while it was in use"):
        scan.top_k([query])
    matrix[before.rows[0]] = np.nan
    with pytest.raises(VectorsDamaged, match="changed while it was in use"):
        scan.top_k([query])
