"""The worst that one HTTP request can hold: each request names its kind of too much.

`hostile.py` sends them beside honest callers; the test of the event loop's pauses sends them, too.
"""

import gzip
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import orjson

NOTHING = b"\x00\x00\x00\xff\xff"  # an empty block of a gzip stream
MOST_BYTES = 16 * 1024 * 1024  # of a body, by default
HEAD_BYTES = 30_000  # of what stands in a request's head
HOSTILE = "hostile-"  # so begin the ids of candidates that are added
JSON: Mapping[str, str] = {"Content-Type": "application/json"}
NAMES = ("context", "persona", "candidates", "score_threshold", "group_by", "exclude_ids", "generation", "timeout_ms")
BODIES: Mapping[str, Mapping[str, Any]] = {
    "/rank": {"context": "hi"},
    "/rank/batch": {"requests": [{"context": "hi"}]},
    "/explain": {"context": "hi", "candidates": ["a"]},
    "/classify": {"texts": ["a"]},
    "/rerank": {"query": "a", "documents": ["a"]},
    "/v1/rerank": {"query": "a", "documents": ["a"]},
    "/v2/rerank": {"query": "a", "documents": ["a"]},
    "/v1/embeddings": {"input": "a"},
    "/embeddings": {"input": "a"},
    "/": {"inputs": "a"},
    "/embed": {"inputs": "a"},
    "/v1/embed": {"texts": ["a"]},
    "/v2/embed": {"texts": ["a"]},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/tokenize": {"inputs": "a"},
    "/feedback": {"events": [{"ranking_id": "a", "kind": "none_good", "event_id": "a"}]},
    "/index": {"pool": "a"},
    "/index/activate": {"generation": "a"},
    "/index/trial": {"generation": "a"},
    "/index/candidates/delete": {"ids": ["a"]},
}


class Call(NamedTuple):
    """A request, and what is too much in it. Without headers of its own it is one of JSON."""

    what: str
    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = JSON


@cache
def fields(count: int) -> dict[str, int]:
    """Return so many fields that nobody knows, in the letters of known ones: what was meant is sought longest."""
    return {f"{NAMES[number % len(NAMES)][::-1]}{number}": number for number in range(count)}


def worst() -> Iterator[Call]:
    """Return all requests."""
    for path, body in BODIES.items():
        for count in (90, 990, 5000, 100_000):
            yield _sent(f"{count} unknown fields", path, {**body, **fields(count)})
    yield from _rankings()
    yield from _texts()
    yield from _updates()
    yield from _compressed()
    yield from _heads()


def _sent(what: str, path: str, body: object, method: str = "POST") -> Call:
    return Call(what, method, path, orjson.dumps(body))


def _rankings() -> Iterator[Call]:
    turn = {"role": "user", "content": [{"type": "text", "text": "a"}] * 20}
    sent: dict[str, dict[str, Any]] = {
        "unknown fields of a turn": {"context": [{"text": "a", **fields(5000)}]},
        "many turns": {"context": ["a"] * 16_000},
        "many parts of turns": {"context": [turn] * 1000},
        "many candidates": {"context": "a", "candidates": [{"text": f"a {n}"} for n in range(10_000)], "top_k": 1000},
        "many ids": {"context": "a", "candidates": [{"id": f"r{n}"} for n in range(10_000)]},
        "too many candidates": {"context": "a", "candidates": ["a"] * 90_000},
        "many excluded ids": {"context": "a", "exclude_ids": [f"a{n}" for n in range(10_000)]},
        "empty conditions": {"context": "a", "filter": {"$and": [{}] * 21_000}},
        "unknown operators": {"context": "a", "filter": {"a": fields(5000)}},
        "nested conditions": {"context": "a", "filter": {"$or": [{"$and": [{}] * 60}] * 300}},
        "a wide filter": {"context": "a", "filter": {f"unknown{n}": [*range(50)] for n in range(64)}},
        "many numbers": {"context": [1] * 900_000},
        "values that are not read": {"context": [{"text": "a", "tool_calls": [1] * 90_000}]},
        "a long text": {"context": "a" * 10_000_000},
    }
    for what, body in sent.items():
        yield _sent(what, "/rank", body)
        if "candidates" not in body and "filter" not in body and "exclude_ids" not in body:
            yield _sent(what, "/explain", {**body, "candidates": ["a"]})
            yield _sent(what, "/classify", {**body, "texts": ["a"]})
    yield _sent("many rankings", "/rank/batch", {"requests": [{"context": "a"}] * 100})
    for count in (20, 900):
        wrong = {"context": "hi", **fields(count)}
        yield _sent(f"{count} unknown fields in each ranking", "/rank/batch", {"requests": [wrong] * 100})
    for deep in (60, 190, 5000, 400_000):
        lists, objects = b"[" * deep + b"]" * deep, b'{"$not":' * deep + b"1" + b"}" * deep
        yield Call(f"{deep} lists in each other", "POST", "/rank", b'{"context": %s}' % lists)
        yield Call(f"{deep} conditions in each other", "POST", "/rank", b'{"context": "a", "filter": %s}' % objects)
        added = b'[{"id": "%s", "text": "a", "metadata": {"a": %s}}]' % (HOSTILE.encode(), lists)
        yield Call(f"{deep} lists in each other", "PUT", "/index/candidates", added)
    for text in (b"", b"[" * 60_000, b'{"context": "a', b"\xed\xa0\xbe", b"NaN", b'{"context": 1e999}'):
        yield Call(f"no JSON, {text[:13]!r}", "POST", "/rank", text)
    yield Call("a number of many digits", "POST", "/rank", b'{"context": "a", "top_k": ' + b"1" * 60_000 + b"}")


def _texts() -> Iterator[Call]:
    texts = [f"a {number}" for number in range(5000)]
    wide = {**{f"f{number}": "v" for number in range(59)}, "text": "a"}
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        yield _sent("many documents", path, {"query": "a", "documents": texts})
        yield _sent("documents of many fields", path, {"query": "a", "documents": [wide] * 10_000})
        yield _sent("fewer documents of many fields", path, {"query": "a", "documents": [wide] * 2000})
        yield _sent("many texts", path, {"query": "a", "texts": texts})
    for path in ("/v1/embeddings", "/embeddings"):
        yield _sent("many texts", path, {"input": texts})
        yield _sent("many texts, as base64", path, {"input": texts, "encoding_format": "base64"})
        yield _sent("token ids of one text", path, {"input": [1] * 300_000})
        yield _sent("too many token ids", path, {"input": [1] * 990_000})
        yield _sent("token ids of many texts", path, {"input": [[1] * 50] * 5000})
    for path in ("/", "/embed"):
        yield _sent("many texts", path, {"inputs": texts})
    for path in ("/v1/embed", "/v2/embed"):
        yield _sent("many texts", path, {"texts": texts, "embedding_types": ["float", "base64", "binary", "ubinary"]})
    yield _sent("many texts", "/similarity", {"inputs": {"source_sentence": "a", "sentences": texts}})
    event = {"ranking_id": "a", "kind": "written", "text": "a" * 100_000, "event_id": "a"}
    yield _sent("long texts", "/feedback", {"events": [event] * 100})
    yield _sent("too many events", "/feedback", {"events": [event | {"text": "a"}] * 90_000})
    yield _sent("many tokens", "/tokenize", {"inputs": ["a b c d e f g " * 7] * 4000})
    yield _sent("many texts", "/classify", {"texts": texts})


def _updates() -> Iterator[Call]:
    path = "/index/candidates"
    yield _sent("unknown fields of a candidate", path, [{"text": "a", **fields(5000)}], "PUT")
    yield _sent("unknown fields", path, fields(5000), "PUT")
    yield _sent("long metadata", path, [{"id": f"{HOSTILE}long", "text": "a", "metadata": {"a": [1] * 30_000}}], "PUT")
    yield _sent("equal candidates", path, [{"text": "a"}] * 5000, "PUT")
    many = [{"id": f"{HOSTILE}{n}", "text": f"a{n}", "metadata": fields(10)} for n in range(4000)]
    yield _sent("many candidates", path, many, "PUT")
    yield _sent("many ids", f"{path}/delete", {"ids": [f"a{n}" for n in range(90_000)]})
    yield _sent("many candidates", "/index", {"candidates": many, "activate": False})


def _compressed() -> Iterator[Call]:
    zipped, empty = {**JSON, "Content-Encoding": "gzip"}, gzip.compress(b"")
    wrong = orjson.dumps({"requests": [{"context": "hi", **fields(990)}] * 100})
    yield Call("wrong rankings in gzip", "POST", "/rank/batch", gzip.compress(wrong, 1), zipped)
    yield Call("a bomb", "POST", "/rank", gzip.compress(b" " * (6 * MOST_BYTES)), zipped)
    yield Call("blanks of gzip", "POST", "/rank", gzip.compress(b'{"context": "a"}'.rjust(MOST_BYTES), 1), zipped)
    yield Call("empty blocks of gzip", "POST", "/rank", empty[:10] + NOTHING * (MOST_BYTES // 5 - 10), zipped)
    yield Call("empty members of gzip", "POST", "/rank", empty * 50_000, zipped)


def _heads() -> Iterator[Call]:
    for path in ("/index/candidates", "/index/candidates/a", "/livez", "/info", "/index/jobs", "/nowhere"):
        for count in (250, 5200):
            query = "&".join(f"{number}=" for number in range(1000, 1000 + count))
            yield Call(f"{count} parameters", "GET", f"{path}?{query}")
    conditions = '{"$and":[' + ",".join(["{}"] * (HEAD_BYTES // 3 - 10)) + "]}"
    yield Call("empty conditions", "GET", f"/index/candidates?filter={conditions}")
    for path in ("/rankx", "/" + "index/" * 5000, "/xedni/setadidnac/}di_etadidnac{", "/docs/x", "/playground/x"):
        yield Call("no such path", "GET", path)
    for strange in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
        yield Call(f"a page of another {next(iter(strange))}", "POST", "/index/rollback", b"{}", {**JSON, **strange})
    types = ("text/xml", "multipart/form-data; boundary=a", "application/json; charset=utf-16", "a" * 5000, "", "/")
    for kind in types:
        yield Call(f"a body of type {kind[:40]}", "POST", "/rank", b'{"context": "a"}', {"Content-Type": kind})
    yield Call("an unknown coding", "POST", "/rank", b"{}", {**JSON, "Content-Encoding": "br"})
    yield _sent("no such path", "/rnak", fields(990))
    yield Call("a wrong method", "DELETE", "/rank")
    yield Call("a wrong method", "PATCH", "/index/candidates")
    yield Call("an escaped path", "GET", "/index/candidates/" + "%41" * (HEAD_BYTES // 3))
    yield Call("a long path", "GET", "/index/jobs/" + "a" * HEAD_BYTES)
    yield Call("a long path", "POST", "/index/jobs/" + "a" * (HEAD_BYTES - 10) + "/cancel")
    yield Call("many codings", "GET", "/openapi.json", None, {"Accept-Encoding": "a," * (HEAD_BYTES // 2)})
    for path in (
        *("/", "/docs", "/openapi.json", "/livez", "/healthz", "/readyz", "/health", "/ping", "/v2/health/live"),
        *("/v2/health/ready", "/info", "/metrics", "/v1/models", "/models", "/playground", "/index", "/index/jobs"),
        *("/index/candidates?limit=1000", "/pools"),
    ):
        yield Call("nothing", "GET", path)
    for path in ("/index/compact", "/index/rollback", "/index/trial/end"):
        yield Call("nothing", "POST", path)
