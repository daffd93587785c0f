"""Read Parquet files as a stream of plain objects, a small batch at a time.

A few kilobytes of Parquet may stand for gigabytes: a value that repeats is stored once. So a column of little content
stays as it is stored until a batch is known to be small. A large batch is unfolded row by row, and rows that are too
large are not. A column of more content is unfolded at once, because keeping it as stored costs memory. The larger the
rows of such columns are, the fewer are read at once.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.text import MAX_LINE_BYTES, RowError
from polyrank.model.inputs import open_input

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_BATCH_ROWS = 128
_METADATA = "strings, numbers, booleans, or lists or objects of them"
_BUFFER_BYTES = 1 << 20  # for each column; without it the pages of a whole row group are read at once
_MOST_LIST_VALUES = 1 << 25  # of a column in a row group; the reader takes 8 bytes for each
_MOST_TIMES = 1000  # what is stored of a column, against its compressed size
_LITTLE_BYTES = 4 << 20  # stored of a column in a row group
_MUCH_BYTES = 64 << 20  # stored in a row group; of columns of little content it may hold no more
_MOST_TIMES_OF_MUCH = 100  # of a row group that holds more: a page, maybe all of it, is decompressed at once
_BATCH_BYTES = 16 << 20


def parquet_rows(path: Path) -> Iterator[tuple[int, object]]:
    """Yield the number of each row (the first is 1) and the object that a JSON line would hold, or a RowError.

    Every column besides `id` and `text` is metadata. Null values are left out.

    Raises PoolInvalid for a file that is damaged or unreadable, whose columns cannot be a pool's, or that unfolds to
    more than the memory should take.
    """
    import pyarrow.parquet as pq  # here, because every server would load it, and few read such a pool

    read = partial(pq.ParquetFile, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)
    try:
        with open_input(path) as raw:
            file = read(raw)
            _require_usable(path, file.schema_arrow)
            _require_bounded(path, file)
            kept = _kept_as_stored(file)
            rows_at_once = _batch_rows(path, file, kept)
            file = read(raw, read_dictionary=[file.schema.column(at).path for at in kept])
            number = 0
            for batch in file.iter_batches(rows_at_once):
                for row in _rows(batch):
                    number += 1
                    yield number, row
    except (OSError, pa.ArrowException) as error:
        raise PoolInvalid(path, f"cannot be read: {error}") from error


def _require_usable(path: Path, schema: pa.Schema) -> None:
    names = schema.names
    if "text" not in names:
        raise PoolInvalid(path, "there is no column 'text'")
    if len(set(names)) < len(names):
        raise PoolInvalid(path, "two columns have one name")
    if wrong := [name for name in names if name.startswith("$")]:
        raise PoolInvalid(path, f"the column name {wrong[0]!r} begins with '$'")
    for field in schema:
        fits, wanted = (_is_text, "strings") if field.name in ("id", "text") else (_is_json, _METADATA)
        if not fits(field.type):
            raise PoolInvalid(path, f"the column {field.name!r} holds {field.type}; make it {wanted}, or drop it")


def _require_bounded(path: Path, file: "ParquetFile") -> None:
    for at in range(file.metadata.num_columns):
        is_list = file.schema.column(at).max_repetition_level > 0
        for chunk in _chunks(file, at):
            name, stored = chunk.path_in_schema, chunk.total_uncompressed_size
            if is_list and chunk.num_values > _MOST_LIST_VALUES:
                many = f"{chunk.num_values} values of the column {name!r}, more than {_MOST_LIST_VALUES}"
                raise PoolInvalid(path, f"a row group holds {many}; write smaller row groups")
            if stored > _LITTLE_BYTES and stored > _MOST_TIMES * chunk.total_compressed_size:
                raise PoolInvalid(path, f"the column {name!r} unfolds to more than {_MOST_TIMES} times its size")


def _chunks(file: "ParquetFile", column: int) -> list[Any]:
    return [file.metadata.row_group(group).column(column) for group in range(file.metadata.num_row_groups)]


def _kept_as_stored(file: "ParquetFile") -> list[int]:
    """Return the columns that hold little text in each row group, perhaps repeated very often."""
    return [
        at
        for at in range(file.metadata.num_columns)
        if file.schema.column(at).physical_type == "BYTE_ARRAY"
        and all(chunk.total_uncompressed_size <= _LITTLE_BYTES for chunk in _chunks(file, at))
    ]


def _batch_rows(path: Path, file: "ParquetFile", kept: list[int]) -> int:
    """Return how many rows of each row group take, on average, at most `_BATCH_BYTES` in the columns that are not kept.

    Raises PoolInvalid if a row group holds too much for its compressed size, or in the columns that are kept.
    """
    rows = _BATCH_ROWS
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        stored = [group.column(at).total_uncompressed_size for at in range(file.metadata.num_columns)]
        small = sum(stored[at] for at in kept)
        if small > _MUCH_BYTES:
            raise PoolInvalid(path, f"the columns of a row group hold {small} bytes; write smaller row groups")
        compressed = sum(group.column(at).total_compressed_size for at in range(file.metadata.num_columns))
        if sum(stored) > max(_MUCH_BYTES, _MOST_TIMES_OF_MUCH * compressed):
            many = f"{sum(stored)} bytes, more than {_MOST_TIMES_OF_MUCH} times its size"
            raise PoolInvalid(path, f"a row group unfolds to {many}; write smaller row groups")
        rows = min(rows, _BATCH_BYTES * max(1, group.num_rows) // max(1, sum(stored) - small))
    return max(1, rows)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_json(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_json(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_is_json(field.type) for field in kind)
    plain = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_null)
    return _is_text(kind) or any(is_kind(kind) for is_kind in plain)


def _rows(batch: pa.RecordBatch) -> Iterator[object]:
    if _unfolded(batch) <= _BATCH_BYTES:
        with suppress(UnicodeDecodeError):
            yield from map(_as_object, batch.to_pylist())
            return
    for at in range(batch.num_rows):
        yield _row(batch.slice(at, 1))


def _row(batch: pa.RecordBatch) -> object:
    if _unfolded(batch) > MAX_LINE_BYTES:
        return RowError(f"the row is larger than {MAX_LINE_BYTES} bytes")
    try:
        return _as_object(batch.to_pylist()[0])
    except UnicodeDecodeError:
        return RowError("not valid UTF-8")


def _unfolded(batch: pa.RecordBatch) -> int:
    """Return about how many bytes the values of a batch take once each stands for itself."""
    return sum(map(_unfolded_array, batch.columns))


def _unfolded_array(array: Any) -> int:
    if pa.types.is_dictionary(array.type):
        lengths = pc.take(pc.binary_length(array.dictionary), array.indices)
        return int(pc.sum(lengths).as_py() or 0)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return 8 * len(array) + _unfolded_array(array.flatten())
    if pa.types.is_struct(array.type):
        return sum(map(_unfolded_array, array.flatten()))
    return int(array.nbytes)


def _as_object(row: dict[str, Any]) -> object:
    metadata = {name: value for name, value in row.items() if value is not None}
    # A null text counts as missing, as in JSON.
    found: dict[str, object] = {name: metadata.pop(name) for name in ("id", "text") if name in metadata}
    return {**found, "metadata": metadata}
