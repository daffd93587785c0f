"""The lines of a log of feedback."""

from typing import Any

import orjson
import pytest

from polyrank.model.text.assembly import Conversation, Turn
from polyrank.service.feedback.records import EVENTS, RANKINGS, Event, Ranking, Shown

_RANKING = Ranking(
    id="r1",
    at=1.5,
    generation="g",
    revision=3,
    fingerprint="f",
    shown=(Shown("a", 0.5), Shown(None, -1.0, "مرحبا")),
    side="trial",
    replaced="half of the time was used",
    conversation="c0ffee",
    said=Conversation((Turn("wo bleibt mein Paket?", "user"), Turn("Einen Moment", None)), ("freundlich",)),
)
_EVENT = Event(id="e", at=2.0, ranking="r1", kind="edited", reply="a", text="Er kommt morgen.")


def line(record: Ranking | Event) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(orjson.dumps(record))
    return found


@pytest.mark.parametrize(
    "ranking", [_RANKING, Ranking(id="r2", at=0.0, generation="g", revision=0, fingerprint="f", shown=())]
)
def test_a_ranking_is_read_as_it_was_written(ranking: Ranking) -> None:
    assert RANKINGS.validate_python(line(ranking)) == ranking


def test_an_event_is_read_as_it_was_written() -> None:
    assert EVENTS.validate_python(line(_EVENT)) == _EVENT


def test_another_kind_is_no_event() -> None:
    with pytest.raises(ValueError, match="kind"):
        EVENTS.validate_python({**line(_EVENT), "kind": "ranking"})


@pytest.mark.parametrize("at", ["noon", "nan", None, True, -1, 1e30, [1.0]])
def test_a_time_that_cannot_be_dated_is_damage(at: object) -> None:
    for adapter, record in ((RANKINGS, _RANKING), (EVENTS, _EVENT)):
        with pytest.raises(ValueError, match="at"):
            adapter.validate_python({**line(record), "at": at})
