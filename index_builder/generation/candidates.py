"""The candidate table on disk: ids, texts and metadata, of which any row is read without loading the rest.

`candidates.arrow` is a memory-mapped Arrow IPC file: record batches of at most `BATCH_ROWS` rows with the columns id,
text and metadata (a JSON object as text). `texts.index` finds the first row that has a text.

A network gives one text slightly other vectors in other batches, by some 1e-7 of their size, and rounding to 16 bits
can make a digit of that. So a text that is stored is not encoded again: equal texts share what was made of the first.
Texts are equal here if all their characters are.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple, Self, cast

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.vectors.local import IdIndex, hash_id
from polyrank.model.representations import Representations

CANDIDATES_FILE = "candidates.arrow"
TEXTS_FILE = "texts.index"
BATCH_ROWS = 8192
PART_ROWS = 2048
# A batch is also closed at this many bytes, to bound memory and stay below Arrow's 2 GiB a column.
_BATCH_BYTES = 64 << 20
_SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string()), ("metadata", pa.string())])


def interleaved(parts: Sequence[Iterable[Candidate]], of: NDArray[np.int64] | NDArray[np.bool_]) -> Iterator[Candidate]:
    """Put candidates in one order: the next one comes from the part with the number that stands in `of`, (N,)."""
    read = [iter(part) for part in parts]
    return (next(read[at]) for at in of.tolist())


class CandidateWriter:
    """Writes a candidate table row by row; the file is complete at the end of the `with` block."""

    def __init__(self, path: Path) -> None:
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, _SCHEMA)
        self._columns: tuple[list[str], list[str], list[str]] = ([], [], [])
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
                self._writer.close()
        finally:
            self._sink.close()

    def add(self, candidate: Candidate) -> None:
        row = (candidate.id, candidate.text, orjson.dumps(candidate.metadata, option=orjson.OPT_SORT_KEYS).decode())
        for column, cell in zip(self._columns, row, strict=True):
            column.append(cell)
            self._bytes += len(cell)
        if len(self._columns[0]) == BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._columns[0]:
            arrays = [pa.array(column, pa.string()) for column in self._columns]
            self._writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
        self._columns = ([], [], [])
        self._bytes = 0


class CandidateTable:
    """A memory-mapped candidate table; several threads may read it.

    Raises ValueError if the file is not a candidate table.
    """

    def __init__(self, path: Path) -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        if reader.schema != _SCHEMA:
            raise ValueError(f"{path.name} has other columns than id, text, metadata")
        # Each batch points into the map: the strings stay on the disk until they are asked for.
        self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        self._parts = [
            (place, offset)
            for place, batch in enumerate(self._batches)
            for offset in range(0, batch.num_rows, PART_ROWS)
        ]
        self._starts: NDArray[np.int64] = np.cumsum([0] + [batch.num_rows for batch in self._batches], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def check(self) -> None:
        """Read all of it; raises ValueError where a column lacks a value, or does not lie in the file.

        Arrow looks at nothing by itself: such a row reads other memory, or ends the process.
        """
        for batch in self._batches:
            batch.validate(full=True)
            if any(column.null_count for column in batch.columns):
                raise ValueError("a candidate lacks a value")

    def rows(self, rows: Sequence[int] | NDArray[np.int64]) -> list[Candidate]:
        """Read the candidates of rows, in the order asked; IndexError if one is negative or past the end."""
        numbers = np.asarray(rows, dtype=np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= len(self)):
            raise IndexError(f"rows must be within 0..{len(self) - 1}")
        places = np.searchsorted(self._starts, numbers, side="right") - 1
        offsets = numbers - self._starts[places]
        return [self._read(place, offset) for place, offset in zip(places.tolist(), offsets.tolist(), strict=True)]

    def _read(self, place: int, offset: int) -> Candidate:
        candidate_id, text, metadata = (column[offset].as_py() for column in self._batches[place].columns)
        return Candidate(candidate_id, text, orjson.loads(metadata))

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Read the texts of rows, which are there, in the order asked."""
        places = np.searchsorted(self._starts, rows, side="right") - 1
        offsets = rows - self._starts[places]
        at = zip(places.tolist(), offsets.tolist(), strict=True)
        return [self._batches[place].column("text")[offset].as_py() for place, offset in at]

    def batches(self) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the whole table in order, a batch at a time: (ids, texts)."""
        for batch in self._batches:
            ids, texts, _ = batch.columns
            yield cast(list[str], ids.to_pylist()), cast(list[str], texts.to_pylist())

    @property
    def parts(self) -> int:
        """How many parts of at most `PART_ROWS` rows there are for `metadata`."""
        return len(self._parts)

    def metadata(self, part: int, containing: str = "") -> list[tuple[int, str]]:
        """Read (row, JSON) of a part's rows whose metadata, as JSON text without spaces, contains a piece of text."""
        import pyarrow.compute as pc  # as it is imported, it parses the documentation of all its functions

        place, offset = self._parts[part]
        column = self._batches[place].column("metadata").slice(offset, PART_ROWS)
        hits = pc.indices_nonzero(pc.match_substring(column, containing))
        texts = cast(list[str], column.take(hits).to_pylist())
        return list(zip((int(self._starts[place]) + offset + hits.to_numpy()).tolist(), texts, strict=True))


class KnownTexts(NamedTuple):
    """Which of some texts are stored, as positions (n,), ascending, and what was made of these."""

    positions: NDArray[np.int64]
    representations: Representations


FindTexts = Callable[[Sequence[str]], KnownTexts]


class TextIndex:
    """The rows of a candidate table by their texts; several threads may read it.

    Raises ValueError if the file's size is not that of an index.
    """

    def __init__(self, directory: Path, table: CandidateTable) -> None:
        self._rows, self._table = IdIndex(directory / TEXTS_FILE), table

    def __len__(self) -> int:
        return len(self._rows)

    @staticmethod
    def write(directory: Path, table: CandidateTable) -> None:
        with TemporaryFile(dir=directory) as hashes:
            for _, texts in table.batches():
                hashes.write(np.fromiter(map(hash_id, texts), np.uint64, len(texts)).data)
            hashes.flush()
            IdIndex.write(directory / TEXTS_FILE, np.memmap(hashes, np.uint64, "r"), unique=False)

    def first_rows(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the first row of each text, (N,); -1 for a text that is not there."""
        rows = self._rows.rows(texts)
        hits = np.flatnonzero(rows >= 0)
        pairs = zip(hits.tolist(), self._table.texts(rows[hits]), strict=True)
        rows[[at for at, text in pairs if text != texts[at]]] = -1  # another text of the same hash
        return rows
