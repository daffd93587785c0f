"""Real models: what comes back from a batch is what comes back alone."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from service_fakes import WORDS, ranking, running
from tiny import write_checkpoint

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.rankers.load import load_cross
from polyrank.model.text.assembly import Conversation
from polyrank.service.live.searchable import Opener
from polyrank.service.ranking.here import serve
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.values import Ranked, RankRequest, SentCandidate

Scores = list[tuple[str | None, float, float | None]]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    poly = write_checkpoint(root, "poly", seed=1, architecture="poly", n_codes=4)
    return poly, write_checkpoint(root, "cross", seed=2, architecture="cross")


@pytest.fixture(scope="module")
def store(checkpoints: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> GenerationStore:
    root = tmp_path_factory.mktemp("store")
    rng = np.random.default_rng(0)
    pool = [Candidate(f"c{n}", " ".join(rng.choice(WORDS, rng.integers(1, 8)))) for n in range(100)]
    build(polyrank.load(str(checkpoints[0])), pool, root)
    return GenerationStore(root)


@contextmanager
def served(store: GenerationStore, backend: str) -> Iterator[Serving]:
    parts = store.open_parts(store.ids()[0])
    log = store.updates.of(parts[0].manifest)
    yield serve(Opener(lambda *_: None, None, partial(polyrank.load, backend=backend)), parts, log)
    parts[0].close()


@pytest.fixture(scope="module")
def serving(store: GenerationStore) -> Iterator[Serving]:
    with served(store, "torch") as serving:
        yield serving


def requests(count: int) -> list[RankRequest]:
    """Of many lengths; every third with candidates of its own, every second with a second look."""
    rng = np.random.default_rng(7)

    def words(most: int) -> str:
        return " ".join(rng.choice(WORDS, rng.integers(1, most)))

    return [
        RankRequest(
            conversation=Conversation.of([words(12) for _ in range(rng.integers(1, 4))]),
            candidates=tuple(SentCandidate(f"g{at}", words(10)) for at in range(12)) if n % 3 == 0 else None,
            top_n=5 if n % 2 else None,
        )
        for n in range(count)
    ]


def answers(serving: Serving, cross: Path, asked: list[RankRequest], together: bool, batch_tokens: int) -> list[Scores]:
    async def scene() -> list[Ranked]:
        reranker = load_cross(str(cross), backend=serving.ranker.backend)
        with running(reranker, batch_tokens=batch_tokens) as runtime:
            if together:
                return await asyncio.gather(*(ranking(runtime, serving, each) for each in asked))
            return [await ranking(runtime, serving, each) for each in asked]

    return [[(place.id, place.vector, place.cross) for place in ranked.places] for ranked in asyncio.run(scene())]


@pytest.mark.parametrize("batch_tokens", [64, 512])
def test_together_as_alone(serving: Serving, checkpoints: tuple[Path, Path], batch_tokens: int) -> None:
    asked = requests(40)
    alone = answers(serving, checkpoints[1], asked, False, batch_tokens)
    together = answers(serving, checkpoints[1], asked, True, batch_tokens)
    for one, other in zip(alone, together, strict=True):
        first, second = ({each: (late, cross) for each, late, cross in scores} for scores in (one, other))
        assert first.keys() == second.keys()
        for each in first:
            assert first[each] == pytest.approx(second[each], abs=1e-4)


@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_deterministic_scores_are_equal_to_the_last_bit(
    store: GenerationStore, checkpoints: tuple[Path, Path], backend: str
) -> None:
    asked = requests(40)
    with served(store, backend) as serving:
        alone = answers(serving, checkpoints[1], asked, False, 0)
        assert answers(serving, checkpoints[1], asked, True, 0) == alone
        assert answers(serving, checkpoints[1], asked[::-1], True, 0)[::-1] == alone
