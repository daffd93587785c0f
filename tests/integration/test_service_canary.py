"""A generation on trial with a share: who answers whom, and that no request fails, and no update is lost, by it."""

import errno
import http.client
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

import numpy as np
import pytest
import waiting
from safetensors.torch import load_file, save_file
from served import Served, serve
from server_process import HEADERS, ServerProcess
from service_fakes import WordRanker, build_store, load, pool
from tiny import word_ids, write_checkpoint

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.store import pointer
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.pointer import Trial
from polyrank.service import resources
from polyrank.service.app import create_app
from polyrank.service.auth.keys import hashed
from polyrank.service.feedback.identity import Identity
from polyrank.service.feedback.reading import LogTally, uses
from polyrank.service.feedback.records import Ranking
from polyrank.service.ranking import retrieval
from polyrank.service.settings import Settings

until = partial(waiting.until, seconds=30.0)
SAID = "w1 w2 w3"
LIVE, TRIAL = WordRanker(0), WordRanker(1)

Does = Callable[[list[Any]], list[Any]]
Start = Callable[..., ServerProcess]


class Stage:
    """A store with a live generation, candidates a…, and one of another model beside it, b…; and servers of it.

    Attributes:
        does: what the trial's model does with contexts; None: what it should.
    """

    def __init__(self, root: Path, stack: ExitStack, parts: int | None = None) -> None:
        self.root, self._stack = root, stack
        self.trial = self._built("b", TRIAL, activate=False, parts=parts)
        self.live = self._built("a", LIVE, activate=True, parts=parts)
        self.store = GenerationStore(root)
        self.identity = Identity.of(root)
        self.does: Does | None = None
        self.on_texts: Callable[[], None] = lambda: None  # before either model encodes some

    def _built(self, prefix: str, ranker: WordRanker, activate: bool, parts: int | None) -> str:
        if parts is None:
            return build_store(self.root, pool(60, prefix), ranker=ranker, activate=activate)
        options = BuildOptions(index="exact", activate=activate)
        return build(ranker, pool(60, prefix), self.root, options, parts=parts).generation

    def serve(self, **fields: Any) -> Served:
        settings = Settings(**{"store": self.root, "feedback": "ids", **fields})
        return self._stack.enter_context(serve(create_app(settings, self._load)))

    def _load(self, path: str) -> Any:
        ranker = load(path)
        if ranker.fingerprint == TRIAL.fingerprint:
            real = ranker.encode_contexts

            def encode(contexts: list[Any]) -> Any:
                return real(contexts) if self.does is None else self.does(real(contexts))

            ranker.encode_contexts = encode
        represent = ranker.represent_candidate_batch

        def represented(texts: Any) -> Any:
            self.on_texts()
            return represent(texts)

        ranker.represent_candidate_batch = represented
        return ranker

    def begin(self, *servers: Served, share: float = 0.5, renewed: float | None = None) -> None:
        """Begin the trial, and wait until all take the share."""
        self.store.begin_trial(self.trial, share, renewed)
        for server in servers:
            until(lambda server=server: taken(server) == share)

    def place(self, conversation: str, caller: str = "") -> float:
        return self.identity.share_of(self.trial, caller, self.identity.conversation(conversation))

    def rankings(self, count: int) -> list[Ranking]:
        until(lambda: len(list(uses(self.root, LogTally()))) >= count)
        return [use.ranking for use in uses(self.root, LogTally())]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(resources, "LOOK_SECONDS", 0.05)
    with ExitStack() as stack:
        yield Stage(tmp_path / "store", stack)


def taken(server: Served) -> float:
    return server.metric("canary_share", of="taken")


def asked(server: Served, conversation: str | None = None, **fields: Any) -> tuple[str, list[str]]:
    body = {"context": SAID, "top_k": 100, **({} if conversation is None else {"conversation": conversation}), **fields}
    answer = server.rank(**body)
    assert answer.status_code == 200, answer.text
    return answer.json()["generation"], [each["id"] for each in answer.json()["results"]]


def test_a_conversation_stays_on_its_side_and_the_share_is_right(stage: Stage) -> None:
    servers = [stage.serve(), stage.serve()]
    stage.begin(*servers, share=0.3)
    names = [f"chat {n}" for n in range(200)]
    places = {name: stage.place(name) for name in names}
    for server in servers:  # what another has given, any has
        for name in names:
            generation, ids = asked(server, name)
            assert generation == (stage.trial if places[name] < 0.3 else stage.live)
            assert {each[0] for each in ids} == ({"b"} if generation == stage.trial else {"a"})
    assert stage.store.renew_trial(Trial(stage.trial, 0.6))
    until(lambda: taken(servers[0]) == 0.6)
    assert {name for name in names if asked(servers[0], name)[0] == stage.trial} == {
        name for name in names if places[name] < 0.6
    }
    records = stage.rankings(600)
    assert len(records) == 600
    for each in records:
        assert each.side == ("trial" if each.generation == stage.trial else "live")
        assert each.replaced is None
    many = [stage.place(f"other {n}") < 0.3 for n in range(20_000)]
    assert abs(sum(many) - 6000) < 4 * math.sqrt(20_000 * 0.3 * 0.7)
    assert [servers[0].metric("canary_rankings_total", side=side) for side in ("live", "trial")] == [
        float(sum(place >= 0.3 for place in places.values()) + sum(place >= 0.6 for place in places.values())),
        float(sum(place < 0.3 for place in places.values()) + sum(place < 0.6 for place in places.values())),
    ]


def test_without_a_conversation_each_ranking_stands_for_itself(stage: Stage) -> None:
    server = stage.serve()
    stage.begin(server)
    assert 10 < [asked(server)[0] for _ in range(60)].count(stage.trial) < 50


def test_who_says_which_generation_gets_it_and_so_does_who_is_not_recorded(stage: Stage) -> None:
    server = stage.serve()
    stage.begin(server, share=1.0)
    assert asked(server, "chat")[0] == stage.trial
    pinned: list[dict[str, Any]] = [
        {"generation": "live"}, {"expect": {"generation": stage.live}},
        {"expect": {"fingerprint": LIVE.fingerprint}}, {"min_revision": 0}, {"log": False},
    ]  # fmt: skip
    for fields in pinned:
        assert asked(server, "chat", **fields)[0] == stage.live, fields
    assert asked(server, "chat", generation="trial")[0] == stage.trial
    batch = [{"context": SAID, "conversation": "chat"}, {"context": SAID, "generation": "live"}]
    answers = server.client.post("/rank/batch", json={"requests": batch}).json()["answers"]
    assert [each["answer"]["generation"] for each in answers] == [stage.trial, stage.live]
    sides = [(each.generation == stage.trial, each.side) for each in stage.rankings(8)]
    assert sorted(sides, key=str) == [*[(False, None)] * 5, *[(True, "trial")] * 2, (True, None)]


def test_what_a_request_asks_for_works_on_both_sides(stage: Stage) -> None:
    kept = stage.serve(result_cache_ttl_s=60)
    stage.begin(kept)
    chats = {side: next(n for n in map(str, range(99)) if (stage.place(n) < 0.5) == side) for side in (False, True)}
    for is_trial, chat in chats.items():
        prefix, generation = ("b", stage.trial) if is_trial else ("a", stage.live)
        exact = asked(kept, chat, exact=True)
        assert exact == asked(kept, chat, exact=True), "kept answers are of their generation"
        assert exact[0] == generation
        assert {each[0] for each in exact[1]} == {prefix}
        assert not {*exact[1][:2]} & {*asked(kept, chat, exclude_ids=exact[1][:2])[1]}
        assert asked(kept, chat, filter={"nothing": 1}) == (generation, [])
        assert asked(kept, chat, candidates=[{"id": "x", "text": "w1"}]) == (generation, ["x"])
        wrong = kept.rank(context=SAID, conversation=chat, candidates=[{"id": "of nobody"}])
        assert (wrong.status_code, wrong.json()["type"].rpartition(":")[2]) == (422, "unknown-candidates")
    by_other_s_id = asked(kept, chats[True], candidates=[{"id": "a1"}])
    assert by_other_s_id == (stage.live, ["a1"]), "the live one stands behind it"


def test_updates_reach_both_sides_and_a_switch_loses_none(stage: Stage) -> None:
    server, other = stage.serve(), stage.serve()
    server.client.put("/index/candidates", json=[{"id": "before", "text": SAID}])
    stage.begin(server, other)
    assert "before" in asked(server, generation="trial")[1], "it takes its share with the updates that there were"
    until(lambda: "before" in asked(other, generation="trial")[1])
    server.client.put("/index/candidates", json=[{"id": "during", "text": SAID}])
    server.client.post("/index/candidates/delete", json={"ids": ["before"]})
    for each in (server, other):
        until(lambda each=each: {"during"} == {"before", "during"} & {*asked(each, generation="trial")[1]})
        assert each.client.get("/index").json()["trial"]["revision"] == 3
    server.client.put("/index/candidates", json=[{"id": "late", "text": "w1 w2"}])
    assert server.client.post("/index/activate", json={"generation": stage.trial}).status_code == 200
    found = asked(server)[1]
    assert {"during", "late"} <= {*found}
    assert "before" not in found
    until(lambda: other.client.get("/index").json()["active"]["id"] == stage.trial)
    until(lambda: other.client.get("/index").json()["trial"] is None)


def slow(found: list[Any]) -> list[Any]:
    time.sleep(4.5)
    return found


def nan(found: list[Any]) -> list[Any]:
    return [each * np.float32("nan") for each in found]


def fails(_: list[Any]) -> list[Any]:
    raise RuntimeError("no kernel image is available")


@pytest.mark.parametrize(("does", "why"), [(nan, "inference-failed"), (fails, "inference-failed"), (slow, "slow")])
def test_a_canary_of_garbage_is_withdrawn_and_no_request_fails(stage: Stage, does: Does, why: str) -> None:
    """Sixteen callers of two processes; the slow one takes longer than a request may."""
    servers = [stage.serve(), stage.serve()]
    stage.begin(*servers)
    stage.does = does
    stop, failed, ready = threading.Event(), [""][:0], [True][:0]

    def call(number: int) -> int:
        calls = 0
        while not stop.is_set():
            server, chat = servers[number % 2], f"{number} {calls}"
            answer = server.rank(context=f"{SAID} w{number}", conversation=chat, timeout_ms=3000)
            calls += 1
            if answer.status_code != 200:
                failed.append(answer.text)
            ready.append(server.client.get("/readyz").status_code == 200)
        return calls

    with ThreadPoolExecutor(16) as callers:
        calling = [callers.submit(call, number) for number in range(16)]
        until(lambda: stage.store.trial() is None)
        time.sleep(0.3)
        stop.set()
        calls = sum(each.result() for each in calling)
    assert failed == []
    assert all(ready)
    withdrawn = stage.store.withdrawn()
    assert withdrawn.generation == stage.trial
    assert why in withdrawn.why
    assert abs(withdrawn.at - time.time()) < 30
    until(lambda: all(server.client.get("/index").json()["trial"] is None for server in servers))
    assert stage.store.current() == stage.live
    counted = [server.metric("canary_replaced_total", why=why) for server in servers]
    assert max(counted) >= 5
    replaced = [each for each in stage.rankings(calls) if each.replaced is not None]
    assert {(each.side, each.generation) for each in replaced} == {("trial", stage.live)}
    assert sum(counted) == len([each for each in replaced if each.replaced == why])
    assert {each.replaced for each in replaced} <= {why, "overloaded"}


def test_whoever_sends_more_texts_than_any_model_reads_in_the_time_ends_no_canary(stage: Stage) -> None:
    """Both models need a second for 400 new texts, and the callers give them 0.2."""
    server = stage.serve()
    stage.begin(server, share=1.0)
    stage.on_texts = lambda: time.sleep(0.02)
    for number in range(8):
        texts = [f"w{number} w{n % 40} w{n // 40}" for n in range(400)]
        server.rank(context=SAID, conversation=f"chat {number}", candidates=texts, timeout_ms=200)
    assert stage.store.trial() is not None
    sharing = server.app.state.resources.trials.sharing
    assert sharing[0].replaced == 0
    assert asked(server, "another") == (stage.trial, asked(server, generation="trial")[1])


def test_the_sides_of_one_caller_are_not_those_of_another(stage: Stage, tmp_path: Path) -> None:
    keys = {name: token_urlsafe(32) for name in ("shop", "bot")}
    listed = [{"name": name, "sha256": hashed(key.encode()), "scopes": ["rank"]} for name, key in keys.items()]
    (tmp_path / "keys.json").write_text(json.dumps({"keys": listed}))
    server = stage.serve(keys_file=tmp_path / "keys.json")
    stage.store.begin_trial(stage.trial, 0.5)
    until(lambda: server.app.state.resources.trials.sharing is not None)
    for name, key in keys.items():
        for chat in map(str, range(20)):
            body = {"context": SAID, "conversation": chat}
            answer = server.client.post("/rank", json=body, headers={"Authorization": f"Bearer {key}"})
            assert (answer.json()["generation"] == stage.trial) == (stage.place(chat, name) < 0.5)


def test_a_trial_whose_searches_take_long_holds_up_no_other_request(stage: Stage, monkeypatch) -> None:
    server = stage.serve()
    stage.begin(server)
    search, entered, ended = retrieval.search, threading.Event(), threading.Event()

    def held(searches: list[Any], threads: int | None) -> Any:
        if searches[0].part.generation.id == stage.trial:
            entered.set()
            assert ended.wait(30)
        return search(searches, threads)

    monkeypatch.setattr(retrieval, "search", held)
    with ThreadPoolExecutor(1) as callers:
        try:
            trial = callers.submit(asked, server, generation="trial", timeout_ms=30_000)
            assert entered.wait(30)
            assert asked(server, generation="live", timeout_ms=10_000)[0] == stage.live
            assert not trial.done()
        finally:
            ended.set()
        assert trial.result()[0] == stage.trial


def test_a_canary_that_cannot_take_an_update_is_withdrawn(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    server = stage.serve()
    stage.begin(server)
    trial = server.app.state.resources.trials.current.ranker
    monkeypatch.setattr(trial, "represent_candidates", fails)
    assert server.client.put("/index/candidates", json=[{"id": "new", "text": SAID}]).status_code == 200
    until(lambda: stage.store.trial() is None)
    assert "cannot take the updates" in str(stage.store.withdrawn())
    assert "new" in asked(server)[1]


def test_a_lease_that_nobody_renews_ends_the_trial(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder's clock is an hour behind."""
    monkeypatch.setattr(pointer, "LEASE_SECONDS", 4.0)  # a busy machine may stand still for some of them
    server = stage.serve()
    stage.begin(server, share=1.0, renewed=time.time() - 3600)
    shown = server.client.get("/index").json()["trial"]
    assert (shown["id"], shown["share"], shown["until"][-6:]) == (stage.trial, 1.0, "+00:00")
    for _ in range(6):
        assert stage.store.renew_trial(Trial(stage.trial, 1.0, time.time() - 3600))
        time.sleep(0.8)
    assert asked(server, "chat")[0] == stage.trial, "it was renewed"
    until(lambda: stage.store.trial() is None)
    assert "the lease ended" in str(stage.store.withdrawn())
    assert asked(server, "chat")[0] == stage.live
    until(lambda: server.client.get("/index").json()["trial"] is None)
    stage.begin(server, share=1.0, renewed=time.time())
    assert asked(server, "chat")[0] == stage.trial, "another lease begins another trial"


@pytest.mark.parametrize(("ends_by", "why"), [
    ("lease", errno.EROFS), pytest.param("lease", errno.ENOSPC, marks=pytest.mark.slow),
    pytest.param("lease", errno.EIO, marks=pytest.mark.slow), ("guard", errno.EROFS),
])  # fmt: skip
def test_a_server_that_cannot_use_the_store_asks_no_more_all_the_same(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, ends_by: str, why: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(why, os.strerror(why))

    server = stage.serve()
    monkeypatch.setattr(pointer, "LEASE_SECONDS", 1.5)
    stage.begin(server, share=1.0, renewed=time.time() if ends_by == "lease" else None)
    is_readable = why != errno.EIO
    for name in ("end_overdue_trial", "withdraw_trial", "receive", *(() if is_readable else ("trial",))):
        monkeypatch.setattr(GenerationStore, name, refuse)
    if ends_by == "guard":
        stage.does = nan
        assert {asked(server)[0] for _ in range(6)} == {stage.live}
    until(lambda: server.client.get("/index").json()["trial"] is None)
    until(lambda: taken(server) == 0.0)  # the metric follows
    stage.does = None
    time.sleep(0.3)
    assert asked(server)[0] == stage.live
    assert not is_readable or stage.store.trial() is not None, "another server has to end it"


def test_without_recording_no_share_is_taken_and_the_log_says_so_once(stage: Stage, caplog) -> None:
    server = stage.serve(feedback="off")
    stage.store.begin_trial(stage.trial, 1.0)
    until(lambda: server.client.get("/index").json()["trial"] is not None)
    time.sleep(0.5)
    assert asked(server)[0] == stage.live
    assert (server.metric("canary_share", of="wanted"), taken(server)) == (1.0, 0.0)
    assert len([each for each in caplog.records if "share is not taken" in each.message]) == 1


def test_each_pool_has_its_own_canary(stage: Stage, tmp_path: Path) -> None:
    build_store(tmp_path / "other", pool(20, "o"))
    server = stage.serve(store={"one": stage.root, "two": tmp_path / "other"})
    stage.store.begin_trial(stage.trial, 1.0)
    client = server.client
    body = {"context": SAID, "conversation": "chat", "top_k": 100}
    until(lambda: client.post("/pools/one/rank", json=body).json()["generation"] == stage.trial)
    assert client.post("/pools/two/rank", json=body).json()["results"][0]["id"].startswith("o")
    client.put("/pools/one/index/candidates", json=[{"id": "new", "text": SAID}])
    until(lambda: "new" in [each["id"] for each in client.post("/pools/one/rank", json=body).json()["results"]])


def test_a_pool_in_parts_has_one_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "LOOK_SECONDS", 0.05)
    with ExitStack() as stack:
        stage = Stage(tmp_path / "store", stack, parts=3)
        server = stage.serve()
        stage.begin(server, share=1.0)
        rows: Sequence[dict[str, str]] = [{"id": f"new {n}", "text": SAID} for n in range(6)]
        for half in (rows[:3], rows[3:]):
            server.client.put("/index/candidates", json=half)
            until(lambda half=half: half[-1]["id"] in asked(server, "chat")[1])
        answer = server.rank(context=SAID, conversation="chat", top_k=100).json()
        assert answer["generation"] == stage.trial
        new = [each for each in answer["results"] if each["id"].startswith("new")]
        assert [each["id"] for each in new] == [each["id"] for each in rows]
        assert len({each["score"] for each in new}) == 1, "equal texts tie, in whichever parts"


def test_weights_that_give_nan_are_withdrawn_by_either_of_two_workers(tmp_path: Path, start: Start) -> None:
    """A real checkpoint one of whose words has no finite vector, under sixteen callers."""
    root = tmp_path / "store"
    for name, seed in (("good", 0), ("bad", 1)):
        checkpoint = write_checkpoint(tmp_path, name, seed, architecture="poly", n_codes=3, reduction="mean")
        if name == "bad":
            weights = load_file(checkpoint / "model.safetensors")
            weights["context.transformer.embeddings.word_embeddings.weight"][word_ids("w7")] = math.nan
            save_file(weights, checkpoint / "model.safetensors")
        options = BuildOptions(activate=name == "good")
        build(polyrank.load(checkpoint), pool(40), root, options)
    store = GenerationStore(root)
    good, bad = store.current(), store.ids()[-1]
    port = start(store=root, workers=2, feedback="ids", max_timeout_ms=5000).ready()
    store.begin_trial(bad, 0.5)
    stop = threading.Event()

    def call(number: int) -> list[tuple[int, str]]:
        client, said = http.client.HTTPConnection("127.0.0.1", port, timeout=30), [(0, "")][:0]
        while not stop.is_set():
            body = {"context": f"w7 w{number}", "conversation": f"{number} {len(said)}"}
            client.request("POST", "/rank", json.dumps(body), HEADERS)
            response = client.getresponse()
            said.append((response.status, response.read().decode()))
            if len(said) % 20 == 0:  # the other worker may get the next connection
                client.close()
        client.close()
        return said

    with ThreadPoolExecutor(16) as callers:
        calling = [callers.submit(call, number) for number in range(16)]
        until(lambda: store.withdrawn() is not None)
        time.sleep(0.5)
        stop.set()
        said = [each for caller in calling for each in caller.result()]
    assert [each for each in said if each[0] != 200] == []
    assert {json.loads(answer)["generation"] for _, answer in said} == {good}
    withdrawn = store.withdrawn()
    assert (withdrawn.generation, "inference-failed" in withdrawn.why) == (bad, True)
    assert (store.trial(), store.current()) == (None, good)
