"""Write what files of other tools hold: `dialogues.jsonl`, `pool.jsonl`, and `rejected.jsonl` for what is left out.

Examples of a split other than the training one go to a file of their own, `dialogues-test.jsonl`, so that nobody trains
on them by mistake. The pool has each reply once; its id is made from the text, without case and white space.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import orjson

from polyrank.index_builder.convert.kinds import Recognised, placed
from polyrank.index_builder.convert.maps import Map
from polyrank.index_builder.convert.reads import Reads
from polyrank.index_builder.convert.rows import Object, guessed_encoding, records, table_on_disk
from polyrank.index_builder.convert.talks import ConvertOptions, MessageCounts, Talks
from polyrank.index_builder.convert.texts import message_text
from polyrank.index_builder.pool.documents import Fields, RowError, document
from polyrank.index_builder.pool.rows import SeenHashes
from polyrank.index_builder.vectors.local import hash_id, text_id
from polyrank.model.durable import filling
from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.beir import read_judgements, titled
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.text.dialogues import Dialogue, new_dialogues
from polyrank.model.text.folding import text_key
from polyrank.model.text.jsonlines import read_objects

DIALOGUES, POOL, REJECTED = "dialogues.jsonl", "pool.jsonl", "rejected.jsonl"
_TRAINING = ("", "train")
_MOST_LISTED = 10_000  # rejected rows, as of a build
_MOST_REASONS = 100
_MOST_UNREAD = 1000
_MOST_VALUES = 20  # of a field of metadata, of a reply that was given in several conversations
_ROWS_A_REPORT = 1000
_REASON_CHARACTERS = 300
_UNSAID = "half a surrogate pair, or what JSON cannot say"

Progress = Callable[[str, int, int | None], object]
Outcome = Dialogue | Object | RowError


@dataclass(slots=True)
class Conversion:
    """What a conversion found."""

    map: Map
    examples: Counter[str] = field(default_factory=Counter)  # how many there are, by the file that they are in
    candidates: int = 0
    left_out: Counter[str] = field(default_factory=Counter)  # how many rows or replies are left out, by reason
    # In how many records a field lies that no path reads, by its place.
    unread: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)  # where the first row of each reason, and of each place, is
    guessed: dict[str, str] = field(default_factory=dict)  # the encodings of files that are not in UTF-8
    fields: Fields = field(default_factory=Fields)
    messages: MessageCounts = field(default_factory=MessageCounts)


def convert(kinds: Sequence[Recognised], output: Path, options: ConvertOptions, progress: Progress) -> Conversion:
    """Convert files of one kind into a new or empty directory; files appear in it when all of them are complete.

    Raises InvalidInput or PoolInvalid if a file cannot be read, or holds nothing to keep, or it must be asked how.
    """
    map_ = kinds[0].map
    report = Conversion(map_)
    with filling(output) as inside, table_on_disk() as table, ExitStack() as stack:
        writer = _Writer(inside, stack, report, table, options)
        read = _read(kinds, options, table, writer)
        if map_.collection:
            read = (each for kind in kinds for each in _collection(kind.files[0][0].parent, table))
        for count, (file, number, split, each) in enumerate(read, 1):
            writer.take(each, split, file, number)
            if count % _ROWS_A_REPORT == 0:
                progress("convert", count, None)
        writer.end()
        if not report.examples and not report.candidates:
            why = "; ".join(f"{reason} ({report.first[reason]})" for reason, _ in report.left_out.most_common(3))
            files = ", ".join(str(file) for kind in kinds for file, _ in kind.files[:3])
            raise InvalidInput(f"nothing was kept of {files}: {why or 'there are no rows'}")
    return report


def _read(
    kinds: Sequence[Recognised], options: ConvertOptions, table: sqlite3.Connection, writer: "_Writer"
) -> Iterator[tuple[str | Path, int, str, Outcome]]:
    map_ = kinds[0].map
    talks, reads = Talks(table, map_, options), Reads(map_)
    for place, file, split in ((kind.each, file, split) for kind in kinds for file, split in kind.files):
        head: Object | None = None
        for number, row in records(file, writer.encoding_of(file), place, map_.lines or None):
            try:
                if isinstance(row, RowError):
                    raise row
                record = placed(row, file) | ({"_head": head} if head else {})
                writer.unread(reads.unread(record), file, number)
                head = record if "head" in map_.paths and map_.holds("head", record) else None
                parts = _parts(map_, record) if head is None else []
                if "documents" in map_.paths:
                    yield from ((file, number, split, each) for part in parts for each in _documents(map_, part))
                    continue
                for part in parts:
                    talks.add(part, file, number, split)
            except RowError as error:
                yield file, number, split, error
            except RecursionError:
                yield file, number, split, RowError("nested too deep")
            except (orjson.JSONEncodeError, UnicodeEncodeError):
                yield file, number, split, RowError(_UNSAID)
    if "documents" not in map_.paths:
        yield from talks.examples()
        writer.report.messages = talks.counts


def _collection(folder: Path, table: sqlite3.Connection) -> Iterator[tuple[Path, int, str, Outcome]]:
    """Yield the documents of a collection in BEIR's form, then an example for each query and document that fits it.

    Before each stand its file, its line and the split whose judgements it is of, "" for documents. A document that is
    judged not to fit is a negative of its query.

    Raises InvalidInput where a file cannot be read.
    """
    table.execute("DROP TABLE IF EXISTS texts")  # of the collection before
    table.execute("CREATE TABLE texts (kind TEXT, name TEXT, text TEXT, PRIMARY KEY (kind, name)) WITHOUT ROWID")
    for kind in ("queries", "corpus"):
        files = sorted(file for file in folder.glob(f"{kind}*.jsonl*") if file.is_file())
        for file, (number, row) in ((path, each) for path in files for each in read_objects(path, InvalidInput)):
            if isinstance(row, InvalidInput):
                yield file, number, "", RowError(str(row))
                continue
            if kind == "corpus":
                yield file, number, "", row
            text = titled(str(row.get("title", "") if kind == "corpus" else ""), str(row.get("text", "")))
            table.execute("INSERT OR IGNORE INTO texts VALUES (?, ?, ?)", (kind, str(row.get("_id")), text))
    for qrels in sorted((folder / "qrels").glob("*.tsv")):
        for number, (query, grades) in enumerate(read_judgements(qrels).items(), 1):
            yield from ((qrels, number, qrels.stem, outcome) for outcome in _judged_examples(table, query, grades))


def _judged_examples(table: sqlite3.Connection, query: str, grades: Mapping[str, int]) -> Iterator[Dialogue | RowError]:
    query_texts = _texts(table, "queries", [query])
    fitting = _texts(table, "corpus", [name for name, score in grades.items() if score > 0])
    others = _texts(table, "corpus", [name for name, score in grades.items() if score <= 0])
    if not query_texts or not fitting:
        yield RowError("a judged query without a text" if not query_texts else "a query that no known document fits")
    for text in fitting if query_texts else ():
        yield Dialogue(Conversation((Turn(query_texts[0]),)), text, negatives=tuple(others), dialogue=query)


def _texts(table: sqlite3.Connection, kind: str, names: Sequence[str]) -> list[str]:
    find = "SELECT text FROM texts WHERE kind = ? AND name = ?"
    return [text for name in names for (text,) in table.execute(find, (kind, name)) if text.strip()]


def _parts(map_: Map, record: Object) -> list[Object]:
    if "inside" not in map_.paths:
        return [record]
    parts = map_.find("inside", record)
    return [{**part, "_record": record} for part in parts or () if isinstance(part, dict)]


def _documents(map_: Map, record: Object) -> Iterator[Object]:
    documents = map_.find("documents", record)
    for each in documents if isinstance(documents, list) else [documents]:
        if not isinstance(each, dict):
            raise RowError("the row has no document")
        inner = each if each is record else {**each, "_record": record}
        text, name = message_text(map_.find("text", inner)), map_.find("name", inner)
        if not text:
            raise RowError("nothing at the path of the text; name another one by --columns text=…")
        others = {key: value for key, value in map_.metadata(inner, text).items() if value != name}
        nested = others.pop("metadata", None)
        own = nested if isinstance(nested, dict) else {} if nested is None else {"metadata": nested}
        yield {"text": text, "metadata": {**others, **own}} | ({} if name is None else {"id": str(name)})


class _Writer:
    def __init__(
        self, output: Path, stack: ExitStack, report: Conversion, table: sqlite3.Connection, options: ConvertOptions
    ) -> None:
        self._output, self._stack, self.report, self._table, self._options = output, stack, report, table, options
        self._dialogues: dict[str, Callable[[Dialogue], object]] = {}
        self._rows: dict[str, BinaryIO] = {}
        self._ids = SeenHashes(output)
        table.execute("CREATE TABLE replies (place INTEGER PRIMARY KEY, key TEXT UNIQUE, text, count, facts)")

    def encoding_of(self, file: Path) -> str | None:
        """Return the encoding that was asked for, or that a file seems to be in, which is noted."""
        if self._options.encoding or (guessed := guessed_encoding(file)) is None:
            return self._options.encoding
        self.report.guessed[str(file)] = guessed
        return guessed

    def unread(self, places: Iterator[str], file: Path, number: int) -> None:
        for place in dict.fromkeys(places):
            if place in self.report.unread or len(self.report.unread) < _MOST_UNREAD:
                self.report.unread[place] += 1
                self.report.first.setdefault(place, f"{file}:{number}")

    def take(self, outcome: Outcome, split: str, file: str | Path, number: int) -> None:
        try:
            if isinstance(outcome, RowError):
                raise outcome
            if isinstance(outcome, Dialogue):
                self._take_example(outcome, split)
            else:
                self._take_document(outcome)
        except RowError as error:
            self._leave_out(str(error)[:_REASON_CHARACTERS], file, number)
        except (TypeError, UnicodeEncodeError):  # orjson's error is a TypeError
            self._leave_out(_UNSAID, file, number)

    def _take_example(self, example: Dialogue, split: str) -> None:
        name = DIALOGUES if split in _TRAINING else f"dialogues-{split}.jsonl"
        if name not in self._dialogues:
            self._dialogues[name] = self._stack.enter_context(new_dialogues(self._output / name))
        self._dialogues[name](example)
        self.report.examples[name] += 1
        if self.report.map.collection:
            return
        key = f"{text_key(example.response):016x}"
        row = self._table.execute("SELECT count, facts FROM replies WHERE key = ?", (key,)).fetchone()
        if row is None:
            facts = orjson.dumps({field: [value] for field, value in example.metadata.items()})
            insert = "INSERT INTO replies (key, text, count, facts) VALUES (?, ?, 1, ?)"
            self._table.execute(insert, (key, example.response, facts))
            return
        values = orjson.loads(row[1])
        for field_, value in example.metadata.items():
            several = values.setdefault(field_, [])
            if value not in several and len(several) < _MOST_VALUES:
                several.append(value)
        update = "UPDATE replies SET count = ?, facts = ? WHERE key = ?"
        self._table.execute(update, (row[0] + 1, orjson.dumps(values), key))

    def end(self) -> None:
        """Write the replies: each once, with the metadata of all conversations in which it was given."""
        for key, text, count, facts in self._table.execute(
            "SELECT key, text, count, facts FROM replies ORDER BY place"
        ):
            if count < self._options.min_count:
                self.report.left_out["a reply that was given too seldom for the pool (--min-count)"] += 1
                continue
            one = {name: them[0] if len(them) == 1 else them for name, them in orjson.loads(facts).items()}
            self._write(POOL, {"id": key, "text": text, **({"metadata": one} if one else {})})
            self.report.candidates += 1
            self.report.fields.count(one)

    def _take_document(self, row: Object) -> None:
        candidate = document(row, self.report.fields)
        name = text_id(candidate.text) if candidate.id is None else candidate.id
        if not self._ids.add(hash_id(name)):
            raise RowError("its id was seen before")
        metadata = {"metadata": candidate.metadata} if candidate.metadata else {}
        self._write(POOL, {"id": name, "text": candidate.text, **metadata})
        self.report.candidates += 1
        self.report.fields.count(candidate.metadata)

    def _leave_out(self, reason: str, file: str | Path, number: int) -> None:
        counts = self.report.left_out
        if counts.total() < _MOST_LISTED:
            self._write(REJECTED, {"file": str(file), "line": number, "reason": reason})
        reason = reason if reason in counts or len(counts) < _MOST_REASONS else "other reasons"
        counts[reason] += 1
        self.report.first.setdefault(reason, f"{file}:{number}")

    def _write(self, name: str, row: Object) -> None:
        line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
        if name not in self._rows:
            self._rows[name] = self._stack.enter_context((self._output / name).open("wb"))
        self._rows[name].write(line)
