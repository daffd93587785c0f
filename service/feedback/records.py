"""What a log of feedback holds: rankings, and events that say what became of one.

A line of the log is a JSON object. `kind` tells the two apart: that of a ranking is `ranking`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from polyrank.model.text.assembly import Conversation, Turn

# What people say of a ranking: which reply was sent (as it stood, edited, or written by hand although some were
# shown), what was thought of one, that none was good, and how the conversation ended.
Kind = Literal["chosen", "edited", "written", "up", "down", "none_good", "handed_over", "resolved"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

# The generation that was asked, where two answer side by side: a share of the conversations asks the one on trial.
Side = Literal["live", "trial"]

RANKING: Final = "ranking"
MOST_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Shown:
    """A reply of an answer.

    Attributes:
        id: of the generation, or as it was sent along; None: it was sent along without one.
        text: of a reply that was sent along; None: the generation holds it, or texts are not recorded.
    """

    id: str | None
    score: float
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """An answer of `/rank`.

    Attributes:
        id: as its answer told it: `ranking_id`.
        at: seconds since the epoch.
        generation, revision, fingerprint: what answered.
        side: None: no share of the conversations asked another generation then.
        replaced: why the generation on trial was asked and the live one answered; None: that did not happen.
        conversation: a digest of its name; None: the caller named none.
        said: context and persona, redacted; None: texts are not recorded.
        shown: the first replies, best first.
    """

    id: str
    at: float
    generation: str
    revision: int
    fingerprint: str
    shown: tuple[Shown, ...]
    side: Side | None = None
    replaced: str | None = None
    conversation: str | None = None
    said: Conversation | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as a line of the log; what is None is absent."""
        said = self.said and {
            "context": [{"text": turn.text, "role": turn.role} for turn in self.said.turns],
            "persona": list(self.said.persona),
        }
        known = {
            "side": self.side,
            "replaced": self.replaced,
            "conversation": self.conversation,
            "said": said,
        }
        return {
            "kind": RANKING,
            "id": self.id,
            "at": self.at,
            "generation": self.generation,
            "revision": self.revision,
            "fingerprint": self.fingerprint,
            "shown": [
                {"id": each.id, "score": each.score} | ({} if each.text is None else {"text": each.text})
                for each in self.shown
            ],
            **{name: value for name, value in known.items() if value is not None},
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Ranking":
        """Read a line of the log; raises KeyError, TypeError or ValueError where it is none of a ranking."""
        said = line.get("said")
        return cls(
            id=line["id"],
            at=float(line["at"]),
            generation=line["generation"],
            revision=line["revision"],
            fingerprint=line["fingerprint"],
            shown=tuple(Shown(each["id"], each["score"], each.get("text")) for each in line["shown"]),
            side=line.get("side"),
            replaced=line.get("replaced"),
            conversation=line.get("conversation"),
            said=said
            and Conversation(
                tuple(Turn(turn["text"], turn["role"]) for turn in said["context"]), tuple(said["persona"])
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What became of a ranking.

    Attributes:
        id: the caller's `event_id`; an event counts once.
        at: when it came, in seconds since the epoch.
        ranking: the id of the ranking.
        reply: the id of the reply that it is about.
        text: of the reply that was sent (`edited`, `written`), redacted; None: there is none, or it is not recorded.
    """

    id: str
    at: float
    ranking: str
    kind: Kind
    reply: str | None = None
    text: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as a line of the log; what is None is absent."""
        known = {"reply": self.reply, "text": self.text}
        return {
            "kind": self.kind,
            "id": self.id,
            "at": self.at,
            "ranking": self.ranking,
            **{name: value for name, value in known.items() if value is not None},
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Event":
        """Read a line of the log; raises KeyError or ValueError where it is none of an event."""
        if line["kind"] not in KINDS:
            raise ValueError(f"no kind of an event: {line['kind']}")
        return cls(
            id=line["id"],
            at=float(line["at"]),
            ranking=line["ranking"],
            kind=line["kind"],
            reply=line.get("reply"),
            text=line.get("text"),
        )


@dataclass(frozen=True, slots=True)
class Use:
    """A ranking with all that became of it, in the order in which it came."""

    ranking: Ranking
    events: tuple[Event, ...] = ()
