"""A keys file is read strictly, told of without its content, and changed by one writer at a time."""

import json
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from polyrank.service.auth import keys
from polyrank.service.auth.keys import Key
from polyrank.service.errors import SettingsError

HASH = "0" * 64


def key(name: str = "shop", secret: str = "k", **fields: Any) -> Key:
    return Key(name=name, sha256=keys.hashed(secret.encode()), **{"scopes": ("rank",), **fields})


def add(path: Path, made: Key) -> None:
    with keys.changing(path) as held:
        held.append(made)


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"keys": rows}))
    return path


def test_what_is_kept_of_a_key_is_its_sha256() -> None:
    assert keys.hashed(b"secret") == sha256(b"secret").hexdigest()


def test_keys_are_drawn_anew_each_time() -> None:
    drawn = {keys.new_key() for _ in range(100)}
    assert len(drawn) == 100
    assert all(len(each) == len(keys.KEY_PREFIX) + 43 and each.isascii() for each in drawn)


def test_the_key_that_was_given_is_found() -> None:
    held = [key("a", "one"), key("b", "two"), key("c", "three")]
    assert [keys.find(held, secret) for secret in (b"one", b"three")] == [held[0], held[2]]
    for wrong in (b"", b"On", b"one ", b"\xff", held[0].sha256.encode()):
        assert keys.find(held, wrong) is None


def test_every_key_is_compared_whichever_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    held, compared = [key(f"k{n}", f"s{n}") for n in range(5)], list[str]()
    compare = keys.hmac.compare_digest
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda a, b: compared.append(b) or compare(a, b))
    assert keys.find(held, b"s0") == held[0]
    assert len(compared) == 5


def test_a_file_is_read(tmp_path: Path) -> None:
    full = {"name": "b.2_x-y", "sha256": "1" * 64, "scopes": ["rank", "admin"], "rate_per_s": 0.5, "burst": 3}
    path = written(tmp_path / "keys", {"name": "a", "sha256": HASH, "scopes": ["admin"]}, full)
    first, second = keys.read(path)
    assert (first.name, first.scopes, first.rate_per_s, first.burst) == ("a", ("admin",), None, None)
    assert (second.name, second.scopes, second.rate_per_s, second.burst) == ("b.2_x-y", ("rank", "admin"), 0.5, 3)
    assert HASH not in repr(first)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sha256": "hunter2"}, "keys.0.sha256"),
        ({"sha256": "A" * 64}, "keys.0.sha256"),
        ({"sha256": HASH + "\n"}, "keys.0.sha256"),
        ({"name": "a b"}, "keys.0.name"),
        ({"name": "a\n"}, "keys.0.name"),
        ({"name": "x" * 65}, "keys.0.name"),
        ({"scopes": []}, "keys.0.scopes"),
        ({"scopes": ["root"]}, "keys.0.scopes.0"),
        ({"scopes": "rank"}, "keys.0.scopes"),
        ({"rate_per_s": 0}, "keys.0.rate_per_s"),
        ({"rate_per_s": 5e-324}, "keys.0.rate_per_s"),
        ({"rate_per_s": 1, "burst": 10**400}, "keys.0.burst"),
        ({"rate_per_s": "5"}, "keys.0.rate_per_s"),
        ({"burst": 5}, "burst goes with rate_per_s"),
        ({"key": "hunter2"}, "keys.0.key"),
    ],
)
def test_a_broken_row_is_one_line_without_its_content(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    path = written(tmp_path / "keys", {"name": "a", "sha256": HASH, "scopes": ["rank"], **fields})
    with pytest.raises(SettingsError) as caught:
        keys.read(path)
    told = str(caught.value)
    assert told.startswith(f"keys_file: {path} is no keys file: ")
    assert says in told
    assert "\n" not in told
    assert "hunter2" not in told


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"keys": 1}', b"\xff\xfe", b'{"keys": [1]}'])
def test_a_file_that_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="is no keys file"):
        keys.read(path)


@pytest.mark.parametrize("what", ["name", "sha256"])
def test_two_keys_alike(tmp_path: Path, what: str) -> None:
    rows = [{"name": f"n{n}", "sha256": str(n) * 64, "scopes": ["rank"]} for n in range(2)]
    rows[1][what] = rows[0][what]
    with pytest.raises(SettingsError, match=f"the same {what}"):
        keys.read(written(tmp_path / "keys", *rows))


def test_a_missing_file_or_a_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(SettingsError, match=f"{path} cannot be read"):
            keys.read(path)


def test_a_new_file_is_its_owners_alone_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    add(path, key("a", "one"))
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    add(path, key("b", "two", rate_per_s=2.0))
    assert path.stat().st_mode & 0o777 == 0o640
    assert keys.read(path) == (key("a", "one"), key("b", "two", rate_per_s=2.0))
    assert "one" not in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_leads_to_the_new_keys(tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    link = tmp_path / "keys"
    link.symlink_to(tmp_path / "mounted" / "keys")
    for name in ("a", "b"):
        add(link, key(name, name))
    assert link.is_symlink()
    assert keys.read(tmp_path / "mounted" / "keys") == (key("a", "a"), key("b", "b"))


def test_a_change_that_fails_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("{")
    with pytest.raises(SettingsError):
        add(path, key("a", "one"))
    assert path.read_text() == "{"
    assert list(tmp_path.iterdir()) == [path]


def test_no_key_of_several_writers_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    threads = [threading.Thread(target=add, args=(path, key(f"k{n}", f"s{n}"))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.name for each in keys.read(path)) == [f"k{n}" for n in range(8)]
