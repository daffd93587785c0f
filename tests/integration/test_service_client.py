"""The Python clients against a server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from in_process import TestClient
from served import serve
from service_fakes import build_store, load, pool
from tiny import tiny_app

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.service.api.answers import RankOut
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

pytestmark = pytest.mark.usefixtures("warm_children")


@pytest.fixture(scope="module")
def api(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    store = tmp_path_factory.mktemp("store")
    build(polyrank.load(checkpoints / "poly"), pool(20), store)
    with TestClient(tiny_app(store=store, feedback="ids")) as client:
        yield client


@pytest.fixture(scope="module")
def client(api: TestClient) -> Iterator[polyrank.Client]:
    with polyrank.Client("http://localhost", transport=api._transport) as client:
        yield client


def test_ranking(client: polyrank.Client) -> None:
    ranking = client.rank("w1 w2", top_k=3, timeout_ms=5000)
    assert [reply.rank for reply in ranking.results] == [1, 2, 3]
    assert ranking.generation == client.index().active.id
    sent = client.rank(["w1", {"role": "user", "text": "w2"}], candidates=["w1", {"id": "x", "text": "w2"}])
    assert {reply.index for reply in sent.results} == {0, 1}


def test_feedback(client: polyrank.Client) -> None:
    ranking = client.rank("w1 w2", top_k=3, conversation="ticket 7")
    assert ranking.ranking_id is not None
    told = client.feedback(ranking.ranking_id, "edited", id=ranking.results[0].id, text="w1 w2!", event_id="mine")
    assert (told.accepted, told.repeated) == (1, 0)
    events = [
        {"ranking_id": ranking.ranking_id, "kind": "edited", "text": "w1 w2!", "event_id": "mine"},
        {"ranking_id": ranking.ranking_id, "kind": "resolved"},
    ]
    told = client.feedback_batch(events)
    assert (told.accepted, told.repeated) == (1, 1)
    with pytest.raises(polyrank.NotThere, match="ranking"):
        client.feedback("made up", "resolved")
    assert client.rank("w1 w2", log=False).ranking_id is None


def test_an_explanation(client: polyrank.Client) -> None:
    told = client.explain(["w1 w2", "w3"], ["w1", {"id": "c2"}], against="c2", codes=1, pairs=True, timeout_ms=5000)
    first, rival = told.candidates
    assert [token.text for token in told.context.tokens if token.turn == 1] == ["w3"]
    assert first.tokens is not None
    assert rival.relative == [0.0] * len(told.context.tokens)
    assert first.explained == pytest.approx(sum(first.tokens))
    assert first.codes is not None
    assert len(first.codes) == 1
    with pytest.raises(polyrank.RequestWrong, match="against"):
        client.explain("w1", ["w2"], against="nobody")


def test_a_batch(client: polyrank.Client) -> None:
    bodies = [{"context": "w1", "top_k": 1}, {"context": "w1", "top_k": 0}, {"context": "w2", "top_k": 2}]
    first, second, third = client.rank_batch(bodies, timeout_ms=5000)
    assert isinstance(first, RankOut)
    assert isinstance(second, polyrank.RequestWrong)
    assert (second.status, second.findings[0].where) == (422, "top_k")
    assert len(third.results) == 2


def test_stored_candidates(client: polyrank.Client) -> None:
    every = list(client.candidates(page=7))
    assert sorted(each.id for each in every) == sorted(f"c{n}" for n in range(20))
    assert client.candidate(every[3].id).text == every[3].text
    even = {each.id for each in client.candidates({"even": True})}
    assert even == {each.id for each in every if each.metadata["even"]}
    with pytest.raises(polyrank.NotThere):
        client.candidate("a/b?c")


def test_reranking_and_embedding(client: polyrank.Client) -> None:
    first, second = client.rerank("w1", ["w3", {"text": "w1"}], timeout_ms=5000)
    assert {first.index, second.index} == {0, 1}
    assert 1 >= first.relevance_score >= second.relevance_score >= 0
    [raw] = client.rerank("w1", ["w3", "w1"], raw_scores=True, top_n=1)
    assert raw.index == first.index
    vectors = client.embed(["w1", "w2"])
    assert (vectors.shape[0], vectors.dtype) == (2, np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_refusals(client: polyrank.Client) -> None:
    with pytest.raises(polyrank.RequestWrong, match="top_k") as raised:
        client.rank("w1", top_k=0)
    assert raised.value.findings[0].where == "top_k"
    assert raised.value.kind == "invalid-input"
    with pytest.raises(polyrank.NotThere):
        client.job("none")
    with pytest.raises(polyrank.RequestWrong):
        client.rerank(" ", ["a"])
    with pytest.raises(polyrank.Conflicting):
        client.rank("w1", expect={"generation": "other"})


def test_updates_and_a_rebuild(client: polyrank.Client) -> None:
    before = client.index().active
    assert before is not None
    put = client.upsert([{"id": "new", "text": "w7 w8", "metadata": {"shelf": "new"}}])
    assert put.upserted == 1
    found = client.rank("w7 w8", filter={"shelf": "new"}, min_revision=put.revision).results
    assert [(reply.id, reply.metadata) for reply in found] == [("new", {"shelf": "new"})]
    assert client.delete(["new", "absent"]).missing_ids == ["absent"]
    job = client.rebuild(candidates=[{"id": f"c{n}", "text": f"w{n}"} for n in range(5)])
    *_, last = client.watch(job.id, every_s=0.05)
    assert (last.state, last.generation) == ("succeeded", client.index().active.id)
    assert client.jobs()[0].id == job.id
    assert client.cancel(job.id).state == "succeeded"
    assert client.rollback().active.id == before.id
    assert client.activate(str(last.generation)).active.id == last.generation


def test_asyncio_over_a_socket(tmp_path: Path) -> None:
    build_store(tmp_path)

    async def explain(url: str) -> tuple[str, str]:
        async with polyrank.AsyncClient(url) as client:
            with pytest.raises(polyrank.RequestWrong) as raised:
                await client.explain("w1", [{"id": "nobody"}])
            return raised.value.kind, str(raised.value)

    async def ask(url: str) -> list[str]:
        async with polyrank.AsyncClient(url) as client:
            rankings = await asyncio.gather(*(client.rank(f"w{n}", top_k=1) for n in range(4)))
            return [ranking.results[0].text for ranking in rankings]

    with serve(create_app(Settings(store=tmp_path), load)) as served, polyrank.Client(served.url) as blocking:
        assert asyncio.run(ask(served.url)) == [blocking.rank(f"w{n}", top_k=1).results[0].text for n in range(4)]
        assert asyncio.run(explain(served.url))[0] == "unknown-candidates"
    with pytest.raises(polyrank.NoAnswer, match="is polyrank serve running"), polyrank.Client(served.url) as gone:
        gone.index()
