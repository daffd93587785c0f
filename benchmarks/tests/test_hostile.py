"""Hostile callers: each kind is sent as it is described, and figures tell right answers from wrong ones."""

import gzip
import json
import random
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from benchmarks.load import attacks, hostile
from benchmarks.load.attacks import ATTACKS, HOSTILE_IDS, Target
from benchmarks.load.hostile import Seen
from pydantic import BaseModel, ValidationError

from polyrank.service.http.native.requests import ClassifyIn, ExplainIn, RankIn, UpsertIn

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
            yield Target(*server.server_address[:2])
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_sent_and_says_how_it_ended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks.time, "sleep", lambda seconds: None)
    with listening(lambda number: REFUSAL) as target:
        assert {ATTACKS[name](target, random.Random(seed)) for seed in range(4)} <= {"422", "left"}


@pytest.mark.parametrize(
    ("path", "model"),
    [("/rank", RankIn), ("/explain", ExplainIn), ("/classify", ClassifyIn), ("/index/candidates", UpsertIn)],
)
def test_mistakes_are_so_few_that_each_is_told(path: str, model: type[BaseModel]) -> None:
    with pytest.raises(ValidationError) as raised:
        model.model_validate_json(attacks.with_mistakes(path))
    unknown = [each for each in raised.value.errors() if each["type"] == "extra_forbidden"]
    assert len(unknown) == 990


def test_what_is_compressed_is_small_outside_or_inside() -> None:
    assert gzip.decompress(attacks.gzipped("empty")) == b""
    assert 0.99 < len(attacks.gzipped("empty")) / attacks.MOST_BYTES <= 1
    assert len(gzip.decompress(attacks.gzipped("bomb"))) > 16 * attacks.MOST_BYTES > 500 * len(attacks.gzipped("bomb"))
    assert len(gzip.decompress(attacks.gzipped("blanks"))) == attacks.MOST_BYTES
    assert gzip.decompress(attacks.gzipped("members")[:2000]) == b"", "some of them: it reads all in quadratic time"
    assert len(json.loads(gzip.decompress(attacks.mistaken_batch()))["requests"]) == 100


def test_a_stall_counts_for_every_beat_that_was_due() -> None:
    over, stall = threading.Event(), 0.5
    asked: list[int] = []

    def answer(number: int) -> bytes:
        asked.append(number)
        time.sleep(stall if number == 0 else 0)
        if number == 2:
            over.set()
        return GOOD

    with listening(answer, is_kept=True) as target:
        found = hostile.beat(over, target)
    assert found.failed == 0
    assert found.missed >= stall / hostile.BEAT_SECONDS - 1
    assert len(found.seconds) == len(asked) + found.missed
    assert found.seconds[0] >= stall


def test_a_server_that_hangs_up_fails_its_beats() -> None:
    over = threading.Event()

    def answer(number: int) -> bytes:
        if number == 2:
            over.set()
        return b""

    with listening(lambda number: answer(number) or b"nonsense\r\n\r\n") as target:
        assert hostile.beat(over, target).failed >= 3


def test_a_refusal_is_no_wrong_answer_and_no_right_one() -> None:
    seen = [
        Seen(0.1, 200, None), Seen(0.2, 200, "7 results in place of 8"), Seen(0.3, 503, "status 503"),
        Seen(0.4, 0, "TimeoutError()"), Seen(0.5, 422, "status 422"), Seen(0.6, 504, "status 504"),
    ]  # fmt: skip
    found = hostile.honest_figures(seen)
    assert (found["sent"], found["right"], found["wrong"], found["refused"]) == (6, 1, 3, 2)
    assert ("status 422", 1) in found["reasons"]
    assert found["longest_ms"] == 600.0


def test_only_candidates_that_attackers_added_may_stand_between_the_others() -> None:
    expected = [{"id": "a", "index": 0, "score": 2.0}, {"id": "b", "index": 1, "score": 1.0}]
    added = {"id": HOSTILE_IDS[3], "index": 7, "score": 1.5}
    assert hostile.difference(expected, expected) is None
    assert hostile.difference(expected, [expected[0], added]) is None
    assert hostile.difference(expected, [expected[0]]) == "1 results in place of 2"
    assert "in place of" in (hostile.difference(expected, [expected[1], expected[0]]) or "")
    assert "in place of" in (hostile.difference(expected, [expected[0], {**expected[1], "score": 1.1}]) or "")


def test_honest_callers_get_right_answers_beside_hostile_ones() -> None:
    kinds = {"unknown_paths": {"404"}, "wrong_types": {"200", "415", "422"}, "cut_off": {"left"}}
    options = ["--seconds", "2", "--hostile", "2", "--honest", "2", "--each", "--only", *kinds]
    found = hostile.hostile(hostile.parser().parse_args(options))
    assert [each["load"] for each in found["loads"]] == list(kinds)
    for each in found["loads"]:
        assert each["attacks"].keys() <= {f"{each['load']}: {answer}" for answer in kinds[each["load"]]}
        assert sum(each["attacks"].values()) >= 1
    for each in (found["before"], *found["loads"], found["after"]):
        assert each["right"] >= 1
        assert (each["wrong"], each["failed"]) == (0, 0), each["reasons"]
        assert each["beats"] > each["missed"]
        assert each["resident_mib"] > 100
