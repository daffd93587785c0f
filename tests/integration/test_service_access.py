"""Keys, scopes, rates and origins, at a real server and on every route."""

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from served import Served, serve
from service_fakes import build_store, words_app
from waiting import until

from polyrank.service import resources
from polyrank.service.auth import keys
from polyrank.service.auth.keys import Key
from polyrank.service.http.plumbing.access import Needs, rules

pytestmark = pytest.mark.quick

READER, BOSS, SLOW = "reader-secret", "boss-secret", "slow-secret"
HELD = (
    Key(name="reader", sha256=keys.hashed(READER.encode()), scopes=("rank",)),
    Key(name="boss", sha256=keys.hashed(BOSS.encode()), scopes=("admin",)),
    Key(name="slow", sha256=keys.hashed(SLOW.encode()), scopes=("rank",), rate_per_s=0.01, burst=2),
)
ORIGIN = "https://shop.example"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    build_store(root)
    return root


def with_keys(store: Path, file: Path) -> FastAPI:
    with keys.changing(file) as held:
        held[:] = HELD
    return words_app(store, keys_file=file, metrics_access="admin", cors_origins=(ORIGIN,))


@pytest.fixture(scope="module")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(with_keys(store, tmp_path_factory.mktemp("keys") / "keys.json")) as served:
        yield served


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def following(store: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server with a keys file of its own, which it looks at often."""
    monkeypatch.setattr(resources, "LOOK_SECONDS", 0.02)
    with serve(with_keys(store, file)) as served:
        yield served


def status(server: Served, route: str, key: str | None = None) -> int:
    method, path = route.split()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return int(server.client.request(method, path, headers=headers).status_code)


def guarded(server: Served) -> dict[str, str]:
    """METHOD /path -> the scope that the route needs."""
    return {
        f"{method} {(route.path or '').replace('{', '').replace('}', '')}": rule.scope
        for route in iter_route_contexts(server.app.routes)
        for rule in rules(route)
        if isinstance(rule, Needs)
        for method in route.methods or ()
    }


def test_every_route_that_needs_a_key_refuses_without_one(server: Served) -> None:
    routes = guarded(server)
    assert {"POST /rank", "POST /index", "GET /info"} <= set(routes)
    for route, scope in routes.items():
        assert status(server, route) == status(server, route, "wrong") == 401, route
        with_rank, with_admin = status(server, route, READER), status(server, route, BOSS)
        assert (with_rank == 403) == (scope == "admin"), route
        assert with_rank != 401, route
        assert with_admin not in (401, 403), route


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz", "/docs", "/openapi.json", "/"])
def test_what_is_open(server: Served, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        assert server.client.get(path, headers=headers).status_code in (200, 307)


def test_refusals_are_problems_and_name_no_key(server: Served) -> None:
    missing = server.client.post("/rank", json={"context": "w1"})
    wrong = server.client.post("/rank", json={"context": "w1"}, headers={"X-API-Key": "wrong-secret"})
    weak = server.client.get("/index", headers={"X-API-Key": READER})
    both = server.client.post("/rank", json={"context": "w1"}, headers={"X-API-Key": READER, "api-key": BOSS})
    for answer, code, slug in (
        (missing, 401, "unauthenticated"),
        (wrong, 401, "unauthenticated"),
        (weak, 403, "forbidden"),
        (both, 400, "invalid-header"),
    ):
        assert answer.status_code == code
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"].endswith(slug)
        assert "secret" not in answer.text
        assert (answer.headers.get("www-authenticate") == "Bearer") == (code == 401)
    assert "scope admin" in weak.json()["detail"]


@pytest.mark.parametrize("announced", [b"Content-Length: 1000", b"Transfer-Encoding: chunked"])
def test_the_body_is_not_waited_for(server: Served, announced: bytes) -> None:
    head = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    began = time.monotonic()
    assert server.raw(head + announced + b"\r\n\r\n").startswith(b"HTTP/1.1 401 ")
    assert time.monotonic() - began < 10


def test_a_broken_body_is_told_to_those_with_a_key_alone(server: Served) -> None:
    sent = {"content": b"{", "headers": {"Content-Type": "application/json"}}
    assert server.client.post("/rank", **sent).status_code == 401
    sent["headers"]["X-API-Key"] = READER
    assert server.client.post("/rank", **sent).status_code == 400


def test_metrics_may_need_an_admin_and_never_count(server: Served, store: Path) -> None:
    assert [status(server, "GET /metrics", key) for key in (None, "wrong", READER, BOSS)] == [401, 401, 403, 200]
    with serve(words_app(store, rate_limit_per_s=0.01)) as open_server:
        for _ in range(3):
            for path in ("/metrics", "/livez", "/readyz"):
                assert open_server.client.get(path).status_code == 200
        assert [open_server.rank(context="w1").status_code for _ in range(2)] == [200, 429]


def test_a_key_has_its_rate(server: Served) -> None:
    headers, before = {"X-API-Key": SLOW}, server.metric("rejected_total", reason="rate")
    assert [status(server, "GET /index", SLOW) for _ in range(3)] == [403] * 3, "what it may not do costs it nothing"
    answers = [server.client.post("/rank", json={"context": "w1"}, headers=headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["type"].endswith("rate-limited")
    assert 90 <= int(answers[2].headers["retry-after"]) <= 100
    assert server.metric("rejected_total", reason="rate") == before + 1
    assert status(server, "GET /info", READER) == 200, "another's rate"
    assert server.client.get("/livez", headers=headers).status_code == 200


def test_the_log_names_the_key_and_never_shows_it(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)  # where probes are logged
    for route, key in (
        ("GET /info", READER),
        ("GET /index", READER),
        ("GET /info", "wrong-secret"),
        ("GET /livez", READER),  # open to all, so the key is not looked at
    ):
        status(server, route, key)
    until(lambda: len([each for each in caplog.records if each.message == "request"]) == 4)
    fields = [each.fields for each in caplog.records if each.message == "request"]
    assert [(each["status"], each.get("key")) for each in fields] == [
        (200, "reader"), (403, "reader"), (401, None), (200, None),
    ]  # fmt: skip
    shown = caplog.text + str(fields)
    assert not [each for each in (READER, "wrong-secret", HELD[0].sha256) if each in shown]


def test_without_keys_whatever_is_sent_is_taken(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with serve(words_app(store)) as open_server:
        for value in ("Bearer", "Bearer x", "x", ""):
            headers = {"Authorization": value}
            assert open_server.client.post("/rank", json={"context": "w1"}, headers=headers).status_code == 200
            assert open_server.client.get("/index", headers=headers).status_code == 200
        answer = open_server.raw(b"GET /info HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 "), "what clients send that have no key"
    assert not [each for each in caplog.records if "key" in getattr(each, "fields", {})]


def test_a_change_of_the_file_needs_no_restart(following: Served, file: Path, capsys) -> None:
    added = call(capsys, "keys", "add", "--file", file, "--name", "new", "--scope", "admin").out.strip()
    until(lambda: status(following, "GET /index", added) == 200)
    call(capsys, "keys", "remove", "--file", file, "--name", "reader")
    until(lambda: status(following, "GET /info", READER) == 401)
    assert following.metric("keys_reloads_total", result="ok") == 2


def test_a_page_of_an_origin_that_is_allowed(server: Served) -> None:
    asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    wanted = "authorization,x-api-key,content-type,x-request-id"
    preflight = server.client.options("/rank", headers={**asked, "Access-Control-Request-Headers": wanted})
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, ORIGIN)
    allowed = preflight.headers["access-control-allow-headers"].lower()
    assert all(name in allowed for name in wanted.split(","))
    answer = server.client.get("/info", headers={"Origin": ORIGIN, "X-API-Key": READER})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)
    assert answer.headers["access-control-expose-headers"] == "*"
    assert "access-control-allow-credentials" not in answer.headers


def test_a_page_can_read_every_error(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(resources.Access, "require", fail)
    origin, too_large = {"Origin": ORIGIN}, {"Content-Length": str(10**9)}
    answers = [
        server.client.get("/info", headers=origin),
        server.client.get("/nothing", headers=origin),
        server.client.get("/info", headers={**origin, "X-API-Key": READER}),
    ]
    assert [answer.status_code for answer in answers] == [401, 404, 500]
    assert {answer.headers["access-control-allow-origin"] for answer in answers} == {ORIGIN}
    lines = [f"{name}: {value}".encode() for name, value in {**origin, **too_large}.items()]
    head = b"\r\n".join([b"POST /rank HTTP/1.1", b"Host: localhost", *lines, b"", b""])
    refused = server.raw(head).lower()
    assert refused.startswith(b"http/1.1 413 ")
    assert f"access-control-allow-origin: {ORIGIN}".encode() in refused


def test_a_page_of_another_origin(server: Served, store: Path) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert server.client.options("/rank", headers=asked).status_code == 400
    answer = server.client.get("/livez", headers=asked)
    assert "access-control-allow-origin" not in answer.headers
    with serve(words_app(store)) as closed:
        answer = closed.client.options("/rank", headers=asked)
        assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (405, False)


def test_keys_are_not_in_what_a_server_tells_of_itself(server: Served) -> None:
    told = json.dumps(server.app.state.resources.settings.model_dump(mode="json"))
    told += server.client.get("/info", headers={"X-API-Key": BOSS}).text
    told += server.client.get("/metrics", headers={"X-API-Key": BOSS}).text
    assert not [each for held in HELD for each in (held.sha256, "-secret") if each in told]
