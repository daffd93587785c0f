"""Updates over HTTP: searchable when acknowledged, on every server of the store, and still there after a kill."""

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from command_line import READY, call, ended, forked, pool_rows, write_rows
from served import Served, serve
from service_fakes import build_store, load, pool
from tiny import tiny_app
from waiting import until
from warm_python import WarmPython

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service.api.answers import RankOut
from polyrank.service.api.generations import DeletedOut, IndexOut, UpsertedOut
from polyrank.service.app import create_app
from polyrank.service.http.plumbing.problems import Problem
from polyrank.service.settings import Settings

COUNT = 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build_store(tmp_path / "store", pool(COUNT))
    return tmp_path / "store"


@pytest.fixture
def server(root: Path) -> Iterator[Served]:
    with serve(create_app(Settings(store=root, max_candidates=50, max_text_chars=100), load)) as served:
        yield served


def put(server: Served, *rows: dict[str, Any]) -> dict[str, Any]:
    response = server.client.put("/index/candidates", json=list(rows))
    assert response.status_code == 200, response.text
    UpsertedOut.model_validate_json(response.content, strict=True)
    return dict(response.json())


def delete(server: Served, *ids: str) -> dict[str, Any]:
    response = server.client.post("/index/candidates/delete", json={"ids": ids})
    assert response.status_code == 200, response.text
    DeletedOut.model_validate_json(response.content, strict=True)
    return dict(response.json())


def rank(server: Served, **fields: Any) -> dict[str, Any]:
    response = server.rank(**{"context": "w1 w2 w3", "top_k": 1000, **fields})
    assert response.status_code == 200, response.text
    RankOut.model_validate_json(response.content, strict=True)
    return dict(response.json())


def ids(answer: dict[str, Any]) -> set[str]:
    return {each["id"] for each in answer["results"]}


def active(server: Served) -> dict[str, Any]:
    response = server.client.get("/index")
    IndexOut.model_validate_json(response.content, strict=True)
    return dict(response.json()["active"])


def problem(response: httpx2.Response, status: int, slug: str) -> str:
    assert response.status_code == status, response.text
    told = Problem.model_validate_json(response.content, strict=True)
    assert told.type.endswith(f":{slug}")
    assert "\n" not in told.detail
    return told.detail


def logs(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / "log").glob("*.log")))


@pytest.mark.quick
def test_put_is_searchable_at_once_and_deleted_is_not(server: Served) -> None:
    assert rank(server)["revision"] == 0
    done = put(server, {"id": "new", "text": "w1 w2 w3", "metadata": {"lang": "xx"}}, {"id": "c1", "text": "w39"})
    assert (done["generation"], done["revision"], done["upserted"]) == (active(server)["id"], 1, 2)
    answer = rank(server, filter={"lang": "xx"})
    [found] = answer["results"]
    assert (answer["revision"], found["id"], found["text"], found["metadata"]) == (1, "new", "w1 w2 w3", {"lang": "xx"})
    by_id = rank(server, candidates=[{"id": "new"}, {"id": "c1"}])
    assert {each["id"]: each["text"] for each in by_id["results"]} == {"new": "w1 w2 w3", "c1": "w39"}
    assert by_id["revision"] == 1
    gone = delete(server, "new", "c2", "c2")
    assert (gone["generation"], gone["revision"], gone["deleted"], gone["missing_ids"]) == (
        done["generation"], 2, 2, [],
    )  # fmt: skip
    answer = rank(server)
    assert answer["revision"] == 2
    assert ids(answer) == {f"c{n}" for n in range(COUNT)} - {"c2"}


def test_an_id_is_made_from_the_text(server: Served) -> None:
    put(server, {"text": "w1 w1 w7"})
    [made] = ids(rank(server)) - {f"c{n}" for n in range(COUNT)}
    put(server, {"text": "w1 w1 w7", "metadata": {"again": True}})
    assert active(server)["count"] == COUNT + 1
    assert delete(server, made)["deleted"] == 1


def test_counts_are_those_of_what_is_served(server: Served) -> None:
    put(server, *({"id": f"n{n}", "text": f"w{n}"} for n in range(3)), {"id": "c0", "text": "w0"})
    delete(server, "c1", "n0", "nobody")
    told = active(server)
    assert (told["count"], told["revision"], told["added"], told["removed"]) == (COUNT + 1, 2, 3, 2)
    assert (server.metric("index_candidates"), server.metric("index_revision")) == (COUNT + 1, 2)
    assert server.metric("index_changed_rows") == 7
    assert server.metric("updated_candidates_total", kind="upsert") == 4
    assert server.metric("updated_candidates_total", kind="delete") == 2
    text = server.client.get("/metrics").text
    assert f"polyrank_index_candidates {COUNT + 1}.0" in text
    assert "polyrank_index_revision 2.0" in text


@pytest.mark.parametrize(("body", "status", "slug", "what"), [
    ([], 422, "invalid-input", "must not be empty"),
    ([{"id": "a", "text": "x"}, {"id": "b", "text": "x"}, {"id": "a", "text": "y"}], 422, "invalid-input", "2 times"),
    ([{"text": "same"}, {"text": "same"}], 422, "invalid-input", "2 times"),
    ([{"id": "a", "text": " "}], 422, "invalid-input", "empty"),
    ([{"id": "a"}], 422, "invalid-input", "text"),
    ([{"id": "", "text": "x"}], 422, "invalid-input", "id"),
    ([{"id": "a", "text": "x", "metadata": {"$x": 1}}], 422, "invalid-input", "'$'"),
    ([{"id": "a", "text": "x", "metadata": {"n": 2**63}}], 422, "invalid-input", "64 bits"),
    ([{"id": "a", "text": "x", "vector": [1]}], 422, "invalid-input", "vector"),
    ({"id": "a", "text": "x"}, 422, "invalid-input", "candidates: is required"),
    ({"candidates": [{"id": "a"}]}, 422, "invalid-input", "candidates.0.text: is required"),
    ([{"id": "a", "text": "x" * 101}], 422, "invalid-input", "100"),
    ([{"id": str(n), "text": "x"} for n in range(51)], 413, "too-many-candidates", "50"),
    (b"[{", 400, "malformed-body", ""),
])  # fmt: skip
def test_bad_upserts_change_nothing(server: Served, root: Path, body: Any, status: int, slug: str, what: str) -> None:
    before = logs(root)
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    response = server.client.put("/index/candidates", content=content, headers={"Content-Type": "application/json"})
    assert what in problem(response, status, slug)
    assert (active(server)["revision"], logs(root)) == (0, before)


@pytest.mark.parametrize("body", [{}, {"ids": []}, {"ids": ["a", ""]}, {"ids": "a"}, {"ids": [1]}, {"id": "a"}, ["a"]])
def test_bad_deletions_change_nothing(server: Served, root: Path, body: Any) -> None:
    before = logs(root)
    problem(server.client.post("/index/candidates/delete", json=body), 422, "invalid-input")
    assert logs(root) == before


def test_ids_to_delete_that_are_not_there_are_told(server: Served) -> None:
    gone = delete(server, "nobody", "none", "nobody")
    assert (gone["revision"], gone["deleted"], gone["missing_ids"]) == (1, 0, ["nobody", "none"])
    assert delete(server, "c1", "none")["missing_ids"] == ["none"]
    assert delete(server, "c1")["missing_ids"] == ["c1"]


def test_every_server_of_the_store_serves_an_update(root: Path) -> None:
    app, other_app = (create_app(Settings(store=root), load) for _ in range(2))
    with serve(app) as here, serve(other_app) as there:
        first = put(here, {"id": "a", "text": "w1"})["revision"]
        answer = rank(there, min_revision=first)
        assert answer["revision"] >= first
        assert "a" in ids(answer), "at once"
        assert put(there, {"id": "b", "text": "w2"})["revision"] == first + 1
        began = time.monotonic()
        while "b" not in ids(rank(here)):
            assert time.monotonic() - began < 20
            time.sleep(0.01)
        assert not {"a", "b"} & ids(rank(there, min_revision=delete(here, "a", "b")["revision"]))
        assert active(there)["count"] == active(here)["count"] == COUNT


def test_an_update_that_does_not_come_is_a_conflict_within_two_seconds(server: Served, monkeypatch) -> None:
    put(server, {"id": "a", "text": "w1"})
    assert rank(server, min_revision=1)["revision"] == 1
    began = time.monotonic()
    told = problem(server.rank(context="w1", min_revision=2), 409, "revision-not-reached")
    assert 1.9 < time.monotonic() - began < 30
    assert told.startswith("revision 2 was asked for, but 1 is served")
    monkeypatch.setattr("polyrank.service.changes.updating.ARRIVES_WITHIN_SECONDS", 60.0)
    began = time.monotonic()
    problem(server.rank(context="w1", min_revision=2, timeout_ms=100), 409, "revision-not-reached")
    assert time.monotonic() - began < 30


def test_while_others_write_everybody_is_answered_in_time(server: Served, root: Path, monkeypatch) -> None:
    monkeypatch.setattr("polyrank.service.changes.updating.WRITES_WITHIN_SECONDS", 0.1)
    monkeypatch.setattr("polyrank.service.changes.updating.ARRIVES_WITHIN_SECONDS", 60.0)
    with GenerationStore(root).updates.writing():
        began = time.monotonic()
        problem(server.rank(context="w1", min_revision=1, timeout_ms=200), 409, "revision-not-reached")
        assert time.monotonic() - began < 30
        response = server.client.put("/index/candidates", json=[{"id": "a", "text": "w1"}])
        assert f"held by process {os.getpid()} on" in problem(response, 503, "store-busy")
        assert "retry-after" in response.headers
    assert put(server, {"id": "a", "text": "w1"})["revision"] == 1


def test_waiting_for_an_update_keeps_nobody_else_waiting(server: Served, monkeypatch) -> None:
    monkeypatch.setattr("polyrank.service.changes.updating.ARRIVES_WITHIN_SECONDS", 60.0)
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(server.rank, context="w1", min_revision=5, timeout_ms=60_000) for _ in range(6)]
        for n in range(1, 6):
            began = time.monotonic()
            assert put(server, {"id": f"n{n}", "text": "w1"})["revision"] == n
            assert time.monotonic() - began < 30
        for each in waiting:
            assert each.result().json()["revision"] == 5


def test_a_store_that_may_not_be_written_is_served_and_says_so(server: Served, monkeypatch) -> None:
    def read_only(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("polyrank.index_builder.store.update_log.make_directory", read_only)
    row = {"id": "a", "text": "w1"}
    told = problem(server.client.put("/index/candidates", json=[row]), 409, "store-read-only")
    assert problem(server.client.post("/index/candidates/delete", json={"ids": ["c1"]}), 409, "store-read-only") == told
    assert "may not write to its store" in told
    assert (rank(server)["revision"], active(server)["count"]) == (0, COUNT)
    problem(server.rank(context="w1", min_revision=1, timeout_ms=50), 409, "revision-not-reached")


def test_a_full_disk_changes_nothing(server: Served, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite

    def half(descriptor: int, content: bytes, at: int) -> int:
        if len(content) < 40:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, bytes(content)[: len(content) // 2], at)

    def assert_nothing_changes() -> None:
        before, shown = logs(root), active(server)
        row = {"id": "a", "text": "w1"}
        assert "no room left" in problem(server.client.put("/index/candidates", json=[row]), 507, "disk-full")
        problem(server.client.post("/index/candidates/delete", json={"ids": ["c1"]}), 507, "disk-full")
        assert (logs(root), active(server)) == (before, shown)
        assert "a" not in ids(rank(server))

    assert put(server, {"id": "b", "text": "w1"})["revision"] == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        assert_nothing_changes()
    assert put(server, {"id": "a", "text": "w1"})["revision"] == 2
    assert {"a", "b"} <= ids(rank(server))


def test_no_ranking_fails_while_updates_come(server: Served) -> None:
    """Each answer is of one revision: it holds what that revision's update left, and no client sees one go back."""
    done, faults = threading.Event(), []
    answered = [0] * 3

    def ask(n: int) -> None:
        last = 0
        with httpx2.Client(base_url=server.url, timeout=30) as client:
            while not done.is_set():
                response = client.post("/rank", json={"context": "w1 w2", "top_k": 200, "filter": {"beat": True}})
                if response.status_code != 200:
                    faults.append(response.text)
                    continue
                body = response.json()
                beats = sorted(each["metadata"]["of"] for each in body["results"])
                if body["revision"] < last or beats != ([body["revision"]] * 4 if body["revision"] else []):
                    faults.append(f"{beats} at {body['revision']} after {last}")
                last = body["revision"]
                answered[n] += 1

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for n in range(1, 41):
        rows = [{"id": f"beat{k}", "text": f"w{k} w{n % 40}", "metadata": {"beat": True, "of": n}} for k in range(4)]
        assert put(server, *rows)["revision"] == n
    done.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert min(answered) > 0


@pytest.fixture
def real_root(checkpoints: Path, tmp_path: Path) -> Path:
    """A store of a model that other processes can load."""
    build(polyrank.load(checkpoints / "poly"), pool(COUNT), tmp_path / "real")
    return tmp_path / "real"


@pytest.mark.usefixtures("warm_children")
def test_a_rebuild_while_updating_loses_nothing(real_root: Path, tmp_path: Path) -> None:
    rows = pool_rows(2000, "d")  # encoded for long enough
    pool_file = write_rows(tmp_path / "pool.jsonl", rows)
    with serve(tiny_app(store=real_root, pool_root=tmp_path)) as server:
        first = active(server)["id"]
        put(server, {"id": "before", "text": "w1"}, *rows[:1000])  # these are in both
        job = server.client.post("/index", json={"pool": pool_file.name}).json()["links"]["self"]
        until(lambda: server.client.get(job).json()["stage"] is not None)  # what comes later, the pool cannot have
        there, gone, updated = set[str](), set[str](), list[str]()
        while (state := server.client.get(job).json()["state"]) == "running":
            n = len(updated)
            updated.append(
                put(server, {"id": f"u{n}", "text": f"w{n % 40} w3"}, {"id": f"d{n}", "text": "w1"})["generation"]
            )
            removed = delete(server, f"d{999 - n}", f"u{n - 3}")["missing_ids"]
            assert removed == ([] if n >= 3 else [f"u{n - 3}"])
            there, gone = (there | {f"u{n}", f"d{n}"}) - {f"u{n - 3}"}, gone | {f"d{999 - n}", f"u{n - 3}"}
            time.sleep(0.05)  # the builder needs the processor, too
        assert (state, updated[0]) == ("succeeded", first)
        last = put(server, {"id": "after", "text": "w2"})
        assert last["generation"] == active(server)["id"] != first
        assert active(server)["count"] == len(set(f"d{n}" for n in range(2000)) - gone | there | {"after"})
        known = rank(server, candidates=[{"id": each} for each in {*there, *gone, "before", "after", "d1999"}])
        assert set(known["missing_ids"]) == gone | {"before"}
        assert ids(known) == there | {"after", "d1999"}
        assert known["revision"] == last["revision"]


@pytest.mark.quick
def test_what_was_acknowledged_survives_a_kill(warm_python: WarmPython, real_root: Path) -> None:
    acknowledged: dict[str, int] = {}
    to_delete, deleted = set[str](), set[str]()

    def write(worker: int) -> None:
        with httpx2.Client(base_url=url, timeout=30) as client:
            for n in range(1000):
                name = f"{worker}.{n}"
                try:
                    put = client.put("/index/candidates", json=[{"id": name, "text": f"w{n % 40}"}])
                    acknowledged[name] = put.json()["revision"]
                    if n % 4 == 3:
                        to_delete.add(name)
                        client.post("/index/candidates/delete", json={"ids": [name]}).raise_for_status()
                        deleted.add(name)
                except (httpx2.HTTPError, ValueError):
                    return  # the server is gone; what it was told last may be there or not

    process = forked(warm_python, "serve", "--store", real_root, "--port", "0", POLYRANK_THREADS="1")
    try:
        url = process.stdout.readline().removeprefix(READY).strip()
        with ThreadPoolExecutor(3) as threads:
            writers = [threads.submit(write, worker) for worker in range(3)]
            until(lambda: len(acknowledged) > 40)
            process.kill()
            for each in writers:
                each.result()
    finally:
        process.kill()
        assert ended(process).status == -signal.SIGKILL
    revisions = list(acknowledged.values())
    assert len(set(revisions)) == len(revisions), "none was given twice"
    with serve(tiny_app(store=real_root)) as server:
        answer = rank(server, exact=True)
        assert answer["revision"] >= max(revisions)
        assert set(acknowledged) - to_delete <= ids(answer)
        assert not deleted & ids(answer)
        assert put(server, {"id": "after", "text": "w1"})["revision"] == answer["revision"] + 1
    store = GenerationStore(real_root)
    store.verify(store.current() or "")


def test_the_command_line_gives_another_model_s_generation_the_updates_it_missed(
    checkpoints: Path, real_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = build(polyrank.load(checkpoints / "other"), pool(COUNT), real_root, BuildOptions(activate=False)).generation
    with serve(tiny_app(store=real_root)) as server:
        put(server, {"id": "new", "text": "w1 w2 w3"}, {"id": "c1", "text": "w4"})
        delete(server, "c2")
        before = active(server)["id"]
        said = call(capsys, "store", "activate", "--store", real_root, other, "--wait", server.url).out
        assert said.startswith(f"{other} is active; {server.url} answers by it ")
        assert active(server)["id"] == other
        assert active(server)["id"] != before
        answer = rank(server, exact=True)
        assert answer["revision"] == 2
        assert ids(answer) == {f"c{n}" for n in range(COUNT)} - {"c2"} | {"new"}
        scores = {each["id"]: each["score"] for each in answer["results"]}
        sent = rank(server, candidates=[{"text": "w1 w2 w3"}, {"text": "w4"}])["results"]
        assert sorted(scores[each] for each in ("new", "c1")) == pytest.approx(
            sorted(each["score"] for each in sent), abs=0.05
        )
