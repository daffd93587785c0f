"""Replacing a file: old or new, never half, and nothing left beside it."""

import fcntl
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from full_disk import FULL, fill_disk

from polyrank.model.durable import filling, make_directory, replacing, sync_file, write_atomically

TOKEN = "0123456789abcdef"


def temporary_of(path: Path, token: str = TOKEN) -> Path:
    return path.with_name(f".{path.name}.{token}.tmp")


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.fixture(params=["new", "existing"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file to replace, or to make."""
    if request.param == "existing":
        (tmp_path / "file").write_bytes(b"old")
    return tmp_path / "file"


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def test_the_block_fills_the_file_that_appears_when_it_ends(path: Path) -> None:
    before = content(path)
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")
        assert re.fullmatch(r"\.file\.[0-9a-f]{16}\.tmp", temporary.name)
        assert content(path) == before
    assert content(path) == b"new"
    assert names(path.parent) == {"file"}


def test_content_is_written_whole(path: Path) -> None:
    write_atomically(path, b"longer than what was there")
    write_atomically(path, b"new")
    assert content(path) == b"new"
    assert names(path.parent) == {"file"}


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt(), SystemExit()], ids=repr)
def test_a_block_that_fails_leaves_what_was_there(path: Path, error: BaseException) -> None:
    def failing() -> None:
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise error

    before = content(path), names(path.parent)
    with pytest.raises(type(error)):
        failing()
    assert (content(path), names(path.parent)) == before


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_afterwards_leaves_what_was_there(path: Path, monkeypatch, call: str) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    before = content(path), names(path.parent)
    monkeypatch.setattr(os, call, broken)
    with pytest.raises(OSError, match="Input/output error"):
        write_atomically(path, b"new")
    assert (content(path), names(path.parent)) == before


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_a_full_disk_leaves_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(path), names(path.parent)
    fill_disk(monkeypatch, path)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert (content(path), names(path.parent)) == before


def test_bytes_are_on_the_disk_before_the_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def recorded(original: Callable[..., None], of: Callable[..., tuple[str, ...]]) -> Callable[..., None]:
        return lambda *given: (calls.append(of(*given)), original(*given))[1]

    monkeypatch.setattr(os, "fsync", recorded(os.fsync, lambda fd: (os.readlink(f"/proc/self/fd/{fd}"),)))
    monkeypatch.setattr(os, "replace", recorded(os.replace, lambda *paths: tuple(map(str, paths))))
    write_atomically(path, b"new")
    [(temporary,), *_] = calls
    assert calls == [(temporary,), (temporary, str(path)), (str(path.parent),)]
    assert temporary.endswith(".tmp")


def test_what_killed_processes_left_is_removed(path: Path) -> None:
    for token in (TOKEN, "f" * 16):
        temporary_of(path, token).write_bytes(b"half")
    write_atomically(path, b"new")
    assert content(path) == b"new"
    assert names(path.parent) == {"file"}


@pytest.mark.parametrize("name", ["[a-z]*", "file*", "a?"])
def test_a_name_that_looks_like_a_pattern(tmp_path: Path, name: str) -> None:
    path, other = tmp_path / name, temporary_of(tmp_path / "file2")
    temporary_of(path).touch()
    other.touch()
    write_atomically(path, b"new")
    assert names(tmp_path) == {name, other.name}


def test_what_others_write_is_left_alone(path: Path) -> None:
    """Another process at the same file; and files of other names."""
    others = {temporary_of(path), temporary_of(path, "kept"), temporary_of(path.with_name(f"file.{TOKEN}"))}
    for each in others:
        each.write_bytes(b"theirs")
    with temporary_of(path).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        write_atomically(path, b"new")
    assert names(path.parent) == {"file"} | {each.name for each in others}
    assert {each.read_bytes() for each in others} == {b"theirs"}


def test_of_two_writers_the_later_one_wins(path: Path) -> None:
    """Their process number may be the same: each container has a process 1."""
    with replacing(path) as first, first.open("wb") as stream:
        stream.write(b"first, ")
        stream.flush()
        write_atomically(path, b"second")
        assert first.exists(), "the lock says that its writer lives"
        stream.write(b"but later")
        stream.flush()
        assert content(path) == b"second"
    assert content(path) == b"first, but later"
    assert names(path.parent) == {"file"}


def test_a_file_that_is_taken_for_a_leftover_before_it_is_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, others = fcntl.flock, [b"another's"]

    def late(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_SH and others:
            write_atomically(path, others.pop())
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with replacing(path) as temporary:
        assert not others
        assert temporary.exists()
        write_atomically(path, b"a third one's")
        assert temporary.exists(), "now it is locked"
        temporary.write_bytes(b"new")
    assert content(path) == b"new"
    assert names(path.parent) == {"file"}


def test_a_file_system_without_locks_will_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    temporary_of(path).write_bytes(b"nobody can tell whose")
    monkeypatch.setattr(fcntl, "flock", none)
    write_atomically(path, b"new")
    assert content(path) == b"new"
    assert names(path.parent) == {"file", temporary_of(path).name}


def test_a_missing_directory_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "file", b"new")
    assert names(tmp_path) == set()


def test_a_pipe_in_the_place_of_a_directory_or_a_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "pipe")
    with suppress(OSError):  # most kernels cannot
        sync_file(tmp_path / "pipe")


@pytest.fixture(params=["new", "empty"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory to fill."""
    if request.param == "empty":
        (tmp_path / "directory").mkdir()
    return tmp_path / "directory"


def fill(inside: Path) -> None:
    (inside / "folder").mkdir()
    for name in ("a", "last", "z", "folder/file"):
        (inside / name).write_text(name)


def test_a_directory_is_filled_when_the_block_ends(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: list[str] = []
    rename = os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (renamed.append(Path(new).name), rename(old, new)))
    with filling(directory, last="last") as inside:
        fill(inside)
        assert names(directory) == {inside.name}
    assert names(directory) == {"a", "folder", "last", "z"}
    assert renamed[-1] == "last"


@pytest.mark.parametrize("failing", ["block", "rename"])
def test_a_directory_that_cannot_be_filled_stays_empty(directory: Path, failing: str, monkeypatch) -> None:
    before = directory.exists()
    renames = [os.replace] * 2
    monkeypatch.setattr(os, "replace", lambda old, new: renames.pop()(old, new))  # IndexError at the third
    with suppress(IndexError), filling(directory) as inside:
        fill(inside)
        if failing == "block":
            raise IndexError
    assert directory.exists() == before
    assert not before or names(directory) == set()


def test_of_two_that_fill_a_directory_the_earlier_one_stays(directory: Path) -> None:
    def filled_twice() -> None:
        with filling(directory) as inside:
            with filling(directory) as other:
                (other / "mine").touch()
            assert inside.is_dir()

    with pytest.raises(FileExistsError):
        filled_twice()
    assert names(directory) == {"mine"}


def test_what_a_killed_process_left_in_a_directory_is_removed(directory: Path) -> None:
    (directory / ".unfinished-0" / "folder").mkdir(parents=True)
    with filling(directory) as inside:
        (inside / "file").touch()
    assert names(directory) == {"file"}
