"""Bodies: how they are bounded, read and checked, and their deadlines."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import TestClient
from pydantic import BaseModel
from service_fakes import build_store, load
from starlette.requests import Request

from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation, Truncation, Turn
from polyrank.service.api.requests import RankIn
from polyrank.service.app import create_app
from polyrank.service.errors import HeaderInvalid, TooManyCandidates
from polyrank.service.http.native.rank import to_request, with_unread
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.bodies import (
    INLINE_BYTES,
    INLINE_VALUES,
    MAX_FIELDS,
    PER_LIST,
    count_values,
    journey,
    marks,
    most_fields,
)
from polyrank.service.ranking.values import SentCandidate
from polyrank.service.settings import Settings

SETTINGS = Settings(store=Path("s"), max_candidates=3, max_text_chars=10, max_timeout_ms=2000)


def body(**fields: object) -> RankIn:
    return RankIn(**{"context": "a", **fields})


def request(**headers: str) -> Request:
    """A request that came at 100 s."""
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": sent, "state": {"arrived": 100.0}})


@pytest.mark.parametrize(("sent", "allowed"), [(None, 2.0), (1, 0.001), (1999, 1.999), (2001, 2.0), (10**18, 2.0)])
def test_the_deadline_counts_from_arrival_and_is_clamped(sent: int | None, allowed: float) -> None:
    assert journey(request(), SETTINGS, sent).deadline == pytest.approx(100.0 + allowed)
    if sent is not None:
        for name in ("x_request_timeout_ms", "x_client_timeout_ms"):
            assert journey(request(**{name: str(sent)}), SETTINGS).deadline == pytest.approx(100.0 + allowed)


def test_the_shortest_deadline_holds() -> None:
    assert journey(request(x_request_timeout_ms="300", x_client_timeout_ms="200"), SETTINGS, 400).deadline == 100.2
    assert journey(request(x_request_timeout_ms="300"), SETTINGS, 100).deadline == 100.1


@pytest.mark.parametrize("value", ["", "0", "-5", "1.5", "soon", "\u0661", "1e3", "9" * 101])
def test_a_header_that_is_no_number_of_milliseconds_is_refused(value: str) -> None:
    with pytest.raises(HeaderInvalid, match="X-Request-Timeout-Ms"):
        journey(request(x_request_timeout_ms=value), SETTINGS)


def test_every_way_to_write_a_context_and_candidates() -> None:
    sent = body(
        context=["a", {"role": "user", "text": "b"}],
        persona=["p"],
        candidates=["x", {"id": "i"}, {"id": "j", "text": "y"}],
    )
    made = to_request(sent, SETTINGS)
    assert made.conversation == Conversation((Turn("a"), Turn("b", "user")), ("p",))
    assert made.candidates == (SentCandidate(None, "x"), SentCandidate("i", None), SentCandidate("j", "y"))
    assert to_request(body(), SETTINGS).conversation.turns == (Turn("a"),)


@pytest.mark.parametrize(("sent", "top_n"), [(False, None), (True, 20), ({}, 20), ({"top_n": 7}, 7)])
def test_rerank_may_be_a_switch_or_a_number(sent: object, top_n: int | None) -> None:
    assert to_request(body(rerank=sent), SETTINGS).top_n == top_n


def test_the_servers_own_bounds() -> None:
    to_request(body(candidates=["0123456789"] * 3), SETTINGS)
    with pytest.raises(TooManyCandidates, match="3"):
        to_request(body(candidates=["x"] * 4), SETTINGS)


@pytest.mark.parametrize(("where", "wrapped"), [
    ("persona", lambda text: ["a", text]),
    ("candidates", lambda text: ["a", text]),
    ("candidates", lambda text: [{"text": text}]),
    ("candidates", lambda text: [{"id": "a long id is no text", "text": text}]),
], ids=["persona", "candidate", "candidate text", "named candidate"])  # fmt: skip
def test_every_text_has_the_same_bound(where: str, wrapped: Callable[[str], object]) -> None:
    to_request(body(**{where: wrapped("0123456789")}), SETTINGS)
    with pytest.raises(InvalidInput, match=f"{where}: a text has 11 characters; at most 10"):
        to_request(body(**{where: wrapped("0123456789+")}), SETTINGS)


@pytest.mark.parametrize("context", ["+0123456789", ["a", {"role": "user", "text": "12+0123456789"}, "b"]])
def test_a_turn_that_is_too_long_loses_its_beginning(context: object) -> None:
    sent = body(context=context)
    read = to_request(sent, SETTINGS).conversation
    assert max((turn.text for turn in read.turns), key=len) == "0123456789"
    assert len(read.turns) == len(sent.said().turns)
    assert with_unread(Truncation(1, 2, 3), sent, read) == Truncation(1, 3, 3)
    short = body(context=["0123456789"] * 2)
    assert with_unread(Truncation(), short, to_request(short, SETTINGS).conversation) == Truncation()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    build_store(tmp_path)
    with TestClient(create_app(SETTINGS.model_copy(update={"store": {"": tmp_path}}), load)) as made:
        yield made


def test_the_bounds_of_candidates_that_stay(client: TestClient) -> None:
    def sent(*texts: str) -> list[dict[str, str]]:
        return [{"id": str(n), "text": text} for n, text in enumerate(texts)]

    assert client.put("/index/candidates", json=sent("0123456789")).status_code == 200
    assert client.put("/index/candidates", json=sent(*"abcd")).status_code == 413
    for refused in (
        client.put("/index/candidates", json=sent("a", "0123456789+")),
        client.post("/index", json={"candidates": sent("a", "0123456789+")}),
    ):
        assert refused.status_code == 422
        assert "candidates: a text has 11 characters; at most 10" in refused.json()["detail"]


@pytest.mark.parametrize("path", ["/rank", "/explain", "/classify", "/rerank", "/v1/embeddings", "/index"])
def test_an_object_of_absurdly_many_fields_is_refused_before_a_model_looks(
    client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[bytes] = []
    monkeypatch.setattr(BaseModel, "model_validate_json", classmethod(lambda _, body: looked.append(body)))
    body = {"context": "a", "deep": [{"er": {f"x{number}": 1 for number in range(MAX_FIELDS + 1)}}]}
    answer = client.post(path, json=body)
    assert (answer.status_code, looked) == (422, [])
    assert f"an object in the body has {MAX_FIELDS + 1} fields; {MAX_FIELDS} are the most" in answer.text


def test_an_object_in_metadata_may_have_as_many_fields_as_there_is_room_for(client: TestClient) -> None:
    most = {"a": {f"{number:x}": 1 for number in range(6500)}}
    assert client.put("/index/candidates", json=[{"text": "a", "metadata": most}]).status_code == 200


@pytest.mark.parametrize(
    ("context", "is_beside"),
    [("[1]" * 400, False), ("1," * INLINE_VALUES, True), ([1] * (INLINE_VALUES + 1), True), ("a" * INLINE_BYTES, True)],
    ids=["a text of brackets", "a text of commas", "many values", "many bytes"],
)
def test_what_takes_long_is_checked_beside_the_event_loop(
    tmp_path: Path, context: object, is_beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is, while the one thread for that is taken: what needs it runs out of time."""
    build_store(tmp_path)
    seconds = 0.05 if is_beside else 10
    monkeypatch.setattr(bodies, "READ_SECONDS", seconds)
    settings = SETTINGS.model_copy(update={"store": {"": tmp_path}, "max_timeout_ms": 1000 * seconds})
    over = threading.Event()
    with TestClient(create_app(settings, load)) as client:
        client.app.state.resources.reading._thread.submit(over.wait)
        try:
            assert client.post("/rank", json={"context": context}).status_code == (504 if is_beside else 200)
        finally:
            over.set()


def test_a_small_batch_goes_before_a_large_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_store(tmp_path)
    with TestClient(create_app(SETTINGS.model_copy(update={"store": {"": tmp_path}}), load)) as client:
        reading = client.app.state.resources.reading
        run, asked = reading.run, []
        monkeypatch.setattr(reading, "run", lambda had, values, *rest: asked.append(values) or run(had, values, *rest))
        assert client.post("/rank/batch", json={"requests": [{"context": "a"}] * 2}).status_code == 200
        small = max(asked)
        assert client.post("/rank", json={"context": "a", "candidates": ["a"] * 2000}).status_code == 413
        assert INLINE_VALUES < small < max(asked)


@pytest.mark.parametrize(("path", "body"), [
    ("/rerank", {"query": "a", "documents": [{"text": "a", **{f"f{n}": "v" for n in range(13)}}] * 10_000}),
    ("/index/candidates", [{"id": "a", "text": "a", "metadata": {f"f{n}": n for n in range(10)}}] * 10_000),
], ids=["documents", "candidates"])  # fmt: skip
def test_as_many_as_a_server_allows_have_room_for_their_fields(tmp_path: Path, path: str, body: object) -> None:
    build_store(tmp_path)
    with TestClient(create_app(Settings(store=tmp_path), load)) as client:
        answer = client.request("PUT" if isinstance(body, list) else "POST", path, json=body)
    assert (answer.status_code, "the id 'a' occurs 10000 times" in answer.text) in [(200, False), (422, True)]


@pytest.mark.parametrize("inner", [[], [1, 2], {}], ids=["empty lists", "lists", "objects"])
def test_lists_and_objects_count_more_because_garbage_is_sought_among_them(client: TestClient, inner: object) -> None:
    answer = client.post("/rerank", json={"query": "a", "documents": ["a"], "user": [inner] * 60_000})
    assert answer.status_code == 413
    assert "at any depth; a list or an object counts as three" in answer.text


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("more", [0, INLINE_BYTES], ids=["small", "large"])
def test_a_body_is_read_in_whatever_encoding_of_unicode_it_came(client: TestClient, encoding: str, more: int) -> None:
    sent = json.dumps({"query": "größer, 京", "documents": ["w1", "größer, 京"], "x": "," * more}, ensure_ascii=False)
    headers = {"Content-Type": "application/json; charset=utf-16"} if "16" in encoding else {}
    best = client.post("/rerank", content=sent.encode(encoding), headers=headers)
    assert best.status_code == 200, best.text
    assert best.json()["results"] == client.post("/rerank", content=sent.encode()).json()["results"]


def test_an_update_is_read_though_rankings_have_less_time(tmp_path: Path) -> None:
    build_store(tmp_path)
    settings = SETTINGS.model_copy(update={"store": {"": tmp_path}, "max_timeout_ms": 1})
    with TestClient(create_app(settings, load)) as client:
        answer = client.put("/index/candidates", json=[{"text": "a", "metadata": {"a": [1] * 30_000}}])
    assert answer.status_code == 200


STRINGS = st.text(st.sampled_from('a"\\,[{}]: \n'), max_size=8)
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | STRINGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=20,
)


def counted(value: Any) -> int:
    """As many as `PER_LIST` for each opening bracket, and one for each comma."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else PER_LIST + max(len(inner) - 1, 0) + sum(map(counted, inner))


@given(value=VALUES, block=st.integers(1, 7))
def test_the_count_is_a_parsers(value: Any, block: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bodies, "BLOCK_BYTES", block)
        assert count_values(marks(json.dumps(value).encode())) == counted(value)


def largest(value: Any) -> int:
    """How many fields the largest object has; an empty one counts as one of one."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max([max(len(value), 1) if isinstance(value, dict) else 0, *map(largest, inner)])


@given(value=VALUES)
def test_the_largest_object_is_found_wherever_it_stands(value: Any) -> None:
    assert most_fields(marks(json.dumps(value).encode())) == largest(value)


@pytest.mark.parametrize("body", [b"", b'"', b"\\", b'"\\', b"\xff\x00", b'"a", "b', b"}}]{", b"]]]"])
def test_what_is_no_json_has_a_count_too(body: bytes) -> None:
    assert count_values(marks(body)) <= PER_LIST
    assert most_fields(marks(body)) <= 1
