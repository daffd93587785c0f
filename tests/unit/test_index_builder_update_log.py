"""The update log: what is read back, what a crash leaves, what damage is never taken for an update."""

import errno
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from fakes import HashEncoder

from polyrank.index_builder.errors import GenerationCorrupt
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store import update_log
from polyrank.index_builder.store.update_log import Subject, Update, UpdateLog
from polyrank.model.representations import LateRows, Representations

DIM = 4
GENERATION = "20261121T013000123456-1a2b3c4d"
SUBJECT = Subject(GENERATION, "f" * 64, DIM, "float16")

Told = tuple[int, list[Candidate], list[list[float]], list[str]]


def update(revision: int, upserts: int = 2, deletes: Sequence[str] = ()) -> Update:
    candidates = [Candidate(f"u{revision}.{n}", f"text {n} of {revision} ü", {"n": n}) for n in range(upserts)]
    vectors = np.arange(upserts * DIM).reshape(upserts, DIM) + revision
    return Update(revision, candidates, Representations(vectors.astype(np.float16)), list(deletes))


THREE = [update(1), update(2, 0, ["u1.0", "nobody"]), update(5, 3, ["u1.1"])]


def told(each: Update) -> Told:
    """An update as plain values, which compare by content."""
    return each.revision, list(each.upserts), each.vectors.first.tolist(), list(each.deletes)


def read(log: UpdateLog) -> list[Told]:
    return [told(each) for each in log.read()]


def until_damage(log: UpdateLog) -> tuple[list[Told], bool]:
    """What a log gives, and whether it is refused then."""
    found: list[Told] = []
    try:
        for each in log.read():
            found.append(told(each))
    except GenerationCorrupt:
        return found, True
    return found, False


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a log will be; its directory does not exist yet."""
    return tmp_path / "log" / f"{GENERATION}.log"


@pytest.fixture
def open_log(path: Path) -> Callable[[], UpdateLog]:
    return lambda: UpdateLog(path, SUBJECT)


@pytest.fixture
def three(path: Path, open_log: Callable[[], UpdateLog]) -> list[int]:
    """Three updates in the log; where its header and each of them ends."""
    log, ends = open_log(), []
    for each in THREE:
        log.append(each)
        ends.append(path.stat().st_size)
    (length,) = struct.unpack_from("<I", path.read_bytes())
    return [12 + length, *ends]


def test_a_log_that_does_not_exist_is_empty_and_reading_makes_none(path: Path, open_log) -> None:
    log = open_log()
    assert (read(log), log.revision, log.floor, log.was_active) == ([], 0, 0, False)
    assert not path.parent.exists()


def test_an_id_that_no_path_holds_is_neither_written_nor_read(path: Path, open_log, monkeypatch) -> None:
    bad = replace(update(1, 1), upserts=[Candidate("two\nlines", "x")])
    with pytest.raises(ValueError, match=r"U\+000A"):
        open_log().append(bad)
    assert not path.exists()
    monkeypatch.setattr(update_log, "checked_id", str)  # as another program may write
    open_log().append(bad)
    monkeypatch.undo()
    assert until_damage(open_log()) == ([], True)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_vectors_come_back_bit_by_bit(path: Path, dtype: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(5, DIM)).astype(dtype)
    subject = Subject(GENERATION, "f" * 64, DIM, dtype)
    candidates = [Candidate(f"c{n}", "x" * n * 100_000 or "x") for n in range(5)]  # more than is read at a time
    UpdateLog(path, subject).append(Update(1, candidates, Representations(vectors)))
    [found] = UpdateLog(path, subject).read()
    assert found.vectors.first.dtype == vectors.dtype
    assert found.vectors.first.tobytes() == vectors.tobytes()
    assert list(found.upserts) == candidates


@pytest.mark.parametrize("late", [LateRows(3, 2), LateRows(3, None)], ids=["fixed", "ragged"])
def test_rows_of_a_second_stage_come_back_bit_by_bit(path: Path, late: LateRows) -> None:
    encoder, subject = HashEncoder(DIM, late=late), Subject(GENERATION, "f" * 64, DIM, "float16", late)
    texts = ["a", "bc", "def"]
    log = UpdateLog(path, subject)
    log.append(Update(1, [Candidate(each, each) for each in texts], encoder.of(texts)))
    log.append(Update(2, [], Representations.none(DIM, late), ["a"]))
    for reader in (UpdateLog(path, subject), UpdateLog.of_file(path)):
        one, other = reader.read()
        assert reader.subject == subject
        for found, expected in ((one, encoder.of(texts)), (other, encoder.of([]))):
            for stored, wanted in zip(found.vectors, expected, strict=True):
                np.testing.assert_array_equal(stored, wanted)
    with pytest.raises(GenerationCorrupt, match="of another generation, or of another version"):
        list(UpdateLog(path, SUBJECT).read())


def test_rows_that_do_not_fit_are_refused(path: Path) -> None:
    log = UpdateLog(path, Subject(GENERATION, "f" * 64, DIM, "float16", LateRows(3, 2)))
    for late in (None, LateRows(3, 1), LateRows(4, 2)):
        with pytest.raises(ValueError, match="not those that the generation's model makes"):
            log.append(Update(1, [Candidate("a", "a")], HashEncoder(DIM, late=late).of(["a"])))
    assert not path.exists()


def test_another_reader_follows_piece_by_piece(open_log) -> None:
    writer, reader, other = open_log(), open_log(), open_log()
    for each in THREE:
        writer.append(each)
        assert read(reader) == [told(each)]
        assert (reader.revision, read(reader)) == (each.revision, [])
    assert read(writer) == read(other) == [told(each) for each in THREE], "a writer reads its own as others do"


def test_the_checksum_tells_updates_apart_and_is_the_same_for_every_reader(path: Path, open_log) -> None:
    one, other = open_log(), open_log()
    one.append(update(1))
    assert (one.checksum, read(one), read(other)) == (0, [told(update(1))], [told(update(1))])
    first, backup = one.checksum, path.read_bytes()
    assert first == other.checksum != 0
    one.mark_active()
    assert (read(one), one.checksum) == ([], first), "nothing was updated"
    sums = []
    for lost in (update(2), update(2, 1), update(2)):
        path.write_bytes(backup)
        log = open_log()
        log.append(lost)
        read(log)
        sums.append(log.checksum)
    assert sums[0] == sums[2] != sums[1]


def test_floor_and_leaving_are_remembered_and_are_no_updates(open_log) -> None:
    log = open_log()
    log.raise_floor(7)
    log.append(update(8))
    log.mark_active()
    log.raise_floor(3)
    again = open_log()
    assert [revision for revision, *_ in read(again)] == [8]
    assert (again.revision, again.floor, again.was_active) == (8, 7, True)
    again.raise_floor(8)  # no more than what is there
    assert read(open_log()) == [told(update(8))]


def test_a_record_that_is_cut_short_anywhere_is_as_if_it_had_never_been_written(
    path: Path, three: list[int], open_log
) -> None:
    whole = path.read_bytes()
    for size in range(three[0], len(whole)):
        path.write_bytes(whole[:size])
        count = sum(size >= end for end in three[1:])
        kept = [told(each) for each in THREE[:count]]
        reader = open_log()
        assert until_damage(reader) == (kept, False)
        open_log().append(update(9, 1))
        assert path.read_bytes()[: three[count]] == whole[: three[count]], "what is whole stays as it is"
        assert read(open_log()) == [*kept, told(update(9, 1))]
        assert read(reader) == [told(update(9, 1))], "whoever waited before what was cut short goes on"


def test_every_flipped_byte_is_refused_after_the_updates_before_it(path: Path, three: list[int], open_log) -> None:
    """Guaranteed for a log whose end is whole, at every byte: the length is checked before it is believed."""
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        kept = sum(at >= end for end in three[1:])
        assert until_damage(open_log()) == ([told(each) for each in THREE[:kept]], True), f"byte {at}"


def test_a_flipped_byte_before_a_torn_end_is_refused_or_was_never_acknowledged(
    path: Path, three: list[int], open_log
) -> None:
    """Of a record that is cut short nothing but its header can be checked: it is refused, or counts as cut short."""
    whole, start = path.read_bytes(), three[-2]
    torn = whole[:-1]
    kept = [told(each) for each in THREE[:-1]]
    for at in range(start, len(torn)):
        damaged = bytearray(torn)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        assert until_damage(open_log()) == (kept, at < start + 12), f"byte {at}"


def test_a_damaged_log_is_not_written_to(path: Path, three: list[int], open_log) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[three[1] + 20] ^= 1
    path.write_bytes(damaged)
    for change in (lambda log: log.append(update(9)), lambda log: log.mark_active(), lambda log: log.raise_floor(99)):
        with pytest.raises(GenerationCorrupt, match="damaged at byte"):
            change(open_log())
    assert path.read_bytes() == bytes(damaged)


def test_after_damage_the_updates_before_it_are_given_again(path: Path, three: list[int], open_log) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: three[0]])
    log = open_log()
    assert read(log) == []
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    for _ in range(2):
        assert until_damage(log) == ([told(each) for each in THREE[:-1]], True)
    path.write_bytes(whole)
    assert read(log) == [told(each) for each in THREE], "whoever dropped them with the error has missed nothing"


def records(path: Path, ends: Sequence[int]) -> list[bytes]:
    content = path.read_bytes()
    return [content[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


@pytest.mark.parametrize("order", [(0, 1, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3), (0, 2, 3), (0, 1, 2, 3, 1), (1, 2, 3)])
def test_a_record_left_out_repeated_or_elsewhere_is_refused(
    path: Path, three: list[int], open_log, order: tuple[int, ...]
) -> None:
    found = records(path, three)
    path.write_bytes(b"".join(found[at] for at in order))
    right = next((at for at, each in enumerate(order) if at != each), len(order))
    before = [told(each) for each in THREE[: max(0, right - 1)]]
    given, refused = until_damage(open_log())
    assert refused
    assert given == before


@pytest.mark.parametrize("subject", [
    Subject("20261121T013000123456-00000000", "f" * 64, DIM, "float16"),
    Subject(GENERATION, "e" * 64, DIM, "float16"),
    Subject(GENERATION, "f" * 64, DIM * 2, "float16"),
    Subject(GENERATION, "f" * 64, DIM, "float32"),
])  # fmt: skip
def test_the_log_of_another_is_refused(path: Path, three: list[int], subject: Subject) -> None:
    with pytest.raises(GenerationCorrupt, match="of another generation"):
        list(UpdateLog(path, subject).read())
    with pytest.raises(GenerationCorrupt, match="of another generation"):
        UpdateLog(path, subject).append(update(9))


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"\xff" * 100, b"short"])
def test_a_file_that_does_not_say_whose_it_is(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(GenerationCorrupt):
        UpdateLog.of_file(path)


def test_a_log_under_another_name_is_refused(path: Path, three: list[int]) -> None:
    renamed = path.with_name("20261121T013000999999-1a2b3c4d.log")
    path.rename(renamed)
    with pytest.raises(GenerationCorrupt, match="does not say whose it is"):
        UpdateLog.of_file(renamed)


def test_of_another_version_of_polyrank(path: Path, open_log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_log, "_FORMAT", 2)
    open_log().append(update(1))
    monkeypatch.undo()
    with pytest.raises(GenerationCorrupt, match="another version"):
        list(open_log().read())


def test_a_log_that_is_gone_or_shorter_is_refused_and_not_begun_anew(path: Path, three: list[int], open_log) -> None:
    whole = path.read_bytes()
    log = open_log()
    assert len(read(log)) == 3
    path.write_bytes(whole[:-1])
    for act in (read, lambda log: log.append(update(9))):
        with pytest.raises(GenerationCorrupt, match="has lost its end"):
            act(log)
    path.unlink()
    for act in (read, lambda log: log.append(update(9))):
        with pytest.raises(GenerationCorrupt, match="is gone"):
            act(log)
    assert not path.exists(), "an empty log would hide that updates were lost"
    path.write_bytes(whole)
    assert read(log) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("written", [0, 5, 12, 40])
def test_a_write_that_fails_leaves_nothing(
    path: Path, three: list[int], open_log, monkeypatch: pytest.MonkeyPatch, number: int, written: int
) -> None:
    whole, pwrite = path.read_bytes(), os.pwrite

    def fail(descriptor: int, content: bytes, at: int) -> int:
        if at == len(whole) and written:  # the disk takes a piece of it
            return pwrite(descriptor, bytes(content)[:written], at)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", fail)
    writer, reader = open_log(), open_log()
    assert len(read(reader)) == 3
    with pytest.raises(OSError, match=os.strerror(number)):
        writer.append(update(9))
    monkeypatch.undo()
    assert path.read_bytes() == whole
    assert read(reader) == []
    writer.append(update(10))
    assert read(reader) == [told(update(10))]
    assert len(read(writer)) == 4


def test_what_was_written_whole_stays_when_the_disk_does_not_confirm_it(
    path: Path, three: list[int], open_log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "not confirmed")

    writer, reader = open_log(), open_log()
    assert len(read(reader)) == 3
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="not confirmed"):
            writer.append(update(9))
    assert read(reader) == [told(update(9))], "somebody may have read it before"
    written, pwrite = [], os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda file, content, at: written.append(at) or pwrite(file, content, at))
        writer.append(update(10))
        assert three[-1] in written, "what was not confirmed is written again, or the kernel takes it for written"
        written.clear()
        writer.append(update(11))
        assert three[-1] not in written
    assert read(reader)[-1:] == [told(update(11))]
    assert read(writer) == [told(each) for each in [*THREE, update(9), update(10), update(11)]]


def test_a_first_write_that_fails_leaves_a_log_without_updates(path: Path, open_log, monkeypatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match="full"):
        open_log().append(update(1))
    monkeypatch.undo()
    assert read(open_log()) == []
    open_log().append(update(1))
    assert read(open_log()) == [told(update(1))]


def test_what_cannot_be_undone_on_the_disk_does_not_hide_why(
    path: Path, three: list[int], open_log, monkeypatch
) -> None:
    ftruncate, calls = os.ftruncate, []

    def once(descriptor: int, size: int) -> None:
        calls.append(size)
        if len(calls) > 1:
            raise OSError(errno.EIO, "cannot truncate")
        ftruncate(descriptor, size)

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "ftruncate", once)
    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match="full"):
        open_log().append(update(9))
    assert len(calls) == 2


def test_many_updates_of_which_a_piece_was_written_leave_none(path: Path, three, open_log, monkeypatch) -> None:
    whole, pwrite = path.read_bytes(), os.pwrite

    def fail(descriptor: int, content: bytes, at: int) -> int:
        if at == len(whole):  # more than the first of them
            return pwrite(descriptor, bytes(content)[:-1], at)
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(OSError, match="full"):
            open_log().append(update(6), update(7), update(8))
    assert path.read_bytes() == whole


def test_a_reader_that_stopped_in_the_middle_is_given_all_again(three: list[int], open_log) -> None:
    log = open_log()
    reading = log.read()
    assert told(next(reading)) == told(THREE[0])
    reading.close()
    assert read(log) == [told(each) for each in THREE]


def test_what_was_given_last_can_be_given_again(three: list[int], open_log) -> None:
    log = open_log()
    log.catch_up()
    log.append(update(6), update(7))
    assert [revision for revision, *_ in read(log)] == [6, 7]
    log.unread()
    assert [revision for revision, *_ in read(log)] == [6, 7]
    assert read(log) == []


def test_an_empty_log_is_made_once(path: Path, three: list[int], open_log) -> None:
    whole = path.read_bytes()
    open_log().create()
    assert path.read_bytes() == whole
    path.unlink()
    open_log().create()
    assert path.read_bytes() == whole[: three[0]], "it says whose it is, and nothing else"


@pytest.mark.parametrize("left", [0, 5, 60])
def test_a_log_whose_header_is_cut_short_says_again_whose_it_is(path: Path, three, open_log, left: int) -> None:
    path.write_bytes(path.read_bytes()[:left])
    open_log().append(update(6))
    assert UpdateLog.of_file(path).subject == SUBJECT
    assert read(open_log()) == [told(update(6))]


@pytest.mark.parametrize("content", [
    {"some": "thing"},
    {"revision": 9},
    {"revision": "nine", "upserts": [], "deletes": []},
    {"revision": 9, "upserts": [["a"]], "deletes": []},
    {"revision": 9, "upserts": [["a", "b", {}]], "deletes": []},  # a vector is missing
    {"revision": 9, "upserts": 1, "deletes": []},
    {"floor": "nine"},
    [],
    None,
])  # fmt: skip
def test_a_whole_record_that_nobody_here_writes_is_refused(path: Path, three: list[int], open_log, content) -> None:
    log = open_log()
    log._append((content, b""))
    given, refused = until_damage(open_log())
    assert (given, refused) == ([told(each) for each in THREE], True)
    with pytest.raises(GenerationCorrupt, match="of another generation, or of another version of polyrank"):
        open_log().append(update(10))


def test_nothing_is_acknowledged_before_it_is_on_the_disk(path: Path, open_log, monkeypatch) -> None:
    steps: list[tuple[str, int]] = []
    pwrite, fdatasync, fsync = os.pwrite, os.fdatasync, os.fsync

    def on_write(descriptor: int, content: bytes, at: int) -> int:
        steps.append(("write", os.fstat(descriptor).st_ino))
        return pwrite(descriptor, content[:100], at)  # a short write is gone on with

    def on_sync(descriptor: int) -> None:
        steps.append(("sync", os.fstat(descriptor).st_ino))
        fdatasync(descriptor)

    def on_fsync(descriptor: int) -> None:
        steps.append(("fsync", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    monkeypatch.setattr(os, "pwrite", on_write)
    monkeypatch.setattr(os, "fdatasync", on_sync)
    monkeypatch.setattr(os, "fsync", on_fsync)
    open_log().append(update(1))
    log, directory = path.stat().st_ino, path.parent.stat().st_ino
    assert ("fsync", directory) in steps, "its name, too"
    assert steps[-1] == ("sync", log)
    assert steps.count(("write", log)) > 1
    assert steps.count(("sync", log)) == 1
    assert read(open_log()) == [told(update(1))]


def test_the_form_on_the_disk(path: Path, open_log) -> None:
    """Other processes may be of the version before: the bytes are a promise."""
    vectors = np.array([[1, 2, 3, 4]], np.float16)
    open_log().append(Update(3, [Candidate("a", "b", {"c": 1})], Representations(vectors), ["d"]))
    content, checksum, bodies = path.read_bytes(), 0, []
    while content:
        length, expected, head = struct.unpack_from("<III", content)
        assert head == crc32(content[:8])
        body, content = content[12 : 12 + length], content[12 + length :]
        checksum = crc32(body, checksum)
        assert checksum == expected
        (size,) = struct.unpack_from("<I", body)
        bodies.append((body[4 : 4 + size], body[4 + size :]))
    assert bodies == [
        (
            f'{{"format":1,"generation":"{GENERATION}","fingerprint":"{"f" * 64}","dim":4,"dtype":"float16"}}'.encode(),
            b"",
        ),
        (b'{"revision":3,"upserts":[["a","b",{"c":1}]],"deletes":["d"]}', vectors.tobytes()),
    ]
