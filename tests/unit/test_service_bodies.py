"""Deadlines and bounds of a request."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from in_process import TestClient
from service_fakes import build_store, load
from starlette.requests import Request

from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.service.app import create_app
from polyrank.service.errors import HeaderInvalid, TooManyCandidates
from polyrank.service.http.native.rank import to_request
from polyrank.service.http.native.requests import RankIn
from polyrank.service.http.plumbing.bodies import deadline
from polyrank.service.ranking.values import Given
from polyrank.service.settings import Settings

SETTINGS = Settings(store=Path("s"), max_candidates=3, max_text_chars=10, max_timeout_ms=2000)


def body(**fields: object) -> RankIn:
    return RankIn(**{"context": "a", **fields})  # type: ignore[arg-type]


def request(**headers: str) -> Request:
    """A request that came at 100 s."""
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": sent, "state": {"arrived": 100.0}})


@pytest.mark.parametrize(("sent", "allowed"), [(None, 2.0), (1, 0.001), (1999, 1.999), (2001, 2.0), (10**18, 2.0)])
def test_the_deadline_counts_from_arrival_and_is_clamped(sent: int | None, allowed: float) -> None:
    assert deadline(request(), SETTINGS, sent) == pytest.approx(100.0 + allowed)
    if sent is not None:
        for name in ("x_request_timeout_ms", "x_client_timeout_ms"):
            assert deadline(request(**{name: str(sent)}), SETTINGS) == pytest.approx(100.0 + allowed)


def test_the_shortest_deadline_holds() -> None:
    assert deadline(request(x_request_timeout_ms="300", x_client_timeout_ms="200"), SETTINGS, 400) == 100.2
    assert deadline(request(x_request_timeout_ms="300"), SETTINGS, 100) == 100.1


@pytest.mark.parametrize("value", ["", "0", "-5", "1.5", "soon", "\u0661", "1e3", "9" * 101])
def test_a_header_that_is_no_number_of_milliseconds_is_refused(value: str) -> None:
    with pytest.raises(HeaderInvalid, match="X-Request-Timeout-Ms"):
        deadline(request(x_request_timeout_ms=value), SETTINGS)


def test_every_way_to_write_a_context_and_candidates() -> None:
    sent = body(
        context=["a", {"role": "user", "text": "b"}],
        persona=["p"],
        candidates=["x", {"id": "i"}, {"id": "j", "text": "y"}],
    )
    made = to_request(sent, SETTINGS, 0.0)
    assert made.conversation == Conversation((Turn("a"), Turn("b", "user")), ("p",))
    assert made.candidates == (Given(None, "x"), Given("i", None), Given("j", "y"))
    assert to_request(body(), SETTINGS, 0.0).conversation.turns == (Turn("a"),)


def test_a_filter_is_passed_on() -> None:
    made = to_request(body(filter={"a": 1, "$not": {"b": [True, None]}}), SETTINGS, 0.0)
    assert made.filter == {"a": 1, "$not": {"b": [True, None]}}
    assert to_request(body(), SETTINGS, 0.0).filter is None


def test_the_servers_own_bounds() -> None:
    to_request(body(candidates=["0123456789"] * 3), SETTINGS, 0.0)
    with pytest.raises(TooManyCandidates, match="3"):
        to_request(body(candidates=["x"] * 4), SETTINGS, 0.0)


@pytest.mark.parametrize(
    ("where", "wrapped"),
    [
        ("context", lambda text: text),
        ("context", lambda text: ["a", text]),
        ("context", lambda text: [{"role": "user", "text": text}, "a"]),
        ("persona", lambda text: ["a", text]),
        ("candidates", lambda text: ["a", text]),
        ("candidates", lambda text: [{"text": text}]),
        ("candidates", lambda text: [{"id": "a long id is no text", "text": text}]),
    ],
    ids=["context", "turn", "turn with role", "persona", "candidate", "candidate text", "named candidate"],
)
def test_every_text_has_the_same_bound(where: str, wrapped: Callable[[str], object]) -> None:
    to_request(body(**{where: wrapped("0123456789")}), SETTINGS, 0.0)
    with pytest.raises(InvalidInput, match=f"{where}: a text has 11 characters; at most 10"):
        to_request(body(**{where: wrapped("0123456789+")}), SETTINGS, 0.0)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    build_store(tmp_path)
    with TestClient(create_app(SETTINGS.model_copy(update={"store": tmp_path}), load)) as made:
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
