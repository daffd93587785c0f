"""Write what files of other tools hold: `dialogues.jsonl`, `pool.jsonl`, and `rejected.jsonl` for what is left out.

Examples of a split other than the training one go to a file of their own, `dialogues-test.jsonl`, so that nobody trains
on them by mistake. The pool has each reply once; its id is made from the text, without case and white space.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import orjson

from polyrank.index_builder.convert.formats import Asked, Found, read, recognised, why_unknown
from polyrank.index_builder.convert.messages import Object
from polyrank.index_builder.names import AUTO, FOREIGN_FORMATS
from polyrank.index_builder.pool.documents import Fields, RowError, document
from polyrank.index_builder.pool.rows import SeenHashes
from polyrank.index_builder.vectors.local import hash_id, text_id
from polyrank.model.durable import filling
from polyrank.model.errors import InvalidInput
from polyrank.model.text.dialogues import Dialogue, new_dialogues
from polyrank.model.text.folding import text_key

DIALOGUES, POOL, REJECTED = "dialogues.jsonl", "pool.jsonl", "rejected.jsonl"
_TRAINING = ("", "train")
_MOST_LISTED = 10_000  # rejected rows, as of a build
_MOST_REASONS = 100
_ROWS_A_REPORT = 1000
_REASON_CHARACTERS = 300

Progress = Callable[[str, int, int | None], object]


@dataclass(slots=True)
class Converted:
    """What a conversion found.

    Attributes:
        examples: how many there are, by the file that they are in.
        candidates: how many rows the pool has.
        left_out: how many rows or replies are left out, by reason.
    """

    form: str
    examples: Counter[str] = field(default_factory=Counter)
    candidates: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    fields: Fields = field(default_factory=Fields)


def format_of(paths: Sequence[Path], asked: Asked) -> str:
    """Tell the format of files from what they hold.

    Raises InvalidInput where they are of no format that is known, of several, or one is of another than the first.
    """
    found = {path: recognised(path, asked.columns) for path in paths}
    for path, forms in found.items():
        if not forms:
            raise InvalidInput(f"{path}: {why_unknown(path)}")
        if len(forms) > 1:
            named = " or ".join(f"{form} ({FOREIGN_FORMATS[form]})" for form in forms)
            raise InvalidInput(f"{path} may be {named}; name it by --from")
    [first, *others] = {forms[0] for forms in found.values()}
    if others:
        raise InvalidInput(f"the files are {' and '.join(sorted([first, *others]))}; convert them one after the other")
    return first


def convert(form: str, paths: Sequence[Path], output: Path, asked: Asked, progress: Progress) -> Converted:
    """Convert files of one format into a new or empty directory; files appear in it when all of them are complete.

    Raises InvalidInput or PoolInvalid if a file cannot be read, is of no known format, or holds nothing to keep.
    """
    done = Converted(format_of(paths, asked) if form == AUTO else form)
    with filling(output) as inside, ExitStack() as stack:
        writer = _Writer(inside, stack, done)
        rows = (found for path in paths for found in read(done.form, path, asked))
        for count, (file, number, split, found) in enumerate(rows, 1):
            writer.take(found, split, file, number)
            if count % _ROWS_A_REPORT == 0:
                progress("convert", count, None)
        if not done.examples and not done.candidates:
            why = "; ".join(f"{reason} ({done.first[reason]})" for reason, _ in done.left_out.most_common(3))
            raise InvalidInput(f"nothing was kept of {', '.join(map(str, paths))}: {why or 'there are no rows'}")
    return done


class _Writer:
    def __init__(self, output: Path, stack: ExitStack, done: Converted) -> None:
        self._output, self._stack, self._done = output, stack, done
        self._dialogues: dict[str, Callable[[Dialogue], object]] = {}
        self._rows: dict[str, BinaryIO] = {}
        self._seen = SeenHashes(output)

    def take(self, found: Found, split: str, file: Path, number: int) -> None:
        try:
            if isinstance(found, RowError):
                raise found
            if isinstance(found, Dialogue):
                self._take_example(found, split)
            else:
                self._take_document(found)
        except RowError as error:
            self._leave_out(str(error)[:_REASON_CHARACTERS], file, number)
        except (TypeError, UnicodeEncodeError):  # orjson's error is a TypeError
            self._leave_out("half a surrogate pair, or what JSON cannot say", file, number)

    def _take_example(self, example: Dialogue, split: str) -> None:
        name = DIALOGUES if split in _TRAINING else f"dialogues-{split}.jsonl"
        if name not in self._dialogues:
            self._dialogues[name] = self._stack.enter_context(new_dialogues(self._output / name))
        self._dialogues[name](example)
        self._done.examples[name] += 1
        if self._done.form != "beir" and self._seen.add(key := text_key(example.response)):
            self._write(POOL, {"id": f"{key:016x}", "text": example.response})
            self._done.candidates += 1

    def _take_document(self, row: Object) -> None:
        found = document(row, self._done.fields)
        name = text_id(found.text) if found.id is None else found.id
        if not self._seen.add(hash_id(name)):
            raise RowError("its id was seen before")
        metadata = {"metadata": found.metadata} if found.metadata else {}
        self._write(POOL, {"id": name, "text": found.text, **metadata})
        self._done.candidates += 1
        self._done.fields.count(found.metadata)

    def _leave_out(self, reason: str, file: Path, number: int) -> None:
        left = self._done.left_out
        if left.total() < _MOST_LISTED:
            self._write(REJECTED, {"file": str(file), "line": number, "reason": reason})
        reason = reason if reason in left or len(left) < _MOST_REASONS else "other reasons"
        left[reason] += 1
        self._done.first.setdefault(reason, f"{file}:{number}")

    def _write(self, name: str, row: Object) -> None:
        line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
        if name not in self._rows:
            self._rows[name] = self._stack.enter_context((self._output / name).open("wb"))
        self._rows[name].write(line)
