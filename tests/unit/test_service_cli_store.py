"""`polyrank store` over generations built without torch.

`--wait`: the end of a command that has switched, once a server answers by what is active.
"""

import io
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call, left_half_written, options
from fakes import HashEncoder, flip, pool
from redis_process import RedisProcess, vector_keys
from report_pages import Page
from served import serve
from service_fakes import build_store, load

from polyrank.index_builder.building import pipeline
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.index import choice
from polyrank.index_builder.index.choice import SearchTimes, choose_index
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.update_log import Update
from polyrank.model.representations import Representations
from polyrank.service.app import create_app
from polyrank.service.cli import main, waiting
from polyrank.service.settings import Settings

Capture = pytest.CaptureFixture[str]
LOADING = "; running servers load it now"


def built(root: Path, salt: str = "", **options: Any) -> str:
    return build(HashEncoder(), pool(20, salt), root, BuildOptions(**options)).generation


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def current(capsys: Capture, store: Path) -> str:
    listed = call(capsys, "store", "list", "--store", store, "--json").result
    [active] = [each["id"] for each in listed["generations"] if each["active"]] or [None]
    assert listed["current"] == active
    return str(active)


def test_a_round_trip(capsys: Capture, store: Path) -> None:
    first = built(store, "a")
    second = built(store, "b", activate=False, index="flat")
    assert current(capsys, store) == first
    assert call(capsys, "store", "verify", "--store", store, "--json").result == {
        "verified": [first, second],
        "refused": {},
    }
    assert call(capsys, "store", "activate", "--store", store, second, "--json").result == {"current": second}
    assert current(capsys, store) == second
    assert call(capsys, "store", "rollback", "--store", store, "--json").result == {"current": first}
    assert current(capsys, store) == first
    assert call(capsys, "store", "activate", "--store", store, second) == (0, f"{second} is active{LOADING}\n", "")
    third = built(store, "c")
    assert call(capsys, "store", "gc", "--store", store, "--json").result == {
        "removed": [first],
        "kept": {second: "among the 2 to keep", third: "active"},
    }
    kept = f"kept {third}: active\n"
    assert call(capsys, "store", "gc", "--store", store, "--keep", "1") == (0, f"removed 1: {second}\n{kept}", "")
    assert call(capsys, "store", "gc", "--store", store, "--keep", "1") == (0, f"nothing to remove\n{kept}", "")
    assert GenerationStore(store).ids() == [third]
    assert left_half_written(store) == []


def test_activating_loads_no_model_unless_a_text_has_to_be_encoded(capsys: Capture, store: Path) -> None:
    """The generations' models cannot be loaded."""
    first = built(store, "a")
    same = built(store, "b", activate=False)
    other = build(HashEncoder(dim=12, fingerprint="f" * 64), pool(20), store, BuildOptions(activate=False)).generation
    opened = GenerationStore(store)
    manifest = opened.manifest(first)
    log = opened.updates.of(manifest)
    log.append(Update(1, (), Representations(np.empty((0, manifest.dim), np.float16)), ["c1"]))
    for generation in (same, other):
        assert call(capsys, "store", "activate", "--store", store, generation).status == 0
    waiting = build(HashEncoder(dim=12, fingerprint="f" * 64), pool(20), store, BuildOptions(activate=False)).generation
    assert call(capsys, "store", "activate", "--store", store, first).status == 0
    log.append(Update(2, [Candidate("new", "w1")], Representations(np.zeros((1, manifest.dim), np.float16))))
    refused = call(capsys, "store", "activate", "--store", store, waiting)
    assert (refused.status, refused.out) == (1, "")
    assert current(capsys, store) == first


def test_compaction_tells_which_index_it_chose(capsys: Capture, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MEASURED_FROM", 19)
    chosen = replace(choose_index("exact", 20, HashEncoder().dim), times=SearchTimes(10.0, 2.0), asked="auto")
    monkeypatch.setattr(pipeline, "choose_index", lambda *_: chosen)
    monkeypatch.setattr(pipeline, "needs_times", lambda *_: False)
    manifest = GenerationStore(store).manifest(built(store))
    log = GenerationStore(store).updates.of(manifest)
    log.append(Update(1, (), Representations(np.empty((0, manifest.dim), np.float16)), ["c1"]))
    compacted = call(capsys, "store", "compact", "--store", store)
    assert compacted.err == "auto chose hnsw: for one context the scan takes 9.6 ms, hnsw 2.0 ms of one core\n"
    assert "is active: 19 candidates" in compacted.out


def test_list_describes_each_generation(capsys: Capture, store: Path) -> None:
    first, second = built(store, "a"), built(store, "b", activate=False, index="flat")
    listed = call(capsys, "store", "list", "--store", store, "--json").result
    assert listed["current"] == first
    one, other = listed["generations"]
    assert one.pop("created_at") < other.pop("created_at")
    recall = {"recall@10": 1, "recall@100": 1, "of": "vectors", "probes": "none", "count": 0, "min_recall": 0.95}
    recall |= {"p50_ms": None, "p99_ms": None}
    same = {
        "count": 20, "built": 20, "revision": 0, "index_times": None,
        "recall": recall, "model": "hash", "fingerprint": HashEncoder().fingerprint,
    }  # fmt: skip
    assert one == {"id": first, "active": True, "trial": False, "index": "exact", **same}
    assert other == {"id": second, "active": False, "trial": False, "index": "flat", **same}
    shown = call(capsys, "store", "list", "--store", store)
    assert (shown.status, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert lines[0].startswith(f"* {first}  20 candidates, exact, hash, 20")
    assert lines[1].startswith(f"  {second}  20 candidates, flat, hash, 20")


def test_list_marks_the_generation_on_trial(capsys: Capture, store: Path) -> None:
    first, second = built(store, "a"), built(store, "b", activate=False)
    GenerationStore(store).begin_trial(second)
    listed = call(capsys, "store", "list", "--store", store, "--json").result
    assert (listed["current"], listed["trial"]) == (first, second)
    assert [row["trial"] for row in listed["generations"]] == [False, True]
    assert [line[:2] for line in call(capsys, "store", "list", "--store", store).out.splitlines()] == ["* ", "t "]
    report = store / "report.html"
    call(capsys, "store", "list", "--store", store, "--report", report)
    assert [row[-1] for row in Page(report).rows[1:]] == ["active", "on trial"]


def test_list_counts_what_is_served_with_its_updates(capsys: Capture, store: Path) -> None:
    generation = built(store)
    manifest = GenerationStore(store).manifest(generation)
    vectors = Representations(np.zeros((2, manifest.dim), np.float16))
    added = [Candidate("new", "w1"), Candidate("newer", "w2")]
    GenerationStore(store).updates.of(manifest).append(Update(1, added, vectors, ["c1"]))
    [row] = call(capsys, "store", "list", "--store", store, "--json").result["generations"]
    assert (row["count"], row["built"], row["revision"]) == (21, 20, 1)
    assert f"{generation}  21 candidates (20 built), " in call(capsys, "store", "list", "--store", store).out


def test_what_is_not_of_the_store_is_listed(capsys: Capture, store: Path) -> None:
    built(store)
    stray = store / "generations" / ".tmp-file"
    stray.touch()
    assert call(capsys, "store", "list", "--store", store, "--json").result["strays"] == [
        f"{stray} has a name that no store gives"
    ]
    assert f"left aside: {stray} has" in call(capsys, "store", "list", "--store", store).out


def test_an_empty_store_is_told_as_such(capsys: Capture, store: Path) -> None:
    store.mkdir()
    assert call(capsys, "store", "list", "--store", store, "--json").result == {
        "current": None, "trial": None, "generations": [], "strays": [],
    }  # fmt: skip
    assert call(capsys, "store", "verify", "--store", store, "--json").result == {"verified": [], "refused": {}}
    for action in ("list", "verify"):
        shown = call(capsys, "store", action, "--store", store)
        assert shown == (0, f"{store} holds no generation; polyrank build makes one\n", "")


def test_list_shows_a_generation_that_cannot_be_opened(capsys: Capture, store: Path) -> None:
    bad, good = built(store, "a"), built(store, "b")
    (store / "generations" / bad / "ids.index").unlink()
    rows = call(capsys, "store", "list", "--store", store, "--json").result["generations"]
    assert [(row["id"], "error" in row) for row in rows] == [(bad, True), (good, False)]
    assert "ids.index is missing" in rows[0]["error"]
    lines = call(capsys, "store", "list", "--store", store).out.splitlines()
    assert lines[0].startswith(f"  {bad}  refused: ")
    assert lines[1].startswith(f"* {good}  20 candidates")


def test_list_does_not_read_every_byte(capsys: Capture, store: Path) -> None:
    flip(store, built(store))
    [row] = call(capsys, "store", "list", "--store", store, "--json").result["generations"]
    assert (row["count"], "error" in row) == (20, False)


def test_verify_names_what_is_corrupt(capsys: Capture, store: Path) -> None:
    bad, good = built(store, "a"), built(store, "b")
    flip(store, bad)
    outcome = call(capsys, "store", "verify", "--store", store)
    assert (outcome.status, outcome.err) == (1, "")
    lines = outcome.out.splitlines()
    assert lines[0].startswith(f"{bad}  generation {bad} is refused: ")
    assert "embeddings.bin" in lines[0]
    assert lines[1:] == [f"{good}  ok"]
    outcome = call(capsys, "store", "verify", "--store", store, "--json")
    assert outcome.status == 1
    result = outcome._replace(status=0).result
    assert (result["verified"], list(result["refused"])) == ([good], [bad])
    assert call(capsys, "store", "verify", "--store", store, good) == (0, f"{good}  ok\n", "")
    assert call(capsys, "store", "verify", "--store", store, bad).status == 1


ANY_ID = "20261121T013000123456-1a2b3c4d"
# Every command that takes --store, with what else it needs. The first ones read a store, the second ones change it.
READING = {
    "store list": "", "store verify": "", "shards status": "", "rank": "hello", "feedback status": "",
    "feedback export": "--output out", "feedback report": "--output page.html", "loop status": "",
}  # fmt: skip
CHANGING = {
    "store activate": ANY_ID, "store rollback": "", "store compact": "",
    "store gc": "", "store backup": "--to backup.tar.zst", "shards move": "--to 2",
    "feedback erase": "--conversation x", "loop abort": "",
}  # fmt: skip
# These make a store, and a server builds into any directory.
MAKING = {"build", "store restore", "serve"}


def held(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and directory under a path, with when it was changed and what it holds."""
    found = [root, *root.rglob("*")]
    return {str(each): (each.stat().st_mtime_ns, each.read_bytes() if each.is_file() else b"") for each in found}


def test_each_command_with_a_store_is_tried() -> None:
    assert {name for name, action in options() if action.dest == "store"} == {*READING, *CHANGING, *MAKING}


@pytest.mark.parametrize("command", [*READING, *CHANGING])
def test_a_directory_of_other_things_is_no_store_and_stays_as_it_is(capsys, tmp_path: Path, command: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "notes.txt").write_text("mine")
    before = held(tmp_path)
    words = [*command.split(), *{**READING, **CHANGING}[command].split()]
    message = call(capsys, *words, "--store", tmp_path).failure(2)
    assert message.startswith(f"{tmp_path} is no store: it holds other things, and no generations/; polyrank")
    assert held(tmp_path) == before


@pytest.mark.parametrize("command", [*CHANGING, "store list", "store verify", "rank"])
def test_of_an_empty_directory_no_store_is_made(capsys: Capture, store: Path, command: str) -> None:
    store.mkdir()
    words = [*command.split(), *{**READING, **CHANGING}[command].split()]
    assert call(capsys, *words, "--store", store).status in (0, 1)
    assert list(store.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "parts"), [("store list", 0), ("store verify", 0), ("store list", 2), ("store verify", 2)]
)
def test_what_reads_a_store_changes_nothing_in_it(capsys: Capture, store: Path, command: str, parts: int) -> None:
    for salt in "ab":
        if parts:
            build(HashEncoder(), pool(20, salt), store, BuildOptions(), parts=parts)
        else:
            built(store, salt)
    before = held(store)
    assert call(capsys, *command.split(), "--store", store).status == 0
    assert held(store) == before


def test_gc_from_python_makes_no_store(tmp_path: Path) -> None:
    assert GenerationStore(tmp_path).gc() == GenerationStore(tmp_path / "other").gc() == []
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_pointer_is_told_and_hides_no_generation(capsys: Capture, store: Path) -> None:
    only = built(store)
    (store / "CURRENT").write_text("../../etc\n")
    shown = call(capsys, "store", "list", "--store", store)
    assert (shown.status, shown.err) == (0, "")
    problem, row = shown.out.splitlines()
    assert problem == "CURRENT does not name a generation; activate one"
    assert row.startswith(f"  {only}  20 candidates")
    listed = call(capsys, "store", "list", "--store", store, "--json").result
    assert (listed["current"], listed["error"], len(listed["generations"])) == (None, problem, 1)
    assert not listed["generations"][0]["active"]
    assert "CURRENT" in call(capsys, "store", "gc", "--store", store).failure()
    assert call(capsys, "store", "activate", "--store", store, only).status == 0
    assert "error" not in call(capsys, "store", "list", "--store", store, "--json").result


def test_gc_with_redis_removes_the_vectors_too(capsys: Capture, store: Path, redis_process: RedisProcess) -> None:
    first, second = (built(store, salt, redis_url=redis_process.url) for salt in "ab")
    with redis_process.client() as client:
        collected = call(capsys, "store", "gc", "--store", store, "--keep", "1", "--redis", redis_process.url, "--json")
        assert collected.result == {"removed": [first], "kept": {second: "active"}}
        keys = vector_keys(client)
    assert len(keys) == 21
    assert all(second in key for key in keys)
    third = built(store, "c")
    redis_process.kill()
    message = call(capsys, "store", "gc", "--store", store, "--keep", "1", "--redis", redis_process.url).failure()
    assert message.startswith("Redis failed: ")
    assert GenerationStore(store).ids() == [second, third]


def cut(root: Path, salt: str = "") -> str:
    return build(HashEncoder(), pool(40, salt), root, BuildOptions(index="exact"), parts=2).manifest.id


def test_a_round_trip_in_parts(capsys: Capture, store: Path) -> None:
    first, second = cut(store), cut(store, "new ")
    told = call(capsys, "store", "list", "--store", store, "--json").result
    assert told["current"] == second
    assert [each["id"] for each in told["generations"]] == [first, second]
    assert [part["slots"] for part in told["generations"][0]["parts"]] == ["0000-2048", "2048-4096"]
    assert sum(part["count"] for part in told["generations"][0]["parts"]) == told["generations"][0]["count"] == 40
    assert call(capsys, "store", "verify", "--store", store, "--json").result["verified"] == [first, second]
    assert call(capsys, "store", "rollback", "--store", store, "--json").result == {"current": first}
    moved = call(capsys, "shards", "move", "--store", store, "--to", "3", "--json").result
    assert moved == {"current": GenerationStore(store).current(), "count": 40, "parts": 3}
    assert call(capsys, "store", "activate", "--store", store, second, "--json").result == {"current": second}
    collected = call(capsys, "store", "gc", "--store", store, "--keep", "1").out
    assert collected.startswith(f"removed 1: {first}\nkept {second}: active\n")
    said = call(capsys, "store", "list", "--store", store).out
    assert f"* {second}  40 candidates in 2 parts, exact, hash" in said
    assert "40 candidates in 3 parts" in said
    assert call(capsys, "shards", "status", "--store", store).out == said


def test_damage_in_a_part_is_told(capsys: Capture, store: Path) -> None:
    made = cut(store)
    (store / "generations" / made / "parts" / "0" / "ids.index").write_bytes(b"")
    for action in ("verify", "list"):
        assert "part 0000-2048: ids.index has 0 bytes" in call(capsys, "store", action, "--store", store).out


def test_a_pool_is_built_into_parts(capsys: Capture, store: Path, tmp_path: Path) -> None:
    file = tmp_path / "pool.jsonl"
    file.write_text("".join(f'{{"text": "the number {n} alone"}}\n' for n in range(30)) + '{"text": ""}\n')
    built = ["build", "--model", "lexical", "--pool", file, "--store", store, "--max-rejected", "0.1"]
    made = call(capsys, *built, "--shards", "3", "--json").result
    assert (made["generation"], made["count"], made["rejected"]) == (GenerationStore(store).current(), 30, 1)
    assert sum(part["count"] for part in made["parts"]) == 30
    said = call(capsys, *built, "--shards", "2", "--no-activate")
    assert "is published: 30 candidates in 2 parts" in said.out
    assert GenerationStore(store).current() == made["generation"]
    assert "parts" not in call(capsys, *built, "--json").result
    assert "--shards: must be a whole number from 1 to 256, not '0'" in call(capsys, *built, "--shards", "0").misuse


def test_output_is_utf_8_in_every_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (store := tmp_path / "\u0632").mkdir()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written := io.BytesIO(), "latin-1"))
    assert main(["store", "list", "--store", str(store)]) == 0
    assert b"/\xd8\xb2 holds no generation" in written.getvalue()


@pytest.mark.slow
def test_a_switch_ends_once_the_server_answers_by_the_generation(capsys: Capture, tmp_path: Path) -> None:
    first, second = (build_store(tmp_path) for _ in range(2))
    loads: list[str] = []

    def slow(name: str) -> Any:
        loads.append(name)
        if len(loads) > 1:
            time.sleep(1.5)
        return load(name)

    store = GenerationStore(tmp_path)
    with serve(create_app(Settings(store=tmp_path), slow)) as server:
        before = server.client.get("/readyz").json()["generation"]
        other = first if before == second else second
        said = call(capsys, "store", "activate", "--store", tmp_path, other, "--wait", server.url)
        assert server.client.get("/readyz").json()["generation"] == other
        assert said.out.startswith(f"{other} is active; {server.url} answers by it ")
        assert call(capsys, "store", "rollback", "--store", tmp_path, "--wait", f"{server.url}/").status == 0
        assert server.client.get("/readyz").json()["generation"] == before == store.current()


def test_a_server_that_does_not_load_it_is_named(capsys: Capture, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(waiting, "MOST_SECONDS", 0.5)
    mine, of_another = tmp_path / "mine", tmp_path / "another"
    generation, served = build_store(mine), build_store(of_another)
    with serve(create_app(Settings(store=of_another), load)) as server:
        told = call(capsys, "store", "activate", "--store", mine, generation, "--wait", server.url).failure()
    assert f"{generation} is active, but {server.url} still answers by {served} after 0.5 s" in told


@pytest.mark.parametrize(("url", "why"), [
    ("localhost", "give the URL of a polyrank server"),
    ("http://a:b", "give the URL of a polyrank server"),
    ("http://127.0.0.1:9", "--wait http://127.0.0.1:9: "),
])  # fmt: skip
def test_nothing_is_switched_for_a_server_that_is_none(capsys: Capture, tmp_path: Path, url: str, why: str) -> None:
    first, second = (build_store(tmp_path) for _ in range(2))
    store = GenerationStore(tmp_path)
    current = store.current()
    other = first if current == second else second
    outcome = call(capsys, "store", "activate", "--store", tmp_path, other, "--wait", url)
    assert outcome.status != 0
    assert why in outcome.err
    assert store.current() == current
