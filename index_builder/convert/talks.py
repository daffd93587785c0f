"""From records to examples: what was said is put on the disk, ordered by its times, and told apart by who answers.

Everything that can be refused is refused before the first example is made: a time that cannot be read, or that nobody
has told who answers.
"""

import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from polyrank.index_builder.convert.maps import Map
from polyrank.index_builder.convert.rows import Object
from polyrank.index_builder.convert.texts import message_text, read
from polyrank.index_builder.convert.times import readings
from polyrank.index_builder.pool.documents import MAX_TEXT_CHARACTERS, RowError, kept_metadata
from polyrank.index_builder.pool.rows import SeenHashes
from polyrank.index_builder.pool.values import has_tags, says_nothing, shown
from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.folding import folded_line, hash64

USER, ASSISTANT, SYSTEM, TOOL = "user", "assistant", "system", "tool"
# What tools of language models call those who are neither; every other name is one of a side.
_CALLS = ("function_call", "function_response", "tool_call", "tool_response")
_TOOLS = ("tool", "function", "observation", "ipython", *_CALLS)
_ROLES = {"system": SYSTEM, "developer": SYSTEM, **dict.fromkeys(_TOOLS, TOOL)}
MOST_TURNS, MOST_CHARACTERS = 100, 100_000  # of one context; no model reads as much
MOST_WRITTEN = 64_000_000  # characters of all contexts of a conversation; in a longer one each has fewer turns
_LEAST_TURNS = 4
_MOST_MESSAGE = 1 << 20  # characters
_MOST_MESSAGES = 1_000_000  # of a conversation; each takes some 250 bytes of memory
_MOST_NAMES = 10_000
_BEFORE, _BETWEEN, _AFTER = -1, 0, 1
_OTHER, _ANSWER, _CONTEXT = 0, 1, 2  # an answer may be context alone, where the record names the right one


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """How files are to be read, beside their map."""

    answering: tuple[str, ...] = ()  # who answers, as `who` says it; empty: the map tells it
    first_asks: bool = False  # who speaks first in a conversation asks, and all others answer
    order: str | None = None  # `file` for that of the file, or how days and months stand in times; None: times tell it
    keep_quotes: bool = False  # keep what mails quote, and their signatures
    redact: Callable[[str], str] | None = None  # is given each text, and returns what may be kept of it
    min_count: int = 1  # how often a reply must have been given to be in the pool
    encoding: str | None = None  # of tables and texts; None: UTF-8, or windows-1252


class Message(NamedTuple):
    """A message as it lies on the disk, but for its text, which has so many letters, and what goes with a reply."""

    row: int
    ours: int | None
    who: str | None
    time: float | None
    place: int
    name: str | None
    parent: str | None
    letters: int


@dataclass(slots=True)
class MessageCounts:
    """What a person should know of the messages that were read."""

    ours: Counter[str] = field(default_factory=Counter)  # how many there are of each who answers
    others: Counter[str] = field(default_factory=Counter)  # how many there are of everybody else
    changed: Counter[str] = field(default_factory=Counter)  # how many texts were changed, by how
    passed: int = 0  # how many the map passes over
    repeated: int = 0  # how many were in their conversation before: same words, at the same time, of the same speaker
    missing: Sequence[str] = ()  # whom `--answering` names and who says nothing
    alternating: bool = False  # whether every other message counts as an answer, because nothing says who speaks


class Talks:
    """The conversations of all files, on the disk.

    Args:
        table: a database for them alone.
        map_: the map by which records are read.
        options: what was asked beside it.
    """

    def __init__(self, table: sqlite3.Connection, map_: Map, options: ConvertOptions) -> None:
        self._table, self._map, self._options = table, map_, options
        self._answering = frozenset(map(folded_line, options.answering or map_.answering))
        self._by_path = "answers" in map_.paths and not options.answering
        self._is_whole = "messages" in map_.paths or "text" not in map_.paths
        self._hashes = SeenHashes()
        self.counts, self._part, self._ended, self._file, self._stem = MessageCounts(), 0, True, Path(), ""
        self._files_of: dict[str, dict[Path, int]] = {}  # numbered, by their stems
        self._newest_first = False  # whether most conversations end with their first message: so one of a single time
        table.execute("CREATE TABLE talks (talk INTEGER PRIMARY KEY, key TEXT UNIQUE, name, file, line, split)")
        table.execute(
            "CREATE TABLE messages"
            " (row INTEGER PRIMARY KEY, talk INTEGER, ours, who, time, place, name, parent, letters, data)"
        )
        if (options.answering or options.first_asks) and "who" not in map_.paths:
            raise InvalidInput(f"{map_.called}: the map does not say who speaks; add who = … to it")

    def add(self, record: Object, file: Path, number: int, split: str) -> None:
        """Take in a record. Raises RowError where it cannot be read."""
        map_ = self._map
        if self._file != file:
            self._file, self._part, self._ended = file, 0, True
            self._stem = file.name.partition(".")[0]
            numbers = self._files_of.setdefault(self._stem, {})
            if (of_file := numbers.setdefault(file, len(numbers) + 1)) > 1:  # each chat of a phone may be called so
                self._stem = f"{self._stem}/{of_file}"
        # `_part` is of a list in a list, as the messages of all chats.
        stem = f"{self._stem}:{record['_part']}" if "_part" in record else self._stem
        if self._ended or map_.holds("begins", record):
            self._part += 1
        self._ended = "ends" in map_.paths and map_.holds("ends", record)
        name = map_.conversation(record)
        if "conversation" in map_.paths and not self._is_whole and name is None:
            raise RowError("the row names no conversation")
        is_new = self._is_whole and not map_.joined
        has_parts = {"begins", "ends"} & {*map_.paths}
        talk_name = f"{stem}:{number}" if is_new else f"{stem}:{self._part}" if has_parts else stem
        talk_name = talk_name if name is None else name
        contents = self._messages(record)
        messages = [(*columns, len(data["text"]), orjson.dumps(data)) for *columns, data in contents]
        if is_new and name is not None and not self._hashes.add(hash64(repr((split, talk_name, messages)).encode())):
            raise RowError("the conversation was there before, word for word")
        if not messages:
            if self._is_whole:
                raise RowError("nothing is said where the map looks for it")
            return
        key = None if is_new else f"{split}\0{talk_name}"
        insert = "INSERT OR IGNORE INTO talks VALUES (NULL, ?, ?, ?, ?, ?)"
        self._table.execute(insert, (key, talk_name, str(file), number, split))
        find = "SELECT COALESCE((SELECT talk FROM talks WHERE key = ?), last_insert_rowid())"
        [talk] = self._table.execute(find, (key,)).fetchone()
        insert = "INSERT INTO messages VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        self._table.executemany(insert, ((talk, *message) for message in messages))

    def _messages(self, record: Object) -> Iterator[tuple[Any, ...]]:
        """Yield what is said in a record, in order: columns, and an object of the text and what goes with it."""
        map_ = self._map
        with_it = {"persona": _listed(map_.find("persona", record), self._text), "metadata": self._metadata(record)}
        with_it = {key: value for key, value in with_it.items() if value}
        if with_it and self._is_whole:  # times may put any message first
            yield _OTHER, None, None, _BEFORE, None, None, {"text": "", **with_it}
            with_it = {}
        for key, who in (("system", SYSTEM), ("first", USER)):
            if text := self._text(map_.find(key, record)):
                yield _OTHER, who, None, _BEFORE, None, None, {"text": text}
        value = map_.find("messages", record) if "messages" in map_.paths else [record] if "text" in map_.paths else []
        stack = [(each, None) for each in reversed(value if isinstance(value, list) else [value])]
        while stack:
            message, above = stack.pop()
            if message is None:
                continue
            inside = {**message, "_record": record} if isinstance(message, dict) else message
            ours, who, time, place, name, parent, data = self._message(inside, above)
            below = map_.find("replies", inside)
            stack += [(each, name) for each in reversed(below if isinstance(below, list) else [])]
            if data["text"] or with_it or name is not None or ours:
                yield ours, who, time, place, name, parent, data | with_it
                with_it = {}
        if replies := _listed(map_.find("right", record), self._text):
            data = {"text": replies[0], "also": replies[1:], **self._beside(record)}
            place = _AFTER if "messages" in map_.paths else _BETWEEN
            time = self._time(record) if place == _BETWEEN else None
            _count(self.counts.ours, ASSISTANT)
            yield _ANSWER, ASSISTANT, time, place, None, None, data | with_it
        elif "right" in map_.paths and self._is_whole:
            wrong = ", but a wrong one" if self._beside(record).get("wrong") else ""
            raise RowError(f"no reply that is right{wrong}")

    def _message(self, message: Any, above: str | None) -> tuple[Any, ...]:
        map_ = self._map
        name, parent = (None if (it := map_.find(key, message)) is None else str(it) for key in ("name", "parent"))
        parent = above if parent is None else parent
        who = map_.find("who", message)
        if isinstance(who, dict | list):
            raise RowError(f"who is {'an object' if isinstance(who, dict) else 'a list'}; name a field in it")
        speaker = None if who is None else str(who).strip()
        if "only" in map_.paths and not map_.holds("only", message):
            self.counts.passed += 1
            return _OTHER, None, None, _BEFORE, name, parent, {"text": ""}
        text = self._text(map_.find("text", message) if "text" in map_.paths else message)
        data: Object = {"text": text}
        is_context = "right" in map_.paths
        ours: int | None = None
        if self._by_path:
            ours = int(map_.holds("answers", message))
            speaker = speaker or (ASSISTANT if ours else USER)
        elif self._answering:
            ours = int(folded_line(speaker or "") in self._answering)
        elif is_context:
            ours = _OTHER
        if ours and is_context:
            ours = _CONTEXT
        if ours and "learn" in map_.paths and not map_.holds("learn", message):
            data["learn"] = False
        if ours == _ANSWER:
            data |= self._beside(message)
        if text and (ours == _ANSWER or folded_line(speaker or "") not in _ROLES):
            _count(self.counts.ours if ours == _ANSWER else self.counts.others, speaker or "")
        return ours, speaker, self._time(message), _BETWEEN, name, parent, data

    def _metadata(self, record: Object) -> Object:
        """Return what becomes metadata, checked as that of a pool. Raises RowError."""
        metadata = self._map.metadata(record)
        if self._options.redact:
            metadata = {name: _redacted(value, self._options.redact) for name, value in metadata.items()}
        try:
            return kept_metadata(metadata)
        except ValueError as error:
            raise RowError(f"keep: {error}") from None

    def _beside(self, where: Any) -> Object:
        """Return what goes with a reply: the candidates that it was chosen from, and wrong ones."""
        beside = {key: _listed(self._map.find(key, where), self._text) for key in ("candidates", "wrong")}
        return {key: texts for key, texts in beside.items() if texts}

    def _time(self, where: Any) -> str | None:
        time = None if self._options.order == "file" else self._map.find("time", where)
        return None if time is None or isinstance(time, dict | list) or not str(time).strip() else str(time).strip()

    def _text(self, value: Any) -> str:
        text = shown(message_text(value))
        if says_nothing(text):
            self.counts.changed[f"that say {text}, taken for none"] += 1
            return ""
        if len(text) > _MOST_MESSAGE:
            raise RowError(f"the text has more than {_MOST_MESSAGE} characters")
        if self._map.texts != "plain" and (read_text := read(text, self._map.texts, self._options.keep_quotes)) != text:
            self.counts.changed[f"read as {self._map.texts}"] += 1
            text = read_text
        elif self._map.texts == "plain" and has_tags(text):
            self.counts.changed['with marks of HTML, kept: texts = "html" reads them'] += 1
        if self._options.redact and (redacted := self._options.redact(text)) != text:
            self.counts.changed["redacted"] += 1
            text = redacted
        return text

    def _settle(self) -> None:
        """Decide how times are read and who answers. Raises InvalidInput where that cannot be told."""
        self._table.execute("CREATE INDEX by_talk ON messages (talk, row)")
        if "time" in self._map.paths and self._options.order != "file":
            self._read_times()
        self.counts.alternating = "who" not in self._map.paths and not self._by_path and "right" not in self._map.paths
        speakers = {folded_line(who) for who in self.counts.ours}
        self.counts.missing = [name for name in self._options.answering if folded_line(name) not in speakers]
        others_listed = ", ".join(f"{who} ({count})" for who, count in self.counts.others.most_common(8))
        unclear = "SELECT 1 FROM messages WHERE ours IS NULL AND who IS NOT NULL"
        if not self._options.first_asks and self._table.execute(unclear).fetchone():
            raise InvalidInput(
                f"who answers? There are messages of {others_listed}; name those who answer by --answering, or say"
                " --first-asks: who speaks first in a conversation asks, and all others answer"
            )
        if self._answering and others_listed and not speakers:
            names = ", ".join(self._options.answering or self._map.answering)
            raise InvalidInput(
                f"nobody called {names} says anything; there are messages of {others_listed}; name those who answer by"
                " --answering"
            )

    def _read_times(self) -> None:
        table, column = self._table, "SELECT time FROM messages WHERE time IS NOT NULL ORDER BY row"
        order: Any = self._options.order
        if table.execute(column).fetchone() is None:
            return
        ways, bad = readings(lambda: (time for (time,) in table.execute(column)), order)
        if not ways:
            place = "SELECT file, line FROM messages JOIN talks USING (talk) WHERE time = ?"
            [file, line] = table.execute(place, (bad,)).fetchone()
            raise InvalidInput(
                f"the time {str(bad)[:60]!r} (in the conversation that begins in {file}:{line}) cannot be read, or not"
                " as the others; --order file takes messages as they stand in the file"
            )
        lacking = table.execute(
            "SELECT file, line, name FROM talks WHERE talk IN (SELECT talk FROM messages WHERE place = 0 AND"
            " (name IS NULL AND parent IS NULL) GROUP BY talk HAVING COUNT(time) BETWEEN 1 AND COUNT(*) - 1) LIMIT 1"
        ).fetchone()
        if lacking:
            raise InvalidInput(
                f"a message of the conversation {lacking[2]!r} (of {lacking[0]}:{lacking[1]}) has no time, and others"
                " have one; --order file takes messages as they stand in the file"
            )
        [example] = table.execute(f"{column} LIMIT 1").fetchone()
        table.execute("ALTER TABLE messages ADD COLUMN other")
        rows = table.execute("SELECT row, time FROM messages WHERE time IS NOT NULL")
        while many := rows.fetchmany(10_000):
            update = "UPDATE messages SET time = ?, other = ? WHERE row = ?"
            table.executemany(update, [(ways[0](time), ways[-1](time), row) for row, time in many])
        [self._newest_first] = table.execute(
            "SELECT SUM((a.time > b.time) - (a.time < b.time)) > 0 FROM (SELECT MIN(row) AS first, MAX(row) AS last"
            " FROM messages WHERE time IS NOT NULL GROUP BY talk) JOIN messages a ON a.row = first"
            " JOIN messages b ON b.row = last"
        ).fetchone()
        query = "SELECT talk, other FROM messages WHERE place = 0 ORDER BY talk, time, row"
        talks = groupby(table.execute(query) if len(ways) > 1 else (), itemgetter(0))
        ordered = ([time for _, time in talk if time is not None] for _, talk in talks)
        if not all(others == sorted(others) for others in ordered):
            raise InvalidInput(
                f"does the day or the month stand first in times such as {example!r}? Say --order day-first or --order"
                " month-first"
            )

    def examples(self) -> Iterator[tuple[str, int, str, Dialogue | RowError]]:
        """Yield the file, the line and the split of each conversation with each of its examples, or why it has none.

        Raises InvalidInput, before the first one, where times cannot be read or nothing tells who answers.
        """
        self._settle()
        for talk, name, file, line, split in self._table.execute("SELECT talk, name, file, line, split FROM talks"):
            yield from ((file, line, split, example) for example in self._of(talk, name))

    def _of(self, talk: int, name: str) -> Iterator[Dialogue | RowError]:
        table = self._table
        query = "SELECT row, ours, who, time, place, name, parent, letters FROM messages WHERE talk = ? ORDER BY row"
        rows = [Message(*row) for row in islice(table.execute(query, (talk,)), _MOST_MESSAGES + 1)]
        if len(rows) > _MOST_MESSAGES:
            del rows[_MOST_MESSAGES:]
            yield RowError(f"what comes after {_MOST_MESSAGES} messages of one conversation")
        times = [row.time for row in rows if row.time is not None]
        is_newest_first = bool(times) and (times[0], self._newest_first) > (times[-1], False)
        is_newest_first = is_newest_first and "right" not in self._map.paths
        turn = -1 if is_newest_first else 1
        rows.sort(key=lambda row: (row.place, row.time or 0, turn * row.row if row.time is not None else row.row))
        characters = sum(row.letters for row in rows)
        most = max(_LEAST_TURNS, min(MOST_TURNS, MOST_WRITTEN // max(1, characters)))
        is_tree = any(row.parent is not None for row in rows)
        if self.counts.alternating:
            with_text = [row.row for row in rows if row.letters]
            answers = {*with_text[::-2]} - {*with_text[:1]}
            rows = [row._replace(ours=int(row.row in answers)) for row in rows]
        elif self._options.first_asks and not self._answering:
            asks = next((row.who for row in rows if row.who and row.who.lower() not in _ROLES), None)
            rows = [row._replace(ours=int(row.who not in (None, asks))) if row.ours is None else row for row in rows]

        def data(row: Message) -> Object:
            [(content,)] = table.execute("SELECT data FROM messages WHERE row = ?", (row.row,))
            fields: Object = orjson.loads(content)
            return fields

        by_name = {row.name: row for row in rows if row.name is not None} if is_tree else {}
        persona: list[str] = []
        metadata: Object = {}
        context: deque[Turn] = deque(maxlen=most)
        has_reply = False
        before = set[tuple[str | None, float | None, str]]()
        for row in rows:
            message = data(row)
            key = row.who, row.time, message["text"]
            if row.time is not None and message["text"] and key in before:
                self.counts.repeated += 1
                continue
            before.add(key)
            persona += [each for each in message.get("persona", ()) if each not in persona]
            metadata = {**message.get("metadata", {}), **metadata}
            if row.ours == _ANSWER:
                has_reply = True
                turns = self._ancestors(row, by_name, most, data) if is_tree else list(context)
                yield from _examples(message, _bounded(turns), name, persona, metadata)
            if message["text"] and not is_tree:
                context.append(_turn(row, message["text"]))
        if not has_reply:
            yield RowError("no reply: nobody of the side that answers speaks")

    def _ancestors(
        self, row: Message, by_name: dict[str, Message], most: int, data: Callable[[Message], Object]
    ) -> list[Turn]:
        turns: list[Turn] = []
        visited = {row.row}
        while len(turns) < most and (above := by_name.get(row.parent or "")) and above.row not in visited:
            visited.add(above.row)
            if text := data(above)["text"]:
                turns.append(_turn(above, text))
            row = above
        return turns[::-1]


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_redacted(each, redact) for each in value]
    if isinstance(value, dict):
        return {name: _redacted(each, redact) for name, each in value.items()}
    return redact(value) if isinstance(value, str) else value


def _count(counter: Counter[str], name: str) -> None:
    counter[name if name in counter or len(counter) < _MOST_NAMES else "others"] += 1


def _turn(row: Message, text: str) -> Turn:
    if row.ours:
        return Turn(text, ASSISTANT)
    return Turn(text, None if row.who is None else _ROLES.get(folded_line(row.who), USER))


def _bounded(turns: Sequence[Turn]) -> list[Turn]:
    """Return the last turns, so many as may stand in a context."""
    characters = accumulate(len(turn.text) for turn in reversed(turns))
    return list(turns[-max(1, sum(count <= MOST_CHARACTERS for count in characters)) :])


def _listed(value: Any, text: Callable[[Any], str]) -> list[str]:
    """Return the texts of a value that is one or a list of them, each once."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    return list(dict.fromkeys(each for each in map(text, values) if each))


def _examples(
    message: Object, turns: Sequence[Turn], name: str, persona: Sequence[str], metadata: Object
) -> Iterator[Dialogue | RowError]:
    for reply in [message["text"], *message.get("also", ())]:
        if not reply.strip():
            yield RowError("a reply without text")
        elif len(reply) > MAX_TEXT_CHARACTERS:
            yield RowError(f"a reply of more than {MAX_TEXT_CHARACTERS} characters")
        elif not message.get("learn", True):
            yield RowError("a reply that is not to be learnt, as it says itself")
        elif not any(turn.role not in (SYSTEM, ASSISTANT) for turn in turns):
            yield RowError("a reply with nothing said before it")
        else:
            candidates = message.get("candidates", [])
            listed = candidates if reply in candidates or not candidates else [reply, *candidates]
            wrong = tuple(each for each in message.get("wrong", ()) if each != reply)
            label = listed.index(reply) if listed else -1
            context = Conversation(tuple(turns), tuple(persona))
            yield Dialogue(context, reply, tuple(listed), label, wrong, name, metadata=metadata)
