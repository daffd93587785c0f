"""Which index a build chooses, by times that are given."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import HashEncoder, pool
from numpy.typing import NDArray

from polyrank.index_builder.building import pipeline
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions, BuildResult
from polyrank.index_builder.building.stages import EncodedContext
from polyrank.index_builder.index import choice
from polyrank.index_builder.index.choice import SearchTimes
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.text.assembly import Conversation, Truncation

SCAN_IS_FAST = SearchTimes(10.0, 7.5)
HNSW_IS_FAST = SearchTimes(10.0, 7.0)

Codes = NDArray[np.float32]


class ConversationEncoder(HashEncoder):
    """Also encodes contexts: a code for each turn."""

    def tokenize_context(self, conversation: Conversation) -> tuple[list[int], Truncation]:
        self.said = [*getattr(self, "said", []), [turn.text for turn in conversation.turns]]
        return [len(self.said) - 1], Truncation()

    def encode_contexts(self, contexts: Sequence[list[int]]) -> list[Codes]:
        return [np.stack([self.vector(text) for text in self.said[at]]) for (at,) in contexts]


class Clock:
    """Stands in for the measurement: gives these times, and keeps what it was asked to measure with."""

    def __init__(self, times: SearchTimes) -> None:
        self.times = times
        self.asked: list[tuple[tuple[int, ...], Sequence[Codes]]] = []

    def __call__(self, matrix: NDArray[Any], contexts: Sequence[Codes]) -> SearchTimes:
        self.asked.append((matrix.shape, contexts))
        return self.times


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[BuildResult, Clock]]:
    """Builds 40 candidates, which is enough to be measured."""
    monkeypatch.setattr(choice, "MEASURED_FROM", 40)

    def run(
        times: SearchTimes = HNSW_IS_FAST, count: int = 40, encoder: HashEncoder | None = None, **options: Any
    ) -> tuple[BuildResult, Clock]:
        clock = Clock(times)
        monkeypatch.setattr(pipeline, "time_searches", clock)
        return build(encoder or HashEncoder(), pool(count), tmp_path, BuildOptions(**options)), clock

    return run


Built = Callable[..., tuple[BuildResult, Clock]]


@pytest.mark.parametrize(("times", "kind"), [(SCAN_IS_FAST, "exact"), (HNSW_IS_FAST, "hnsw")])
def test_auto_takes_hnsw_where_it_is_clearly_faster(built: Built, tmp_path, times: SearchTimes, kind: str) -> None:
    result, clock = built(times)
    assert [shape for shape, _ in clock.asked] == [(40, 8)]
    generation = GenerationStore(tmp_path).open(result.generation)
    assert (generation.index is None) == (kind == "exact")
    assert generation.manifest.index == result.worst.index
    generation.close()
    assert (result.worst.index.kind, result.worst.index.asked, result.worst.index.times) == (kind, "auto", times)
    assert "choose" in generation.manifest.build.seconds
    assert result.worst.index.why == (
        f"auto chose {kind}: for one context the scan takes 10.0 ms, hnsw {times.hnsw_ms} ms of one core"
    )


def test_hnsw_stays_until_it_is_slower_than_the_scan(built: Built) -> None:
    slower = SearchTimes(10.0, 10.5)
    kinds = [built(times)[0].worst.index.kind for times in (HNSW_IS_FAST, SCAN_IS_FAST, slower, SCAN_IS_FAST)]
    assert kinds == ["hnsw", "hnsw", "exact", "exact"]


def test_hnsw_that_was_asked_for_does_not_stay_with_auto(built: Built) -> None:
    built(index="hnsw")
    assert built(SCAN_IS_FAST)[0].worst.index.kind == "exact"


def test_a_small_pool_is_scanned_unmeasured(built: Built, tmp_path: Path) -> None:
    result, clock = built(count=39)
    assert (result.worst.index.kind, result.worst.index.times, result.worst.index.why, clock.asked) == (
        "exact", None, None, [],
    )  # fmt: skip
    assert "choose" not in GenerationStore(tmp_path).manifest(result.generation).build.seconds


def test_a_pool_whose_graph_has_no_room_is_not_measured(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "HNSW_BYTES", 1000)
    result, clock = built()
    assert (result.worst.index.kind, result.worst.index.times, clock.asked) == ("ivf", None, [])


@pytest.mark.parametrize("index", ["exact", "flat", "hnsw", "ivf", "IVF2,SQ8"])
def test_an_index_that_is_asked_for_is_not_measured_against_the_scan(built: Built, index: str) -> None:
    result, clock = built(index=index)
    assert (result.worst.index.asked, result.worst.index.times, clock.asked) == (index, None, [])


def test_given_probes_are_the_contexts(built: Built) -> None:
    probes = [EncodedContext(Conversation.of(["hello"]), np.full((2, 8), n, np.float32)) for n in range(30)]
    _, clock = built(SCAN_IS_FAST, probes=probes)
    ((_, contexts),) = clock.asked
    assert [codes[0, 0] for codes in contexts] == list(range(0, 24, 2))


def test_without_probes_candidates_that_follow_each_other_are_the_contexts(built: Built) -> None:
    encoder = ConversationEncoder()
    _, clock = built(encoder=encoder)
    ((_, contexts),) = clock.asked
    assert [codes.shape for codes in contexts] == [(4, 8)] * 12
    assert encoder.said[0] == [f"text {n}" for n in range(4)]
    assert encoder.said[-1] == [f"text {n}" for n in range(36, 40)]


def test_a_model_that_encodes_no_contexts_is_measured_with_the_pools_vectors(built: Built) -> None:
    encoder = HashEncoder()
    _, clock = built(encoder=encoder)
    ((_, contexts),) = clock.asked
    assert [codes.shape for codes in contexts] == [(1, 8)] * 12
    assert (contexts[-1][0] == encoder.vector("text 36")).all()
