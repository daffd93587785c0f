"""Replacing a file: old or new, never half, and nothing left beside it."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from model.durable import replacing, write_atomically


def temporary_of(path: Path, pid: object) -> Path:
    return path.with_name(f".{path.name}.{pid}.tmp")


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
        assert temporary == temporary_of(path, os.getpid())
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
def test_a_disk_that_fails_afterwards_leaves_what_was_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    before = content(path), names(path.parent)
    monkeypatch.setattr(os, call, broken)
    with pytest.raises(OSError, match="Input/output error"):
        write_atomically(path, b"new")
    assert (content(path), names(path.parent)) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_leaves_what_was_there(path: Path) -> None:
    before = content(path), names(path.parent)
    temporary_of(path, os.getpid()).symlink_to("/dev/full")
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
    temporary = str(temporary_of(path, os.getpid()))
    assert calls == [(temporary,), (temporary, str(path)), (str(path.parent),)]


def test_what_a_killed_process_left_is_removed(path: Path) -> None:
    temporary_of(path, 2**22 + 1).write_bytes(b"half")
    temporary_of(path, os.getpid()).write_bytes(b"half, and longer than the new one")
    write_atomically(path, b"new")
    assert content(path) == b"new"
    assert names(path.parent) == {"file"}


@pytest.mark.parametrize("name", ["[a-z]*", "file*", "a?"])
def test_a_name_that_looks_like_a_pattern(tmp_path: Path, name: str) -> None:
    path, other = tmp_path / name, temporary_of(tmp_path / "file2", 1)
    temporary_of(path, 1).touch()
    other.touch()
    write_atomically(path, b"new")
    assert names(tmp_path) == {name, other.name}


def test_what_others_write_is_left_alone(path: Path) -> None:
    """Another process at the same file, whatever its number; and files of other names."""
    others = {temporary_of(path, 1), temporary_of(path, "kept"), temporary_of(path.with_name("file.x"), 1)}
    for each in others:
        each.write_bytes(b"theirs")
    with temporary_of(path, 1).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        write_atomically(path, b"new")
    assert names(path.parent) == {"file"} | {each.name for each in others}
    assert {each.read_bytes() for each in others} == {b"theirs"}


def test_of_two_writers_the_later_one_wins(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with replacing(path) as first:
        first.write_bytes(b"first")
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            write_atomically(path, b"second, of another process")
        assert first.exists(), "the lock says that its writer lives"
        assert content(path) == b"second, of another process"
    assert content(path) == b"first"
    assert names(path.parent) == {"file"}


def test_a_file_system_without_locks_will_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    temporary_of(path, 1).write_bytes(b"nobody can tell whose")
    monkeypatch.setattr(fcntl, "flock", none)
    write_atomically(path, b"new")
    assert content(path) == b"new"
    assert names(path.parent) == {"file", temporary_of(path, 1).name}


def test_a_missing_directory_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "file", b"new")
    assert names(tmp_path) == set()
