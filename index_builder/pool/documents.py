"""What a row means, whichever format it comes from: an id, a text, and metadata; and what of these may be.

The same limits hold for pools, updates and builds by HTTP.

`text` is the reply, `id` its name. Every other field is metadata, and the fields of an object `metadata` join them. A
null is absent. A row that has `_id` instead of `id` is of BEIR's form: its title, if any, stands in front of its text.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import orjson

from polyrank.index_builder.pool.values import has_tags, instant, says_nothing, seems_a_date, shown
from polyrank.model.evaluation.beir import titled
from polyrank.model.text.folding import folded_line

MAX_TEXT_CHARACTERS = 20_000
OWN_FIELDS = ("id", "_id", "text", "title", "metadata")  # fields with a meaning of their own

_SHOWN_COLUMNS, _SHOWN_CHARACTERS = 8, 30
_NAMELESS = "its name is empty"
_OPERATOR = "its name begins with '$', as operators of filters do"
_ELSEWHERE = "'metadata' has another value of this name, which counts"

MAX_ID_CHARS = 1024
MAX_DEPTH = 100  # orjson writes 254 levels, and an answer puts metadata below three of its own
MAX_METADATA_BYTES = 65_536
MAX_FIELDS = 4096  # of a row, and columns of a table: each costs time in every row
_CONTROL = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
ID_PATTERN = f"^[^{_CONTROL}]*$"  # of JSON Schema; a JSON text holds no half of a surrogate pair
_LONG_NUMBER = re.compile(rb"\d{19}")
_UNREADABLE = re.compile(rf"[{_CONTROL}\ud800-\udfff]")
V = TypeVar("V")
TEXT, TIME, NUMBER, TRUE_FALSE, LIST, OBJECT = "text", "time", "number", "true/false", "list", "object"
MIXED = "mixed"
_KINDS = {str: TEXT, int: NUMBER, float: NUMBER, bool: TRUE_FALSE, list: LIST, dict: OBJECT}
_MOST_COUNTED = 1000  # names are a pool's to choose, so their number is not bounded
_MOST_SHOWN = 30
_NAME_CHARACTERS = 40


class RowError(Exception):
    """What is wrong with one row. Readers yield it in the row's place, so that the caller can name the line."""


def checked_id(candidate_id: str) -> str:
    """Return the id if a path can hold it: `GET /index/candidates/{id}` reads whatever can be put.

    Raises ValueError if it is empty, too long or a name of directories, or holds a control character, a line separator
    or half a surrogate pair.
    """
    if not 1 <= len(candidate_id) <= MAX_ID_CHARS:
        raise ValueError(f"must have 1 to {MAX_ID_CHARS} characters, not {len(candidate_id)}")
    if match := _UNREADABLE.search(candidate_id):
        what = f"U+{ord(match[0]):04X} at character {match.start() + 1}"
        raise ValueError(f"must not hold control characters or line separators, as {what} is")
    if candidate_id in (".", ".."):
        raise ValueError("must be another than . and .., which programs drop from a path")
    return candidate_id


def kept_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return metadata as a store keeps them, whichever way they came.

    A null in an object is absent. A number without a fraction is a whole number (5.0 is 5, up to 2^53), because formats
    and programs write either. Keys are in order.

    Raises ValueError if a store cannot keep the metadata, or if they are too large.
    """
    if len(metadata) > MAX_FIELDS:
        raise ValueError(f"must have at most {MAX_FIELDS} fields, not {len(metadata)}")
    for key, value in metadata.items():
        if key.startswith("$"):
            raise ValueError(f"the key {key[:80]!r} begins with '$', as operators of filters do")
        try:
            check_value(value)
        except ValueError as error:
            raise ValueError(f"{key[:80]!r}: {error}") from None
    plain: dict[str, Any] = _plain(metadata)
    if len(orjson.dumps(plain)) > MAX_METADATA_BYTES:
        raise ValueError(f"must be at most {MAX_METADATA_BYTES} bytes of JSON")
    return plain


def _plain(value: Any) -> Any:
    match value:
        case str():
            return value
        case dict():
            return {key: _plain(inner) for key, inner in sorted(value.items()) if inner is not None}
        case list():
            return list(map(_plain, value))
        case float() if value.is_integer() and abs(value) <= 2**53:
            return int(value)
    return value


def check_value(value: V) -> V:
    """Return the value; raise ValueError if JSON or a store cannot keep it as it is.

    It must not hold NaN, an infinity, a whole number beyond 64 bits, or lists and objects nested too deep.
    """
    level: list[Any] = [value]
    depth = 0
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(f"must not be nested deeper than {MAX_DEPTH} levels")
        level = [inner for outer in level for inner in _inside(outer)]
        depth += 1
    return value


def _inside(value: object) -> list[Any]:
    """Return the values right inside a list or an object; check a number."""
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
        case float() if not math.isfinite(value):
            raise ValueError("numbers must be finite")
        case int() if not -(2**63) <= value < 2**63:
            raise ValueError("whole numbers must fit 64 bits")
    return []


class Fields:
    """What metadata a pool has: counts the fields of rows that are taken, and what is left out of them.

    Of both at most `_MOST_COUNTED` names. `titled`: rows of BEIR's form whose title was put in front of the text.
    `repeated`: rows with an id of their own whose text another row has, too.
    `decimal_commas`, `answers`: columns of CSV whose numbers were read so, and those with words for true and false. A
    date or a time of ISO 8601 is a `time`; a field that holds other dates, or other texts beside as many times, is told
    with one of them. `tagged`, `void`: how many texts have marks of HTML, or are what programs write for nothing.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, Counter[str]] = {}
        self._left_out: Counter[tuple[str, str]] = Counter()
        self._others: dict[str, str] = {}  # of fields: a text that is no time, if possible one that seems to be a date
        self._dates: Counter[str] = Counter()  # of other forms, by field
        self._uncounted = False
        self.titled = self.repeated = self.tagged = self.void = 0
        self.decimal_commas: list[str] = []
        self.answers: list[str] = []

    def look(self, text: str) -> None:
        self.tagged += has_tags(text)
        self.void += says_nothing(text)

    def count(self, metadata: Mapping[str, Any]) -> None:
        for name, value in metadata.items():
            if name not in self._kinds and len(self._kinds) >= _MOST_COUNTED:
                self._uncounted = True
                continue
            kind = TIME if isinstance(value, str) and instant(value) else _KINDS[type(value)]
            self._kinds.setdefault(name, Counter())[kind] += 1
            if kind == TEXT:
                if seems_a_date(value):
                    self._dates[name] += 1
                if name not in self._others or self._dates[name] == 1:
                    self._others[name] = value

    def leave_out(self, name: str, why: str, rows: int = 1) -> None:
        """Note that rows have a field that was not taken."""
        if (name, why) in self._left_out or len(self._left_out) < _MOST_COUNTED:
            self._left_out[name, why] += rows

    def described(self) -> dict[str, Any]:
        """Return what was found as JSON can say it: `fields`, by name, `repeated_texts` and `left_out`."""
        rare = {"decimal_commas": self.decimal_commas, "html_texts": self.tagged, "void_texts": self.void}
        rare |= {"answers": self.answers, "no_times": self._no_times()}
        return {
            "fields": {name: {"kind": _one(kinds), "rows": kinds.total()} for name, kinds in self._kinds.items()},
            "repeated_texts": self.repeated,
            "left_out": [{"field": name, "why": why, "rows": rows} for (name, why), rows in self._left_out.items()],
            **{name: content for name, content in rare.items() if content},
        }

    def _no_times(self) -> dict[str, str]:
        """Return the fields of dates, of which some cannot be compared, with one of those."""
        return {
            name: other
            for name, other in self._others.items()
            if (kinds := self._kinds[name])[TEXT] <= kinds[TIME] + 2 * self._dates[name]
        }

    def lines(self) -> list[str]:
        """Return what a person should know of the fields, at most nine lines of bounded length."""
        fields = [f"{_shown(name)} ({_with_rows(kinds)})" for name, kinds in self._kinds.items()]
        lines = [f"fields: {_some(fields)}" if fields else "fields: none besides id and text"]
        if self._uncounted:
            lines[0] += f"; there are more than {_MOST_COUNTED} names"
        titled, repeat = _rows(self.titled), "repeats" if self.repeated == 1 else "repeat"
        dates = [f"{_shown(name)} (such as {_shown(other)})" for name, other in self._no_times().items()]
        omissions = [f"{_shown(name)} ({why}; {_rows(rows)})" for (name, why), rows in self._left_out.items()]
        notes = [
            (self.titled, f"the title stands in front of the text in {titled} with _id, as in BEIR's files"),
            (self.repeated, f"{_rows(self.repeated)} {repeat} a text under another id; all of them are kept"),
            (self.tagged, f"texts with marks of HTML, which are kept: {_rows(self.tagged)}"),
            (self.void, f"texts that say NaN, None or NULL, as programs do where there is none: {_rows(self.void)}"),
            (self.decimal_commas, f"numbers with decimal commas: {_some(map(_shown, self.decimal_commas))}"),
            (self.answers, f"words read as true and false: {_some(map(_shown, self.answers))}"),
            (dates, f"dates that ranges pass over: {_some(dates)}; they compare those such as 2026-12-31 alone"),
            (omissions, f"left out: {_some(omissions)}"),
        ]
        return lines + [line for fact, line in notes if fact]


def _one(kinds: Counter[str]) -> str:
    return next(iter(kinds)) if len(kinds) == 1 else MIXED


def _with_rows(kinds: Counter[str]) -> str:
    if len(kinds) == 1:
        return f"{_one(kinds)}, {_rows(kinds.total())}"
    return f"{MIXED}: " + ", ".join(f"{kind} in {_rows(rows)}" for kind, rows in kinds.most_common())


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"


def _shown(name: str) -> str:
    short = name if len(name) <= _NAME_CHARACTERS else f"{name[:_NAME_CHARACTERS]}…"
    return short if short.isprintable() and short else repr(short)


def _some(items: Iterable[str]) -> str:
    names = list(items)
    more = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


class PoolDocument(NamedTuple):
    """A row that may be a candidate; its id is None where the row has none."""

    id: str | None
    text: str
    metadata: dict[str, Any]


def column_names(names: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """Return the names of a table's columns without spaces around them, and `ID` or `Text` as those that are known.

    `columns` are the columns that are to be known by other names, by these names. `require_columns` checks them.

    Marks of direction, which spreadsheets in Arabic and Hebrew write, are no part of a known name. Where a column has
    the known name itself, others that differ in case keep theirs.
    """
    new_names = {column: name for name, column in columns.items()}
    stripped = [new_names.get(name.strip(), name.strip()) for name in names]
    missing = set(OWN_FIELDS).difference(stripped)
    return [low if (low := folded_line(name)) in missing else name for name in stripped]


def require_columns(names: Collection[str], columns: Mapping[str, str]) -> None:
    """Raise RowError unless each of `columns` (as `column_names`) is among the names found, and in no other's place."""
    for name, column in columns.items():
        if column not in names:
            raise RowError(f"there is no column {column[:_SHOWN_CHARACTERS]!r}, which is to be {name!r}")
        if name != column and name in names:
            raise RowError(f"{column[:_SHOWN_CHARACTERS]!r} is to be {name!r}, but there is a column of that name, too")


def renamed(row: object, columns: Mapping[str, str]) -> object:
    """Return a row that is an object with `columns` under the names that they are to have; errors are values, too."""
    if not columns or not isinstance(row, dict):
        return row
    try:
        require_columns({name for name, value in row.items() if value is not None}, columns)
    except RowError as error:
        return error
    new_names = {column: name for name, column in columns.items()}
    return {new_names.get(name, name): value for name, value in row.items() if value is not None}


def shown_names(names: Sequence[str]) -> str:
    """Return the first names of a table's columns, cut, for a message."""
    quoted = [repr(name[:_SHOWN_CHARACTERS]) for name in names[:_SHOWN_COLUMNS]]
    return ", ".join(quoted) + (", …" if len(names) > _SHOWN_COLUMNS else "")


def document(row: object, fields: Fields) -> PoolDocument:
    """Check a row, and note what of it was left out. Raises RowError if it cannot be a candidate."""
    if isinstance(row, RowError):
        raise row
    if not isinstance(row, dict):
        raise RowError(f"the row must be an object, not {_json_name(row)}")
    members = {name: value for name, value in row.items() if value is not None}
    text, nested = members.pop("text", None), members.pop("metadata", {})
    id_field, title = "id", None
    if "id" not in members and "_id" in members:
        id_field, title = "_id", members.pop("title", "")
    candidate_id = members.pop(id_field, None)
    checked = _checked_text(text, title)
    metadata = _checked_metadata(members, _object(nested), fields)
    if candidate_id is not None:
        _check_id(id_field, candidate_id)
    fields.titled += bool(title)
    return PoolDocument(candidate_id, checked, metadata)


def _checked_text(text: object, title: object) -> str:
    if text is None:
        raise RowError("'text' is missing")
    if not isinstance(text, str):
        raise RowError(f"'text' must be a string, not {_json_name(text)}")
    if title is not None and not isinstance(title, str):
        raise RowError(f"'title' must be a string, not {_json_name(title)}")
    whole = text if title is None else titled(title, text)
    if not shown(whole):
        raise RowError("'text' is empty")
    if len(whole) > MAX_TEXT_CHARACTERS:
        raise RowError(f"'text' has {len(whole)} characters, more than {MAX_TEXT_CHARACTERS}")
    return whole


def _object(nested: object) -> dict[str, Any]:
    """Return the fields of `metadata`, which a table may hold as JSON."""
    if isinstance(nested, str):
        nested = parsed(nested.encode())
        if isinstance(nested, RowError):
            raise RowError(f"'metadata' must be an object, or a text with the JSON of one: {nested}")
    if nested is not None and not isinstance(nested, dict):
        raise RowError(f"'metadata' must be an object, not {_json_name(nested)}")
    return {name: value for name, value in (nested or {}).items() if value is not None}


def _checked_metadata(others: dict[str, Any], nested: dict[str, Any], fields: Fields) -> dict[str, Any]:
    """Join the fields beside `metadata` with those in it, which count where both have one."""
    for name in list(others):
        if not name or name.startswith("$"):
            del others[name]
            fields.leave_out(name, _OPERATOR if name else _NAMELESS)
        elif name in nested and others[name] != nested[name]:
            fields.leave_out(name, _ELSEWHERE)
    try:
        return kept_metadata({**others, **nested})
    except ValueError as error:
        raise RowError(f"'metadata': {error}") from None


def _check_id(name: str, candidate_id: object) -> None:
    if not isinstance(candidate_id, str):
        raise RowError(f"{name!r} must be a string, not {_json_name(candidate_id)}")
    try:
        checked_id(candidate_id)
    except ValueError as error:
        raise RowError(f"{name!r} {error}") from None


def _json_name(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def parsed(line: bytes) -> object:
    """Return the value of a JSON text, or a RowError that says what is wrong with it."""
    try:
        value = orjson.loads(line)
        # Of a whole number beyond 64 bits orjson makes a float. It is read again as it is, and refused.
        return json.loads(line) if _LONG_NUMBER.search(line) else value
    except RecursionError:
        return RowError("nested too deep")
    except orjson.JSONDecodeError as error:
        try:
            line.decode()
        except UnicodeDecodeError as bad:
            return RowError(f"not valid UTF-8 at byte {bad.start}")
        return RowError(f"not valid JSON: {error.msg} at character {error.pos}")
