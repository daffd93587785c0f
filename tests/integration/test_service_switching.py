"""Switching between generations while requests come: none fails, and no answer is of two."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fakes import flip
from in_process import TestClient
from served import serve
from server_process import Load
from service_fakes import WordRanker, build_store, pool, words_app
from waiting import until

from polyrank.index_builder.store import locks
from polyrank.index_builder.store.generation_store import GenerationStore

SWITCHES = 20
CLIENTS = 4


@pytest.mark.parametrize("ways", [pytest.param("calls", marks=pytest.mark.quick), "another process"])
def test_no_request_fails_and_no_answer_is_of_two_generations(tmp_path: Path, ways: str) -> None:
    one = build_store(tmp_path, pool(300, "a"), index="flat")
    other = build_store(tmp_path, pool(300, "b"), index="exact", ranker=WordRanker(1))
    store = GenerationStore(tmp_path)
    prefixes, seen = {one: "a", other: "b"}, Counter[str]()

    def fault(answer: dict[str, Any]) -> str | None:
        generation, results = answer["generation"], answer["results"]
        seen[generation] += 1
        is_right = len(results) == 10 and all(each["id"].startswith(prefixes[generation]) for each in results)
        return None if is_right else str(answer)

    body = {"context": "w1 w2", "top_k": 10}
    with serve(words_app(tmp_path)) as server, Load(server.port, CLIENTS, body, check=fault) as asked:
        live = server.app.state.resources.live
        for n in range(SWITCHES):
            target = (one, other)[n % 2]
            before = seen[target]
            if ways == "calls":
                response = server.client.post("/index/activate", json={"generation": target})
                assert response.json()["active"]["id"] == target
            else:
                store.activate(target)
                live.follow_current()  # as the watch does each second
            until(lambda target=target, before=before: seen[target] > before + CLIENTS or asked.lost)
    assert asked.lost == []
    assert set(seen) == {one, other}
    assert live.current is None, "let go of at the end"


def test_a_flipped_byte_at_the_start_gives_way_to_the_one_before(tmp_path: Path) -> None:
    good, bad = (build_store(tmp_path, pool(20, prefix), index="flat") for prefix in "ab")
    flip(tmp_path, bad)
    with TestClient(words_app(tmp_path)) as client:
        assert client.get("/readyz").json() == {"status": "ready", "generation": good}
        body = client.get("/index").json()
        assert body["active"]["id"] == good
        assert [each["id"] for each in body["refused"]] == [bad]
        assert 'polyrank_index_verify_failures_total{kind="corrupt"} 1.0' in client.get("/metrics").text


def test_a_damaged_generation_is_not_switched_to(tmp_path: Path) -> None:
    bad, good = (build_store(tmp_path, pool(20, prefix)) for prefix in "ab")
    flip(tmp_path, bad)
    with TestClient(words_app(tmp_path)) as client:
        for response in (client.post("/index/activate", json={"generation": bad}), client.post("/index/rollback")):
            assert response.status_code == 409
            assert "embeddings.bin" in response.json()["detail"]
        assert client.get("/index").json()["active"]["id"] == good
        assert client.post("/rank", json={"context": "w1"}).status_code == 200
        assert GenerationStore(tmp_path).current() == good


def test_nothing_to_serve_is_alive_but_not_ready(tmp_path: Path) -> None:
    with TestClient(words_app(tmp_path / "new")) as client:
        assert client.get("/livez").status_code == 200
        for response in (client.get("/readyz"), client.post("/rank", json={"context": "w1"})):
            assert response.status_code == 503
            assert response.json()["type"].endswith("not-ready")
            assert "polyrank build" in response.json()["detail"]
            assert int(response.headers["retry-after"]) > 0
        body = client.get("/index").json()
        assert (body["active"], body["others"], body["job"]) == (None, [], None)
        assert client.get("/info").json()["generation"] is None


def test_a_switch_that_waits_for_a_lock_in_vain_says_who_holds_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.1)
    one, other = build_store(tmp_path, pool(20, "a")), build_store(tmp_path, pool(20, "b"))
    with serve(words_app(tmp_path)) as server:
        with locks.locked(tmp_path / "pointer.lock"):
            refused = server.client.post("/index/activate", json={"generation": one})
            assert (refused.status_code, refused.json()["type"]) == (503, "urn:polyrank:problem:store-busy")
            assert f"pointer.lock is held by process {os.getpid()} on" in refused.json()["detail"]
            assert refused.headers["retry-after"] == "5"
            assert server.client.post("/index/rollback").status_code == 503
        assert server.client.get("/index").json()["refused"] == []
        assert server.rank(context="w1").json()["generation"] == other
        assert server.client.post("/index/activate", json={"generation": one}).status_code == 200
