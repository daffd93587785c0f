"""Read JSON lines and CSV as a stream of plain objects, each with its line number.

CSV is read as spreadsheets and programs write it. The header tells the separator: of comma, semicolon, tab and vertical
bar the one that gives a column `text`. A line `sep=;` before the header is believed. A byte order mark tells the
encoding; without one it is UTF-8, or what is asked for. An empty cell is absent.

A cell says no more than its letters. So a column is of numbers, or of true and false, if all its cells in all files of
a pool are; of numbers, too, if all have decimal commas or no decimals; of true and false, too, if there are two
different ones that say so in another language. `column_kinds` reads the files once for that, `csv_rows` once more for
the rows.
"""

import codecs
import csv
import errno
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import IO, AnyStr, NamedTuple

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.documents import (
    MAX_FIELDS,
    OWN_FIELDS,
    RowError,
    column_names,
    parsed,
    require_columns,
    shown_names,
)
from polyrank.index_builder.pool.values import LONGEST_ANSWER, SAMPLE_BYTES, are_true_and_false, guessed, is_false
from polyrank.model.inputs import BlankLines, Compression, open_unfolded

# A longer line is refused, so that it does not fill the memory: 20,000 characters, escaped twice over, are 240 kB.
MAX_LINE_BYTES = 4 << 20
# A line that goes on for longer ends the reading: a sparse file or a small compressed one may hold terabytes.
_MOST_SKIPPED_BYTES = 1 << 28

_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}

_BOMS = [  # that of UTF-16 begins that of UTF-32
    (codecs.BOM_UTF8, "UTF-8-SIG"),
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
]
_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
_NOTHING = "\x1f"  # where there is one column; a comma in a text does not separate then
_SEPARATOR_LINE = re.compile(r"sep=([^\w\"\r\n])\r?\n?", re.IGNORECASE)
_TRUE_FALSE = {"true": True, "false": False}
# As JSON writes numbers, without an exponent. Not +49, 007 or 1e5: whoever writes these may mean no number.
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,15})(\.[0-9]+)?")
_COMMA_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,15})(,[0-9]+)?")
_THOUSANDS = re.compile(r"-?[1-9][0-9]{0,2},[0-9]{3}")
_MOST = 2**53  # a larger one is rounded where numbers are floats, and likely an id
_NO_TEXT = "\udcff"  # stands for bytes that the encoding does not have; no encoding has it
_MARK = "polyrank-mark"


def json_rows(path: Path) -> Iterator[tuple[int, object]]:
    """Yield the line number and value of each line that is not blank; a RowError if the line is not JSON."""
    with opened(path) as stream:
        first = stream.peek(3)
        if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise PoolInvalid(path, "is in UTF-16; JSON lines are in UTF-8: save the file so")
        if first.startswith(codecs.BOM_UTF8):  # as Windows tools write it
            stream.read(len(codecs.BOM_UTF8))
        blank = BlankLines()
        for number, line in bounded_lines(stream, (b"\n",)):
            if isinstance(line, RowError):
                yield number, line
            elif line.isspace():
                blank.skip()
            else:
                yield number, parsed(line)


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open for reading; errors of the operating system or the decompressor become PoolInvalid."""
    try:
        with open_unfolded(path, _COMPRESSIONS.get(path.suffix.lower())) as stream:
            yield stream
    except OSError as error:
        raise PoolInvalid(path, f"cannot be read: {error.strerror or error}") from error


def bounded_lines(stream: IO[AnyStr], ends: tuple[AnyStr, ...]) -> Iterator[tuple[int, AnyStr | RowError]]:
    """Number the lines, each with one of the `ends`. A line that is too long is skipped piece by piece."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) < MAX_LINE_BYTES or line.endswith(ends):
            yield number, line
            continue
        skipped = 0
        while line and not line.endswith(ends):
            skipped += len(line)
            if skipped > _MOST_SKIPPED_BYTES:
                raise OSError(errno.EINVAL, f"line {number} does not end within {_MOST_SKIPPED_BYTES} bytes")
            line = stream.readline(MAX_LINE_BYTES)
        yield number, RowError(f"the line is longer than {MAX_LINE_BYTES} bytes")


def _mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return _NO_TEXT, error.end


codecs.register_error(_MARK, _mark)


Typed = Mapping[str, Callable[[str], bool | float | str]]
"""What reads the cells of columns that are no texts."""


def column_kinds(paths: Sequence[Path], encoding: str | None, columns: Mapping[str, str]) -> Typed:
    """Return the columns in which all cells of all files are numbers, or all are true or false.

    Decimals follow points, or in the whole column commas. Commas that all stand before three digits may also part
    thousands: such a column is of texts, as are those that have a meaning of their own, such as `id`. Of words for true
    and false, such as `ja` and `nein`, a column must have both. Raises PoolInvalid as `csv_rows` does.
    """
    kinds: dict[str, type] = {}
    commas: dict[str, bool] = {}  # of columns whose cells may all have decimal commas: whether one surely has
    answers: dict[str, set[str]] = {}  # of columns with two different cells at most
    for path in paths:
        for _, row in _rows(path, encoding, columns):
            for name, cell in row.items() if isinstance(row, dict) else ():
                if kinds.get(name) is not str:
                    kind = type(_value(cell))
                    if name not in kinds:
                        commas[name], answers[name] = False, set()
                    kinds[name] = kind if kinds.get(name, kind) is kind else str
                if name in commas:
                    if _COMMA_NUMBER.fullmatch(cell) and abs(_with_comma(cell)) < _MOST:
                        commas[name] |= "," in cell and not _THOUSANDS.fullmatch(cell)
                    else:
                        del commas[name]
                if name in answers:
                    answers[name].add(cell.strip().casefold()[: LONGEST_ANSWER + 1])
                    if len(answers[name]) > 2:
                        del answers[name]
    typed: dict[str, Callable[[str], bool | float | str]] = {}
    typed |= {name: _value for name, kind in kinds.items() if kind is not str}
    typed |= {name: _with_comma for name, is_sure in commas.items() if is_sure}
    typed |= {name: _is_true for name, both in answers.items() if kinds[name] is str and are_true_and_false(both)}
    return {name: reads for name, reads in typed.items() if name not in OWN_FIELDS}


def with_commas(typed: Typed) -> list[str]:
    """Return the columns whose numbers have decimal commas."""
    return [name for name, reads in typed.items() if reads is _with_comma]


def with_answers(typed: Typed) -> list[str]:
    """Return the columns whose cells are true or false in words of their own."""
    return [name for name, reads in typed.items() if reads is _is_true]


def csv_rows(
    path: Path, encoding: str | None, columns: Mapping[str, str], typed: Typed
) -> Iterator[tuple[int, object]]:
    """Yield the line number of each row and the object that a JSON line would hold, or a RowError.

    `columns` as `column_names`; `typed` are those whose cells are values of their own. Blank rows are skipped.

    Raises PoolInvalid for a file that is unreadable, or without a usable header.
    """
    for line, row in _rows(path, encoding, columns):
        if isinstance(row, RowError):
            yield line, row
        else:
            yield line, {name: typed[name](cell) if name in typed else cell for name, cell in row.items()}


def _value(cell: str) -> bool | float | str:
    """Return the number that a cell says plainly, or true or false; else the cell. A whole number is a float, too."""
    if _NUMBER.fullmatch(cell) and abs(number := float(cell)) < _MOST:
        return number
    return _TRUE_FALSE.get(cell.lower(), cell) if len(cell) <= len("false") else cell


def _is_true(cell: str) -> bool:
    return not is_false(cell)


def _with_comma(cell: str) -> float:
    return float(cell.replace(",", "."))


def _rows(
    path: Path, encoding: str | None, columns: Mapping[str, str]
) -> Iterator[tuple[int, dict[str, str] | RowError]]:
    with decoded(path, encoding) as stream:
        table = table_of(path, stream, lambda names: "text" in column_names(names, columns))
        encoding, hint = stream.encoding.removesuffix("-SIG"), cache(partial(_hint, path))
        header: list[str] | None = None
        for line, cells in table.rows:
            if isinstance(cells, RowError):
                yield line, cells
            elif header is None:
                header = _header(path, cells, columns, table.separator, encoding, hint)
            else:
                yield line, _row(header, cells, table.separator, encoding, hint)


class Table(NamedTuple):
    """A table in a text.

    `rows`: the line of each row that is not blank, and its cells, or what is wrong with it; the header is the first.
    """

    separator: str
    rows: Iterator[tuple[int, list[str] | RowError]]


def table_of(path: Path, stream: io.TextIOWrapper, count_known: Callable[[Sequence[str]], int]) -> Table:
    """Read a text as a table. Of the separators the one counts whose header has the most known names, then cells.

    count_known: how many of a header's names mean something.

    Raises PoolInvalid, then or while rows are read, where the header is not valid, or lines are too long or blank.
    """
    lines, blank = lines_of(stream), BlankLines()
    skipped, first, own_separator = _first_line(lines, blank)
    separator = own_separator or _separator(first, count_known)
    return Table(separator, _cells(path, chain([first], lines), separator, skipped, blank))


def _cells(
    path: Path, lines: Iterator[str], separator: str, skipped: int, blank: BlankLines
) -> Iterator[tuple[int, list[str] | RowError]]:
    reader, has_header = csv.reader(lines, delimiter=separator, strict=True), False
    while True:
        line = reader.line_num + 1 + skipped
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if not has_header:
                raise PoolInvalid(path, f"the header is not valid CSV: {error}") from error
            yield line, RowError(f"not valid CSV: {error}")
            # A bad row each: without an end the quotes may hold most of a file.
            for lost in range(line + 1, reader.line_num + skipped + 1):
                yield lost, RowError(f"in the quotes that begin in line {line}")
            continue
        if any(map(str.strip, cells)):
            has_header = True
            yield line, cells
        else:
            blank.skip()


def marked_encoding(start: bytes) -> str | None:
    """Return the encoding that the byte order mark of a file that begins so tells; None: it has no mark."""
    return next((name for bom, name in _BOMS if start.startswith(bom)), None)


@contextmanager
def decoded(path: Path, encoding: str | None, errors: str = _MARK) -> Iterator[io.TextIOWrapper]:
    """Open a text: by its byte order mark, else in the encoding, else in UTF-8; `errors` is that of `open`."""
    with opened(path) as raw:
        codec = marked_encoding(raw.peek(4)) or encoding or "UTF-8"
        try:
            with io.TextIOWrapper(raw, codec, errors, newline="") as stream:
                yield stream
        except UnicodeError as error:  # of UTF-16 and UTF-32 without a byte order mark
            raise PoolInvalid(path, f"cannot be read as {codec}: {error}; try --encoding {codec}-le") from error


def lines_of(stream: io.TextIOWrapper) -> Iterator[str]:
    """Lines with their ends, of any kind. One that is too long becomes a cell too long, which spoils only its row."""
    for _, line in bounded_lines(stream, ("\n", "\r")):
        yield "x" * (csv.field_size_limit() + 1) + "\n" if isinstance(line, RowError) else line


def _first_line(lines: Iterator[str], blank: BlankLines) -> tuple[int, str, str | None]:
    """Return how many lines stand before the header, its first line, and the separator if one of them says it."""
    separator = None
    for skipped, line in enumerate(lines):
        if match := _SEPARATOR_LINE.fullmatch(line):
            separator = match[1]
        elif line.strip():
            return skipped, line, separator
        else:
            blank.skip()
    return 0, "", separator


def _separator(line: str, count_known: Callable[[Sequence[str]], int]) -> str:
    """Return the separator that gives a header the most known names, then the most columns; _NOTHING: there is none."""

    def fits(separator: str) -> tuple[int, int]:
        cells = next(csv.reader([line], delimiter=separator), [])
        return count_known(cells), len(cells)

    best = max(_SEPARATORS, key=fits) if len(line) <= csv.field_size_limit() else ","
    return best if best in line else _NOTHING


def _header(
    path: Path, cells: list[str], columns: Mapping[str, str], separator: str, encoding: str, hint: Callable[[], str]
) -> list[str]:
    if not _is_valid(cells):
        raise PoolInvalid(path, f"the header is not valid {encoding}; {hint()}")
    between = {**_SEPARATORS, _NOTHING: "nothing"}.get(separator, repr(separator))
    read = f"read as {encoding} with {between} between columns"
    source = f"the first line, {read},"
    return checked_header(
        path, cells, columns, source, lambda: f"begin the file with a line such as id,text, or {hint()}"
    )


def checked_header(
    path: Path, cells: Sequence[str], columns: Mapping[str, str], source: str, advice: Callable[[], str]
) -> list[str]:
    """Return the names of a table's columns; raises PoolInvalid, which says what was found and, by `advice`, to do."""
    try:
        require_columns([cell.strip() for cell in cells], columns)
    except RowError as error:
        raise PoolInvalid(path, f"{error}: {source} names {shown_names(cells)}") from None
    names = column_names(cells, columns)
    if "text" not in names:
        raise PoolInvalid(path, f"there is no column 'text': {source} names {shown_names(names)}; {advice()}")
    if twice := [name for name, times in Counter(names).items() if name and times > 1]:
        raise PoolInvalid(path, f"the header names twice: {shown_names(twice)}")
    if len(cells) > MAX_FIELDS:
        raise PoolInvalid(path, f"there are {len(cells)} columns, more than {MAX_FIELDS}; leave some out")
    return names


def _hint(path: Path) -> str:
    with opened(path) as stream:
        start = stream.read(SAMPLE_BYTES)
    seems = None if marked_encoding(start) else guessed(start)
    return f"name another encoding, such as {seems or 'windows-1252'}, with --encoding"


def _row(
    header: list[str], cells: list[str], separator: str, encoding: str, hint: Callable[[], str]
) -> dict[str, str] | RowError:
    if len(cells) != len(header):
        why = f"; a cell that holds {separator!r} needs quotes around it" if len(cells) > len(header) else ""
        return RowError(f"{len(cells)} cells, but the header has {len(header)}{why}")
    if not _is_valid(cells):
        return RowError(f"not valid {encoding}; if the whole file is so, {hint()}")
    return {
        name: cell for name, cell in zip(header, cells, strict=True) if name == "text" or (cell and not cell.isspace())
    }


def _is_valid(cells: list[str]) -> bool:
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return False
    return True
