"""Read Parquet files as a stream of plain objects, a small batch at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.text import RowError

_BATCH_ROWS = 1024
_METADATA = "strings, numbers, booleans, or lists or objects of them"
_BUFFER_BYTES = 1 << 20  # for each column; without it the pages of a whole row group are read at once


def parquet_rows(path: Path) -> Iterator[tuple[int, object]]:
    """Yield the number of each row (the first is 1) and the object that a JSON line would hold, or a RowError.

    Every column besides `id` and `text` is metadata. Null values are left out.

    Raises PoolInvalid for a file that is damaged or unreadable, or whose columns cannot be a pool's.
    """
    import pyarrow.parquet as pq  # here, because every server would load it, and few read such a pool

    try:
        with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True) as file:
            _require_usable(path, file.schema_arrow)
            number = 0
            for batch in file.iter_batches(_BATCH_ROWS):
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
    try:
        rows = batch.to_pylist()
    except UnicodeDecodeError:
        rows = [_row(batch, at) for at in range(batch.num_rows)]
    for row in rows:
        yield row if isinstance(row, RowError) else _as_object(row)


def _row(batch: pa.RecordBatch, at: int) -> Any:
    try:
        return batch.slice(at, 1).to_pylist()[0]
    except UnicodeDecodeError:
        return RowError("not valid UTF-8")


def _as_object(row: dict[str, Any]) -> object:
    metadata = {name: value for name, value in row.items() if value is not None}
    # A null text counts as missing, as in JSON.
    found: dict[str, object] = {name: metadata.pop(name) for name in ("id", "text") if name in metadata}
    return {**found, "metadata": metadata}
