"""Of which kind files are: their first records are looked at by all maps."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from polyrank.index_builder.convert.draft import Tree, draft
from polyrank.index_builder.convert.maps import OF_RECORD, PATHS, SHIPPED, Map, map_of, shipped, value_at
from polyrank.index_builder.convert.rows import Object, beginning, is_text, records
from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.errors import InvalidInput
from polyrank.model.inputs import read_input

_SAMPLE_RECORDS = 20  # records that are looked at
_MOST_SAMPLED = 1 << 17  # bad ones included: of an open quote, each of 131,072 characters may be the line of one
_SAMPLE_CHARACTERS = 4 << 20
_SPLIT = re.compile(r"(train|validation|valid|dev|test)(?![a-z])", re.IGNORECASE)
_NAME = re.compile(r"\w[\w.-]*")
_FLAGS = {"head", "begins", "ends", "answers", "only", "learn"}  # what is false need not be there

Files = Sequence[tuple[Path, str]]
"""Files of a data set, each with the name of its split."""


class UnknownKind(InvalidInput):
    """No map fits a file, or several do; `fields` are those of its first records."""

    def __init__(self, message: str, fields: Tree) -> None:
        super().__init__(message)
        self.fields = fields


@dataclass(frozen=True, slots=True)
class Recognised:
    """A map, the files that it reads, and where their records lie."""

    map: Map
    files: Files
    each: str = ""


def kinds_of(
    paths: Sequence[Path], map_: Map | None, columns: Mapping[str, str], encoding: str | None = None
) -> list[Recognised]:
    """Return the kinds of files: by a map, by columns, or as they are told. Raises as `kind_of`.

    Raises InvalidInput, too, where files are of several kinds.
    """
    if columns and map_ is None and ({"conversation", "text"} <= {*columns} or {"right", "documents"} & {*columns}):
        each = columns.get("each", "")
        file = (_files(paths[0]) or [(paths[0], "")])[0][0]
        rows, wrong = _sampled(file, each, encoding=encoding)
        if not rows and wrong:
            raise wrong if isinstance(wrong, PoolInvalid) else PoolInvalid(paths[0], str(wrong))
        own = _columns_map(columns, [placed(row, file) for row in rows], None)
        return [Recognised(own, _files(path), each) for path in paths]
    every = [kind_of(path, None, encoding) if map_ is None else _kind_by(map_, path, encoding) for path in paths]
    first, *others = {kind.map.called for kind in every}
    if others:
        raise InvalidInput(f"the files are {' and '.join(sorted([first, *others]))}; convert them one after the other")
    if columns:
        base = every[0]
        file = base.files[0][0]
        rows = [placed(row, file) for row in _sampled(file, base.each, base.map.lines, encoding)[0]]
        own = _columns_map(columns, rows, base.map)
        every = [Recognised(own, kind.files, kind.each) for kind in every]
    return every


def kind_of(path: Path, maps: Iterable[Map] | None = None, encoding: str | None = None) -> Recognised:
    """Tell the kind of a file or folder by the maps that come along, or by the given ones.

    Raises UnknownKind where not exactly one fits, PoolInvalid where it cannot be read.
    """
    files = _files(path)
    fitting, nearly = _fitting(path, files, shipped().values() if maps is None else maps, encoding)
    if len(fitting) == 1:
        return fitting[0]
    rows, wrong = _sampled(files[0][0], encoding=encoding) if files else ([], None)
    if not rows and isinstance(wrong, PoolInvalid):
        raise wrong
    places = Tree(rows)
    if fitting:
        names = " or ".join(f"{kind.map.called} ({kind.map.about})" for kind in fitting)
        raise UnknownKind(f"{path} may be {names}; name it by --from", places)
    if not files:
        raise PoolInvalid(path, "is a folder of no known kind, without .arrow or .parquet files; name the files in it")
    if not rows:
        raise InvalidInput(f"{path}: " + (f"no row can be read: {wrong}" if wrong else "there are no rows"))
    close = "; ".join(f"{each.called} lacks {' and '.join(missing)}" for each, missing in nearly[:3])
    raise UnknownKind(
        f"{path}: no map fits it{f'; nearly fit: {close}' if close else ''}; write one: --draft map.toml begins it,"
        " --map map.toml reads it; or name the columns of a table by --columns",
        places,
    )


def beginning_of_a_map(path: Path, encoding: str | None = None) -> tuple[Tree, str]:
    """Return the fields of a file's first records, and a draft of a map; of a known kind it is that map's file.

    Raises PoolInvalid or InvalidInput where no record can be read.
    """
    try:
        kind = kind_of(path, None, encoding)
    except UnknownKind as error:
        return error.fields, draft(error.fields)
    fields = Tree(_sampled(kind.files[0][0], kind.each, encoding=encoding)[0])
    return fields, (SHIPPED / f"{kind.map.called}.toml").read_text("utf-8")


def _files(path: Path) -> Files:
    """Return the files of a data set with the names of their splits, as `save_to_disk` and the hub lay them out."""
    if not path.is_dir():
        return [(path, "")]
    if (path / "dataset_dict.json").is_file():
        splits = _names(path / "dataset_dict.json", lambda facts: facts["splits"])
        return [(file, split) for split in splits for file, _ in _files(path / split)]
    if (path / "state.json").is_file():
        names = _names(path / "state.json", lambda facts: [each["filename"] for each in facts["_data_files"]])
        return [(path / name, "") for name in names]
    tables = sorted(file for file in path.rglob("*") if file.suffix in (".arrow", ".parquet") and file.is_file())
    return [(file, split[1] if (split := _SPLIT.match(file.name)) else "") for file in tables]


def _names(path: Path, named: Callable[[Any], list[str]]) -> list[str]:
    """Return the names of files or folders that a file of facts holds; none leads elsewhere."""
    try:
        names = named(orjson.loads(read_input(path)))
        if all(_NAME.fullmatch(name) for name in names):
            return names
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        pass
    raise PoolInvalid(path, "is not what the library datasets writes")


def _sampled(
    path: Path, each: str = "", lines: str = "", encoding: str | None = None
) -> tuple[list[Object], RowError | PoolInvalid | None]:
    """Return the first records of a file, and the first thing that is wrong with it."""
    rows: list[Object] = []
    wrong: RowError | PoolInvalid | None = None
    try:
        for _, row in islice(records(path, encoding, each, lines or None, _SAMPLE_CHARACTERS), _MOST_SAMPLED):
            if isinstance(row, RowError):
                wrong = wrong or row
            else:
                rows.append(row)
            if len(rows) == _SAMPLE_RECORDS:
                break
    except PoolInvalid as error:
        wrong = wrong or error
    return rows, wrong


def _kind_by(map_: Map, path: Path, encoding: str | None) -> Recognised:
    """Say how a map reads a file or folder, though it may not seem to be of that kind."""
    files = _files(path)
    fitting, _ = _fitting(path, files, [map_], encoding)
    return fitting[0] if fitting else Recognised(map_, files, map_.each[0])


def _fitting(
    path: Path, files: Files, maps: Iterable[Map], encoding: str | None
) -> tuple[list[Recognised], list[tuple[Map, list[str]]]]:
    """Return of which kinds a file or folder is, and those that nearly fit, each with the paths that are missing."""
    samples: dict[tuple[Path, str, str], list[Object]] = {}
    fitting: list[Recognised] = []
    nearly: list[tuple[Map, list[str]]] = []
    for map_ in maps:
        globbed = sorted(file for file in path.glob(map_.files) if file.is_file()) if map_.files else []
        own = [(file, "") for file in globbed] if map_.files else files
        if not own or (map_.lines and not is_text(beginning(own[0][0]))):
            continue
        if map_.collection:
            fitting.append(Recognised(map_, own))
            continue
        each, missing = _best(map_, own[0][0], encoding, samples)
        # That a path is not there says little.
        there = [clue for clue in map_.told_by if clue not in missing and "null" not in clue and clue[:1] != "!"]
        if not missing:
            fitting.append(Recognised(map_, own, each))
        elif there:
            nearly.append((map_, missing))
    return fitting, sorted(nearly, key=lambda near: len(near[1]) / len(near[0].told_by))


def _best(
    map_: Map, file: Path, encoding: str | None, samples: dict[tuple[Path, str, str], list[Object]]
) -> tuple[str, list[str]]:
    """Return the place of the records that have most of a map's paths, and the paths that these lack."""
    best = map_.each[0], list(map_.told_by)
    for each in map_.each:
        if (key := (file, each, map_.lines)) not in samples:
            rows, wrong = _sampled(*key, encoding)
            samples[key] = [] if map_.lines and wrong else [placed(row, file) for row in rows]
        for row in samples[key]:
            missing = [clue for clue in map_.told_by if not _is_there(clue, row)]
            best = min(best, (each, missing), key=lambda pair: len(pair[1]))
    return best


def _is_there(path: str, row: Object) -> bool:
    try:
        return value_at(path, row, "told_by") not in (None, False, "", [], {})
    except RowError:
        return False


def placed(row: Object, file: Path) -> Object:
    """Return a record with what its paths may ask of the file that it lies in."""
    return {**row, "_path": str(file), "_file": file.name, "_folder": file.parent.name}


def _columns_map(columns: Mapping[str, str], rows: Sequence[Object], base: Map | None) -> Map:
    """Return a map of what `--columns` names, over another one if there is one; a value is a field's name or a path.

    Raises InvalidInput where nothing is there.
    """
    content: Object = {"about": "what --columns names"} if base is None else {**base.content}
    fields = {key for key, value in columns.items() if key in PATHS and any(value in row for row in rows)}
    content |= {key: json.dumps(value) if key in fields else value for key, value in columns.items()}
    map_ = map_of(base.called if base else "columns", content, "--columns")
    needed = {*(OF_RECORD if "messages" in columns else PATHS)} - _FLAGS if base is None else {}
    for key, value in columns.items():
        if key in needed and not any(_is_there(map_.paths[key], row) for row in rows):
            names = ", ".join(repr(name[:40]) for name in [*dict.fromkeys(name for row in rows for name in row)][:12])
            raise InvalidInput(f"--columns: there is nothing at {value!r}; the first rows have {names}")
    return map_
