"""Equal texts tie, to the bit, and the older row comes first: whoever encoded them, when, and in which batch."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_fakes import asked, open_serving, rank
from shards_in_process import ServedParts
from tiny import write_checkpoint
from updated import LiveStore, updated

import polyrank
from polyrank.index_builder.building.compaction import compact
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.model.rankers.networks import VectorRanker
from polyrank.service.changes.updating import Acknowledged, Updating
from polyrank.service.ranking.values import Given, RankedCandidate

KINDS: dict[str, dict[str, Any]] = {
    "bi": {"architecture": "bi"}, "poly": {"architecture": "poly", "n_codes": 4},
    "colbert": {"architecture": "colbert"}, "mix": {"architecture": "mix"},
}  # fmt: skip
TEXTS = [" ".join(f"w{(n * 7 + at * at) % 40}" for at in range(1 + n % 13)) + f" w{n}" for n in range(40)]
CONTEXT = "w1 w5 w9 w20 w30 w2"


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VectorRanker:
    path = write_checkpoint(tmp_path_factory.mktemp(request.param), request.param, 3, **KINDS[request.param])
    ranker = polyrank.load(path)
    assert isinstance(ranker, VectorRanker)
    return ranker


def old() -> list[Candidate]:
    return [Candidate(f"old{n}", text) for n, text in enumerate(TEXTS)]


def new(prefix: str = "new") -> list[Candidate]:
    return [Candidate(f"{prefix}{n}", text) for n, text in enumerate(TEXTS)]


def assert_tied(places: Sequence[RankedCandidate], *prefixes: str) -> None:
    """Each text is there once under each prefix, with one score, in the order of the prefixes."""
    found: dict[str, list[RankedCandidate]] = {}
    for place in places:
        found.setdefault(place.text, []).append(place)
    assert len(found) == len(TEXTS)
    for text, alike in found.items():
        assert {place.score for place in alike} == {alike[0].score}, text
        assert [place.id for place in alike] == [f"{prefix}{TEXTS.index(text)}" for prefix in prefixes]


def test_a_batch_changes_a_vector(model: VectorRanker) -> None:
    together = encode_texts(model, TEXTS).first
    alone = np.concatenate([encode_texts(model, [text]).first for text in TEXTS])
    assert not np.array_equal(together, alone), "so there is something to mend"


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_texts_that_are_put_again_tie_with_those_that_were_built(
    model: VectorRanker, tmp_path: Path, dtype: str
) -> None:
    build(model, old(), tmp_path, BuildOptions(index="exact", dtype=dtype))
    live = LiveStore(tmp_path, load=lambda _: model)
    mixed, at = new("batch"), 0
    random.Random(1).shuffle(mixed)
    for candidate in new("one"):
        live.upsert(candidate)
    while at < len(mixed):
        live.upsert(*mixed[at : at + 7])
        at += 7
    request = asked(CONTEXT, top_k=200, exact=True)
    assert_tied(rank(live.serving, request).places, "old", "one", "batch")
    live.close()
    compact(tmp_path)
    again = LiveStore(tmp_path, load=lambda _: model)
    assert_tied(rank(again.serving, request).places, "old", "one", "batch")
    again.close()


def test_new_texts_of_several_updates_tie(model: VectorRanker, tmp_path: Path) -> None:
    build(model, [Candidate("x", "w39 w38")], tmp_path, BuildOptions(index="exact"))
    live = LiveStore(tmp_path, load=lambda _: model)
    live.upsert(*new("a"), *new("b"))
    live.upsert(*reversed(new("c")))
    live.delete("x", *(f"a{n}" for n in range(40)))
    live.upsert(*new("d"))
    assert_tied(rank(live.serving, asked(CONTEXT, top_k=200, exact=True)).places, "b", "c", "d")
    live.close()


def test_equal_texts_of_a_pool_tie_whichever_chunk_they_are_in(
    model: VectorRanker, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(candidates, "BATCH_ROWS", 17)
    rows = [*old(), *reversed(new("second")), *new("third")]
    build(model, rows, tmp_path, BuildOptions(index="exact"))
    serving = open_serving(tmp_path, load=lambda _: model)
    assert_tied(rank(serving, asked(CONTEXT, top_k=200, exact=True)).places, "old", "second", "third")


def test_updates_tie_with_a_pool_that_is_built_after_them(model: VectorRanker, tmp_path: Path) -> None:
    build(model, [Candidate("x", "w39 w38")], tmp_path, BuildOptions(index="exact"))
    live = LiveStore(tmp_path, load=lambda _: model)
    for candidate in new():
        live.upsert(candidate)
    live.close()
    build(model, old(), tmp_path, BuildOptions(index="exact", revision=0))
    serving = open_serving(tmp_path, load=lambda _: model)
    assert_tied(rank(serving, asked(CONTEXT, top_k=200, exact=True)).places, "old", "new")


@pytest.mark.parametrize("parts", [1, 3])
def test_a_text_that_is_sent_scores_as_the_stored_one(model: VectorRanker, tmp_path: Path, parts: int) -> None:
    build(model, [*old()[:20], *new()[:20]], tmp_path, BuildOptions(index="exact"), parts=parts)
    live = LiveStore(tmp_path, load=lambda _: model)
    live.upsert(*old()[20:30])
    live.upsert(*new()[20:30])
    texts = [Given(None, text) for text in TEXTS]
    ids = [Given(f"{prefix}{n}", None) for prefix in ("old", "new") for n in range(30)]
    sent = (*ids, *texts, *reversed(texts))
    found: dict[str, list[float]] = {}
    for place in rank(live.serving, asked(CONTEXT, top_k=200, candidates=sent)).places:
        found.setdefault(place.text, []).append(place.score)
    assert [len(found[text]) for text in TEXTS] == [4] * 30 + [2] * 10
    assert all(len(set(scores)) == 1 for scores in found.values())
    live.close()


def test_a_pool_in_parts(model: VectorRanker, tmp_path: Path) -> None:
    build(model, [*old(), *new("again")], tmp_path, BuildOptions(index="exact"), parts=3)
    served = ServedParts(tmp_path, load=lambda _: model)
    request = asked(CONTEXT, top_k=200, exact=True)
    for candidate in new("one"):
        served.upsert(candidate)
    served.upsert(*new("batch"))
    [ranked] = served.rank(request)
    assert_tied(ranked.places, "old", "again", "one", "batch")
    served.close()
    compact(tmp_path)
    served = ServedParts(tmp_path, load=lambda _: model)
    [ranked] = served.rank(request)
    assert_tied(ranked.places, "old", "again", "one", "batch")
    served.close()


def test_updates_tie_with_a_pool_in_parts_that_is_built_after_them(model: VectorRanker, tmp_path: Path) -> None:
    build(model, new("x"), tmp_path, BuildOptions(index="exact"), parts=2)
    served = ServedParts(tmp_path, load=lambda _: model)
    for candidate in reversed(new("one")):
        served.upsert(candidate)
    served.close()
    build(model, old(), tmp_path, BuildOptions(index="exact", revision=0), parts=3)
    served = ServedParts(tmp_path, load=lambda _: model)
    [ranked] = served.rank(asked(CONTEXT, top_k=200, exact=True))
    assert_tied(ranked.places, "old", "one")
    served.close()


def test_what_two_writers_encoded_at_once_is_one_vector_for_every_reader(model: VectorRanker, tmp_path: Path) -> None:
    build(model, old()[:5], tmp_path, BuildOptions(index="exact"))
    serving = open_serving(tmp_path, load=lambda _: model)
    for prefix in ("one", "two"):  # each has its own batches, and knows nothing of the other
        for candidate in new(prefix)[5:]:
            serving = updated(serving, candidate)
    serving = updated(serving, *new("one")[:5], *old()[5:])
    places = rank(serving, asked(CONTEXT, top_k=200, exact=True)).places
    scores: dict[str, set[float]] = {}
    for place in places:
        scores.setdefault(place.text, set()).add(place.score)
    assert len(scores) == 40
    assert all(len(found) == 1 for found in scores.values())


def test_updates_of_one_text_at_the_same_time_tie_in_all_parts(model: VectorRanker, tmp_path: Path) -> None:
    build(model, [Candidate(f"x{n}", f"w{n}") for n in range(20)], tmp_path, BuildOptions(index="exact"), parts=3)
    served = ServedParts(tmp_path, load=lambda _: model)
    before = [f"x{n}" for n in range(20)]

    async def at_once(updating: Updating) -> Acknowledged:
        changes = [[each] for each in new("one")] + [new("two")[at : at + 9] for at in range(0, 40, 9)]
        await asyncio.gather(*map(updating.upsert, changes))
        return await updating.delete(before)

    served.updated(at_once)
    [ranked] = served.rank(asked(CONTEXT, top_k=200, exact=True))
    served.close()
    found: dict[str, list[float]] = {}
    for place in ranked.places:
        found.setdefault(place.text, []).append(place.score)
    assert {len(scores) for scores in found.values()} == {2}
    assert all(one == other for one, other in found.values())
