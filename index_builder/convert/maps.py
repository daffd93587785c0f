"""Where each thing lies in the records of a tool: a map is a file of paths in JMESPath, and no code knows a tool.

Paths of a message are read in the message, those of a record in the record; `_record` is the record around a message,
or around one of its parts (`inside`). `_file`, `_folder`, `_key` and `_part` say where the record lies, and `_head`
is the record before that is its head. Besides the functions of JMESPath there are:

    split(text, mark)       the parts of a text between marks
    spoken(text, names)     [{who, text}] of a text in which lines begin with a name and a colon
    rows(object)            the objects of an object of lists
    parsed(text)            what a text of JSON says
    beside(_path, file, id) the object of an id, in a list of JSON in the folder of the record's file or around it
    no(value)               whether a value is false, or a text that says so in any language, such as FALSCH
    unmangled(text)         the text whose bytes in UTF-8 were written as letters, as Facebook does
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jmespath
import orjson
from jmespath import functions
from jmespath.exceptions import JMESPathError

from polyrank.index_builder.convert.rows import Object
from polyrank.index_builder.convert.texts import FORMS
from polyrank.index_builder.pool.documents import RowError
from polyrank.index_builder.pool.values import is_false, says_nothing
from polyrank.model.errors import InvalidInput
from polyrank.model.inputs import read_input

_OF_ALL = ("head", "inside", "conversation", "begins", "ends", "messages", "first", "system", "persona", "right")
OF_RECORD = (*_OF_ALL, "documents")
OF_MESSAGE = ("text", "who", "answers", "time", "only", "learn", "name", "parent", "replies", "candidates", "wrong")
PATHS = OF_RECORD + OF_MESSAGE
SHIPPED = Path(__file__).parent / "maps"
_KINDS = {"collection": bool, "joined": bool, "told_by": list, "each": list, "answering": list}
_MOST_EXACT = 2**53  # of whole numbers in floats
_BESIDE = re.compile(r"(?:\.\./)?[\w.-]+")  # a file of the record's folder or of the one around it
_ROUNDED = re.compile(r"\d(?:[.,]\d+)?E\+\d+")
_EXPECTED = {bool: "true or false", list: "a list of texts", str: "a text"}


@dataclass(frozen=True, slots=True)
class Map:
    """A map, as its file says it; see `docs/how-to/your-files.md`."""

    called: str
    about: str = ""
    told_by: tuple[str, ...] = ()  # paths that are there in a record of this kind
    each: tuple[str, ...] = ("",)  # where records lie in a document, one place or several of which one holds them
    files: str = ""  # of a folder, those that are read
    lines: str = ""  # a regular expression for the lines of a text
    collection: bool = False  # whether it is a folder of documents, queries and judgements
    joined: bool = False  # whether records of one conversation are parts of it, though they hold lists of messages
    texts: str = "plain"  # what the texts are, one of `FORMS`
    answering: tuple[str, ...] = ()
    # What becomes metadata: names and their paths, or the path of an object.
    keep: Mapping[str, str] | str = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    content: Object = field(default_factory=dict)

    def find(self, key: str, where: Any) -> Any:
        """Return what lies at a path of the map; None: nothing does, or the map has none. Raises RowError."""
        return value_at(self.paths[key], where, key) if key in self.paths else None

    def holds(self, key: str, where: Any) -> bool:
        """Whether what lies at a path is true, and no text such as `no`, `FALSCH` or 0."""
        value = self.find(key, where)
        return bool(value) and not is_false(str(value))

    def conversation(self, record: Object) -> str | None:
        """Return the name of a record's conversation; None: it has none. Raises RowError."""
        name = self.find("conversation", record)
        is_rounded = isinstance(name, float) and abs(name) >= _MOST_EXACT
        if isinstance(name, float) and name.is_integer():  # as where other rows have none
            name = int(name)
        if name is not None and not isinstance(name, str | int | float):
            raise RowError("conversation is neither a text nor a number")
        name = "" if name is None else str(name).strip()
        if is_rounded or _ROUNDED.fullmatch(name):
            raise RowError("conversation is rounded, as spreadsheets do with 4.71E+17; write the column as text")
        return None if says_nothing(name) else name or None

    def metadata(self, record: Object, text: str | None = None) -> Object:
        """Return the metadata of a record, without vectors and the text itself. Raises RowError."""
        if isinstance(self.keep, str):
            source = value_at(self.keep, record, "keep")
            own = source.items() if isinstance(source, dict) else ()
            source = {key: value for key, value in own if not key.startswith("_") and value != text}
        else:
            source = {key: value_at(path, record, "keep") for key, path in self.keep.items()}
        lists = {key: value for key, value in source.items() if isinstance(value, list) and len(value) >= 16}
        vectors = {key for key, value in lists.items() if {*map(type, value)} <= {int, float}}
        return {key: value for key, value in source.items() if value is not None and key not in vectors}


class _Functions(functions.Functions):
    @functions.signature({"types": ["string", "null"]}, {"types": ["string"]})
    def _func_split(self, text: str | None, mark: str) -> list[str]:
        return [part.strip() for part in (text or "").split(mark) if part.strip()]

    @functions.signature({"types": ["string", "null"]}, {"types": ["array"]})
    def _func_spoken(self, text: str | None, names: list[str]) -> list[Object]:
        parts = re.split(rf"^\s*({'|'.join(map(re.escape, names))}):", text or "", flags=re.MULTILINE)
        return [{"who": who, "text": words.strip()} for who, words in zip(parts[1::2], parts[2::2], strict=True)]

    @functions.signature({"types": ["object", "array", "null"]})
    def _func_rows(self, value: Any) -> list[Any]:
        if not isinstance(value, dict):
            return value or []
        lists = {name: cells for name, cells in value.items() if isinstance(cells, list)}
        return [dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=False)]

    @functions.signature({"types": []})
    def _func_parsed(self, value: Any) -> Any:
        try:
            return orjson.loads(value) if isinstance(value, str) else value
        except orjson.JSONDecodeError:
            return value

    @functions.signature({"types": ["string"]}, {"types": ["string"]}, {"types": ["string", "null"]})
    def _func_beside(self, path: str, file: str, name: str | None) -> Any:
        return _by_id(Path(path).parent / file).get(name) if _BESIDE.fullmatch(file) else None

    @functions.signature({"types": []})
    def _func_no(self, value: Any) -> bool:
        return not value or is_false(str(value))

    @functions.signature({"types": ["string", "null"]})
    def _func_unmangled(self, text: str | None) -> str | None:
        try:
            return text and text.encode("latin-1").decode()
        except UnicodeError:
            return text


@lru_cache(maxsize=2)
def _by_id(path: Path) -> dict[str | None, Any]:
    try:
        every = orjson.loads(read_input(path, 1 << 28))
    except (OSError, orjson.JSONDecodeError):
        return {}
    rows = every if isinstance(every, list) else []
    return {str(each["id"]): each for each in rows if isinstance(each, dict) and "id" in each}


MOST_BYTES = 16 << 10  # of a map; keys of many parts take a time that grows with their square
# Of a path. Each list that it makes may hold all that it was made of twice, so few of them take all memory.
MOST_DEPTH, MOST_CONTAINERS = 64, 12
_OPTIONS = jmespath.Options(custom_functions=_Functions())


@cache
def _compiled(path: str) -> Any:
    return jmespath.compile(path)


def value_at(path: str, where: Any, key: str) -> Any:
    """Return what lies at a path. Raises RowError where a function of it cannot take what it is given."""
    try:
        return _compiled(path).search(where, _OPTIONS)
    except (JMESPathError, TypeError, ValueError, AttributeError) as error:
        raise RowError(f"{key}: {error}"[:200]) from None
    except RecursionError:
        raise RowError("nested too deep") from None


def _check_path(path: str, key: str, source: str) -> None:
    """Raise InvalidInput where a path is none, or is too deep or large for a map."""
    try:
        depth, containers = _sizes(_compiled(path).parsed)
    except JMESPathError as error:
        raise InvalidInput(f"{source}: {key} is no path of JMESPath: {' '.join(str(error).split())}") from None
    except RecursionError:
        depth = containers = MOST_DEPTH + 1
    if depth > MOST_DEPTH or containers > MOST_CONTAINERS:
        raise InvalidInput(
            f"{source}: {key} may be {MOST_DEPTH} parts deep, and make {MOST_CONTAINERS} lists and objects"
        )


def _sizes(parsed: Any) -> tuple[int, int]:
    """Return how deep an expression is, and how many lists and objects it makes."""
    depth = containers = 0
    level = [parsed]
    while level:
        depth += 1
        containers += sum(each["type"] in ("multi_select_list", "multi_select_dict") for each in level)
        level = [part for each in level for part in each["children"] if isinstance(part, dict)]
    return depth, containers


@cache
def shipped() -> dict[str, Map]:
    """Return the maps that come along, by their names."""
    return {path.stem: read_map(path) for path in sorted(SHIPPED.glob("*.toml"), key=lambda it: it.stem)}


def read_map(path: Path) -> Map:
    """Read the file of a map. Raises InvalidInput for anything else, with what is wrong."""
    try:
        content = tomllib.loads(read_input(path, MOST_BYTES).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path} is no map: {getattr(error, 'strerror', None) or error}") from None
    return map_of(path.stem, content, str(path))


def map_of(called: str, content: Object, source: str) -> Map:
    """Make a map of what its file says. Raises InvalidInput, with what is wrong."""
    own = [each.name for each in fields(Map) if each.name not in ("called", "paths", "content")]
    values: Object = {}
    for key, value in content.items():
        if key not in own and key not in PATHS:
            raise InvalidInput(f"{source}: {key!r} is no key of a map; there are {', '.join([*sorted(own), *PATHS])}")
        kind = _KINDS.get(key, str)
        value = [value] if kind is list and isinstance(value, str) else value
        inside = list(value.values()) if key == "keep" and isinstance(value, dict) else value
        if inside is value and not isinstance(value, kind):
            raise InvalidInput(f"{source}: {key} must be {_EXPECTED[kind]}")
        texts = inside if isinstance(inside, list) else [inside] if isinstance(inside, str) else []
        if not all(isinstance(each, str) for each in texts):
            raise InvalidInput(f"{source}: {key} must be a list of texts")
        for path in texts if key in (*PATHS, "told_by", "keep") else []:
            _check_path(path, key, source)
        values[key] = tuple(value) if kind is list else value
    paths = {key: values.pop(key) for key in [*values] if key in PATHS}
    if values.get("texts", "plain") not in FORMS:
        raise InvalidInput(f"{source}: texts must be one of {', '.join(FORMS)}")
    try:
        re.compile(values.get("lines", ""))
    except re.error as error:
        raise InvalidInput(f"{source}: lines is no regular expression: {error}") from None
    if not values.get("collection") and not {"messages", "text", "right"} & set(paths):
        raise InvalidInput(f"{source}: it says neither messages, nor text, nor right: nothing can be read by it")
    return Map(called, paths=paths, content=content, **values)
