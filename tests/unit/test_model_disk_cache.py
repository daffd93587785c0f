"""The cache on disk: kept, bounded, checked, private, and never a reason to fail."""

import logging
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir

import pytest
from full_disk import fill_disk
from unprivileged import bound_by_permissions

from polyrank.model.durable import usual_cache
from polyrank.model.errors import InvalidInput
from polyrank.model.inference.disk_cache import DIRECTORY, SIZE, DiskCache, configured

KEY = {"part": "context", "threads": 2}
FACTS = {"dim": 384}
ROOM = 1 << 20


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "above" / "cache"


@pytest.fixture
def cache(directory: Path) -> DiskCache:
    return DiskCache(directory, ROOM)


def kept(cache: DiskCache, key: dict[str, object]) -> bytes | None:
    entry = cache.get(key)
    return None if entry is None else bytes(entry.data)


def entry_of(directory: Path) -> Path:
    [path] = directory.iterdir()
    return path


def test_what_was_put_is_found_by_its_key_alone(cache: DiskCache, directory: Path) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, FACTS, b"\n\x00blob\n")
    entry = DiskCache(directory, ROOM).get({"threads": 2, "part": "context"})
    assert (entry.facts, bytes(entry.data)) == (FACTS, b"\n\x00blob\n")
    assert cache.get({**KEY, "threads": 1}) is None


def test_facts_may_come_without_bytes(cache: DiskCache) -> None:
    cache.put(KEY, FACTS)
    assert kept(cache, KEY) == b""


def test_a_later_entry_of_a_key_replaces_the_former_one_and_not_under_its_readers(cache: DiskCache) -> None:
    cache.put(KEY, FACTS, b"old")
    old = cache.get(KEY)
    cache.put(KEY, FACTS, b"new!")
    assert (bytes(old.data), kept(cache, KEY)) == (b"old", b"new!")


def test_only_this_user_can_read_it(cache: DiskCache, directory: Path) -> None:
    cache.put(KEY, FACTS, b"blob")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert entry_of(directory).stat().st_mode & 0o777 == 0o600


def test_the_least_recently_used_go_first(directory: Path) -> None:
    cache = DiskCache(directory, 3500)
    for number in range(3):
        cache.put({"number": number}, {}, bytes(1000))
        for path in directory.iterdir():  # every step is a second
            os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9))
    assert kept(cache, {"number": 0}) is not None
    cache.put({"number": 3}, {}, bytes(1000))
    assert [number for number in range(4) if cache.get({"number": number})] == [0, 2, 3]


def test_an_entry_larger_than_the_bound_is_not_kept(cache: DiskCache, directory: Path, caplog) -> None:
    cache.put(KEY, FACTS, b"blob")
    cache.put({"part": "pair"}, {}, bytes(ROOM))
    assert kept(cache, KEY) == b"blob"
    assert len(list(directory.iterdir())) == 1
    assert caplog.messages == ["a model is larger than the cache and is not kept"]


@pytest.mark.parametrize("damage", ["one bit", "cut short", "nearly nothing", "empty", "longer", "another key's"])
def test_a_damaged_entry_is_removed_with_one_warning(cache: DiskCache, directory: Path, damage: str, caplog) -> None:
    cache.put(KEY, FACTS, b"blob" * 100)
    path = entry_of(directory)
    good = path.read_bytes()
    if damage == "another key's":
        DiskCache(directory.parent / "other", ROOM).put({"part": "pair"}, FACTS, b"blob" * 100)
        entry_of(directory.parent / "other").rename(path)
    else:
        bad = {"one bit": good[:-9] + bytes([good[-9] ^ 1]) + good[-8:], "cut short": good[:-1], "longer": good + b"x"}
        path.write_bytes(bad.get(damage, good[:64] if damage == "nearly nothing" else b""))
    assert cache.get(KEY) is None
    assert cache.get(KEY) is None
    assert caplog.messages == ["a kept model is damaged and is made anew"]
    assert not path.exists()
    cache.put(KEY, FACTS, b"anew")
    assert kept(cache, KEY) == b"anew"


@pytest.mark.parametrize("link", [False, True])
def test_an_entry_that_others_may_write_to_is_not_run(cache: DiskCache, directory: Path, tmp_path, link: bool) -> None:
    """Whoever owns the directory above may put another in the place of one that was looked at."""
    cache.put(KEY, FACTS, b"blob")
    path = entry_of(directory)
    if link:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    path.chmod(0o666)
    assert kept(cache, KEY) is None
    assert not path.exists()
    cache.put(KEY, FACTS, b"anew")
    assert kept(cache, KEY) == b"anew"


@pytest.mark.parametrize("header", [b"", b"no JSON\n", b"[]\n", b'{"key": 1}\n', b"[" * 100_000 + b"\n"])
def test_an_entry_without_key_and_facts_is_no_error(cache: DiskCache, directory: Path, header: bytes) -> None:
    cache.put(KEY, FACTS, b"blob")
    content = header + b"blob" * 9
    entry_of(directory).write_bytes(sha256(content).hexdigest().encode() + content)
    assert kept(cache, KEY) is None
    assert list(directory.iterdir()) == []


def test_a_full_disk_is_no_error(cache: DiskCache, directory: Path, monkeypatch, caplog) -> None:
    cache.put(KEY, FACTS, b"blob")
    with monkeypatch.context() as patched:
        fill_disk(patched, entry_of(directory))
        cache.put(KEY, FACTS, b"more")
    cache.put({"part": "pair"}, {}, b"room again")
    assert (kept(cache, KEY), kept(cache, {"part": "pair"})) == (b"blob", b"room again")
    assert caplog.messages == ["compiled models cannot be kept: every start compiles them"]
    assert "No space left" in str(caplog.records[0].fields)


@pytest.mark.parametrize("place", ["a file is in its place", "nothing can be made there"])
def test_a_directory_that_cannot_be_is_one_warning(tmp_path: Path, place: str, caplog) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" if place.startswith("a file") else Path("/proc/cache"), ROOM)
    for _ in range(2):
        cache.put(KEY, FACTS, b"blob")
    assert cache.get(KEY) is None
    assert caplog.messages.count("compiled models cannot be kept: every start compiles them") == 1


def test_a_read_only_directory_is_read(cache: DiskCache, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.put(KEY, FACTS, b"blob")
    directory.chmod(0o500)
    with bound_by_permissions():
        cache.put({"part": "pair"}, {}, b"blob")
        assert kept(cache, KEY) == b"blob"
    directory.chmod(0o700)  # else it could not be removed
    assert caplog.messages == ["compiled models cannot be kept: every start compiles them"]


@pytest.mark.parametrize("mode", [0o770, 0o707], ids=oct)
def test_a_directory_that_others_may_write_to_is_not_used(cache: DiskCache, directory: Path, mode: int, caplog) -> None:
    """What lies there may be anybody's, and would be run."""
    cache.put(KEY, FACTS, b"blob")
    directory.chmod(mode)
    assert cache.get(KEY) is None
    cache.put({"part": "pair"}, {}, b"blob")
    assert len(list(directory.iterdir())) == 1
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.WARNING, "compiled models are not kept: every start compiles them")
    ], "said once"


def test_what_a_killed_writer_left_is_removed(cache: DiskCache, directory: Path) -> None:
    cache.put(KEY, FACTS, b"blob")
    (directory / f".{'0' * 64}.entry.0123456789abcdef.tmp").write_bytes(bytes(1000))
    cache.put(KEY, FACTS, b"blob")
    assert len(list(directory.iterdir())) == 1


@pytest.mark.slow
def test_processes_write_and_read_at_the_same_time(directory: Path) -> None:
    """Every entry that any of them finds is whole, while all replace and evict the same few."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from polyrank.model.inference.disk_cache import DiskCache\n"
        "cache = DiskCache(Path(sys.argv[1]), 5 * 20_000)\n"
        "for turn in range(200):\n"
        "    key = {'number': turn % 8}\n"
        "    entry = cache.get(key)\n"
        "    assert entry is None or len(set(bytes(entry.data))) == 1 and len(entry.data) == 18_000\n"
        "    cache.put(key, {}, bytes([int(sys.argv[2])]) * 18_000)\n"
    )
    command = [sys.executable, "-c", code, str(directory)]
    processes = [subprocess.Popen([*command, str(n)], stderr=subprocess.PIPE, text=True) for n in range(3)]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    assert said == ["", "", ""], "no warning"
    assert sum(path.stat().st_size for path in directory.iterdir()) <= 5 * 20_000 + 3 * 20_000


def test_where_it_lies_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative is invalid")
    assert usual_cache() == tmp_path / ".cache" / "polyrank"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert usual_cache() == tmp_path / "xdg" / "polyrank"


def test_where_it_lies_for_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert usual_cache() == Path(gettempdir()) / f"polyrank-{os.geteuid()}"


def test_the_environment_says_where_it_lies_and_how_big_it_may_be(tmp_path: Path) -> None:
    cache = configured({DIRECTORY: str(tmp_path), SIZE: "1"})
    cache.put(KEY, FACTS, b"blob")
    cache.put({"part": "pair"}, FACTS, bytes(1 << 20))
    assert (kept(cache, KEY), cache.get({"part": "pair"})) == (b"blob", None)
    assert [path.name for path in tmp_path.iterdir()] == ["compiled"]
    assert configured({DIRECTORY: str(tmp_path), SIZE: "0"}) is None


def test_nothing_in_the_environment_means_the_users_cache(usual_cache: Path) -> None:
    for variables in ({}, {DIRECTORY: "", SIZE: ""}):
        cache = configured(variables)
        cache.put(KEY, FACTS, bytes(1 << 20))
        entry_of(usual_cache / "compiled").unlink()


@pytest.mark.parametrize("size", ["many", "-1", "1.5", "1 GiB", "nan", "1e400", "1000001", "9" * 5000])
def test_a_size_that_is_no_number_is_refused(size: str) -> None:
    with pytest.raises(
        InvalidInput,
        match=r"^POLYRANK_COMPILED_CACHE_MB must be a whole number from 0 to 1,000,000, of MiB; 0 for no cache$",
    ):
        configured({SIZE: size})
