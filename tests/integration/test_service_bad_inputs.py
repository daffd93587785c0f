"""Bad and odd inputs: each is refused with a problem that says so, at once, or has one documented meaning."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from bad_inputs import ASK, BOUND, HEAD, best_of_three, is_problem, post, resident_bytes, serve_words
from served import Served

from polyrank.service.http.plumbing.middleware import DRAIN_SECONDS

MILLION = 1_000_000
GENERATION = "20261121T013000123456-1a2b3c4d"


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with the bound on bodies that is the default."""
    with serve_words(tmp_path_factory.mktemp("store"), max_body_bytes=16 << 20) as served:
        yield served


def refused(server: Served, body: bytes, status: int) -> dict[str, Any]:
    """The problem with a body, told in next to no time."""
    found: dict[str, Any] = {}

    def seconds() -> float:
        began = time.perf_counter()
        answer = post(server, body)
        taken = time.perf_counter() - began
        found.update(is_problem(answer, status))
        return taken

    best_of_three(seconds)
    return found


MALFORMED = {
    "empty": b"",
    "truncated": b'{"context": "a"',
    "half a letter of utf-16": '{"context": "a"}'.encode("utf-16")[:-1],
    "half a pair in utf-16": '{"context": "a'.encode("utf-16") + b"\x00\xd8" + '"}'.encode("utf-16-le"),
    "bad utf-8 behind a byte order mark": b'\xef\xbb\xbf{"context": "\xff"}',
    "bad utf-8": b'{"context": "\xff"}',
    "lone surrogate": b'{"context": "\\ud800"}',
    "lone surrogate as a name": b'{"context": "a", "\\udfff": 1}',
    "20k-deep nesting": b'{"context": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "10k-digit integer": b'{"context": "a", "top_k": ' + b"9" * 10_000 + b"}",
    "trailing": b'{"context": "a"} {}',
}

INVALID = {
    "NaN": b'{"context": "a", "top_k": NaN}',
    "Infinity": b'{"context": "a", "top_k": -Infinity}',
    "1e400": b'{"context": "a", "top_k": 1e400}',
    "NaN in a filter": b'{"context": "a", "filter": {"n": NaN}}',
    "only unknown ids": b'{"context": "a", "candidates": [{"id": "nobody"}, {"id": "none"}]}',
    "top_k as large as can be": b'{"context": "a", "top_k": 9223372036854775808}',
    "exclude_ids that are none": b'{"context": "a", "exclude_ids": [' + b"1," * 9_999 + b"1]}",
    "too many unknown fields to name": b'{"context": "a"' + b"".join(b',"k%d":1' % n for n in range(50_000)) + b"}",
    "a fact without end": b'{"context": "a", "persona": ["' + b"x" * 1_000_000 + b'"]}',
    "a candidate without end": b'{"context": "a", "candidates": ["' + b"x" * 20_001 + b'"]}',
    "a filter nested without end": b'{"context": "a", "filter": ' + b'{"$not": ' * 100 + b"{}" + b"}" * 101,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_not_json_is_malformed(server: Served, name: str) -> None:
    assert refused(server, MALFORMED[name], 400)["type"].endswith("malformed-body")


@pytest.mark.parametrize("name", INVALID)
def test_what_cannot_be_ranked_is_invalid(server: Served, name: str) -> None:
    body = refused(server, INVALID[name], 422)
    assert body["errors"]
    assert "xxxx" not in json.dumps(body)


HUGE = {
    "a million whole numbers": b'{"context": "a", "candidates": [' + b"1," * MILLION + b"1]}",
    "a million candidates": b'{"context": "a", "candidates": [' + b'{"text":"a"},' * MILLION + b'"a"]}',
    "a million turns": b'{"context": [' + b'"a",' * MILLION + b'"a"]}',
    "a million ids": b'{"context": "a", "exclude_ids": [' + b'"a",' * MILLION + b'"a"]}',
    "a million unknown fields": b'{"context": "a"' + b',"x":0' * MILLION + b"}",
}


@pytest.mark.parametrize("name", HUGE)
def test_a_million_elements_hold_nobody_up(roomy: Served, name: str) -> None:
    def refused_while_others_ask() -> float:
        """The longest that another caller waits, in seconds."""
        waits = [0.0]
        with ThreadPoolExecutor(1) as pool, httpx2.Client(base_url=roomy.url) as other:
            other.get("/livez")
            answer = pool.submit(post, roomy, HUGE[name])
            while not answer.done():
                began = time.perf_counter()
                assert other.get("/livez").status_code == 200
                waits.append(time.perf_counter() - began)
            body = is_problem(answer.result(), 413)
        assert body["type"].endswith("too-many-values")
        assert len(waits) > 2
        return max(waits)

    before = resident_bytes()
    best_of_three(refused_while_others_ask)
    assert resident_bytes() - before < 400 << 20


def test_the_most_candidates_are_ranked_and_one_more_is_refused(server: Served) -> None:
    most = server.rank(context="w1", candidates=[f"w{n % 50}" for n in range(10_000)], top_k=5)
    assert most.status_code == 200
    assert len(most.json()["results"]) == 5
    for count in (10_001, 100_001):
        body = refused(server, json.dumps({"context": "w1", "candidates": ["a"] * count}).encode(), 413)
        assert "10000" in body["detail"]


@pytest.mark.parametrize("headers", [
    {"Content-Type": "text/plain"},
    {"Content-Type": "application/json; charset=iso-8859-1"},
    {"Content-Type": "multipart/form-data"},
    {"Content-Type": "application/json", "Content-Encoding": "br"},
    {"Content-Type": "application/json", "Content-Encoding": "gzip, gzip"},
    {"Content-Type": "application/json", "Content-Encoding": "zstd"},
])  # fmt: skip
def test_another_media_type_or_an_encoding(server: Served, headers: dict[str, str]) -> None:
    is_problem(server.client.post("/rank", content=b'{"context": "a"}', headers=headers), 415)


def test_a_missing_content_type_means_json(server: Served) -> None:
    answer = server.raw(b'POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n{"context": "a"}')
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("size", [BOUND, 5 * BOUND, 50_000_000])
def test_a_body_over_the_bound_by_its_announced_length(server: Served, size: int) -> None:
    before = server.metric("rejected_total", reason="too_large")
    response = post(server, b'{"context": "' + b"x" * size + b'"}')
    body = is_problem(response, 413)
    assert str(BOUND) in body["detail"]
    assert response.headers["connection"] == "close"
    assert server.metric("rejected_total", reason="too_large") == before + 1


@pytest.mark.parametrize("job", ["..%2f..%2fCURRENT", "x" * 300, "%00", "%ff", "20261121T013000123456-1a2b3c4d"])
def test_a_job_id_that_is_none(server: Served, job: str) -> None:
    is_problem(server.client.get(f"/index/jobs/{job}"), 404)
    is_problem(server.client.post(f"/index/jobs/{job}/cancel"), 404)


@pytest.mark.parametrize("generation", ["../../etc/passwd", "..", ".tmp-" + GENERATION, "x\0y", GENERATION])
def test_a_generation_id_that_is_none(server: Served, generation: str) -> None:
    is_problem(server.client.post("/index/activate", json={"generation": generation}), 404)


def test_nothing_to_roll_back_to(server: Served) -> None:
    is_problem(server.client.post("/index/rollback"), 404)


@pytest.mark.parametrize("key", ["", "a b", "\xe4", "x" * 256])
def test_a_bad_idempotency_key(server: Served, key: str) -> None:
    headers = {"Idempotency-Key": key.encode("latin-1")}
    is_problem(server.client.post("/index", json={"candidates": [{"text": "a"}]}, headers=headers), 400)


@pytest.mark.parametrize(("body", "says"), [
    ({"pool": "replies.jsonl"}, "pool_root"),
    ({"candidates": [{"text": "a"}], "model": "m"}, "model_root"),
    ({"candidates": [{"text": "x" * 20_001}]}, "20000"),
    ({"candidates": [{"text": "a", "metadata": {"$a": 1}}]}, "$"),
])  # fmt: skip
def test_a_rebuild_that_cannot_be(server: Served, body: dict, says: str) -> None:
    assert says in is_problem(server.client.post("/index", json=body), 422)["detail"]


@pytest.mark.parametrize("limit", ["0", "-1", "101", "many", "%ed%a0%80", "9" * 5000])
def test_a_limit_that_is_none(server: Served, limit: str) -> None:
    assert "many" not in json.dumps(is_problem(server.client.get(f"/index/jobs?limit={limit}"), 422))


def test_what_was_expected_must_be_served(server: Served) -> None:
    served = server.client.get("/info").json()
    right = {"fingerprint": served["model"]["fingerprint"], "generation": served["generation"]}
    assert server.rank(context="a", expect=right).status_code == 200
    body = is_problem(server.rank(context="a", expect={"fingerprint": "f" * 64}), 409)
    assert "f" * 64 in body["detail"]
    assert right["fingerprint"] in body["detail"]
    body = is_problem(server.rank(context="a", expect={**right, "generation": GENERATION}), 409)
    assert GENERATION in body["detail"]
    assert right["generation"] in body["detail"]


def test_an_unexpected_failure_is_told_to_the_log_alone(server: Served, monkeypatch, caplog) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(server.app.state.resources.engine, "rank", broken)
    body = is_problem(server.rank(context="a"), 500)
    assert "secret" not in json.dumps(body)
    assert "secret" in caplog.text
    assert body["request_id"] in caplog.text


def test_afterwards_it_still_answers_and_counted_everything(server: Served) -> None:
    assert server.rank(context="w1", rerank=True).status_code == 200
    assert server.metric("http_requests_in_flight") == 0


def test_nul_is_text_and_the_last_of_equal_keys_counts(server: Served) -> None:
    assert post(server, b'{"context": "a\\u0000b"}').status_code == 200
    assert post(server, b'{"top_k": 0, "context": "a", "top_k": 3}').status_code == 200
    is_problem(post(server, b'{"top_k": 3, "context": "a", "top_k": 0}'), 422)


def test_duplicate_ids_are_each_ranked(server: Served) -> None:
    answer = server.rank(context="w1", candidates=[{"id": "c1"}] * 3).json()
    assert [result["index"] for result in answer["results"]] == [0, 1, 2]


@pytest.mark.parametrize("value", [
    "application/json", "Application/JSON; charset=UTF-8",
    'application/json;charset="utf-8"', "application/json; charset=utf-16",
])  # fmt: skip
def test_the_right_media_type(server: Served, value: str) -> None:
    assert post(server, ASK, content_type=value).status_code == 200


@pytest.mark.parametrize("given", ["abc-123_X.y", "a", "x" * 128])
def test_a_request_id_is_echoed(server: Served, given: str) -> None:
    assert server.client.get("/livez", headers={"X-Request-ID": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a\tb", "<script>", "a,b"])
def test_a_bad_request_id_is_replaced(server: Served, given: str) -> None:
    response = server.client.get("/livez", headers={"X-Request-ID": given})
    assert response.status_code == 200
    assert response.headers["x-request-id"] not in (given, "")


def test_a_line_break_in_a_request_id_makes_no_header(server: Served) -> None:
    answer = server.raw(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: a\r\nEvil: yes\r\n\r\n")
    assert b"evil" not in answer.lower()
    answer = server.raw(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: a\nSet-Cookie: x=1\r\n\r\n")
    assert b"set-cookie" not in answer.lower()


def test_of_two_request_ids_the_first_counts(server: Served) -> None:
    answer = server.raw(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: one\r\nX-Request-ID: two\r\n\r\n")
    assert b"x-request-id: one\r\n" in answer.lower()


def test_a_body_of_50_mb_is_not_held(server: Served) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"context": "'
        for _ in range(800):
            yield b"x" * 65536

    before = resident_bytes()
    # The server may close before a client that never stops has sent everything.
    with suppress(httpx2.TransportError):
        is_problem(server.client.post("/rank", content=chunks(), headers={"Content-Type": "application/json"}), 413)
    assert resident_bytes() - before < 100 << 20
    assert server.rank(context="a").status_code == 200


def test_a_chunked_body_over_the_bound(server: Served) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 65536

    before = server.metric("rejected_total", reason="too_large")
    response = server.client.post("/rank", content=chunks(), headers={"Content-Type": "application/json"})
    assert is_problem(response, 413)["type"].endswith("payload-too-large")
    assert response.headers["connection"] == "close"
    assert server.metric("rejected_total", reason="too_large") == before + 1


def test_a_chunked_body_over_the_bound_that_has_ended_is_not_waited_for(server: Served) -> None:
    chunk = b"%x\r\n%s\r\n" % (BOUND + 1, b"x" * (BOUND + 1))
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n")
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()
    assert time.monotonic() - began < DRAIN_SECONDS / 2


def test_a_client_that_sends_first_and_reads_later_gets_the_refusal(server: Served) -> None:
    body = b"x" * 7 * BOUND
    for _ in range(5):
        answer = server.raw(HEAD + b"Content-Length: %d\r\n\r\n" % len(body), body)
        assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_content_length_above_what_comes(server: Served) -> None:
    answer = server.raw(HEAD + b'Content-Length: 100\r\n\r\n{"context": "a"}', wait=0.3)
    assert answer == b"", "the rest may still come"
    assert server.rank(context="a").status_code == 200
