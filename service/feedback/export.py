"""What a log of feedback teaches, as files that `polyrank train` and `polyrank evaluate` read.

    DIR/train.jsonl   replies to train on: first those that people wrote or edited, then those that they chose. What
                      stood above a chosen one is a weak negative; what was disliked is one, and all where none was good
    DIR/later.jsonl   replies to judge by, of the newest fifth of the conversations: written and edited ones alone. One
                      that was chosen from the list of one model says nothing fair of another
    DIR/labels.jsonl  each first reply of the newest fifth, `right` or `wrong`: what a calibration is fitted on

None of these conversations trains, and no context of later.jsonl or of a golden set does. Equal logs and stores give
equal bytes.
"""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import orjson
from pydantic import TypeAdapter

from polyrank.index_builder.convert.rows import table_on_disk
from polyrank.model.durable import filling
from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.text.conversations import Positives, context_key, turns_key
from polyrank.model.text.dialogues import RIGHT, WRONG, Dialogue, new_dialogues, read_dialogues
from polyrank.model.text.folding import text_key
from polyrank.service.feedback.reading import Outcome, Sent, outcome_of, uses
from polyrank.service.feedback.recording import newest
from polyrank.service.feedback.records import MOST_SHOWN, Shown, Use
from polyrank.service.feedback.redaction import Redaction
from polyrank.service.feedback.replies import Replies

TRAIN, LATER, LABELS = "train.jsonl", "later.jsonl", "labels.jsonl"
LATER_SHARE: Final = 5  # one conversation in so many
MOST_OF_REPLY, MOST_OF_CONVERSATION = 50, 5  # chosen ones

_REDACTION = Redaction()
_SETTING = "polyrank serve --feedback texts records them"
_IN_GOLDEN = "examples whose context is in a golden set"
_TRAINS = "examples of the newest conversations whose context is more frequent before, where it trains"
_CHOSEN_LATER = f"chosen replies of the newest conversations: they judge no model, and do not train beside {LATER}"


@dataclass(slots=True)
class ExportTally:
    """What was kept, and what was left out and why."""

    rankings: int = 0  # how many the log holds
    with_feedback: int = 0  # how many of them have events
    # Examples of each file, by how their reply came about; labels by `right` and `wrong`.
    files: dict[str, Counter[str]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)  # examples, labels and negatives by reason


# What rankings teach, in a temporary file: memory does not grow with the log. `place` is the order of time.
_TABLES = """
CREATE TABLE reads (at REAL, ranking TEXT, conversation TEXT, said BLOB, golden INTEGER, label TEXT, dialogue BLOB,
    side TEXT DEFAULT 'before');
CREATE TABLE examples (ranking INTEGER, kind TEXT, context BLOB, reply BLOB, dialogue BLOB);
CREATE TABLE kept (place INTEGER, example INTEGER, chosen INTEGER, context BLOB, reply BLOB, conversation TEXT);
CREATE INDEX kept_examples ON kept (context, reply);
CREATE INDEX kept_replies ON kept (reply, chosen);
CREATE INDEX kept_conversations ON kept (conversation, chosen);"""
# The newest conversations by their last ranking, so that nothing that trains is newer than all of one.
_KEEP_BACK = f"""
CREATE TABLE ordered AS SELECT row_number() OVER (ORDER BY at, ranking) AS place, rowid AS read FROM reads;
CREATE UNIQUE INDEX ordered_reads ON ordered (read);
CREATE INDEX reads_conversations ON reads (conversation);
CREATE INDEX reads_said ON reads (said, side);
CREATE INDEX examples_rankings ON examples (ranking);
UPDATE reads SET side = 'recent' WHERE conversation IN (
    SELECT conversation FROM reads JOIN ordered ON read = reads.rowid GROUP BY conversation
    ORDER BY max(place) DESC LIMIT (SELECT count(DISTINCT conversation) / {LATER_SHARE} FROM reads));"""
_IN_ORDER = """SELECT examples.rowid, place, kind, context, reply, conversation, examples.dialogue
    FROM examples JOIN reads ON examples.ranking = reads.rowid JOIN ordered ON read = reads.rowid """
_DIALOGUES = TypeAdapter(Dialogue)


def export(root: Path, output: Path, *, golden: Sequence[Path] = ()) -> ExportTally:
    """Write the files; `root` is the directory of the store, `output` a new or empty one, `golden` are dialogues.

    Raises:
        InvalidInput: no ranking was recorded, or none with texts; or a golden set cannot be read.
        OSError: the files cannot be written; `output` holds something at the end (FileExistsError).
    """
    tally = ExportTally()
    kept_apart = {key for path in golden for example in read_dialogues(path) for key in _forms(example.conversation)}
    with table_on_disk() as table:
        table.execute("PRAGMA journal_mode = OFF")
        table.executescript(_TABLES)
        _read(root, table, kept_apart, tally)
        table.executescript(_KEEP_BACK)
        _leave_out(table, "side = 'before' AND golden", _IN_GOLDEN, tally)
        # A context of both sides stays on one, where it is more frequent: what everybody asks shall train.
        often = "(SELECT count(*) FROM reads AS other WHERE other.said = reads.said AND other.side = '{}')"
        is_often = f"{often.format('before')} > {often.format('recent')}"
        _leave_out(table, f"side = 'recent' AND {is_often}", _TRAINS, tally, side="labels")
        is_later = "said IN (SELECT said FROM reads WHERE side = 'recent')"
        _leave_out(table, f"side = 'before' AND {is_later}", f"examples whose context is kept for {LATER}", tally)
        [[chosen]] = table.execute(f"SELECT count(*) FROM ({_IN_ORDER} WHERE side = 'recent' AND kind = 'chosen')")
        tally.left_out[_CHOSEN_LATER] += chosen
        _keep(table, tally)
        right = Positives(_DIALOGUES.validate_json(each) for (each,) in table.execute("SELECT dialogue FROM examples"))
        shown = "SELECT kind, dialogue FROM"
        trains = f"{shown} ({_IN_ORDER}) JOIN kept ON kept.example = rowid ORDER BY chosen, kept.place"
        judges = f"{shown} ({_IN_ORDER} WHERE side = 'recent' AND kind != 'chosen') ORDER BY place, rowid"
        labels = """SELECT label, dialogue FROM reads JOIN ordered ON read = reads.rowid
            WHERE side IN ('recent', 'labels') AND label IS NOT NULL ORDER BY place"""
        tally.left_out = +tally.left_out  # without those that count 0
        with filling(output, TRAIN) as inside:
            for name, query in {TRAIN: trains, LATER: judges, LABELS: labels}.items():
                counts = tally.files[name] = Counter[str]()
                with new_dialogues(inside / name) as write:
                    for kind, content in table.execute(query):
                        dialogue = _DIALOGUES.validate_json(content)
                        counts[kind] += 1
                        # What was right for the same context elsewhere is no negative.
                        right_keys = right.of(dialogue.conversation) if name == TRAIN else ()
                        negatives = [text for text in dialogue.negatives if text_key(text) not in right_keys]
                        write(replace(dialogue, negatives=tuple(negatives) if name == TRAIN else ()))
    return tally


def _forms(conversation: Conversation) -> tuple[int, int]:
    """Return the hash of a context, and that of its turns as they are recorded."""
    redacted = (Turn(_REDACTION.end(turn.text), turn.role) for turn in newest(conversation).turns)
    return turns_key(conversation), turns_key(Conversation(tuple(redacted)))


def _read(root: Path, table: sqlite3.Connection, kept_apart: Collection[int], tally: ExportTally) -> None:
    replies, with_texts = Replies(root), False
    for use in uses(root):
        ranking, talk = use.ranking, use.ranking.said
        tally.rankings += 1
        tally.with_feedback += bool(use.events)
        with_texts = with_texts or talk is not None
        if not use.events:
            continue
        if talk is None or not any(turn.text.strip() for turn in talk.turns):  # a function of the operator took all
            tally.left_out["rankings that were recorded without texts"] += 1
            continue
        outcome, name = outcome_of(use), ranking.conversation or ranking.id
        texts = list(_right(use, outcome, replies, tally))
        negatives = _negatives(use, outcome, replies, tally) if texts else ()
        label = _label(use, talk, outcome, replies, tally)
        if not texts and label is None:
            continue
        key = turns_key(talk)  # persona does not count, so that no set is told from another by it
        dialogue = None if label is None else orjson.dumps(label)
        facts = (ranking.at, ranking.id, name, _blob(key), key in kept_apart, label and label.category, dialogue)
        columns = "at, ranking, conversation, said, golden, label, dialogue"
        row = table.execute(f"INSERT INTO reads ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", facts).lastrowid
        for kind, text in texts:
            example = Dialogue(talk, text, negatives=negatives, dialogue=name)
            keys = _blob(context_key(talk)), _blob(text_key(text))
            table.execute("INSERT INTO examples VALUES (?, ?, ?, ?, ?)", (row, kind, *keys, orjson.dumps(example)))
    if not tally.rankings:
        raise InvalidInput(f"{root} has no recorded rankings; {_SETTING}")
    if not with_texts:
        raise InvalidInput(f"the {tally.rankings} rankings recorded in {root} are without texts; {_SETTING}")


def _blob(key: int) -> bytes:
    return key.to_bytes(8, "little")


def _label(use: Use, talk: Conversation, outcome: Outcome, replies: Replies, tally: ExportTally) -> Dialogue | None:
    """Return the first reply with its label; None: nobody knows whether it was right."""
    ranking = use.ranking
    if not ranking.shown or (is_right := outcome.first_is_right(ranking.shown[0])) is None:
        return None
    [first] = replies.find(ranking, ranking.shown[:1])
    if first is None:
        tally.left_out["first replies whose text is in no generation any more"] += 1
    elif first.text.strip():
        name = ranking.conversation or ranking.id
        return Dialogue(talk, first.text, dialogue=name, category=RIGHT if is_right else WRONG)
    return None


def _right(use: Use, outcome: Outcome, replies: Replies, tally: ExportTally) -> Iterator[tuple[Sent, str]]:
    """Yield the reply that was sent; where nothing says what was sent, those that were liked."""
    shown = use.ranking.shown
    if outcome.kind in ("written", "edited") and outcome.text and outcome.text.strip():
        yield outcome.kind, outcome.text
        return
    liked: Sequence[Shown] = ()
    if outcome.kind is None:
        liked = [each for each in shown if each.id in outcome.up]
    elif outcome.kind != "chosen":
        return
    elif outcome.reply in outcome.down:
        tally.left_out["replies that were chosen and then disliked"] += 1
    elif outcome.rank:
        liked = [shown[outcome.rank - 1]]
    elif outcome.text is not None or any(each.text is not None for each in shown):
        # It was sent along, so a reply of the generation that has its id may be another one.
        tally.left_out[f"right replies that were sent along and stood below rank {MOST_SHOWN}"] += 1
    else:
        liked = [Shown(outcome.reply, 0.0)]
    for reply in replies.find(use.ranking, liked):
        if reply is None:
            tally.left_out["right replies whose text is in no generation any more"] += 1
        elif reply.text.strip():  # a log may hold anything
            yield "chosen", reply.text


def _negatives(use: Use, outcome: Outcome, replies: Replies, tally: ExportTally) -> tuple[str, ...]:
    """Return the texts of what stood above the reply that was sent, of what was disliked, or of all if none was good.

    A reply that was liked is none, nor one that was sent or edited.
    """
    wrong = [
        each
        for rank, each in enumerate(use.ranking.shown, 1)
        if rank != outcome.rank
        and each.id not in outcome.up
        and (each.id in outcome.down or rank < (outcome.rank or 0) or (outcome.kind == "written" and outcome.none_good))
    ]
    candidates = replies.find(use.ranking, wrong)
    tally.left_out["wrong replies whose text is in no generation any more"] += candidates.count(None)
    return tuple(each.text for each in candidates if each is not None)


def _leave_out(table: sqlite3.Connection, condition: str, why: str, tally: ExportTally, side: str = "none") -> None:
    select = f"SELECT count(*) FROM examples WHERE ranking IN (SELECT rowid FROM reads WHERE {condition})"
    [[examples]] = table.execute(select)
    tally.left_out[why] += examples
    table.execute(f"UPDATE reads SET side = ? WHERE rowid IN (SELECT rowid FROM reads WHERE {condition})", (side,))


def _keep(table: sqlite3.Connection, tally: ExportTally) -> None:
    """Put written and edited replies first, and leave out repeats and what would outweigh the rest; newer ones stay."""

    def count(condition: str, *values: object) -> int:
        [[total]] = table.execute(f"SELECT count(*) FROM kept WHERE {condition}", values)
        return int(total)

    every = f"{_IN_ORDER} WHERE side = 'before' ORDER BY kind = 'chosen', place DESC, examples.rowid DESC"
    for number, (row, _, kind, context, reply, conversation, _) in enumerate(table.execute(every)):
        chosen = kind == "chosen"
        if count("context = ? AND reply = ?", context, reply):
            tally.left_out["examples that repeat another one"] += 1
        elif chosen and count("reply = ? AND chosen", reply) >= MOST_OF_REPLY:
            tally.left_out[f"chosen replies beyond {MOST_OF_REPLY} of the same text"] += 1
        elif chosen and count("conversation = ? AND chosen", conversation) >= MOST_OF_CONVERSATION:
            tally.left_out[f"chosen replies beyond {MOST_OF_CONVERSATION} of a conversation"] += 1
        else:
            values = (-number, row, chosen, context, reply, conversation)
            table.execute("INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?)", values)
