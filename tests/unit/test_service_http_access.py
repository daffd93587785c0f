"""What a route says of itself: its access rule."""

from pathlib import Path

import pytest
from fastapi.routing import iter_route_contexts
from service_fakes import words_app
from starlette.datastructures import Headers

from polyrank.service.http.plumbing.access import Needs, anybody, credentials, rules, scraper
from polyrank.service.observe.labels import QUIET

PLAYGROUND = {"GET /playground", "GET /playground/{name:path}"}
PAGES = {"GET /", "GET /docs", "GET /docs/{name}", "GET /openapi.json"} | PLAYGROUND
PROBES = {"/livez", "/healthz", "/readyz", "/health", "/ping", "/v2/health/live", "/v2/health/ready"}


def declared() -> dict[str, object]:
    """METHOD /path -> the one access rule of the route."""
    app = words_app(Path("nowhere"))
    found: dict[str, object] = {}
    for route in iter_route_contexts(app.routes):
        listed = rules(route)
        assert len(listed) == 1, f"{route.path} has {len(listed)} access rules; give it or its router one of access.py"
        found |= {f"{method} {route.path}": listed[0] for method in route.methods or ()}
    return found


def test_every_route_declares_who_may_use_it() -> None:
    for route, rule in declared().items():
        path = route.split()[1]
        if route in PAGES or path in PROBES:
            assert rule is anybody, route
        elif path == "/metrics":
            assert rule is scraper
        elif path == "/pools":
            assert rule == Needs("rank", of="any pool")
        elif path == "/index" or path.startswith("/index/"):
            assert rule == Needs("admin"), route
        else:
            assert rule == Needs("rank"), route


def test_the_routes_are_seen() -> None:
    assert {"POST /rank", "GET /index", "PUT /index/candidates", "GET /info", "GET /metrics", "GET /livez"} <= set(
        declared()
    )


def test_no_probe_is_traced() -> None:
    assert PROBES | {"/metrics"} == QUIET


@pytest.mark.parametrize(("headers", "found"), [
    ({"Authorization": "Bearer k"}, [b"k"]), ({"Authorization": "bearer   k "}, [b"k"]),
    ({"Authorization": "Bearer\tk"}, [b"k"]), ({"Authorization": "k"}, [b"k"]),
    ({"X-API-Key": "k"}, [b"k"]), ({"api-key": "k"}, [b"k"]), ({"Authorization": "Bearer"}, []),
    ({"Authorization": "Bearer "}, []), ({"Authorization": "", "X-API-Key": " "}, []), ({}, []),
    ({"Authorization": "Basic dTpw", "X-API-Key": "k"}, [b"k", b"Basic dTpw"]),
    ({"Authorization": "Bearer ä"}, [b"\xe4"]),
])  # fmt: skip
def test_where_keys_are_sent(headers: dict[str, str], found: list[bytes]) -> None:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    assert credentials(Headers(raw=raw)) == found


def test_no_key_hides_behind_another_of_the_same_header() -> None:
    raw = [(b"authorization", b"Bearer a"), (b"api-key", b"b"), (b"authorization", b"c"), (b"x-api-key", b"d")]
    assert sorted(credentials(Headers(raw=[*raw, (b"x-api-key", b"e")]))) == [b"a", b"b", b"c", b"d", b"e"]
