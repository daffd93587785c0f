"""Whatever candidates say, every format brings the same ones, and any bytes are read or refused."""

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pool_formats import WRITERS, columns

from polyrank.index_builder.errors import PoolError
from polyrank.index_builder.pool.rows import Candidate, Rejected, read_pool
from polyrank.index_builder.pool.values import shown

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(shown)
IDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=20).filter(
    lambda text: text.strip() and text not in (".", "..")
)
# What CSV can say: of each kind a column has that kind alone, texts that nobody takes for another one, and no numbers
# whose points stand before three digits, as those of thousands do.
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXTS.map(lambda text: f"{text}x"), "whole": st.integers(1 - 2**53, 2**53 - 1),
    "number": st.decimals(-(10**6), 10**6, places=2).map(float), "true/false": st.booleans(),
}  # fmt: skip


@st.composite
def pools(draw: st.DrawFn) -> list[Candidate]:
    kinds = draw(st.dictionaries(st.sampled_from(["lang", "price", "Größe", "a.b", "x;y"]), st.sampled_from([*CELLS])))
    ids = draw(st.lists(IDS, min_size=1, max_size=8, unique=True))
    rows = []
    for candidate_id in ids:
        names = draw(st.lists(st.sampled_from([*kinds]), unique=True)) if kinds else []
        rows.append(Candidate(candidate_id, draw(TEXTS), {name: draw(CELLS[kinds[name]]) for name in sorted(names)}))
    rows[0] = Candidate("first", "one with every field", {name: draw(CELLS[kinds[name]]) for name in kinds})
    return rows if "first" not in ids[1:] else rows[:1]


@settings(deadline=None)
@given(pools())
def test_every_format_brings_the_same_candidates(rows: list[Candidate]) -> None:
    read = {}
    with TemporaryDirectory() as folder:
        for name, writer in WRITERS.items():
            if name == "struct" and not rows[0].metadata:
                continue  # Parquet has no struct without fields
            pool = read_pool([writer(Path(folder), rows)])
            found = list(pool)
            assert found == rows, name
            read[name] = [json.dumps([row.metadata for row in found if isinstance(row, Candidate)], sort_keys=True)]
            read[name].append(json.dumps(pool.fields.described(), sort_keys=True))
    assert all(found == read["nested"] for found in read.values()), "to the type of each value"


@settings(deadline=None)
@given(pools(), st.sampled_from(",;\t|"), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_every_dialect_of_csv_brings_the_same_candidates(rows: list[Candidate], separator: str, encoding: str) -> None:
    with TemporaryDirectory() as folder:
        assert list(read_pool([columns(Path(folder), rows, separator, encoding, (" ID", "Text "))])) == rows


@settings(deadline=None)
@given(
    st.sampled_from(["pool.csv", "pool.jsonl"]),
    st.sampled_from([b"", b"id,text\n", b"text;n\n", b"\xff\xfe", b"\xef\xbb\xbftext\n", b"sep=|\n"]),
    st.lists(st.sampled_from([b",", b";", b'"', b"\r", b"\n", b"\0", b"text", b"1", b"\xff", b"\xd8", b"e", b" "])),
)
def test_any_bytes_are_read_or_refused(name: str, head: bytes, pieces: list[bytes]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(head + b"".join(pieces))
        with suppress(PoolError):
            assert all(isinstance(row, Candidate | Rejected) for row in read_pool([path]))
