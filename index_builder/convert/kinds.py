"""Of which kind files are: their first records are looked at by all maps."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from polyrank.index_builder.convert.maps import OF_RECORD, PATHS, Map, checked, found, map_of
from polyrank.index_builder.convert.rows import Object, beginning, is_text, records
from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.errors import InvalidInput

_LOOKED = 20  # records that are looked at
_MOST_LOOKED = 1 << 17  # bad ones included: of an open quote, each of 131,072 characters may be the line of one
_LOOKED_CHARACTERS = 4 << 20


@dataclass(frozen=True, slots=True)
class Recognised:
    """A map, the files that it reads, each with its split, and where their records lie."""

    map: Map
    files: tuple[tuple[Path, str], ...]
    each: str = ""


def sampled(
    path: Path, each: str = "", lines: str = "", encoding: str | None = None
) -> tuple[list[Object], RowError | PoolInvalid | None]:
    """Return the first records of a file, and the first thing that is wrong with it."""
    known: list[Object] = []
    wrong: RowError | PoolInvalid | None = None
    try:
        for _, row in islice(records(path, encoding, each, lines or None, _LOOKED_CHARACTERS), _MOST_LOOKED):
            if isinstance(row, RowError):
                wrong = wrong or row
            else:
                known.append(row)
            if len(known) == _LOOKED:
                break
    except PoolInvalid as error:
        wrong = wrong or error
    return known, wrong


def kinds(
    path: Path, files: Sequence[tuple[Path, str]], maps: Iterable[Map], encoding: str | None
) -> tuple[list[Recognised], list[tuple[Map, list[str]]]]:
    """Return of which kinds a file or folder is, and those that nearly fit, each with the paths that are missing.

    `files` are those of a data set in a folder, or the file itself.
    """
    samples: dict[tuple[Path, str, str], list[Object]] = {}
    fitting: list[Recognised] = []
    nearly: list[tuple[Map, list[str]]] = []
    for used in maps:
        globbed = sorted(file for file in path.glob(used.files) if file.is_file()) if used.files else []
        own = tuple((file, "") for file in globbed) if used.files else tuple(files)
        if not own or (used.lines and not is_text(beginning(own[0][0]))):
            continue
        if used.collection:
            fitting.append(Recognised(used, own))
            continue
        each, missing = _best(used, own[0][0], encoding, samples)
        # That a path is not there says little.
        there = [told for told in used.told_by if told not in missing and "null" not in told and told[:1] != "!"]
        if not missing:
            fitting.append(Recognised(used, own, each))
        elif there:
            nearly.append((used, missing))
    return fitting, sorted(nearly, key=lambda near: len(near[1]) / len(near[0].told_by))


def _best(
    used: Map, file: Path, encoding: str | None, samples: dict[tuple[Path, str, str], list[Object]]
) -> tuple[str, list[str]]:
    """Return the place of the records that have most of a map's paths, and the paths that these lack."""
    best = used.each[0], list(used.told_by)
    for each in used.each:
        if (key := (file, each, used.lines)) not in samples:
            known, wrong = sampled(*key, encoding)
            samples[key] = [] if used.lines and wrong else [placed(row, file) for row in known]
        for row in samples[key]:
            missing = [told for told in used.told_by if not _is_there(told, row)]
            best = min(best, (each, missing), key=lambda found: len(found[1]))
    return best


def _is_there(path: str, row: Object) -> bool:
    try:
        return found(path, row, "told_by") not in (None, False, "", [], {})
    except RowError:
        return False


def placed(row: Object, file: Path) -> Object:
    """Return a record with what its paths may ask of the file that it lies in."""
    return {**row, "_file": file.name, "_folder": file.parent.name}


_FLAGS = {"head", "begins", "ends", "answers", "only", "learn"}  # what is false need not be there


def columns_map(columns: Mapping[str, str], rows: Sequence[Object], base: Map | None) -> Map:
    """Return a map of what `--columns` names, over another one if there is one; a value is a field's name or a path.

    Raises InvalidInput where nothing is there.
    """
    content: Object = {"about": "what --columns names"} if base is None else {**base.content}
    needed = {*(OF_RECORD if "messages" in columns else PATHS)} - _FLAGS if base is None else {}
    for key, value in columns.items():
        is_name = key in PATHS and any(value in row for row in rows)
        content[key] = json.dumps(value) if is_name else value
        if key in PATHS:
            checked(content[key], key, "--columns")
        if key in needed and not any(_is_there(content[key], row) for row in rows):
            names = ", ".join(repr(name[:40]) for name in [*dict.fromkeys(name for row in rows for name in row)][:12])
            raise InvalidInput(f"--columns: there is nothing at {value!r}; the first rows have {names}")
    return map_of(base.called if base else "columns", content, "--columns")
