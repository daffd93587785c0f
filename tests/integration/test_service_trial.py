"""A generation on trial answers beside the live one, which stays as it is, until it ends or becomes the live one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import TestClient
from service_fakes import WordRanker, build_store, load, pool
from tiny import tiny_app, write_checkpoint
from waiting import until

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service import machine
from polyrank.service.api.generations import IndexOut
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

SAID = "w1 w2 w3"


class Stage:
    """A store with a live generation and another one of another model and pool, and a server of it."""

    def __init__(self, root: Path, client: TestClient, live: str, other: str) -> None:
        self.root, self.client, self.live, self.other = root, client, live, other

    def ask(self, path: str, method: str = "POST", status: int = 200, **body: Any) -> Any:
        answer = self.client.request(method, path, json=body or None)
        assert answer.status_code == status, answer.text
        return answer.json()

    def ranked(self, generation: str = "live") -> tuple[str, list[str]]:
        answer = self.ask("/rank", context=SAID, top_k=5, generation=generation)
        return answer["generation"], [each["id"] for each in answer["results"]]

    def shown(self) -> Any:
        answer = self.ask("/index", "GET")
        IndexOut.model_validate(answer)
        return answer

    def on_trial(self) -> str | None:
        trial = self.shown()["trial"]
        return None if trial is None else str(trial["id"])

    def files(self) -> dict[str, bytes]:
        return {name: (self.root / name).read_bytes() for name in ("CURRENT", "HISTORY") if (self.root / name).exists()}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    other = build_store(tmp_path, pool(60, "b"), ranker=WordRanker(1), activate=False)
    live = build_store(tmp_path, pool(60, "a"), ranker=WordRanker(0))
    with TestClient(create_app(Settings(store=tmp_path), load)) as client:
        yield Stage(tmp_path, client, live, other)


def test_both_answer_each_by_itself_and_current_stays(stage: Stage) -> None:
    before, alone = stage.files(), stage.ranked()
    began = stage.ask("/index/trial", generation=stage.other)
    assert (began["active"]["id"], began["trial"]["id"]) == (stage.live, stage.other)
    assert began["trial"]["memory_bytes"] >= 60 * began["trial"]["dim"]
    assert stage.other not in [each["id"] for each in began["others"]]
    assert stage.ranked() == alone
    generation, ids = stage.ranked("trial")
    assert generation == stage.other
    assert all(each.startswith("b") for each in ids)
    assert stage.files() == before
    batch = stage.ask("/rank/batch", requests=[{"context": SAID, "generation": "trial"}, {"context": SAID}])
    assert [each["answer"]["generation"] for each in batch["answers"]] == [stage.other, stage.live]
    with TestClient(create_app(Settings(store=stage.root), load)) as client:
        client.post("/index/activate", json={"generation": stage.other})
        assert client.post("/rank", json={"context": SAID, "top_k": 5}).json()["results"][0]["id"] == ids[0]


def test_it_ends_and_its_answers_with_it(stage: Stage) -> None:
    refused = stage.ask("/rank", status=409, context=SAID, generation="trial")
    assert (refused["type"], "POST /index/trial" in refused["detail"]) == ("urn:polyrank:problem:no-trial", True)
    stage.ask("/index/trial", generation=stage.other)
    assert stage.ask("/index/trial/end")["trial"] is None
    assert stage.ask("/index/trial/end")["trial"] is None, "nothing happens where there is none"
    stage.ask("/rank", status=409, context=SAID, generation="trial")
    assert stage.ranked()[0] == stage.live


def test_what_becomes_live_brings_its_model_along(tmp_path: Path) -> None:
    """Else a switch would need the memory of a third model."""
    loads: list[str] = []

    def counted(path: str) -> Any:
        loads.append(path)
        return load(path)

    other = build_store(tmp_path, pool(60, "b"), ranker=WordRanker(1), activate=False)
    live = build_store(tmp_path, pool(60, "a"), ranker=WordRanker(0))
    with TestClient(create_app(Settings(store=tmp_path), counted)) as client:
        for path, generation in (("trial", other), ("activate", other), ("trial", live)):
            assert client.post(f"/index/{path}", json={"generation": generation}).status_code == 200
        index = client.get("/index").json()
        assert (index["active"]["id"], index["trial"]["id"]) == (other, live)
    assert len(loads) == 3, "the live one's, the trial's, and that of the old live one when it is tried"


def test_a_switch_to_a_third_keeps_it(stage: Stage) -> None:
    third = build_store(stage.root, pool(60, "c"), ranker=WordRanker(0), activate=False)
    stage.ask("/index/trial", generation=stage.other)
    switched = stage.ask("/index/activate", generation=third)
    assert (switched["active"]["id"], switched["trial"]["id"]) == (third, stage.other)
    assert stage.ask("/index/rollback")["trial"]["id"] == stage.other
    assert stage.ranked("trial")[0] == stage.other


def test_another_server_of_the_store_and_a_restarted_one_have_it_too(stage: Stage) -> None:
    with TestClient(create_app(Settings(store=stage.root), load)) as other:
        stage.ask("/index/trial", generation=stage.other)
        until(lambda: other.get("/index").json()["trial"] is not None, 30)
        assert other.get("/index").json()["trial"]["id"] == stage.other
        other.post("/index/trial/end")
        until(lambda: stage.on_trial() is None, 30)
    stage.ask("/index/trial", generation=stage.other)
    with TestClient(create_app(Settings(store=stage.root), load)) as restarted:
        assert restarted.get("/index").json()["trial"]["id"] == stage.other


def test_updates_are_the_live_ones_and_reach_the_trial(stage: Stage) -> None:
    stage.ask("/index/trial", generation=stage.other)
    put = stage.client.put("/index/candidates", json=[{"id": "new", "text": SAID}]).json()
    assert put["generation"] == stage.live
    assert stage.ask("/rank", context=SAID, candidates=[{"id": "new"}])["results"]
    refused = stage.ask("/rank", status=422, context=SAID, generation="trial", min_revision=1)
    assert "min_revision" in refused["detail"]
    until(lambda: stage.shown()["trial"]["revision"] == put["revision"], 30)
    assert stage.ask("/rank", context=SAID, candidates=[{"id": "new"}], generation="trial")["results"]


def test_what_cannot_be_tried_changes_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is served" in stage.ask("/index/trial", status=422, generation=stage.live)["detail"]
    stage.ask("/index/trial", status=404, generation="nothing")
    damaged = build_store(stage.root, pool(60, "d"), ranker=WordRanker(2), activate=False)
    path = stage.root / "generations" / damaged / "embeddings.bin"
    path.write_bytes(path.read_bytes()[::-1])
    stage.ask("/index/trial", status=409, generation=damaged)
    with monkeypatch.context() as patched:
        patched.setattr(machine, "available_bytes", lambda: 100.0)
        short = stage.ask("/index/trial", status=503, generation=stage.other)
    assert "of memory, and 0 MiB are free" in short["detail"]
    assert stage.on_trial() is None
    assert not (stage.root / "TRIAL").exists()
    assert stage.ranked()[0] == stage.live


def test_a_trial_that_others_began_and_that_is_damaged_is_shown_once(stage: Stage) -> None:
    path = stage.root / "generations" / stage.other / "embeddings.bin"
    path.write_bytes(path.read_bytes()[::-1])
    GenerationStore(stage.root).begin_trial(stage.other)
    until(lambda: stage.other in [each["id"] for each in stage.shown()["refused"]], 30)
    assert "was refused" in stage.ask("/rank", status=409, context=SAID, generation="trial")["detail"]
    GenerationStore(stage.root).end_trial()
    until(lambda: stage.other not in [each["id"] for each in stage.shown()["refused"]], 30)


def test_a_trial_that_finds_too_little_memory_at_the_start_is_tried_again(stage: Stage, monkeypatch) -> None:
    """As in a rolling restart, where the old process still holds its own."""
    GenerationStore(stage.root).begin_trial(stage.other)
    with monkeypatch.context() as patched:
        patched.setattr(machine, "available_bytes", lambda: 100.0)
        with TestClient(create_app(Settings(store=stage.root), load)) as client:
            [refused] = client.get("/index").json()["refused"]
            assert refused["id"] == stage.other
            assert "of memory" in refused["reason"]
            switched = client.post("/index/activate", json={"generation": stage.live})
            assert (switched.status_code, switched.json()["trial"]) == (200, None)
            patched.undo()
            until(lambda: client.get("/index").json()["trial"] is not None, 30)
            assert client.get("/index").json()["refused"] == []


@pytest.fixture
def of_real_models(tmp_path: Path) -> tuple[Path, str, str]:
    """A store, its live generation and another one, of the checkpoints `one` and `two` beside it."""
    root = tmp_path / "store"
    fields: dict[str, Any] = {"architecture": "poly", "n_codes": 3, "reduction": "mean"}
    first, second = (
        build(
            polyrank.load(write_checkpoint(tmp_path, name, seed, **fields)),
            pool(20),
            root,
            BuildOptions(activate=name == "one"),
        ).generation
        for seed, name in enumerate(("one", "two"))
    )
    return root, first, second


@pytest.mark.usefixtures("warm_children")
def test_a_build_goes_on_beside_it_and_collects_the_others(of_real_models: tuple[Path, str, str]) -> None:
    root, first, second = of_real_models
    with TestClient(tiny_app(store=root, keep_generations=1)) as client:
        assert client.post("/index/trial", json={"generation": second}).status_code == 200
        sent = [{"id": each.id, "text": each.text} for each in pool(30, "n")]
        job = client.post("/index", json={"candidates": sent}).json()
        until(lambda: client.get(f"/index/jobs/{job['id']}").json()["state"] == "succeeded", 30)
        until(lambda: first not in GenerationStore(root).ids(), 30)
        shown = client.get("/index").json()
        assert (shown["active"]["count"], shown["trial"]["id"]) == (30, second)
        asked = {"context": SAID, "generation": "trial"}
        assert client.post("/rank", json=asked).json()["generation"] == second


def test_explanations_are_of_the_one_asked_for(tmp_path: Path, of_real_models: tuple[Path, str, str]) -> None:
    root, first, second = of_real_models
    with TestClient(create_app(Settings(store=root, threads=1))) as client:
        began = client.post("/index/trial", json={"generation": second}).json()
        weights = (tmp_path / "two" / "model.safetensors").stat().st_size
        assert began["trial"]["memory_bytes"] > weights, "its own model is priced"
        scores = {}
        for name, generation in (("live", first), ("trial", second)):
            body = {"context": SAID, "candidates": [{"id": "c1"}], "generation": name}
            told, ranked = client.post("/explain", json=body).json(), client.post("/rank", json=body).json()
            assert told["generation"] == ranked["generation"] == generation
            [each] = told["candidates"]
            assert each["score"] == pytest.approx(ranked["results"][0]["score"], abs=1e-5)
            assert each["explained"] == pytest.approx(each["score"], abs=1e-4)
            scores[name] = each["score"]
        assert scores["live"] != pytest.approx(scores["trial"], abs=1e-3)
        with polyrank.Client("http://localhost", transport=client._transport) as caller:
            assert caller.index().trial.id == second
            assert caller.rank(SAID, generation="trial").generation == second
            assert caller.end_trial().trial is None
            assert caller.trial(second).trial is not None
