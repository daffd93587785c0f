"""What a server records for one pool: the rankings that it answers, and the events that callers send."""

import asyncio
import time
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final

import orjson

from polyrank.model.text.assembly import Conversation, Turn
from polyrank.service.errors import FeedbackTooOld
from polyrank.service.feedback.identity import Identity, make_folder
from polyrank.service.feedback.log import Log
from polyrank.service.feedback.records import KINDS, MOST_SHOWN, Event, Ranking, Shown, Side
from polyrank.service.feedback.redaction import MOST_CHARACTERS, Redaction, RedactionFailed
from polyrank.service.observe.metrics import Metrics

DAY_SECONDS: Final = 86_400
_EVENT_CHARACTERS = 1000  # of an event without its text, its objects included
_REMEMBERED = 20_000  # events, so that the answer to one that comes again says so


@dataclass(frozen=True, slots=True)
class ToRecord:
    """A request whose answer is to be recorded.

    Attributes:
        ranking: the id of the ranking.
        at: seconds since the epoch.
        conversation: a digest of its name; None: the caller named none.
    """

    ranking: str
    at: float
    conversation: str | None


class Feedback:
    """Records for one pool. Used from one event loop.

    Args:
        root: of the store.
        redaction: what is done to texts; None: none are recorded.
        days, most_bytes: how long files are kept, and how much of them.

    Raises:
        FeedbackUnusable: the key of the store is damaged.
        OSError: the store cannot be written.
    """

    def __init__(self, root: Path, redaction: Redaction | None, days: int, most_bytes: int, metrics: Metrics) -> None:
        self._redaction, self._days, self._metrics = redaction, days, metrics
        self.identity = Identity.of(root)
        self._log = Log(make_folder(root), days, most_bytes, metrics)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()  # ranking and event
        for kind in KINDS:
            metrics.count_feedback_events(kind, 0)

    def close(self) -> None:
        """Write what waits, and end."""
        self._log.close()

    def asked(self, conversation: str | None) -> ToRecord:
        """Name the ranking of a request, and its conversation."""
        at = round(time.time(), 3)
        digest = None if conversation is None else self.identity.conversation(conversation)
        return ToRecord(self.identity.ranking_id(at), at, digest)

    def place_of(self, asked: ToRecord, caller: str, trial: str) -> float:
        """Return the place in [0, 1) of a conversation, or of a ranking without one, in the shares of a trial."""
        return self.identity.share_of(trial, caller, asked.conversation or asked.ranking)

    def record(
        self, asked: ToRecord, answer: bytes, said: Conversation, side: Side | None = None, replaced: str | None = None
    ) -> bool:
        """Have an answer of `/rank` written, a JSON object; returns False where there is no room. `Ranking` has more.

        Nothing is read or redacted here, and nothing waits.
        """
        read = None if self._redaction is None else newest(said)
        texts = () if read is None else (*read.persona, *(turn.text for turn in read.turns))
        size = len(answer) + sum(map(len, texts))
        return self._log.record(partial(self._ranking, asked, answer, read, side, replaced), size)

    def _ranking(
        self, asked: ToRecord, answer: bytes, said: Conversation | None, side: Side | None, replaced: str | None
    ) -> list[Ranking]:
        """Make a ranking's line, on the log's thread."""
        told = orjson.loads(answer)
        shown = told["results"][:MOST_SHOWN]
        texts: list[str | None] = [None] * len(shown)
        if (redaction := self._redaction) is not None and said is not None:
            try:
                texts = [redaction.beginning(each["text"]) if "index" in each else None for each in shown]
                said = Conversation(
                    tuple(Turn(redaction.end(turn.text), turn.role) for turn in said.turns),
                    tuple(map(redaction.beginning, said.persona)),
                )
            except RedactionFailed as error:
                texts, said = [None] * len(shown), None
                self._textless(error)
        ranking = Ranking(
            id=asked.ranking,
            at=asked.at,
            generation=told["generation"],
            revision=told["revision"],
            fingerprint=told["model"]["fingerprint"],
            side=side,
            replaced=replaced,
            conversation=asked.conversation,
            said=said,
            shown=tuple(Shown(each["id"], each["score"], text) for each, text in zip(shown, texts, strict=True)),
        )
        return [ranking]

    async def add(self, told: Sequence[Event]) -> tuple[int, int]:
        """Record events, all or none; returns how many are new and how many came before, when they are on the disk.

        Texts are redacted here. An event that comes again may be written again, if it came before a restart or to
        another process; whoever reads the log counts it once.

        Raises:
            UnknownRanking, FeedbackTooOld: of one of the events.
            DiskFull, OSError: they cannot be written.
            Overloaded: too much waits to be written.
        """
        oldest = time.time() - self._days * DAY_SECONDS
        for each in told:
            if self.identity.checked(each.ranking) < oldest:
                raise FeedbackTooOld(each.ranking, self._days)
        new: dict[tuple[str, str], Event] = {}
        for each in told:
            if (key := (each.ranking, each.id)) not in self._known:
                new.setdefault(key, each)
        events = [*new.values()]
        if events:
            size = sum(_EVENT_CHARACTERS + len(each.text or "") for each in events)
            await asyncio.wrap_future(self._log.add(partial(self._redacted, events), size))
        for key in new:
            self._known[key] = None
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        for kind, count in Counter(each.kind for each in events).items():
            self._metrics.count_feedback_events(kind, count)
        return len(events), len(told) - len(events)

    def _redacted(self, events: Sequence[Event]) -> list[Event]:
        """Return them as they are recorded, on the log's thread."""
        made = []
        for each in events:
            text = None
            if self._redaction is not None and each.text is not None:
                try:
                    text = self._redaction.beginning(each.text)
                except RedactionFailed as error:
                    self._textless(error)
            made.append(replace(each, text=text))
        return made

    def _textless(self, error: RedactionFailed) -> None:
        self._metrics.count_feedback_textless()
        self._log.tell("the function of feedback_redact failed: texts of feedback are not recorded", error)


def newest(said: Conversation) -> Conversation:
    """Return as much of a conversation as is recorded: the persona, and the newest turns, at least one.

    Together they have `MOST_CHARACTERS`; a text that is longer is cut when it is redacted.
    """
    sizes = list(accumulate(map(len, said.persona)))
    persona = said.persona[: bisect_right(sizes, MOST_CHARACTERS)]
    sizes = list(accumulate((len(turn.text) for turn in reversed(said.turns)), initial=sum(map(len, persona))))
    turns = max(1, bisect_right(sizes, MOST_CHARACTERS) - 1)
    return Conversation(said.turns[-turns:], persona)
