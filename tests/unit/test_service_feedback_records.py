"""The lines of a log of feedback."""

import orjson
import pytest

from polyrank.model.text.assembly import Conversation, Turn
from polyrank.service.feedback.records import Event, Ranking, Shown

_SAID = Conversation((Turn("wo bleibt mein Paket?", "user"), Turn("Einen Moment", None)), ("freundlich",))
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
    said=_SAID,
)


@pytest.mark.parametrize(
    "ranking", [_RANKING, Ranking(id="r2", at=0.0, generation="g", revision=0, fingerprint="f", shown=())]
)
def test_a_ranking_is_read_as_it_was_written(ranking: Ranking) -> None:
    assert Ranking.from_json(orjson.loads(orjson.dumps(ranking.to_json()))) == ranking


def test_an_event_is_read_as_it_was_written() -> None:
    event = Event(id="e", at=2.0, ranking="r1", kind="edited", reply="a", text="Er kommt morgen.")
    assert Event.from_json(orjson.loads(orjson.dumps(event.to_json()))) == event


def test_another_kind_is_no_event() -> None:
    with pytest.raises(ValueError, match="no kind of an event"):
        Event.from_json({**Event(id="e", at=2.0, ranking="r1", kind="up").to_json(), "kind": "ranking"})


@pytest.mark.parametrize("at", ["noon", None])
def test_a_time_that_is_no_number_is_damage(at: object) -> None:
    for record in (_RANKING, Event(id="e", at=2.0, ranking="r1", kind="up")):
        with pytest.raises((TypeError, ValueError)):
            type(record).from_json({**record.to_json(), "at": at})
