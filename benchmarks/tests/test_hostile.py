"""Hostile callers: each kind is sent as it is described, and figures tell right answers from wrong ones."""

import gzip
import json
import random
import socketserver
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import pytest
from benchmarks.load import drive, hostile
from benchmarks.load.attacks import ATTACKS, COUNTING_ANEW, Attack, Target, burst, kinds
from benchmarks.load.hostile import Seen
from benchmarks.load.worst import HOSTILE, MOST_BYTES, worst

STALL = 0.5
REFUSAL = b"HTTP/1.1 422 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@contextmanager
def listening(answer: Callable[[int], bytes], is_kept: bool = False) -> Iterator[Target]:
    """Run a server that gives an answer by the number of the request, and reads whatever else is sent."""
    numbers = iter(range(10**9))

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                while self.request.recv(65536):
                    self.request.sendall(answer(next(numbers)))
                    if not is_kept:
                        break
                while self.request.recv(1 << 20):
                    pass

    class Server(socketserver.ThreadingTCPServer):
        request_queue_size = 1024
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            host, port = server.server_address[:2]
            yield Target(str(host), port)
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize("name", [name for name in ATTACKS if "connections" not in name])
def test_every_attack_is_sent_and_says_how_it_ended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with listening(lambda number: REFUSAL) as target:
        assert {ATTACKS[name](target, random.Random(seed)) for seed in range(4)} <= {"422", "left"}


@pytest.mark.parametrize("are_old", [False, True])
def test_a_burst_tells_what_each_connection_was_answered(are_old: bool) -> None:
    with listening(lambda number: GOOD, is_kept=True) as target:
        assert burst(target, random.Random(), 50, are_old=are_old) == ["200"] * 50


def test_feedback_is_sent_about_a_ranking() -> None:
    sent: list[bytes] = []
    told = b'{"ranking_id": "ab"}'

    def answer(number: int) -> bytes:
        sent.append(b"")
        body = told if number == 0 else b"{}"
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)

    with listening(answer) as target:
        assert ATTACKS["feedback"](target, random.Random(1)) == "200"
    assert len(sent) > 1


@pytest.fixture(scope="module")
def requests() -> Mapping[str, Attack]:
    [requests, others] = kinds()
    assert len(others) == len(ATTACKS)
    return requests


def test_every_worst_request_is_a_kind_and_is_sent(requests: Mapping[str, Attack]) -> None:
    assert len(requests) == len([*worst()]) - len(COUNTING_ANEW)
    with listening(lambda number: REFUSAL) as target:
        assert {requests[name](target, random.Random()) for name in [*requests][-60:]} == {"422"}


def test_what_is_compressed_is_small_outside_or_inside(requests: Mapping[str, partial[str]]) -> None:
    sent = {call.what: call.body for [call] in (each.args for each in requests.values())}
    assert 0.99 < len(sent["empty blocks of gzip"]) / MOST_BYTES <= 1
    assert zlib.decompressobj(31).decompress(sent["empty blocks of gzip"]) == b""
    assert len(gzip.decompress(sent["a bomb"])) > 5 * MOST_BYTES > 500 * len(sent["a bomb"])
    assert len(gzip.decompress(sent["blanks of gzip"])) == MOST_BYTES
    assert gzip.decompress(sent["empty members of gzip"][:2000]) == b"", "some of them: it reads all in quadratic time"
    assert len(json.loads(gzip.decompress(sent["wrong rankings in gzip"]))["requests"]) == 100


def test_a_stall_counts_for_every_beat_that_was_due() -> None:
    asked: list[int] = []

    def answer(number: int) -> bytes:
        asked.append(number)
        time.sleep(STALL if number == 0 else 0)
        return GOOD

    with listening(answer, is_kept=True) as target:
        found = hostile.beat(time.monotonic() + 2 * STALL, target)
    assert found.failed == 0
    assert found.missed >= STALL / hostile.BEAT_SECONDS - 1
    assert len(found.seconds) == len(asked) + found.missed
    assert found.seconds[0] >= STALL


def test_a_server_that_hangs_up_fails_its_beats() -> None:
    with listening(lambda number: b"nonsense\r\n\r\n") as target:
        found = hostile.beat(time.monotonic() + STALL, target)
    assert found.failed == len(found.seconds) - found.missed >= 1


def test_a_refusal_is_no_wrong_answer_and_no_right_one() -> None:
    seen = [
        Seen(0.1, 200, None), Seen(0.2, 200, "7 results in place of 8"), Seen(0.3, 503, "status 503"),
        Seen(0.4, 0, "TimeoutError()"), Seen(0.5, 422, "status 422"), Seen(0.6, 504, "status 504"),
    ]  # fmt: skip
    found = hostile.honest_figures(seen)
    assert (found["right"], found["wrong"], found["refused"]) == (1, 3, 2)
    assert ("status 422", 1) in found["reasons"]
    assert found["longest_ms"] == 600.0


def test_only_candidates_that_attackers_added_may_stand_between_the_others() -> None:
    expected = [{"id": "a", "index": 0, "score": 2.0}, {"id": "b", "index": 1, "score": 1.0}]
    added = {"id": f"{HOSTILE}3", "index": 7, "score": 1.5}
    assert hostile.difference(expected, expected) is None
    assert hostile.difference(expected, [expected[0], added]) is None
    assert hostile.difference(expected, [expected[0]]) == "1 results in place of 2"
    assert "in place of" in (hostile.difference(expected, [expected[1], expected[0]]) or "")
    assert "in place of" in (hostile.difference(expected, [expected[0], {**expected[1], "score": 1.1}]) or "")


def test_honest_callers_get_right_answers_beside_hostile_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = {"GET /rankx: no such path": {"404"}, "cut_off": {"left"}}
    monkeypatch.setattr(drive, "WARM_SECONDS", 1.0)
    options = ["--seconds", "1.5", "--hostile", "2", "--honest", "2", "--each", "--only", *allowed]
    before, *loads, after, feedback = hostile.hostile(hostile.parser().parse_args(options))
    assert [each["kind"] for each in loads] == [*allowed]
    for each in loads:
        assert each["answers"].keys() == allowed[each["kind"]]
    for each in (before, *loads, after):
        assert each["right"] >= 1
        assert (each["wrong"], each["failed"]) == (0, 0), each["reasons"]
        assert each["livez"] > each["missed"]
        assert each["resident_mib"] > 100
    assert feedback["acknowledged"] == sum(each["said"] for each in (before, *loads, after)) > 0
    assert feedback["lost"] == 0


def test_a_mixed_load_counts_the_answers_of_each_kind_that_words_choose() -> None:
    groups = kinds(["/rankx", "upgra"])
    with listening(lambda number: REFUSAL) as target:
        answers = hostile.attack(time.monotonic() + STALL, target, groups, callers=2, pause=0.0, seed=1)
    assert answers.keys() == {"GET /rankx: no such path: 422", "upgrade: 422"}
