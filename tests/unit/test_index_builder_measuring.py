from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from brute_force import paper_scores
from numpy.typing import NDArray

from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.index import measuring
from polyrank.index_builder.index import measuring as module
from polyrank.index_builder.index.choice import IndexSpec, SearchTimes
from polyrank.index_builder.index.faiss_index import CandidateIndex
from polyrank.index_builder.index.measuring import (
    EXACT,
    VECTORS,
    VECTORS_AND_WORDS,
    Probe,
    Probes,
    measured,
    time_searches,
)
from polyrank.model.representations import Additions

RNG = np.random.default_rng(0)
MATRIX = RNG.standard_normal((2000, 16)).astype(np.float16)
GIVEN = [Probe(RNG.standard_normal((int(count), 16)).astype(np.float32)) for count in RNG.integers(1, 5, 20)]


SEARCHED = np.random.default_rng(0).standard_normal((256, 8)).astype(np.float16)
CONTEXTS = [np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32) for _ in range(4)]


def built(factory: str, matrix: NDArray[np.float16] = MATRIX, **params: int) -> CandidateIndex:
    return CandidateIndex.build(IndexSpec("custom", factory, params), matrix)


def test_a_flat_index_finds_what_a_scan_finds() -> None:
    recall = Probes(MATRIX, GIVEN).measure(built("Flat"))
    assert (recall.at_10, recall.at_100, recall.probes, recall.count) == (1.0, 1.0, "given", 20)
    assert recall.p50_ms is not None
    assert recall.p99_ms is not None
    assert 0 < recall.p50_ms <= recall.p99_ms


def test_recall_is_the_share_of_the_best_by_score_that_an_index_finds() -> None:
    halved = MATRIX.copy()
    halved[1000:] = 0  # an index that has forgotten half the pool
    found = Probes(MATRIX, GIVEN).measure(built("Flat", halved))
    best = [np.argsort(-paper_scores(MATRIX, codes), kind="stable") for codes, _ in GIVEN]
    for share, places in ((found.at_10, 10), (found.at_100, 100)):
        expected = np.mean([(rows[:places] < 1000).mean() for rows in best])
        assert share == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_a_row_that_ties_with_the_last_place_counts_as_found() -> None:
    twins = np.repeat(MATRIX[:100], 30, axis=0)
    assert Probes(twins, []).measure(built("HNSW32", twins)).at_10 == 1.0


def test_probes_from_the_pool_do_not_find_themselves() -> None:
    alone = np.eye(16, dtype=np.float16)[[0, 0, 1]]
    probes = Probes(alone, [])
    assert sorted(scores.tolist() for scores in probes._scores) == [[0, 0], [1, 0], [1, 0]]
    recall = probes.measure(built("HNSW32", alone))
    assert (recall.at_10, recall.probes, recall.count) == (1.0, "pool", 3)


@pytest.mark.parametrize("count", [1, 2, 5, 11])
def test_recall_of_a_small_pool(count: int) -> None:
    for given in ([], GIVEN):
        assert Probes(MATRIX[:count], given).measure(built("HNSW32", MATRIX[:count])).at_100 == 1.0


def test_a_large_pool_is_probed_less(monkeypatch: pytest.MonkeyPatch) -> None:
    index = built("IVF4,Flat")
    assert Probes(MATRIX, []).measure(index).count == 256
    monkeypatch.setattr(module, "_PROBED_ROWS", 80_000)
    assert Probes(MATRIX, []).measure(index).count == 40
    monkeypatch.setattr(module, "_PROBED_ROWS", 1)
    assert Probes(MATRIX, GIVEN).measure(index).count == 20
    assert Probes(MATRIX, []).measure(index).count == 32


def test_given_probes_raise_the_search_until_enough_is_found() -> None:
    before = Probes(MATRIX, GIVEN).measure(built("IVF64,Flat", nprobe=1))
    index, recall = measured(built("IVF64,Flat", nprobe=1), MATRIX, GIVEN, 0.9)
    assert before.at_10 < 0.7
    assert recall.at_10 >= 0.9
    assert 2 <= index.spec.params["nprobe"] < 64
    assert recall.at_10 == Probes(MATRIX, GIVEN).measure(index).at_10


@pytest.mark.slow
def test_where_products_are_coarse_longer_lists_are_asked_for() -> None:
    index, recall = measured(built("IVF4,PQ4x4", nprobe=4), MATRIX, GIVEN, 0.99)
    assert recall.at_10 >= 0.99
    assert index.depth > 200


def test_enough_at_once_changes_nothing() -> None:
    index = built("IVF64,Flat", nprobe=64)
    assert measured(index, MATRIX, GIVEN, 0.95)[0] is index


def test_what_cannot_be_reached_is_refused_with_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    forgetful = MATRIX.copy()
    forgetful[500:] = 0
    with pytest.raises(
        BuildError, match=r"recall@10 of IVF4,Flat is 0\.\d{3} on 20 probes even with .*nprobe 4.*below the 0.95 asked"
    ):
        measured(built("IVF4,Flat", forgetful), MATRIX, GIVEN, 0.95)
    monkeypatch.setattr(module, "_RUNGS", 1)
    with pytest.raises(BuildError, match="even with nprobe 2, below"):
        measured(built("IVF64,Flat", nprobe=1), MATRIX, GIVEN, 0.95)


def test_without_given_probes_a_low_recall_is_only_doubted() -> None:
    index, recall = measured(built("IVF64,Flat", nprobe=1), MATRIX, [], 0.95)
    assert index.spec.params == {"nprobe": 1}
    assert recall.at_10 < 0.95
    doubt = recall.doubt(index.spec, 0.95)
    assert f"recall@10 of IVF64,Flat is {recall.at_10:.3f} on 256 of the pool's own vectors, below 0.95" in doubt
    assert recall.doubt(index.spec, 0.01) is None


def test_a_flat_index_need_not_be_measured_by_the_pool() -> None:
    assert measured(built("Flat"), MATRIX, [], 0.95)[1] is EXACT
    assert measured(built("Flat"), MATRIX, GIVEN, 0.95)[1].probes == "given"


def test_rows_that_only_words_find_count() -> None:
    forgetful = MATRIX.copy()
    forgetful[:100] = 0  # as good as lost, and words say most for them
    values = np.where(np.arange(len(MATRIX)) < 100, 100, 0).astype(np.float32)
    spoken = [Probe(codes, lambda: Additions(1.0, values)) for codes, _ in GIVEN]
    found = Probes(MATRIX, spoken).measure(built("Flat", forgetful))
    assert (found.at_10, found.at_100, found.of) == (1.0, 1.0, VECTORS_AND_WORDS)
    assert Probes(MATRIX, GIVEN).measure(built("Flat", forgetful)).of == VECTORS


def test_rows_that_are_good_by_both_can_be_missed_by_each_until_enough_are_retrieved() -> None:
    values = np.zeros(len(MATRIX), np.float32)
    values[:300] = 10  # the best by words; then come ten that are good by vectors as well
    matrix = np.zeros_like(MATRIX)
    matrix[-300:, 0] = 10
    matrix[300:310, 0], values[300:310] = 9, 9
    code = np.eye(1, 16, dtype=np.float32)
    found = Probes(matrix, [Probe(code, lambda: Additions(1.0, values))])
    assert found.measure(built("Flat", matrix)).at_10 == 0
    assert Probes(matrix, [Probe(code)]).measure(built("Flat", matrix)).at_10 == 1
    index, recall = measured(built("Flat", matrix), matrix, [Probe(code, lambda: Additions(1.0, values))], 1.0)
    assert (recall.at_10, index.depth) == (1.0, 400)


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

    def search(self, _index: object, matrix: NDArray[Any], _codes: object, k: int) -> None:
        self.searched.append(len(matrix))
        self.now += self._graph(len(matrix))


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], SearchTimes]:
    """Times the searches of a machine in small samples."""

    def run(machine: Machine) -> SearchTimes:
        monkeypatch.setattr(measuring, "thread_time", lambda: machine.now)
        monkeypatch.setattr(measuring, "prepare", machine.prepare)
        monkeypatch.setattr(measuring, "search", machine.search)
        return time_searches(SEARCHED, CONTEXTS)

    monkeypatch.setattr(measuring, "SCANNED_ROWS", 64)
    monkeypatch.setattr(measuring, "GRAPH_ROWS", (4, 16))
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
    times = time_searches(SEARCHED[:100], CONTEXTS)
    assert min(times.exact_ms, times.hnsw_ms) > 0
    assert (faiss.omp_get_max_threads(), torch.get_num_threads()) == before
