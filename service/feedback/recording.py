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
from typing import Final, NamedTuple

import orjson

from polyrank.model.text.assembly import Conversation, Turn
from polyrank.service.errors import FeedbackTooOld, RateLimited, TooMuchFeedback
from polyrank.service.feedback.identity import Identity, make_folder
from polyrank.service.feedback.log import Log
from polyrank.service.feedback.records import KINDS, MOST_SHOWN, Event, Ranking, Shown, Side
from polyrank.service.feedback.redaction import MOST_CHARACTERS, REPLY_CHARACTERS, Redaction, RedactionFailed
from polyrank.service.observe.metrics import Metrics

HOUR_SECONDS: Final = 3600
MOST_EVENTS: Final = 100  # of one ranking
MOST_LETTERS: Final = 40_000  # of all its events
_LINE_BYTES = 200  # of an event in the log, without its text
_EVENT_CHARACTERS = 1000  # of an event without its text, its objects included
_REMEMBERED = 20_000  # events, so that the answer to one that comes again says so
# What tools call who speaks. Another name may say who somebody is, and is not recorded.
ROLES: Final = frozenset((
    "user", "assistant", "system", "developer", "tool", "function", "human", "customer", "client", "visitor",
    "guest", "contact", "requester", "agent", "support", "operator", "staff", "admin", "representative",
    "advisor", "bot", "chatbot", "ai", "model",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class ToRecord:
    """A request whose answer is to be recorded."""

    ranking: str  # the id of the ranking
    at: float  # seconds since the epoch
    conversation: str | None  # a digest of its name; None: the caller named none
    caller: str  # the name of the caller's key; empty: there are no keys


class EventCounts(NamedTuple):
    """What was taken of events."""

    accepted: int  # so many are new
    repeated: int  # so many came before
    unknown: int  # so many are about a reply that their ranking has not shown, or about a ranking that was lost


class _Bounds:
    """How much may be said of one ranking, and by one caller within an hour, as far as this process knows.

    So nobody fills the log with events. Where there are no keys, all callers are one, and no hour is bounded: it would
    be used up by one for all.
    """

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: of the log."""
        self._most_of_caller = most_bytes // 4
        self._rankings: OrderedDict[str, tuple[int, int]] = OrderedDict()  # events, and letters of them
        self._callers: dict[str, int] = {}
        self._hour = 0

    def take(self, by: str | None, events: Sequence[Event]) -> None:
        """Count events of a caller, or none of them; raises TooMuchFeedback, RateLimited."""
        spent: dict[str, tuple[int, int]] = {}
        for each in events:
            count, letters = spent.get(each.ranking) or self._rankings.get(each.ranking, (0, 0))
            spent[each.ranking] = count + 1, letters + _letters(each)
        for ranking, (count, letters) in spent.items():
            if count > MOST_EVENTS or letters > MOST_LETTERS:
                raise TooMuchFeedback(ranking, MOST_EVENTS, MOST_LETTERS)
        if by is not None:
            hour, passed = divmod(int(time.time()), HOUR_SECONDS)
            if hour != self._hour:
                self._hour, self._callers = hour, {}
            total = self._callers.get(by, 0) + _bytes_of(events)
            if total > self._most_of_caller:
                raise RateLimited(HOUR_SECONDS - passed)
            self._callers[by] = total
        for ranking, used in spent.items():
            self._rankings[ranking] = used
            self._rankings.move_to_end(ranking)
        while len(self._rankings) > _REMEMBERED:
            self._rankings.popitem(last=False)

    def give_back(self, by: str | None, events: Sequence[Event]) -> None:
        """Count events no more that could not be written: they will come again."""
        if by is not None and by in self._callers:  # unless another hour has begun
            self._callers[by] = max(0, self._callers[by] - _bytes_of(events))
        for each in events:
            count, letters = self._rankings.get(each.ranking, (1, _letters(each)))
            self._rankings[each.ranking] = count - 1, letters - _letters(each)


def _letters(event: Event) -> int:
    return min(len(event.text or ""), REPLY_CHARACTERS)


def _bytes_of(events: Sequence[Event]) -> int:
    return sum(_LINE_BYTES + _letters(each) for each in events)


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
        self._bounds = _Bounds(most_bytes)
        self._recent_keys: OrderedDict[tuple[str, str], None] = OrderedDict()  # ranking and event
        for kind in KINDS:
            metrics.series(metrics.feedback_events, kind)

    def close(self) -> None:
        """Write what waits, and end."""
        self._log.close()

    def to_record(self, conversation: str | None, caller: str = "") -> ToRecord:
        """Name the ranking of a request, and its conversation; `caller` is the name of its key."""
        at = round(time.time(), 3)
        digest = None if conversation is None else self.identity.conversation(conversation)
        return ToRecord(self.identity.ranking_id(at, digest), at, digest, caller)

    def place_of(self, entry: ToRecord, caller: str, trial: str) -> float:
        """Return the place in [0, 1) of a conversation, or of a ranking without one, in the shares of a trial."""
        return self.identity.share_of(trial, caller, entry.conversation or entry.ranking)

    def record(
        self, entry: ToRecord, answer: bytes, talk: Conversation, side: Side | None = None, replaced: str | None = None
    ) -> bool:
        """Have an answer of `/rank` written, a JSON object; returns False where there is no room. `Ranking` has more.

        Nothing is read or redacted here, and nothing waits.
        """
        recent = None if self._redaction is None else newest(talk)
        texts = () if recent is None else (*recent.persona, *(turn.text for turn in recent.turns))
        size = len(answer) + sum(map(len, texts))
        return self._log.record(partial(self._ranking, entry, answer, recent, side, replaced), size)

    def _ranking(
        self, entry: ToRecord, answer: bytes, talk: Conversation | None, side: Side | None, replaced: str | None
    ) -> Ranking:
        """Make a ranking's record, on the log's thread."""
        content = orjson.loads(answer)
        shown, below = content["results"][:MOST_SHOWN], content["results"][MOST_SHOWN:]
        texts: list[str | None] = [None] * len(shown)
        if (redaction := self._redaction) is not None and talk is not None:
            try:
                texts = [redaction.beginning(each["text"]) if "index" in each else None for each in shown]
                roles = [turn.role if turn.role and turn.role.lower() in ROLES else None for turn in talk.turns]
                talk = Conversation(
                    tuple(Turn(redaction.end(turn.text), role) for turn, role in zip(talk.turns, roles, strict=True)),
                    tuple(map(redaction.beginning, talk.persona)),
                )
            except RedactionFailed as error:
                texts, talk = [None] * len(shown), None
                self._textless(error)
        return Ranking(
            id=entry.ranking,
            at=entry.at,
            generation=content["generation"],
            revision=content["revision"],
            fingerprint=content["model"]["fingerprint"],
            side=side,
            replaced=replaced,
            conversation=entry.conversation,
            said=talk,
            shown=tuple(Shown(each["id"], each["score"], text) for each, text in zip(shown, texts, strict=True)),
            below=tuple(each["id"] for each in below),
            by=self.identity.caller(entry.caller),
        )

    async def add(self, sent_events: Sequence[Event], caller: str = "") -> EventCounts:
        """Record events, all or none, but for those about what no ranking has shown; returns when they are on the disk.

        Texts are redacted here. An event that comes again may be written again, if it came before a restart or to
        another process; whoever reads the log counts it once. `caller` is the name of the caller's key.

        Raises:
            UnknownRanking, FeedbackTooOld, TooMuchFeedback: of one of the events.
            RateLimited: the caller has sent too much within the hour.
            DiskFull, OSError: they cannot be written.
            Overloaded: too much waits to be written.
        """
        oldest = self._log.oldest()
        for each in sent_events:
            if self.identity.checked(each.ranking).at < oldest:
                raise FeedbackTooOld(each.ranking, self._days)
        new: dict[tuple[str, str], Event] = {}
        for each in sent_events:
            if (key := (each.ranking, each.id)) not in self._recent_keys:
                new.setdefault(key, each)
        by, unknown = self.identity.caller(caller), list[Event]()
        events = [replace(each, by=by) for each in new.values()]
        if events:
            self._bounds.take(by, events)
            await self._write(by, events, unknown)
        left_out = {(each.ranking, each.id) for each in unknown}
        for key in new.keys() - left_out:
            self._recent_keys[key] = None
        while len(self._recent_keys) > _REMEMBERED:
            self._recent_keys.popitem(last=False)
        for kind, count in Counter(each.kind for each in events if (each.ranking, each.id) not in left_out).items():
            self._metrics.series(self._metrics.feedback_events, kind).inc(count)
        return EventCounts(len(events) - len(unknown), len(sent_events) - len(events), len(unknown))

    async def _write(self, by: str | None, events: Sequence[Event], unknown: list[Event]) -> None:
        """Have events written that were counted, and wait for that; errors as `add`."""
        size = sum(_EVENT_CHARACTERS + len(each.text or "") for each in events)
        written = None
        try:
            written = self._log.add(partial(self._judged, events, unknown), size)
            await asyncio.wrap_future(written)
        except BaseException:
            # Whoever gives up waiting does not keep them from being written, once the log's thread has them.
            if written is None or written.cancel() or (written.done() and written.exception() is not None):
                self._bounds.give_back(by, events)
            raise

    def _judged(self, events: Sequence[Event], unknown: list[Event], is_over: bool) -> list[Event] | None:
        """Return them as they are recorded, on the log's thread; None: a ranking is not there yet, and may come still.

        Puts those into `unknown` that are about a reply which their ranking has not shown, or about no ranking at all.
        """
        shown = self._log.shown
        if any(shown.lacks(each.ranking) for each in events):
            shown.catch_up(self._log.file_name)
            if not is_over and any(shown.lacks(each.ranking) for each in events):
                return None
        accepted = []
        for each in events:
            text = None
            if self._redaction is not None and each.text is not None:
                try:
                    text = self._redaction.beginning(each.text)
                except RedactionFailed as error:
                    self._textless(error)
            redacted = replace(each, text=text)
            if shown.has_shown(redacted):
                accepted.append(redacted)
            else:
                unknown.append(each)
        return accepted

    def _textless(self, error: RedactionFailed) -> None:
        self._metrics.series(self._metrics.feedback_textless).inc()
        self._log.tell("the function of feedback_redact failed: texts of feedback are not recorded", error)


def newest(talk: Conversation) -> Conversation:
    """Return as much of a conversation as is recorded: the persona, and the newest turns, at least one.

    Together they have `MOST_CHARACTERS`; a text that is longer is cut when it is redacted.
    """
    sizes = list(accumulate(map(len, talk.persona)))
    persona = talk.persona[: bisect_right(sizes, MOST_CHARACTERS)]
    sizes = list(accumulate((len(turn.text) for turn in reversed(talk.turns)), initial=sum(map(len, persona))))
    turns = max(1, bisect_right(sizes, MOST_CHARACTERS) - 1)
    return Conversation(talk.turns[-turns:], persona)
