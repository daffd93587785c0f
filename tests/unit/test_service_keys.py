"""The keys file, who may do what and how often, and what a changed file does to a server that runs."""

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from polyrank.service.auth import keys
from polyrank.service.auth.buckets import SharedBuckets, shared_memory
from polyrank.service.auth.keys import ANYBODY, Access, Key
from polyrank.service.errors import Forbidden, HeaderInvalid, RateLimited, SettingsError, Unauthenticated
from polyrank.service.observe.metrics import Metrics

HASH = "0" * 64


def key(name: str = "shop", secret: str = "k", **fields: Any) -> Key:
    return Key(name=name, sha256=keys.hashed(secret.encode()), **{"scopes": ("rank",), **fields})


def add(path: Path, made: Key) -> None:
    with keys.changing(path) as held:
        held.append(made)


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"keys": rows}))
    return path


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


@pytest.mark.parametrize(("fields", "says"), [
    ({"sha256": "hunter2"}, "keys.0.sha256"), ({"sha256": "A" * 64}, "keys.0.sha256"),
    ({"sha256": HASH + "\n"}, "keys.0.sha256"), ({"name": "a b"}, "keys.0.name"),
    ({"name": "a\n"}, "keys.0.name"), ({"name": "x" * 65}, "keys.0.name"), ({"scopes": []}, "keys.0.scopes"),
    ({"scopes": ["root"]}, "keys.0.scopes.0"), ({"scopes": "rank"}, "keys.0.scopes"),
    ({"rate_per_s": 0}, "keys.0.rate_per_s"), ({"rate_per_s": 5e-324}, "keys.0.rate_per_s"),
    ({"rate_per_s": 1, "burst": 10**400}, "keys.0.burst"), ({"rate_per_s": "5"}, "keys.0.rate_per_s"),
    ({"burst": 5}, "burst goes with rate_per_s"), ({"key": "hunter2"}, "keys.0.key"),
])  # fmt: skip
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


@pytest.mark.parametrize("pools", [[], [""], ["a/b"], ["a" * 65], "shop", [".."]])
def test_pools_that_are_none(tmp_path: Path, pools: object) -> None:
    row = {"name": "n", "sha256": "0" * 64, "scopes": ["rank"], "pools": pools}
    with pytest.raises(SettingsError, match=r"is no keys file: keys.0.pools"):
        keys.read(written(tmp_path / "keys", row))


def test_a_key_for_some_pools_is_for_no_other_and_not_for_the_server(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    for made in (key("all", "all"), key("some", "some", pools=("shop", "support"))):
        add(path, made)
    access = Access(path, None, Metrics())
    everywhere, some = access.identify([b"all"]), access.identify([b"some"])
    for pool in ("shop", "support", "other", "", None):
        access.require(everywhere, "rank", pool)
    for pool in ("shop", "support", None):
        access.require(some, "rank", pool)
    for pool in ("other", ""):
        with pytest.raises(Forbidden, match="ask under /pools/shop, /pools/support"):
            access.require(some, "rank", pool)


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


SCOPES = {"reader": ["rank"], "boss": ["admin"]}


class Fixture:
    """An Access by a keys file and a clock that the test moves; each key's secret is its name."""

    def __init__(self, path: Path, rate: float | None = None, shared: SharedBuckets | None = None) -> None:
        self.path = path
        self.now = 0.0
        self.metrics = Metrics()
        self.access = Access(path, rate, self.metrics, lambda: self.now, shared)

    def call(self, *given: str, scope: keys.Scope = "rank") -> str:
        principal = self.access.identify([each.encode() for each in given])
        self.access.require(principal, scope)
        self.access.spend(principal)
        return principal.name

    def reloads(self, result: str) -> float | None:
        return self.metrics.registry.get_sample_value("polyrank_keys_reloads_total", {"result": result})


def write(path: Path, **rows: dict[str, Any]) -> Path:
    """Write the keys as `polyrank keys` does: a new file takes the old one's place."""
    listed = [
        {"name": name, "sha256": keys.hashed(name.encode()), "scopes": SCOPES[name], **row}
        for name, row in rows.items()
    ]
    temporary = path.with_name("new")
    temporary.write_text(json.dumps({"keys": listed}))
    os.replace(temporary, path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "keys", reader={}, boss={})


def test_one_good_key_among_those_sent_is_enough(path: Path) -> None:
    assert Fixture(path).call("of a proxy", "reader") == "reader"


def test_several_good_keys_are_refused_and_one_sent_twice_is_one(path: Path) -> None:
    for given in (["reader", "boss"], ["boss", "wrong", "reader"]):
        with pytest.raises(HeaderInvalid, match="send one of them"):
            Fixture(path).call(*given)
    assert Fixture(path).call("boss", "boss", scope="admin") == "boss"


def test_a_changed_file_is_taken_over(path: Path) -> None:
    fixture = Fixture(path)
    write(path, boss={})
    assert fixture.call("reader") == "reader"
    fixture.access.look()
    with pytest.raises(Unauthenticated):
        fixture.call("reader")
    assert (fixture.call("boss"), fixture.reloads("ok"), fixture.reloads("refused")) == ("boss", 1, 0)


def test_a_file_that_stays_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = Fixture(path)
    monkeypatch.setattr(keys, "read", lambda _: pytest.fail("read again"))
    for _ in range(3):
        fixture.access.look()


def test_a_file_written_in_place_is_taken_over(path: Path) -> None:
    fixture = Fixture(path)
    path.write_text('{"keys": []}')
    fixture.access.look()
    with pytest.raises(Unauthenticated):
        fixture.call("reader")


@pytest.mark.parametrize("breaks", [lambda path: path.write_text("{"), Path.unlink])
def test_a_broken_file_leaves_the_keys_and_is_told_once(path: Path, breaks: Any, caplog) -> None:
    fixture = Fixture(path)
    breaks(path)
    for _ in range(3):
        fixture.access.look()
    assert fixture.call("reader") == "reader"
    assert (fixture.reloads("ok"), fixture.reloads("refused")) == (0, 1)
    [record] = caplog.records
    assert (record.levelname, str(path) in record.getMessage()) == ("ERROR", True)
    write(path, boss={})
    fixture.access.look()
    with pytest.raises(Unauthenticated):
        fixture.call("reader")
    assert fixture.reloads("ok") == 1


@pytest.mark.parametrize("why", [errno.EMFILE, errno.ENOMEM, errno.ESTALE])
def test_a_file_that_cannot_be_read_for_the_moment_is_read_at_the_next_look(path: Path, why: int, monkeypatch) -> None:
    fixture = Fixture(path)
    write(path, boss={})

    def fail(*_: object) -> bytes:
        raise OSError(why, os.strerror(why))

    with monkeypatch.context() as patched:
        patched.setattr(keys, "read_input", fail)
        for _ in range(2):
            with pytest.raises(SettingsError, match=os.strerror(why)):
                fixture.access.look()
    assert fixture.call("reader") == "reader"
    fixture.access.look()
    with pytest.raises(Unauthenticated):
        fixture.call("reader")
    assert (fixture.reloads("ok"), fixture.reloads("refused")) == (1, 0)


def test_a_key_has_its_own_rate_or_that_of_the_settings(path: Path) -> None:
    write(path, reader={"rate_per_s": 0.4, "burst": 1}, boss={})
    fixture = Fixture(path, rate=2.0)
    fixture.call("reader")
    with pytest.raises(RateLimited) as caught:
        fixture.call("reader")
    assert caught.value.retry_after_seconds == 3  # of 2.5, rounded up
    for _ in range(2):
        fixture.call("boss")
    with pytest.raises(RateLimited) as caught:
        fixture.call("boss")
    assert caught.value.retry_after_seconds == 1
    fixture.now = 3
    fixture.call("reader")
    fixture.call("boss")


def test_without_keys_the_rate_is_everybodys(tmp_path: Path) -> None:
    access = Access(None, 2.0, Metrics(), lambda: 0.0)
    access.spend(ANYBODY)
    access.spend(ANYBODY)
    with pytest.raises(RateLimited):
        access.spend(ANYBODY)


def test_a_changed_file_fills_no_bucket_but_that_of_a_new_rate(path: Path) -> None:
    write(path, reader={"rate_per_s": 1.0}, boss={})
    fixture = Fixture(path)
    fixture.call("reader")
    write(path, reader={"rate_per_s": 1.0})
    fixture.access.look()
    with pytest.raises(RateLimited):
        fixture.call("reader")
    write(path, reader={"rate_per_s": 2.0})
    fixture.access.look()
    assert fixture.call("reader") == "reader"


def test_the_calls_of_a_key_are_counted_for_all_processes_and_in_the_new_one(path: Path) -> None:
    write(path, reader={"rate_per_s": 1.0, "burst": 3}, boss={"rate_per_s": 1.0, "burst": 3})
    with shared_memory() as memory:
        first, second = (Fixture(path, shared=SharedBuckets(memory)) for _ in range(2))
        for fixture in (first, second, first):
            fixture.call("reader")
        third = Fixture(path, shared=SharedBuckets(memory))  # in the place of one that ended
        for fixture in (first, second, third):
            with pytest.raises(RateLimited):
                fixture.call("reader")
            fixture.call("boss")
        write(path, reader={"rate_per_s": 2.0}, boss={"rate_per_s": 1.0, "burst": 3})
        for fixture in (first, second, third):
            fixture.access.look()
        first.call("reader")
        third.call("reader")
        for name in ("reader", "boss"):
            with pytest.raises(RateLimited):
                second.call(name)
