"""Logs of feedback as a server writes them, made by hand."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from polyrank.model.text.assembly import Conversation
from polyrank.service.feedback.identity import Identity
from polyrank.service.feedback.records import Event, Kind, Ranking, Shown, Use


def ranking(number: int, **fields: Any) -> Ranking:
    """The ranking of second `number`, which showed one reply."""
    made = {"at": float(number), "generation": "g", "revision": 0, "fingerprint": "f", "shown": (Shown("a", 0.5),)}
    return Ranking(**{"id": f"r{number}", **made, **fields})


def event(number: int, of: str = "r1", **fields: Any) -> Event:
    """Somebody likes the reply of a ranking, at second `number`."""
    return Event(**{"id": f"e{number}", "at": float(number), "ranking": of, "kind": "up", "reply": "a", **fields})


def use(
    number: int,
    said: str | Conversation | None,
    *events: tuple[Any, ...],
    shown: str | tuple[Shown, ...] = "abc",
    **more: Any,
) -> Use:
    """The ranking of second `number` that showed these replies, or those with ids of a letter.

    An event is a kind, the id of a reply and a text; what is left out is None.
    """
    conversation = Conversation.of(said) if isinstance(said, str) else said
    replies = tuple(Shown(each, -place) if isinstance(each, str) else each for place, each in enumerate(shown))
    given: dict[str, Any] = {
        "generation": "g", "revision": 0, "fingerprint": "f", "shown": replies, "said": conversation, **more,
    }  # fmt: skip
    ranking = Ranking(id=name_of(number, more.get("conversation")), at=float(number), **given)
    return Use(ranking, tuple(_event(ranking, place, *each) for place, each in enumerate(events)))


def name_of(number: float, conversation: str | None = None) -> str:
    """The id of a ranking of this second: where its conversation has a digest, one that tells it."""
    if conversation is None or len(conversation) != 16:
        return f"r{number:05d}"
    return Identity(b"k" * 32).ranking_id(number, conversation)


def _event(ranking: Ranking, place: int, kind: Kind, reply: str | None = None, text: str | None = None) -> Event:
    return Event(id=f"{ranking.id}-{place}", at=ranking.at + 1, ranking=ranking.id, kind=kind, reply=reply, text=text)


def write_log(root: Path, uses: Iterable[Use]) -> Path:
    """Write them into a file of the store's log; returns the store's directory."""
    (root / "feedback").mkdir(parents=True, exist_ok=True)
    records = [record for use in uses for record in (use.ranking, *use.events)]
    lines = b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)
    (root / "feedback" / "20260101T000000000000-00000000.jsonl").write_bytes(lines)
    return root
