"""From a checked body to the ranking to do."""

from pathlib import Path

import pytest

from model import Conversation, Turn
from model.errors import InvalidInput
from service.bodies import to_request
from service.errors import TooManyCandidates
from service.schemas import RankIn
from service.settings import Settings
from service.values import Given

SETTINGS = Settings(store=Path("s"), max_candidates=3, max_text_chars=10, max_timeout_ms=2000)


def body(**fields: object) -> RankIn:
    return RankIn(**{"context": "a", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(("sent", "allowed"), [(None, 2.0), (1, 0.001), (1999, 1.999), (2001, 2.0), (10**18, 2.0)])
def test_the_deadline_counts_from_arrival_and_is_clamped(sent: int | None, allowed: float) -> None:
    assert to_request(body(timeout_ms=sent), SETTINGS, 100.0).deadline == pytest.approx(100.0 + allowed)


def test_every_way_to_write_a_context_and_candidates() -> None:
    sent = body(
        context=["a", {"role": "user", "text": "b"}],
        persona=["p"],
        candidates=["x", {"id": "i"}, {"id": "j", "text": "y"}],
    )
    request = to_request(sent, SETTINGS, 0.0)
    assert request.conversation == Conversation((Turn("a"), Turn("b", "user")), ("p",))
    assert request.candidates == (Given(None, "x"), Given("i", None), Given("j", "y"))
    assert to_request(body(), SETTINGS, 0.0).conversation.turns == (Turn("a"),)


def test_a_filter_is_passed_on() -> None:
    request = to_request(body(filter={"a": 1, "$not": {"b": [True, None]}}), SETTINGS, 0.0)
    assert request.filter == {"a": 1, "$not": {"b": [True, None]}}
    assert to_request(body(), SETTINGS, 0.0).filter is None


def test_the_servers_own_bounds() -> None:
    to_request(body(candidates=["0123456789"] * 3), SETTINGS, 0.0)
    with pytest.raises(TooManyCandidates, match="3"):
        to_request(body(candidates=["x"] * 4), SETTINGS, 0.0)
    for fields in ({"candidates": ["0123456789+"]}, {"context": "0123456789+"}, {"persona": ["0123456789+"]}):
        with pytest.raises(InvalidInput, match="11 characters"):
            to_request(body(**fields), SETTINGS, 0.0)
