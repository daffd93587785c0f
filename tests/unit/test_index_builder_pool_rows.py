import gzip
import json
import random
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool import rows as module
from polyrank.index_builder.pool import text
from polyrank.index_builder.pool.rows import Candidate, Rejected, SeenHashes, begin_pool, read_pool
from polyrank.index_builder.pool.text import MAX_LINE_BYTES

GOOD = b'{"id": "a", "text": "hello", "metadata": {"lang": "en", "n": [1, 2.5, null]}}\n'


TOP = 2**64 - 1
# Zero marks an empty slot; those with the same high bits crowd one slot, at the end they go on at the beginning.
HASHES = st.one_of(st.integers(0, TOP), st.integers(0, 20), st.integers(TOP - 20, TOP))


def read(tmp_path: Path, content: bytes, name: str = "pool.jsonl") -> list[Candidate | Rejected]:
    (tmp_path / name).write_bytes(content)
    return list(read_pool([tmp_path / name]))


def test_a_row_is_read_whole(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD) == [Candidate("a", "hello", {"lang": "en", "n": [1, 2.5, None]})]


def test_json_lines_in_utf_16_are_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(PoolInvalid, match="is in UTF-16; JSON lines are in UTF-8"):
        read(tmp_path, GOOD.decode().encode("utf-16"))


def test_an_absent_id_is_made_from_the_text(tmp_path: Path) -> None:
    rows = read(tmp_path, b'{"text": "h\xc3\xa9"}\n{"text": "x", "id": null, "metadata": null}\n')
    assert rows == [
        Candidate(sha256("hé".encode()).hexdigest()[:32], "hé", {}),
        Candidate(sha256(b"x").hexdigest()[:32], "x", {}),
    ]


@pytest.mark.parametrize(("row", "reason"), [
    (b"not json", "not valid JSON"),
    (b'{"text": "cut', "not valid JSON"),
    (b'{"text": NaN}', "not valid JSON"),
    (b'{"text": "\\ud800"}', "surrogate"),
    (b'{"text": "\xed\xa0\x80"}', "not valid UTF-8 at byte 10"),
    (b'{"text": "\xff"}', "not valid UTF-8 at byte 10"),
    (b"[" * 5000, "not valid JSON"),
    (b'"hello"', "the row must be an object, not a string"),
    (b"[]", "the row must be an object, not a list"),
    (b"null", "the row must be an object, not null"),
    (b"{}", "'text' is missing"),
    (b'{"text": 5}', "'text' must be a string, not a number"),
    (b'{"text": null}', "'text' is missing"),
    (b'{"text": ""}', "'text' is empty"),
    (b'{"text": " \\t\\n\\u00a0"}', "'text' is empty"),
    (b'{"text": "' + b"x" * 20_001 + b'"}', "'text' has 20001 characters, more than 20000"),
    (b'{"text": "x", "id": 7}', "'id' must be a string, not a number"),
    (b'{"text": "x", "id": true}', "'id' must be a string, not a boolean"),
    (b'{"text": "x", "id": ""}', "'id' must have 1 to 1024 characters, not 0"),
    (b'{"text": "x", "id": "a"}', "the id 'a' was seen before"),
    (b'{"text": "x", "metadata": []}', "'metadata' must be an object, not a list"),
    (b'{"text": "x", "metadata": {"$and": 1}}', "'metadata': the key '$and' begins with '$'"),
    (b'{"text": "x", "metadata": {"n": [9223372036854775808]}}', "'metadata': 'n': whole numbers must fit 64 bits"),
    (b'{"text": "x", "metadata": {"n": ' + b"[" * 301 + b"]" * 301 + b"}}", "'n': must not be nested deeper"),
    (b'{"text": "x", "n": [1234567890123456789' + b", " + b"[" * 1000 + b"]" * 1000 + b"]}", "nested too deep"),
    (b" " * (MAX_LINE_BYTES + 1), f"the line is longer than {MAX_LINE_BYTES} bytes"),
])  # fmt: skip
def test_a_bad_row_is_told_with_its_line_and_the_rest_goes_on(tmp_path: Path, row: bytes, reason: str) -> None:
    first, bad, last = read(tmp_path, GOOD + row + b'\n{"id": "z", "text": "after"}')
    assert isinstance(first, Candidate)
    assert isinstance(bad, Rejected)
    assert (bad.file, bad.line) == (str(tmp_path / "pool.jsonl"), 2)
    assert reason in bad.reason
    assert last == Candidate("z", "after", {})


def test_rows_that_repeat_a_text_under_ids_of_their_own_are_kept_and_counted(tmp_path: Path) -> None:
    write = (tmp_path / "p.jsonl").write_text
    write("".join(json.dumps({"id": f"r{n}", "text": ("hi", "no")[n % 2]}) + "\n" for n in range(42)))
    pool = read_pool([tmp_path / "p.jsonl"])
    assert len(list(pool)) == 42
    assert pool.fields.lines()[1:] == ["40 rows repeat a text under another id; all of them are kept"]
    assert pool.fields.described()["repeated_texts"] == 40
    write('{"text": "hi"}\n{"id": "b", "text": "hi"}\n')
    pool = read_pool([tmp_path / "p.jsonl"])
    list(pool)
    assert pool.fields.lines()[1:] == ["1 row repeats a text under another id; all of them are kept"]


def test_a_rejected_row_does_not_take_its_id(tmp_path: Path) -> None:
    bad, good = read(tmp_path, b'{"id": "a", "text": ""}\n' + GOOD)
    assert isinstance(bad, Rejected)
    assert isinstance(good, Candidate)


def test_a_text_of_the_greatest_length_passes(tmp_path: Path) -> None:
    (row,) = read(tmp_path, json.dumps({"text": "\U0001f600" * 20_000}).encode())
    assert isinstance(row, Candidate)


def test_a_bom_and_blank_lines_and_crlf_do_not_matter(tmp_path: Path) -> None:
    rows = read(tmp_path, b'\xef\xbb\xbf{"text": "a"}\r\n\r\n  \n{"text": 1}\r\n')
    assert isinstance(rows[0], Candidate)
    assert rows[1:] == [Rejected(str(tmp_path / "pool.jsonl"), 4, "'text' must be a string, not a number")]


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".jsonl", bytes), (".jsonl.gz", gzip.compress), (".jsonl.zst", zstandard.compress), (".JSONL.GZ", gzip.compress)],
)
def test_each_kind_of_compression_is_read(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    lines = b"".join(b'{"id": "%d", "text": "text %d"}\n' % (i, i) for i in range(20_000))
    rows = read(tmp_path, pack(lines[:1000]) + pack(lines[1000:]), f"pool{suffix}")
    assert rows == [Candidate(str(i), f"text {i}", {}) for i in range(20_000)]


@pytest.mark.parametrize(("suffix", "pack"), [(".jsonl.gz", gzip.compress), (".jsonl.zst", zstandard.compress)])
@pytest.mark.parametrize("damage", ["truncated", "not compressed"])
def test_a_damaged_archive_is_named(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes], damage: str) -> None:
    content = pack(GOOD * 1000)[:-6] if damage == "truncated" else GOOD
    with pytest.raises(PoolInvalid, match=f"pool{suffix}: cannot be read: "):
        read(tmp_path, content, f"pool{suffix}")


def test_an_id_may_occur_once_in_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    (tmp_path / "b.csv").write_bytes(b"id,text\na,again\nb,new\n")
    rows = list(read_pool([tmp_path / "a.jsonl", str(tmp_path / "b.csv")]))
    assert [type(row) for row in rows] == [Candidate, Rejected, Candidate]
    assert rows[1] == Rejected(str(tmp_path / "b.csv"), 2, "the id 'a' was seen before")


@pytest.mark.parametrize(("name", "reason"), [
    ("missing.jsonl", "no such file"),
    ("folder.jsonl", "is a directory"),
    ("pool.orc", "unknown kind of pool; use one of .jsonl, .jsonl.gz, .jsonl.zst, .csv, .parquet"),
    ("jsonl", "unknown kind of pool"),
])  # fmt: skip
def test_what_cannot_be_a_pool_is_refused_before_the_first_row(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "good.jsonl").write_bytes(GOOD)
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(PoolInvalid) as caught:
        read_pool([tmp_path / "good.jsonl", tmp_path / name])
    assert str(caught.value).startswith(f"{tmp_path / name}: {reason}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "times"), [("pool.jsonl", 1), ("pool.csv", 2)])
def test_looking_at_the_first_rows_opens_no_file_again(tmp_path: Path, monkeypatch, name: str, times: int) -> None:
    """A table is read for the kinds of its columns, then for its rows: to hold the rows meanwhile takes memory."""
    unfolded, opened = text.open_unfolded, list[Path]()
    monkeypatch.setattr(text, "open_unfolded", lambda path, kind: (opened.append(path), unfolded(path, kind))[1])
    (tmp_path / name).write_text(
        "".join(f'{{"text": "t{at}"}}\n' for at in range(30)) if times == 1 else "text\nt\nu\n"
    )
    assert len(list(begin_pool([tmp_path / name]))) == (30 if times == 1 else 2)
    assert opened == times * [tmp_path / name]


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, b"") == []
    assert read(tmp_path, b"", "pool.csv") == []


@given(st.lists(HASHES, max_size=200))
def test_it_is_a_set(hashes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_BITS_IN_MEMORY", 2)
        seen, known = SeenHashes(), set()
        for hashed in [*hashes, *hashes]:
            assert seen.add(hashed) == (hashed not in known)
            known.add(hashed)


def drawn(count: int) -> list[int]:
    chance = random.Random(0)
    return [chance.getrandbits(64) for _ in range(count)]


def test_it_grows_on_the_disk_and_leaves_nothing_there(tmp_path: Path) -> None:
    seen, hashes = SeenHashes(tmp_path), drawn(140_000)
    assert all(map(seen.add, hashes))
    assert not any(map(seen.add, hashes))
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert len(mapped) == 1
    assert mapped[0].endswith("(deleted)")
    assert list(tmp_path.iterdir()) == []


def test_a_small_pool_needs_no_disk(tmp_path: Path) -> None:
    seen, hashes = SeenHashes(tmp_path / "missing"), drawn(65_536)
    assert all(map(seen.add, hashes[1:]))
    with pytest.raises(FileNotFoundError):
        seen.add(hashes[0])
