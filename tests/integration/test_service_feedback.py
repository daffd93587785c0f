"""Rankings and what became of them, as real servers record them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from in_process import TestClient
from served import Served, serve
from server_process import ServerProcess
from service_fakes import build_store, load, pool
from waiting import until
from warm_python import WarmPython

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.layout import why_no_store
from polyrank.index_builder.store.archive import back_up, restore
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service.app import create_app
from polyrank.service.auth import keys
from polyrank.service.errors import SettingsError
from polyrank.service.feedback.erasure import erase
from polyrank.service.feedback.files import lines, names
from polyrank.service.feedback.identity import Identity
from polyrank.service.feedback.reading import LogTally, uses
from polyrank.service.feedback.records import Use
from polyrank.service.settings import Settings

Start = Callable[..., Served]

CONTEXT = [{"role": "user", "text": "w1 w2, I am jo@x.example"}, {"role": "agent", "text": "card 4111 1111 1111 1111?"}]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built") / "store"
    build_store(root, pool(40))
    return root


@pytest.fixture
def store(built: Path, tmp_path: Path) -> Path:
    """A store of its own for each test."""
    return Path(shutil.copytree(built, tmp_path / "store"))


@pytest.fixture
def start(store: Path) -> Iterator[Start]:
    """Starts servers on the store, each over it until the test ends or `stop`."""
    with ExitStack() as stack:

        def started(feedback: str = "texts", **fields: Any) -> Served:
            settings = Settings(**{"store": store, "feedback": feedback, **fields})
            return stack.enter_context(serve(create_app(settings, load, load)))

        yield started


def recorded(store: Path, rankings: int = 0, events: int = 0) -> list[Use]:
    """All that is in the log as soon as it holds so much: rankings are written after their answers."""
    deadline = time.monotonic() + 10
    while True:
        found = list(uses(store, tally := LogTally()))
        counts = len(found), sum(len(use.events) for use in found)
        if counts[0] >= rankings and counts[1] >= events:
            assert (counts, tally) == ((rankings, events), LogTally(repeated=tally.repeated))
            return found
        assert time.monotonic() < deadline, counts
        time.sleep(0.01)


def told(server: Served, *events: dict[str, Any]) -> httpx2.Response:
    return server.client.post("/feedback", json={"events": events})


def event(ranking: str, number: int = 0, kind: str = "resolved", **fields: Any) -> dict[str, Any]:
    return {"ranking_id": ranking, "kind": kind, "event_id": f"e{number}", **fields}


def slug(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["type"].rpartition(":")[2]


@pytest.mark.quick
def test_a_ranking_and_what_became_of_it_are_recorded(start: Start, store: Path) -> None:
    server = start()
    answer = server.rank(context=CONTEXT, persona=["kind"], conversation="chat 7", top_k=3).json()
    first, second, _ = (each["id"] for each in answer["results"])
    edited = event(answer["ranking_id"], 1, "edited", id=second, text="write to me@x.example")
    done = told(server, event(answer["ranking_id"], 0, "chosen", id=first), edited, event(answer["ranking_id"]))
    assert (done.json()["accepted"], done.json()["repeated"]) == (2, 1)
    [use] = recorded(store, 1, 2)
    ranking = use.ranking
    assert (ranking.id, ranking.generation, ranking.revision) == (answer["ranking_id"], answer["generation"], 0)
    assert ranking.fingerprint == answer["model"]["fingerprint"]
    assert [(each.id, each.score, each.text) for each in ranking.shown] == [
        (each["id"], each["score"], None) for each in answer["results"]
    ]
    assert [(turn.role, turn.text) for turn in ranking.said.turns] == [
        ("user", "w1 w2, I am [mail]"),
        ("agent", "card [number]?"),
    ]
    assert ranking.said.persona == ("kind",)
    assert [(each.kind, each.reply, each.text) for each in use.events] == [
        ("chosen", first, None),
        ("edited", second, "write to [mail]"),
    ]
    named = server.app.state.resources.feedback.identity.conversation("chat 7")
    assert (ranking.side, ranking.conversation) == (None, named)
    assert server.metric("feedback_rankings_total", outcome="recorded") == 1
    assert server.metric("feedback_events_total", kind="edited") == 1
    everything = b"".join(path.read_bytes() for path in store.rglob("*") if path.is_file())
    assert not any(secret in everything for secret in (b"jo@x", b"4111", b"me@x", b"chat 7"))


def test_what_is_off_is_not_recorded_and_changes_nothing(start: Start, store: Path) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    server = start("off")
    plain, named = (server.rank(context="w1 w2", **more) for more in ({}, {"conversation": "a", "log": True}))
    assert [*plain.json()] == [*named.json()]
    assert "ranking_id" not in plain.json()
    assert slug(told(server, event("a" * 40))) == (422, "not-configured")
    server.stop()
    written = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert {path.name for path in written if path not in before} <= {"write.lock", "pointer.lock"}
    assert not (store / "feedback").exists()


def test_candidates_that_are_sent_are_recorded_as_what_is_chosen_of_them(start: Start, store: Path) -> None:
    server = start()
    answer = server.rank(context="w1", candidates=["ask 123456", {"text": "w2", "id": "x"}], top_k=2).json()
    told(server, event(answer["ranking_id"], 0, "chosen", text="ask 123456"))
    [use] = recorded(store, 1, 1)
    assert {(each.id, each.text) for each in use.ranking.shown} == {(None, "ask [number]"), ("x", "w2")}
    assert use.events[0].text == "ask [number]"


def test_the_first_twenty_are_recorded(start: Start, store: Path) -> None:
    answer = start("ids").rank(context="w1", top_k=30).json()
    [use] = recorded(store, 1)
    assert [each.id for each in use.ranking.shown] == [each["id"] for each in answer["results"][:20]]


def test_an_answer_of_the_cache_is_a_ranking_of_its_own(start: Start, store: Path) -> None:
    server = start(result_cache_ttl_s=60)
    asked: Sequence[dict[str, Any]] = ({}, {"conversation": "a"}, {"conversation": "b"}, {"log": False})
    answers = [server.rank(context="w1 w2", **fields) for fields in asked]
    assert [each.headers["x-cache"] for each in answers] == ["miss", "hit", "hit", "hit"]
    ids = [each.json().get("ranking_id") for each in answers]
    assert ids[3] is None
    found = recorded(store, 3)
    assert [use.ranking.id for use in found] == ids[:3]
    assert len({use.ranking.conversation for use in found}) == 3
    assert found[0].ranking.shown == found[1].ranking.shown
    assert found[0].ranking.said == found[1].ranking.said


def test_each_ranking_of_a_batch_is_recorded(start: Start, store: Path) -> None:
    server = start()
    asked = [
        {"context": "w1"}, {"context": ""}, {"context": "w2", "log": False}, {"context": "w3", "conversation": "a"},
    ]  # fmt: skip
    entries = server.client.post("/rank/batch", json={"requests": asked}).json()["answers"]
    ids = [entry.get("answer", {}).get("ranking_id") for entry in entries]
    assert [each is not None for each in ids] == [True, False, False, True]
    assert {use.ranking.id for use in recorded(store, 2)} == {ids[0], ids[3]}


def test_events_about_what_was_not_shown_are_told_and_not_recorded(start: Start, store: Path) -> None:
    servers = start(), start()  # both know of both
    answer = servers[0].rank(context="w1 w2", top_k=30).json()
    ranking, shown = answer["ranking_id"], [each["id"] for each in answer["results"]]
    other = min({f"c{number}" for number in range(40)} - {*shown})
    for number, server in enumerate(servers):
        events = [
            event(ranking, 10 * number, "chosen", id=shown[-1]),  # below those that are recorded with their scores
            event(ranking, 10 * number + 1, "chosen", id=other),
            event(ranking, 10 * number + 2, "down", id=other),
            event(ranking, 10 * number + 3, "edited", id=other, text="better"),
            event(ranking, 10 * number + 4, "chosen", text="never shown"),
            event(ranking, 10 * number + 5, "written", text="mine"),
        ]
        done = told(server, *events).json()
        assert [done[name] for name in ("accepted", "repeated", "unknown")] == [2, 0, 4]
    [use] = recorded(store, 1, 4)
    assert [(each.kind, each.reply) for each in use.events] == 2 * [("chosen", shown[-1]), ("written", None)]


def test_so_much_is_taken_of_one_ranking_and_no_more(start: Start, store: Path) -> None:
    server = start()
    ranking, other = (server.rank(context="w1").json()["ranking_id"] for _ in range(2))
    long = [event(ranking, number, "written", text="x" * 4000) for number in range(11)]
    assert slug(told(server, *long)) == (422, "too-much-feedback")
    assert told(server, *long[:10]).json()["accepted"] == 10
    assert slug(told(server, long[10])) == (422, "too-much-feedback")
    assert told(server, event(other)).status_code == 200
    many = [event(other, number) for number in range(1, 101)]
    assert slug(told(server, *many)) == (422, "too-much-feedback")
    assert told(server, *many[:99]).json()["accepted"] == 99
    assert sum(len(use.events) for use in recorded(store, 2, 110)) == 110


def test_one_key_sends_so_much_within_an_hour(start: Start, store: Path, tmp_path: Path) -> None:
    """A quarter of the log; others go on."""
    headers = {name: {"Authorization": f"Bearer {name}"} for name in ("one", "other")}
    with keys.changing(tmp_path / "keys.json") as held:
        held[:] = [keys.Key(name=name, sha256=keys.hashed(name.encode()), scopes=("rank",)) for name in headers]
    server = start(keys_file=tmp_path / "keys.json", feedback_mb=1)

    def said(name: str, number: int) -> httpx2.Response:
        asked = server.client.post("/rank", json={"context": "w1"}, headers=headers[name]).json()["ranking_id"]
        events = [event(asked, each, "written", text="x" * 4000) for each in range(10)]
        return server.client.post("/feedback", json={"events": events}, headers=headers[name])

    assert [said("one", number).status_code for number in range(6)] == 6 * [200]
    refused = said("one", 6)
    assert slug(refused) == (429, "rate-limited")
    assert 0 < int(refused.headers["retry-after"]) <= 3600
    assert said("other", 0).status_code == 200
    owners = {use.ranking.by for use in recorded(store, 8, 70)}
    assert len(owners) == 2


def test_only_roles_that_tools_use_are_recorded(start: Start, store: Path) -> None:
    turns = [{"role": role, "text": "w1"} for role in ("jo.smith@secret.example +49 170 1234567", "Agent", "Jo Smith")]
    start().rank(context=turns)
    [use] = recorded(store, 1)
    assert [turn.role for turn in use.ranking.said.turns] == [None, "Agent", None]
    assert not any(b"mith" in path.read_bytes() for path in (store / "feedback").iterdir())


def test_events_are_taken_all_or_none(start: Start, store: Path) -> None:
    server = start(feedback_days=1)
    ranking = server.rank(context="w1").json()["ranking_id"]
    identity = server.app.state.resources.feedback.identity
    old, forged = identity.ranking_id(time.time() - 86_500), ranking[:-1] + ("0" if ranking[-1] != "0" else "1")
    assert slug(told(server, event(ranking), event(forged, 1))) == (404, "unknown-ranking")
    assert slug(told(server, event(ranking), event(old, 1))) == (410, "feedback-too-old")
    assert slug(told(server, event(ranking), event(ranking, 1, "chosen"))) == (422, "invalid-input")
    assert recorded(store, 1)[0].events == ()
    assert told(server, event(ranking), event(ranking, 1)).json()["accepted"] == 2
    assert len(recorded(store, 1, 2)[0].events) == 2


def test_an_event_that_comes_again_counts_once_also_after_a_restart(start: Start, store: Path) -> None:
    server = start()
    ranking = server.rank(context="w1").json()["ranking_id"]
    counts = []
    for _ in range(2):
        counts += [told(server, event(ranking, 0, "none_good"), event(ranking, 1)).json() for _ in range(2)]
        server.stop()
        server = start()
    assert [each["accepted"] for each in counts] == [2, 0, 2, 0]
    [use] = recorded(store, 1, 2)
    assert [each.kind for each in use.events] == ["none_good", "resolved"]


def test_each_pool_has_a_log_of_its_own(store: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(store, tmp_path / "other"))
    settings = Settings(store={"": store, "two": other}, feedback="ids")
    with serve(create_app(settings, load, load)) as server:
        ranking = server.client.post("/pools/two/rank", json={"context": "w1"}).json()["ranking_id"]
        assert slug(told(server, event(ranking))) == (404, "unknown-ranking")
        assert server.client.post("/pools/two/feedback", json={"events": [event(ranking)]}).status_code == 200
        assert len(recorded(other, 1, 1)) == 1
        assert recorded(store) == []
        assert server.metric("feedback_rankings_total", outcome="recorded", pool="two") == 1


def test_a_closed_file_is_compressed_and_holds_the_same(start: Start, store: Path) -> None:
    server = start()
    ranking = server.rank(context=CONTEXT).json()["ranking_id"]
    told(server, event(ranking))
    before = recorded(store, 1, 1)
    [path] = (store / "feedback").glob("*.jsonl")
    server.stop()
    until(lambda: not path.exists(), 10)
    assert path.with_name(f"{path.name}.zst").stat().st_mode & 0o777 == 0o600
    assert recorded(store, 1, 1) == before


def test_the_function_that_redacts_failing_is_heard_and_lets_no_text_through(
    start: Start, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "names_out.py").write_text(
        "def redact(text):\n    if 'bad' in text: raise ValueError(text)\n    return text.replace('Jo', '[name]')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    server = start(feedback_redact="names_out:redact")
    server.rank(context="w1, said Jo")
    ranking = server.rank(context=["w1", "w2 bad secret"]).json()["ranking_id"]
    told(server, event(ranking, 0, "written", text="bad secret"))
    first, second = recorded(store, 2, 1)
    assert first.ranking.said.turns[0].text == "w1, said [name]"
    assert second.ranking.said is None
    assert [each.text for each in second.events] == [None]
    assert server.metric("feedback_textless_total") == 2
    assert "texts of feedback are not recorded" in caplog.text
    assert "secret" not in caplog.text
    assert not any(b"secret" in path.read_bytes() for path in (store / "feedback").iterdir())


def test_a_function_that_is_not_there_is_told_before_any_model_is_loaded(store: Path) -> None:
    loaded: list[str] = []
    settings = Settings(store=store, reranker="cross", feedback="texts", feedback_redact="json:dumbs")
    with (
        pytest.raises(SettingsError, match=r"^feedback_redact: 'json:dumbs' cannot be used: AttributeError"),
        TestClient(create_app(settings, loaded.append, loaded.append)),
    ):
        pass
    assert not loaded


class Sender(threading.Thread):
    """Ranks and sends events without a pause, until the server is gone; keeps those that were acknowledged.

    With `again`, it goes on after a connection was cut, and each request has a connection of its own.
    """

    def __init__(self, port: int, number: int, again: bool = False) -> None:
        super().__init__(daemon=True)
        self.again, self.ended = again, threading.Event()
        self.url, self.number, self.acknowledged = f"http://127.0.0.1:{port}", number, set[str]()

    def run(self) -> None:
        kept = httpx2.Limits(max_keepalive_connections=0) if self.again else httpx2.Limits()
        with httpx2.Client(base_url=self.url, timeout=10, limits=kept) as client:
            for count in range(1_000_000):
                try:
                    self.send(client, count)
                except httpx2.HTTPError:
                    if not self.again:
                        return
                if self.ended.is_set():
                    return

    def send(self, client: httpx2.Client, count: int) -> None:
        asked = {"context": f"w{count % 40}", "conversation": f"chat {self.number}"}
        ranking = client.post("/rank", json=asked).json()["ranking_id"]
        name = f"{self.number}.{count}"
        events = [event(ranking, kind=kind, event_id=f"{name}{kind}") for kind in ("none_good", "resolved")]
        answer = client.post("/feedback", json={"events": events})
        if answer.status_code == 200 and answer.json()["accepted"] == 2:
            self.acknowledged |= {each["event_id"] for each in events}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_was_acknowledged_survives_kills(checkpoints: Path, tmp_path: Path, warm_python, workers: int) -> None:
    """Each time all processes are killed amid events; what they leave is closed by the next ones."""
    build(polyrank.load(checkpoints / "poly"), pool(40), tmp_path)
    acknowledged = set[str]()
    for turn in range(3):
        server = ServerProcess(warm_python, store=tmp_path, workers=workers, feedback="texts")
        port = server.ready()
        senders = [Sender(port, 10 * turn + number) for number in range(4)]
        for sender in senders:
            sender.start()
        until(lambda senders=senders, turn=turn: min(len(each.acknowledged) for each in senders) >= 10 + 3 * turn)
        for process in (server.process.pid, *children(server)):
            os.kill(process, signal.SIGKILL)
        server.end()
        for sender in senders:
            sender.join()
            acknowledged |= sender.acknowledged
    tally = LogTally()
    found = [each.id for use in uses(tmp_path, tally) for each in use.events]
    assert acknowledged <= {*found}
    assert len(found) == len({*found})
    assert tally.damaged <= 3 * workers, "no more than the line that each was at"
    server = ServerProcess(warm_python, store=tmp_path, workers=workers, feedback="texts")
    server.ready()
    until(lambda: not [*(tmp_path / "feedback").glob("*.jsonl")], 20)
    assert acknowledged <= {each.id for use in uses(tmp_path) for each in use.events}
    assert erase(tmp_path, ["chat 11"]).rankings > 0
    own = Identity.of(tmp_path).conversation("chat 11")
    assert not [use for use in uses(tmp_path) if use.ranking.conversation == own]
    assert not any(own in line for line in raw_lines(tmp_path))
    server.process.terminate()
    server.end()


@pytest.mark.slow
def test_what_was_acknowledged_survives_the_kill_of_the_worker_in_which_its_ranking_waits(
    checkpoints: Path, tmp_path: Path, warm_python: WarmPython
) -> None:
    """One of two is killed again and again, while events go to either."""
    build(polyrank.load(checkpoints / "poly"), pool(40), tmp_path)
    server = ServerProcess(warm_python, store=tmp_path, workers=2, feedback="texts")
    port = server.ready()
    senders = [Sender(port, number, again=True) for number in range(4)]
    for sender in senders:
        sender.start()
    for turn in range(5):
        wanted = sum(len(each.acknowledged) for each in senders) + 40
        until(lambda wanted=wanted: sum(len(each.acknowledged) for each in senders) >= wanted)
        workers = children(server)
        os.kill(workers[turn % len(workers)], signal.SIGKILL)
    for sender in senders:
        sender.ended.set()
    for sender in senders:
        sender.join()
    server.process.terminate()
    server.end()
    acknowledged = set[str]().union(*(sender.acknowledged for sender in senders))
    assert len(acknowledged) >= 200
    assert acknowledged <= {each.id for use in uses(tmp_path) for each in use.events}


def children(server: ServerProcess) -> list[int]:
    own = server.process.pid
    return [*map(int, Path(f"/proc/{own}/task/{own}/children").read_text().split())]


def raw_lines(store: Path) -> list[str]:
    """What the files of the log hold."""
    folder = store / "feedback"
    return [json.dumps(line) for name in names(folder) for line in lines(folder, name)]


def cli(action: str, store: Path, *arguments: str) -> dict[str, Any]:
    """Run a command; returns what it says."""
    command = [
        sys.executable, "-m", "polyrank.service.cli", "feedback", action, "--store", str(store), "--json", *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_a_conversation_is_erased_while_servers_write(start: Start, store: Path) -> None:
    servers = [start(), start()]
    asked = [(server, name) for server in servers for name in ("chat 1", "chat 2", "chat 1")]
    ids = [server.rank(context="w1 some words", conversation=name).json()["ranking_id"] for server, name in asked]
    for number, ranking in enumerate(ids):
        told(servers[number % 2], event(ranking, number, "written", text=f"about {ranking}"))
    recorded(store, 6, 6)
    assert cli("erase", store, "--conversation", "chat 1") == {
        "rankings": 4, "files_left": 0, "loop_collects_anew": False, "unknown": [],
    }  # fmt: skip
    rest = " ".join(raw_lines(store))
    assert [name in rest for name in ids] == [False, True, False, False, True, False]
    status = cli("status", store)
    assert (status["rankings"], status["with_feedback"], status["events"]["written"]) == (2, 2, 2)
    again = servers[0].rank(context="w1", conversation="chat 1").json()["ranking_id"]
    assert again in {use.ranking.id for use in recorded(store, 3, 2)}, "it goes on"


def test_what_a_store_does_besides_goes_on(start: Start, store: Path, tmp_path: Path) -> None:
    """Verifying, collecting, backing up: the log is no part of it."""
    server = start()
    told(server, event(server.rank(context="w1").json()["ranking_id"]))
    root = GenerationStore(store)
    for generation in root.ids():
        root.verify(generation)
    assert root.gc(1) == []
    with (tmp_path / "b.tar.zst").open("wb") as file:
        back_up(root, file, lambda *_: None)
    with (tmp_path / "b.tar.zst").open("rb") as file:
        restore(file, tmp_path / "again", lambda *_: None)
    assert not (tmp_path / "again" / "feedback").exists()
    assert len(recorded(store, 1, 1)) == 1


def test_a_log_alone_is_a_store_that_can_be_built_into(tmp_path: Path) -> None:
    Identity.of(tmp_path / "new")
    assert why_no_store(tmp_path / "new") is None


def test_a_damaged_key_stops_the_start_and_says_what_to_do(store: Path) -> None:
    Identity.of(store)
    (store / "feedback" / "key").write_bytes(b"")
    app = create_app(Settings(store=store, feedback="ids"), load, load)
    with pytest.raises(SettingsError, match=r"feedback cannot be recorded in .*key is damaged"), TestClient(app):
        pass
