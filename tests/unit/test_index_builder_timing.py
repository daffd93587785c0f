"""The times of searches, by a clock that only the searches move."""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from polyrank.index_builder.index import timing
from polyrank.index_builder.index.choice import SearchTimes
from polyrank.index_builder.index.timing import time_searches

RNG = np.random.default_rng(0)
MATRIX = RNG.standard_normal((256, 8)).astype(np.float16)
CONTEXTS = [RNG.standard_normal((3, 8)).astype(np.float32) for _ in range(4)]


class Machine:
    """Searches that find nothing and take as long as they are told: seconds by the number of rows."""

    def __init__(self, scan: Callable[[int], float], graph: Callable[[int], float]) -> None:
        self.now = 0.0
        self.scanned: list[int] = []
        self.searched: list[int] = []
        self._scan, self._graph = scan, graph

    def prepare(self, matrix: NDArray[Any]) -> "Machine":
        self._rows = len(matrix)
        return self

    def top_k(self, _queries: Sequence[object]) -> None:
        self.scanned.append(self._rows)
        self.now += self._scan(self._rows)

    def search(self, _index: object, matrix: NDArray[Any], _codes: object, _k: int) -> None:
        self.searched.append(len(matrix))
        self.now += self._graph(len(matrix))


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], SearchTimes]:
    """Times the searches of a machine in small samples."""

    def run(machine: Machine) -> SearchTimes:
        monkeypatch.setattr(timing, "thread_time", lambda: machine.now)
        monkeypatch.setattr(timing, "prepare", machine.prepare)
        monkeypatch.setattr(timing, "search", machine.search)
        return time_searches(MATRIX, CONTEXTS)

    monkeypatch.setattr(timing, "SCANNED_ROWS", 64)
    monkeypatch.setattr(timing, "GRAPH_ROWS", (4, 16))
    return run


def test_the_times_of_samples_are_predicted_for_the_pool(timed: Callable[[Machine], SearchTimes]) -> None:
    machine = Machine(scan=lambda _: 0.1, graph=lambda rows: 0.001 * rows)
    times = timed(machine)
    assert times.exact_ms == pytest.approx(100 * 4**0.82, abs=0.001), "four times the rows of the sample"
    assert times.hnsw_ms == pytest.approx(16 * 2), "twice the logarithm of the rows of the larger graph"
    assert (set(machine.scanned), set(machine.searched)) == ({64}, {4, 16})


def test_no_larger_graph_is_built_where_a_small_one_loses(timed: Callable[[Machine], SearchTimes]) -> None:
    machine = Machine(scan=lambda _: 0.001, graph=lambda _: 0.001)
    times = timed(machine)
    assert set(machine.searched) == {4}
    assert times.hnsw_ms == pytest.approx(4.0), "of the small graph"
    assert times.ratio > 1


def test_other_work_on_the_machine_changes_nothing(timed: Callable[[Machine], SearchTimes]) -> None:
    quiet = timed(Machine(scan=lambda _: 0.1, graph=lambda _: 0.02))
    scans, graphs = cycle([9.0] * 4 + [0.1] * 8), cycle([0.02] * 8 + [9.0] * 4)  # a round of four contexts is disturbed
    assert timed(Machine(scan=lambda _: next(scans), graph=lambda _: next(graphs))) == quiet


def test_a_real_scan_and_a_real_graph_are_timed() -> None:
    before = faiss.omp_get_max_threads(), torch.get_num_threads()
    times = time_searches(MATRIX[:100], CONTEXTS)
    assert min(times.exact_ms, times.hnsw_ms) > 0
    assert (faiss.omp_get_max_threads(), torch.get_num_threads()) == before
