"""Read Parquet files as a stream of plain objects, a small batch at a time.

A few kilobytes of Parquet may stand for gigabytes: a value that repeats is stored once. So a column of little content
stays as it is stored until a batch is known to be small. A large batch is unfolded row by row, and rows that are too
large are not. A column of more content is unfolded at once, because keeping it as stored costs memory. The larger the
rows of such columns are, the fewer are read at once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.documents import (
    MAX_FIELDS,
    Fields,
    RowError,
    column_names,
    require_columns,
    shown_names,
)
from polyrank.index_builder.pool.text import MAX_LINE_BYTES
from polyrank.model.inputs import open_input

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_BATCH_ROWS = 128
_BUFFER_BYTES = 1 << 20  # for each column; without it the pages of a whole row group are read at once
_MOST_LIST_VALUES = 1 << 25  # of a column in a row group; the reader takes 8 bytes for each
_MOST_TIMES = 1000  # what is stored of a column, against its compressed size
_LITTLE_BYTES = 4 << 20  # stored of a column in a row group
_MUCH_BYTES = 64 << 20  # stored in a row group; of columns of little content it may hold no more
_MOST_TIMES_OF_MUCH = 100  # of a row group that holds more: a page, maybe all of it, is decompressed at once
_BATCH_BYTES = 16 << 20
_MOST_CHUNKS = 1 << 20  # of columns in row groups; each is looked at before anything is read
_TYPE_CHARACTERS = 60


def parquet_rows(path: Path, fields: Fields, columns: Mapping[str, str]) -> Iterator[tuple[int, object]]:
    """Yield the number of each row (the first is 1) and the object that a JSON line would hold, or a RowError.

    Dates and times are ISO 8601, those with a time zone in UTC; decimals are numbers, maps objects. Columns of which
    JSON cannot say the values are left out, which is noted in `fields`.

    Raises PoolInvalid for a file that is damaged or unreadable, whose columns cannot be a pool's, or that unfolds to
    more than the memory should take.
    """
    import pyarrow.parquet as pq  # here, because every server would load it, and few read such a pool

    read = partial(pq.ParquetFile, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)
    try:
        with open_input(path) as raw:
            file = read(raw)
            _require_few(path, file)
            name_of, paths = _columns(path, file, fields, columns)
            inside = tuple(f"{path}." for path in paths)
            column_paths = [file.schema.column(at).path for at in range(file.metadata.num_columns)]
            leaves = [at for at, path in enumerate(column_paths) if f"{path}.".startswith(inside)]
            _require_bounded(path, file, leaves)
            # Of texts, what is little in each row group is kept as it is stored: it may be repeated very often.
            texts = [at for at in leaves if file.schema.column(at).physical_type == "BYTE_ARRAY"]
            little = [at for at in texts if all(c.total_uncompressed_size <= _LITTLE_BYTES for c in _chunks(file, at))]
            rows_at_once = _batch_rows(path, file, leaves, little)
            file = read(raw, read_dictionary=[file.schema.column(at).path for at in little])
            number = 0
            for batch in file.iter_batches(rows_at_once, columns=paths):
                names = [name_of[name] for name in batch.schema.names]
                for row in _rows(pa.RecordBatch.from_arrays(list(map(_cast, batch.columns)), names=names)):
                    number += 1
                    yield number, row
    except (OSError, pa.ArrowException) as error:
        raise PoolInvalid(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _require_few(path: Path, file: "ParquetFile") -> None:
    columns, groups = file.metadata.num_columns, file.metadata.num_row_groups
    if columns > MAX_FIELDS:
        raise PoolInvalid(path, f"there are {columns} columns, more than {MAX_FIELDS}; leave some out")
    if columns * groups > _MOST_CHUNKS:
        raise PoolInvalid(path, f"its {groups} row groups of {columns} columns are too many; write larger row groups")


def _columns(
    path: Path, file: "ParquetFile", fields: Fields, columns: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return what the columns are called, and the paths of those that are taken, fields of structs one by one."""
    schema = file.schema_arrow
    try:
        require_columns([name.strip() for name in schema.names], columns)
    except RowError as error:
        raise PoolInvalid(path, f"{error}: there are {shown_names(schema.names)}") from None
    names = column_names(schema.names, columns)
    if "text" not in names:
        raise PoolInvalid(path, f"there is no column 'text', but {shown_names(names)}; rename the one with the texts")
    if len(set(names)) < len(names):
        raise PoolInvalid(path, "two columns have one name")
    texts = ("text", "id") if "id" in names or "_id" not in names else ("text", "_id", "title")
    paths: list[str] = []
    for column, name in zip(schema, names, strict=True):
        if name in texts and not _is_text(column.type):
            raise PoolInvalid(path, f"the column {column.name!r} holds {column.type}; make it strings, or drop it")
        for inner, kind in _inside(column):
            if _as_read(kind) is not None:
                paths.append(inner)
            else:
                why = f"it holds {_short(kind)}, which JSON cannot say"
                fields.leave_out(name + inner.removeprefix(column.name), why, file.metadata.num_rows)
    return dict(zip(schema.names, names, strict=True)), paths


def _inside(column: "pa.Field[Any]") -> Iterator[tuple[str, pa.DataType]]:
    """Yield the paths and types of what a struct holds, or those of any other column itself."""
    if not pa.types.is_struct(column.type):
        yield column.name, column.type
        return
    for field in column.type:
        for path, kind in _inside(field):
            yield f"{column.name}.{path}", kind


def _short(kind: pa.DataType) -> str:
    name = str(kind)
    return name if len(name) <= _TYPE_CHARACTERS else f"{name[:_TYPE_CHARACTERS]}…"


def _require_bounded(path: Path, file: "ParquetFile", leaves: Sequence[int]) -> None:
    for at in leaves:
        is_list = file.schema.column(at).max_repetition_level > 0
        for chunk in _chunks(file, at):
            name, size = chunk.path_in_schema, chunk.total_uncompressed_size
            if is_list and chunk.num_values > _MOST_LIST_VALUES:
                many = f"{chunk.num_values} values of the column {name!r}, more than {_MOST_LIST_VALUES}"
                raise PoolInvalid(path, f"a row group holds {many}; write smaller row groups")
            if size > _LITTLE_BYTES and size > _MOST_TIMES * chunk.total_compressed_size:
                raise PoolInvalid(path, f"the column {name!r} unfolds to more than {_MOST_TIMES} times its size")


def _chunks(file: "ParquetFile", column: int) -> list[Any]:
    return [file.metadata.row_group(group).column(column) for group in range(file.metadata.num_row_groups)]


def _batch_rows(path: Path, file: "ParquetFile", leaves: Sequence[int], little: Sequence[int]) -> int:
    """Return how many rows of each row group take, on average, at most `_BATCH_BYTES` in the columns that are not kept.

    Raises PoolInvalid if a row group holds too much for its compressed size, or in the columns that are kept.
    """
    rows = _BATCH_ROWS
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        total = sum(group.column(at).total_uncompressed_size for at in leaves)
        small = sum(group.column(at).total_uncompressed_size for at in little)
        if small > _MUCH_BYTES:
            raise PoolInvalid(path, f"the columns of a row group hold {small} bytes; write smaller row groups")
        compressed = sum(group.column(at).total_compressed_size for at in leaves)
        if total > max(_MUCH_BYTES, _MOST_TIMES_OF_MUCH * compressed):
            many = f"{total} bytes, more than {_MOST_TIMES_OF_MUCH} times its size"
            raise PoolInvalid(path, f"a row group unfolds to {many}; write smaller row groups")
        rows = min(rows, _BATCH_BYTES * max(1, group.num_rows) // max(1, total - small))
    return max(1, rows)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _as_read(kind: pa.DataType) -> pa.DataType | None:
    """Return the type to read values as, which Python can hold and JSON can say; None: there is none."""
    of = pa.types
    if of.is_dictionary(kind):
        return None if _as_read(kind.value_type) is None else kind
    if of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind):
        inner = _as_read(kind.value_type)
        make = pa.large_list if of.is_large_list(kind) else pa.list_
        return None if inner is None else make(kind.value_field.with_type(inner))
    if of.is_struct(kind):
        inside = [_as_read(field.type) for field in kind]
        fields = [field.with_type(inner) for field, inner in zip(kind, inside, strict=True) if inner is not None]
        return pa.struct(fields) if len(fields) == len(inside) else None
    if of.is_map(kind):
        inner = _as_read(kind.item_type)
        return pa.map_(kind.key_type, inner) if inner is not None and _is_text(kind.key_type) else None
    if of.is_timestamp(kind):  # Python has no nanoseconds, and may lack the rules of a zone
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if of.is_time(kind):
        return pa.time64("us")
    plain = (of.is_boolean, of.is_integer, of.is_floating, of.is_null, of.is_date, of.is_decimal)
    return kind if _is_text(kind) or any(is_kind(kind) for is_kind in plain) else None


def _cast(array: Any) -> Any:
    kind = _as_read(array.type)
    return array if array.type == kind else array.cast(kind, safe=False)


def plain_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[object]:
    """Yield the rows of batches as `parquet_rows` does, of all columns whose values JSON can say."""
    for batch in batches:
        readable = [at for at, kind in enumerate(batch.schema.types) if _as_read(kind) is not None]
        names = [batch.schema.names[at] for at in readable]
        columns = [_cast(batch.column(at)) for at in readable]
        yield from _rows(pa.RecordBatch.from_arrays(columns, names=names))


def _rows(batch: pa.RecordBatch) -> Iterator[object]:
    if _unfolded(batch) <= _BATCH_BYTES:
        with suppress(ValueError, OverflowError):
            yield from _objects(batch)
            return
    for at in range(batch.num_rows):
        yield _row(batch.slice(at, 1))


def _row(batch: pa.RecordBatch) -> object:
    if _unfolded(batch) > MAX_LINE_BYTES:
        return RowError(f"the row is larger than {MAX_LINE_BYTES} bytes")
    try:
        return _objects(batch)[0]
    except UnicodeDecodeError:
        return RowError("not valid UTF-8")
    except (ValueError, OverflowError) as error:
        return RowError(f"a date or a time is out of bounds: {error}")


def _objects(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows = batch.to_pylist(maps_as_pydicts="lossy")
    return rows if all(map(_is_plain, batch.schema.types)) else [_as_json(row) for row in rows]


def _is_plain(kind: pa.DataType) -> bool:
    """Whether Python's values of a type are those of JSON."""
    of = pa.types
    return bool(of.is_boolean(kind) or of.is_integer(kind) or of.is_floating(kind) or _is_text(kind))


def _as_json(value: Any) -> Any:
    match value:
        case dict():
            return {key: _as_json(inner) for key, inner in value.items()}
        case list():
            return list(map(_as_json, value))
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case date() | time():
            return value.isoformat()
    return value


def _unfolded(batch: pa.RecordBatch) -> int:
    """Return about how many bytes the values of a batch take once each stands for itself."""
    return sum(map(_unfolded_array, batch.columns))


def _unfolded_array(array: Any) -> int:
    of = pa.types
    if of.is_dictionary(array.type):
        if not _is_text(array.type):
            return int(array.nbytes)
        lengths = pc.take(pc.binary_length(array.dictionary), array.indices)
        return int(pc.sum(lengths).as_py() or 0)
    if of.is_list(array.type) or of.is_large_list(array.type):
        return 8 * len(array) + _unfolded_array(array.flatten())
    if of.is_struct(array.type):
        return sum(map(_unfolded_array, array.flatten()))
    if of.is_map(array.type):
        return 8 * len(array) + _unfolded_array(array.keys) + _unfolded_array(array.items)
    return int(array.nbytes)
