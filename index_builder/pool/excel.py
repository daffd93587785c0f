"""Read the first sheet of a workbook (`.xlsx`) as a stream of plain objects.

Cells have types of their own: numbers, true and false, dates, which become ISO 8601, and texts. Of a formula the value
counts that was last computed. A workbook keeps its texts apart from its rows, so all of them are in memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.documents import OWN_FIELDS, Fields, RowError
from polyrank.index_builder.pool.text import checked_header
from polyrank.model.inputs import BlankLines, open_input

_MUCH_BYTES, _MOST_TIMES = 64 << 20, 100  # as of other compressed files


def excel_rows(path: Path, fields: Fields, columns: Mapping[str, str]) -> Iterator[tuple[int, object]]:
    """Yield the number of each row below the header, as the sheet counts, and the object that a JSON line would hold.

    `columns` as `column_names`. Rows with an error such as #N/A are RowErrors. Blank rows are skipped, and other
    sheets noted in `fields`.

    Raises PoolInvalid for a file that is no workbook, or whose first visible sheet has no usable header.
    """

    def name_columns(sheet: str, cells: list[str]) -> list[str]:
        return checked_header(path, cells, columns, f"the first row of sheet {sheet!r}", lambda: "name one so")

    return sheet_rows(path, fields, name_columns)


def sheet_rows(
    path: Path, fields: Fields, name_columns: Callable[[str, list[str]], Sequence[str]]
) -> Iterator[tuple[int, dict[str, object] | RowError]]:
    """Yield rows as `excel_rows`; `name_columns` makes the names of a sheet's title and the cells of its first row."""
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise PoolInvalid(path, "workbooks need an extra: pip install 'polyrank[excel]'") from None
    try:
        with open_input(path) as raw:
            content_bytes, file_bytes = sum(each.file_size for each in ZipFile(raw).infolist()), path.stat().st_size
            if content_bytes > max(_MUCH_BYTES, _MOST_TIMES * file_bytes):
                raise PoolInvalid(path, f"unfolds to {content_bytes} bytes, more than {_MOST_TIMES} times its size")
            workbook = load_workbook(raw, read_only=True, data_only=True, keep_links=False)
            sheet, *others = [each for each in workbook.worksheets if each.sheet_state == "visible"]
            for other in others:
                fields.leave_out(f"sheet {other.title}", "only the first sheet is read", other.max_row or 1)
            sheet.reset_dimensions()  # some programs write wrong ones
            yield from _rows(path, sheet, name_columns)
    except PoolInvalid:
        raise
    # What a damaged workbook makes of openpyxl, of the archive in it and of its XML has no common kind.
    except Exception as error:
        raise PoolInvalid(path, f"cannot be read as a workbook: {error or type(error).__name__}") from error


def _rows(
    path: Path, sheet: Any, name_columns: Callable[[str, list[str]], Sequence[str]]
) -> Iterator[tuple[int, dict[str, object] | RowError]]:
    header: Sequence[str] = ()
    blank = BlankLines()
    for number, cells in enumerate(sheet.iter_rows(), 1):
        values = [_value(cell) for cell in cells]
        if all(value is None for value in values):
            blank.skip()
        elif not header:
            header = name_columns(sheet.title, ["" if value is None else str(value) for value in values])
        else:
            yield number, _row(header, values)
    if not header:
        raise PoolInvalid(path, f"sheet {sheet.title!r} is empty; put the replies into the first sheet")


def _row(header: Sequence[str], values: Sequence[object]) -> dict[str, object] | RowError:
    row = dict[str, object]()
    for at, value in enumerate(values):
        name = header[at] if at < len(header) else ""
        if isinstance(value, RowError):
            return RowError(f"{name[:80]!r} {value}")
        if value is not None:
            row[name] = _text(value) if name in OWN_FIELDS else value
    return row


def _value(cell: Any) -> object:
    """Return what a cell says; None where that is nothing."""
    from openpyxl.utils.escape import unescape

    match cell.value:
        case str() as content if cell.data_type == "e":
            return RowError(f"holds the error {content}")
        case str() as content:
            return unescape(content) if content and not content.isspace() else None
        case datetime() as content if "h" not in cell.number_format.lower():
            return content.date().isoformat()
        case date() | time() as content:
            return content.isoformat()
        case timedelta() as content:
            return str(content)
        case content:
            return content


def _text(value: object) -> str:
    """Return a cell of a column that is always of texts: an id 17 is the text 17, as in CSV."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
