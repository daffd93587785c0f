"""Compactions of what is served: no request fails, nothing that comes meanwhile is lost, and words are counted anew."""

import time
from pathlib import Path
from typing import Any

import pytest
from served import Served, serve
from server_process import Load
from service_fakes import build_store, load, pool
from waiting import until

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service.api.generations import JobOut
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

pytestmark = pytest.mark.usefixtures("warm_children")

COUNT = 60


def active(server: Served) -> dict[str, Any]:
    return dict(server.client.get("/index").json()["active"])


def put(server: Served, *rows: dict[str, Any]) -> int:
    response = server.client.put("/index/candidates", json=list(rows))
    assert response.status_code == 200, response.text
    return int(response.json()["revision"])


def ranking(server: Served, **fields: Any) -> list[tuple[str, float]]:
    response = server.client.post("/rank", json={"context": "w1 w2 w3", "top_k": 100, **fields})
    assert response.status_code == 200, response.text
    return [(each["id"], each["score"]) for each in response.json()["results"]]


@pytest.mark.parametrize("index", ["exact", "flat", "hnsw"])
def test_where_words_do_not_count_no_answer_changes(tmp_path: Path, index: str) -> None:
    before = build_store(tmp_path, pool(COUNT), index=index)
    with serve(create_app(Settings(store=tmp_path, keep_generations=1), load)) as server:
        response = server.client.post("/index/compact")
        assert (response.status_code, response.json()["type"].split(":")[-1]) == (409, "nothing-to-compact")
        put(server, {"id": "c1", "text": "w1 w2"}, {"id": "new", "text": "w3 w3", "metadata": {"lang": "en"}})
        server.client.post("/index/candidates/delete", json={"ids": ["c2", "c3"]})
        answers = [ranking(server, exact=True), ranking(server, filter={"lang": "en"})]
        response = server.client.post("/index/compact")
        assert response.status_code == 202
        assert JobOut.model_validate_json(response.content).compacts
        job = until(lambda: ended(server, response.headers["location"]))
        assert (job["state"], job["error"]) == ("succeeded", None)
        now = active(server)
        assert now["id"] == job["generation"] != before
        assert (now["count"], now["revision"], now["added"], now["removed"]) == (COUNT - 1, 2, 0, 0)
        assert now["index"] == index
        assert [ranking(server, exact=True), ranking(server, filter={"lang": "en"})] == answers
        assert until(lambda: GenerationStore(tmp_path).ids() == [now["id"]]), "what it replaced is collected"


def ended(server: Served, location: str) -> Any:
    job = server.client.get(location).json()
    return job if job["state"] in ("succeeded", "failed", "cancelled") else None


def test_it_comes_by_itself_and_fails_no_request(tmp_path: Path) -> None:
    build_store(tmp_path, pool(COUNT))

    def fault(answer: dict[str, Any]) -> str | None:
        return None if len(answer["results"]) == 5 else str(answer)

    with serve(create_app(Settings(store=tmp_path, compact_after=20), load)) as server:
        generations, put_until = {active(server)["id"]}, 0
        with Load(server.port, clients=2, check=fault) as asked:
            while len(generations) < 3:
                revision = put(server, {"id": f"n{put_until % 50}", "text": f"w{put_until % 40} w7"})
                put_until += 1
                assert revision == put_until
                generations.add(active(server)["id"])
        assert (asked.lost, asked.refused) == ([], 0)
        assert asked.answered[200] > 0
        known = {f"n{n}" for n in range(min(put_until, 50))}
        found = server.client.post("/rank", json={"context": "w7", "candidates": [{"id": each} for each in known]})
        assert found.json()["missing_ids"] == []
        assert active(server)["count"] == COUNT + len(known)


def test_a_pool_that_grows_from_one_reply_is_counted_in_time(tmp_path: Path) -> None:
    """Filled by single updates, it soon ranks by words, and after a compaction as one that is built from all of it."""
    rows = [Candidate(f"c{n}", f"the item{n} is one of topic{n % 30}") for n in range(275)]
    lexical = polyrank.load("lexical")
    assert isinstance(lexical, polyrank.LexicalRanker)
    build(lexical, rows[:1], tmp_path / "grown")
    build(lexical, rows, tmp_path / "built")
    asked = {"context": "where is item200", "top_k": 275}
    with serve(create_app(Settings(store=tmp_path / "grown"))) as server:
        for row in rows[1:]:
            put(server, {"id": row.id, "text": row.text})

        def counted() -> Any:
            return ranking(server, **asked)[0][0] == "c200" and active(server)["added"] < 275 // 2

        until(counted)
        words = server.app.state.resources.live.require().generation.words
        assert words.table.statistics.texts > 275 / 2

        def all_counted() -> bool:
            server.client.post("/index/compact")  # refused while another one runs, and when there is nothing to do
            return active(server)["added"] == 0

        until(all_counted)
        grown = ranking(server, **asked)
    with serve(create_app(Settings(store=tmp_path / "built"))) as server:
        assert ranking(server, **asked) == grown


def test_what_stands_in_for_the_active_generation_is_not_compacted(tmp_path: Path) -> None:
    stand_in = build_store(tmp_path, pool(COUNT))
    with serve(create_app(Settings(store=tmp_path), load)) as server:
        put(server, {"id": "new", "text": "w1"})
    bad = build_store(tmp_path, pool(COUNT))
    (tmp_path / "log" / f"{bad}.log").unlink()
    with serve(create_app(Settings(store=tmp_path, compact_after=1), load)) as server:
        assert active(server)["id"] == stand_in
        response = server.client.post("/index/compact")
        assert (response.status_code, response.json()["type"].split(":")[-1]) == (503, "not-ready")
        assert "stands in for the active generation" in response.json()["detail"]
        time.sleep(1.2)  # it has looked
        assert server.client.get("/index/jobs").json()["jobs"] == []
