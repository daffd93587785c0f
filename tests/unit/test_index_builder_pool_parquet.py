"""Parquet pools: the rows of a table, and what of one cannot be a pool."""

import datetime
import math
import tracemalloc
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool import parquet
from polyrank.index_builder.pool.rows import Candidate, Rejected, read_pool


def read(tmp_path: Path, columns: dict[str, Any], **options: Any) -> list[Candidate | Rejected]:
    pq.write_table(pa.table(columns), tmp_path / "pool.parquet", **options)
    return list(read_pool([tmp_path / "pool.parquet"]))


def test_every_other_column_is_metadata_and_null_is_left_out(tmp_path: Path) -> None:
    columns = {
        "lang": pa.array(["en", None]).dictionary_encode(), "text": ["two\nlines", "hallo"],
        "price": [1.5, None], "stock": pa.array([None, 3], pa.uint8()),
        "tags": [["a", None], []], "maker": [{"name": "x", "since": 1999}, None],
        "new": [True, False], "id": pa.array(["a", None], pa.large_string()),
    }  # fmt: skip
    metadata = {"lang": "en", "price": 1.5, "tags": ["a", None], "maker": {"name": "x", "since": 1999}, "new": True}
    assert read(tmp_path, columns) == [
        Candidate("a", "two\nlines", metadata),
        Candidate(sha256(b"hallo").hexdigest()[:32], "hallo", {"stock": 3, "tags": [], "new": False}),
    ]


def test_rows_are_numbered_over_batches_and_row_groups(tmp_path: Path) -> None:
    texts: list[str | None] = [f"text {n}" for n in range(5000)]
    texts[2999] = None
    texts[4097] = " "
    rows = read(tmp_path, {"text": texts}, row_group_size=1500)
    assert [row for row in rows if isinstance(row, Rejected)] == [
        Rejected(str(tmp_path / "pool.parquet"), 3000, "'text' is missing"),
        Rejected(str(tmp_path / "pool.parquet"), 4098, "'text' is empty"),
    ]
    assert [row.text for row in rows if isinstance(row, Candidate)] == [text for text in texts if text and text != " "]


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, [1.0, math.nan], {"deep": [{"er": -math.inf}]}], ids=["nan", "inf", "list", "object"]
)
def test_what_json_cannot_say_is_a_bad_row(tmp_path: Path, value: object) -> None:
    [bad] = read(tmp_path, {"text": ["x"], "size": [value]})
    assert isinstance(bad, Rejected)
    assert bad.reason == "'metadata': 'size': numbers must be finite"


def test_bad_bytes_spoil_their_own_row(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"\xff", b"better"], pa.binary())
    first, bad, last = read(
        tmp_path, {"text": pa.Array.from_buffers(pa.string(), 3, raw.buffers()), "id": ["a", "b", "c"]}
    )
    assert (first, last) == (Candidate("a", "good"), Candidate("c", "better"))
    assert bad == Rejected(str(tmp_path / "pool.parquet"), 2, "not valid UTF-8")


@pytest.mark.parametrize(("columns", "reason"), [
    ({"body": ["x"], "n": [1]}, "there is no column 'text', but 'body', 'n'; rename the one with the texts"),
    ({"text": [1]}, "the column 'text' holds int64; make it strings, or drop it"),
    ({"text": ["x"], "id": [7]}, "the column 'id' holds int64; make it strings, or drop it"),
    ({"text": ["x"], "_id": [7]}, "the column '_id' holds int64; make it strings, or drop it"),
    ({"text": ["x"], "_id": ["a"], "title": [7]}, "the column 'title' holds int64; make it strings, or drop it"),
])  # fmt: skip
def test_columns_that_cannot_be_a_pools(tmp_path: Path, columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(PoolInvalid) as caught:
        read(tmp_path, columns)
    assert reason in str(caught.value)


def test_dates_times_decimals_and_maps_become_what_json_can_say(tmp_path: Path) -> None:
    at = datetime.datetime(2026, 7, 1, 12, 30, tzinfo=datetime.UTC)
    columns = {
        "text": ["x"],
        "day": pa.array([at.date()], pa.date64()),
        "hour": pa.array([43_200_000_000_123], pa.time64("ns")),
        "local": pa.array([1_000_000_001], pa.timestamp("ns")),
        "zoned": pa.array([at], pa.timestamp("s", "Europe/Berlin")),
        "seen": [[at]],
        "cost": pa.array([Decimal("49.90")], pa.decimal128(10, 2)),
        "stock": pa.array([Decimal("12.00")], pa.decimal128(10, 2)),
        "maker": pa.array([[("name", "x"), ("city", None)]], pa.map_(pa.string(), pa.string())),
        "empty": pa.array([[]], pa.map_(pa.string(), pa.int8())),
        "place": pa.array([[1.5, 2.0]], pa.list_(pa.float64(), 2)),
        "size": pa.array([3.0], pa.float32()),
        "none": pa.nulls(1),
    }
    [found] = read(tmp_path, columns)
    assert isinstance(found, Candidate)
    assert found.metadata == {
        "day": "2026-07-01", "hour": "12:00:00", "local": "1970-01-01T00:00:01",
        "zoned": "2026-07-01T12:30:00+00:00", "seen": ["2026-07-01T12:30:00+00:00"], "cost": 49.9,
        "stock": 12, "maker": {"name": "x"}, "empty": {}, "place": [1.5, 2], "size": 3,
    }  # fmt: skip
    assert {type(found.metadata["stock"]), type(found.metadata["size"])} == {int}


def test_what_json_cannot_say_is_left_out_and_said(tmp_path: Path) -> None:
    columns = {
        "text": ["x", "y"], "photo": [b"x", None], "took": pa.array([1, 2], pa.duration("s")),
        "by_number": pa.array([[(1, "a")], []], pa.map_(pa.int64(), pa.string())),
        "metadata": [{"price": 5, "raw": {"bytes": b"x", "lang": "en"}}, None], "$and": [1, None],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "pool.parquet")
    rows = read_pool([tmp_path / "pool.parquet"])
    assert [row.metadata for row in rows if isinstance(row, Candidate)] == [{"price": 5, "raw": {"lang": "en"}}, {}]
    assert {each["field"]: (each["why"], each["rows"]) for each in rows.fields.described()["left_out"]} == {
        "photo": ("it holds binary, which JSON cannot say", 2),
        "took": ("it holds duration[s], which JSON cannot say", 2),
        "by_number": ("it holds map<int64, string ('by_number')>, which JSON cannot say", 2),
        "metadata.raw.bytes": ("it holds binary, which JSON cannot say", 2),
        "$and": ("its name begins with '$', as operators of filters do", 1),
    }


def test_a_time_that_python_cannot_hold_spoils_its_own_row(tmp_path: Path) -> None:
    at = pa.array([0, 2**62, 1], pa.timestamp("us"))
    first, bad, last = read(tmp_path, {"text": ["a", "b", "c"], "at": at})
    assert isinstance(first, Candidate)
    assert isinstance(bad, Rejected)
    assert "a date or a time is out of bounds" in bad.reason
    assert isinstance(last, Candidate)


def test_names_with_capitals_and_spaces_and_metadata_as_json(tmp_path: Path) -> None:
    columns = {" ID": ["a"], "Text": ["x"], "Metadata": ['{"price": 5, "gone": null}'], "a.b": [1], "Lang ": ["en"]}
    assert read(tmp_path, columns) == [Candidate("a", "x", {"price": 5, "a.b": 1, "Lang": "en"})]


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "pool.parquet")
    with pytest.raises(PoolInvalid, match="two columns have one name"):
        list(read_pool([tmp_path / "pool.parquet"]))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pool.parquet"
    read(tmp_path, {"text": [f"text {n}" for n in range(3000)]}, compression="none", write_page_checksum=True)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(b"text 5")] ^= 1
    for content in (whole[:-100], b"", b"PAR1", whole[: len(whole) // 2] + b"PAR1", bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(PoolInvalid) as caught:
            list(read_pool([path]))
        assert str(caught.value).startswith(f"{path}: cannot be read: ")
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_text_that_repeats_does_not_take_memory_for_each_row(tmp_path: Path) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * 1_000_000]))
    tracemalloc.start()
    try:
        rows = read(tmp_path, {"text": words, "id": list(map(str, range(1000)))}, compression="zstd")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000_000
    assert {row.reason for row in rows if isinstance(row, Rejected)} == {
        "'text' has 1000000 characters, more than 20000"
    }
    assert len(rows) == 1000


@pytest.mark.slow
def test_a_small_file_of_gigabytes_is_refused_before_it_is_unfolded(tmp_path: Path) -> None:
    with pytest.raises(PoolInvalid, match="the column 'text' unfolds to more than 1000 times its size"):
        read(tmp_path, {"text": ["x" * 3_000_000] * 20}, use_dictionary=False, compression="zstd")


def test_a_list_that_is_too_long_is_a_bad_row_or_no_pool(tmp_path: Path) -> None:
    values = pa.ListArray.from_arrays(pa.array([0, 3_000_000, 3_000_001], pa.int32()), pa.array([7] * 3_000_001))
    bad, good = read(tmp_path, {"text": ["x", "y"], "n": values})
    assert isinstance(bad, Rejected)
    assert "the row is larger than 4194304 bytes" in bad.reason
    assert isinstance(good, Candidate)


@pytest.mark.slow
def test_more_values_than_a_row_group_may_hold(tmp_path: Path) -> None:
    count = (1 << 25) + 1
    values = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.nulls(count, pa.int8()))
    with pytest.raises(PoolInvalid, match="write smaller row groups"):
        read(tmp_path, {"text": ["x"], "n": values})


@pytest.mark.slow
def test_many_columns_of_one_long_string_each_are_refused(tmp_path: Path) -> None:
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 128, pa.int32()), pa.array(["x" * 3_000_000]))
    columns = {"text": ["x"] * 128} | dict.fromkeys(map(str, range(250)), long)
    with pytest.raises(PoolInvalid, match="write smaller row groups"):
        read(tmp_path, columns, compression="zstd", dictionary_pagesize_limit=1 << 30)


def write_large_rows(path: Path, count: int) -> None:
    """Write rows of 2 MB into one row group that is compressed to a 700th."""
    noise = ["".join(sha256(b"%d %d" % (n, m)).hexdigest() for m in range(80)) for n in range(count)]
    table = pa.table({"text": ["x" * 2_000_000 + each for each in noise]})
    pq.write_table(table, path, use_dictionary=False, compression="zstd")


@pytest.mark.slow
def test_of_large_rows_few_are_read_at_once(tmp_path: Path) -> None:
    write_large_rows(tmp_path / "pool.parquet", 30)
    before = pa.total_allocated_bytes()
    peak = max(pa.total_allocated_bytes() for _ in read_pool([tmp_path / "pool.parquet"]))
    assert peak - before < 60_000_000 + 30_000_000, "its one page, and a batch"


def test_large_rows_in_a_small_row_group_are_refused(tmp_path: Path) -> None:
    write_large_rows(tmp_path / "pool.parquet", 40)
    with pytest.raises(PoolInvalid, match="more than 100 times its size; write smaller row groups"):
        list(read_pool([tmp_path / "pool.parquet"]))


@pytest.mark.slow
def test_too_many_columns_or_row_groups_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"text": ["x"] * 3} | {str(n): [n] * 3 for n in range(5000)}
    with pytest.raises(PoolInvalid, match="there are 5001 columns, more than 4096; leave some out"):
        read(tmp_path, columns)
    monkeypatch.setattr(parquet, "_MOST_CHUNKS", 5)
    with pytest.raises(PoolInvalid, match="its 3 row groups of 2 columns are too many; write larger row groups"):
        read(tmp_path, {"text": ["x"] * 3, "n": [1] * 3}, row_group_size=1)
