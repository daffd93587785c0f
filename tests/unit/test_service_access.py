"""Who may do what, how often, and what a changed keys file does to a server that runs."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from no_descriptors import no_descriptors

from polyrank.service.auth import keys
from polyrank.service.auth.keys import ANYBODY, Access, TokenBucket
from polyrank.service.errors import Forbidden, RateLimited, SettingsError, Unauthenticated
from polyrank.service.observe.metrics import Metrics

SCOPES = {"reader": ["rank"], "boss": ["admin"]}


class Fixture:
    """An Access by a keys file and a clock that the test moves; each key's secret is its name."""

    def __init__(self, path: Path, rate: float | None = None) -> None:
        self.path = path
        self.now = 0.0
        self.metrics = Metrics()
        self.access = Access(path, rate, self.metrics, lambda: self.now)

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


def test_without_a_file_everybody_may_do_everything(tmp_path: Path) -> None:
    access = Access(None, None, Metrics())
    for given in ([], [b"whatever"]):
        assert access.identify(given) == ANYBODY
    for _ in range(1000):
        access.require(ANYBODY, "admin")
        access.spend(ANYBODY)


def test_a_key_does_what_its_scope_says_and_admin_implies_rank(path: Path) -> None:
    fixture = Fixture(path)
    assert [fixture.call("reader"), fixture.call("boss"), fixture.call("boss", scope="admin")] == [
        "reader",
        "boss",
        "boss",
    ]
    with pytest.raises(Forbidden, match="scope admin"):
        fixture.call("reader", scope="admin")


def test_one_good_key_among_those_sent_is_enough(path: Path) -> None:
    assert Fixture(path).call("of a proxy", "reader") == "reader"


def test_of_several_good_keys_the_one_counts_that_may_do_most(path: Path) -> None:
    for given in (["reader", "boss"], ["boss", "reader"]):
        assert Fixture(path).call(*given, scope="admin") == "boss"


@pytest.mark.parametrize(
    ("given", "says"), [([], "send an API key"), (["x"], "not one of"), (["Reader"], "not one of")]
)
def test_no_key_and_a_wrong_one(path: Path, given: list[str], says: str) -> None:
    with pytest.raises(Unauthenticated, match=says):
        Fixture(path).call(*given)


def test_a_file_that_is_missing_or_broken_is_refused_at_the_start(tmp_path: Path) -> None:
    for content in (None, "{"):
        if content:
            (tmp_path / "keys").write_text(content)
        with pytest.raises(SettingsError, match="keys_file"):
            Fixture(tmp_path / "keys")


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
def test_a_broken_file_leaves_the_keys_and_is_told_once(
    path: Path, breaks: Any, caplog: pytest.LogCaptureFixture
) -> None:
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
def test_a_file_that_cannot_be_read_for_the_moment_is_read_at_the_next_look(
    path: Path, why: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_shortage_of_descriptors_keeps_no_revoked_key(path: Path) -> None:
    fixture = Fixture(path)
    write(path, boss={})
    with no_descriptors(), pytest.raises(SettingsError, match="Too many open files"):
        fixture.access.look()
    fixture.access.look()
    with pytest.raises(Unauthenticated):
        fixture.call("reader")


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


def test_a_key_without_the_scope_spends_nothing(path: Path) -> None:
    write(path, reader={"rate_per_s": 1.0}, boss={})
    fixture = Fixture(path)
    with pytest.raises(Forbidden):
        fixture.call("reader", scope="admin")
    assert fixture.call("reader") == "reader"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_burst_then_the_rate() -> None:
    clock = Clock()
    bucket = TokenBucket(2.0, 3, clock)
    assert [bucket.take() for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    clock.now += 0.25
    assert bucket.take() == 0.25
    clock.now += 0.25
    assert bucket.take() == 0.0
    assert bucket.take() == 0.5


def test_a_pause_fills_it_to_the_burst_and_no_further() -> None:
    clock = Clock()
    bucket = TokenBucket(10.0, 2, clock)
    clock.now += 3600
    assert [bucket.take() > 0 for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(("rate", "seconds"), [(1.0, 60), (7.0, 13), (0.1, 300)])
def test_over_time_it_is_the_rate(rate: float, seconds: int) -> None:
    clock = Clock()
    bucket = TokenBucket(rate, 2, clock)
    taken = 0
    for _ in range(seconds * 100):
        clock.now += 0.01
        taken += not bucket.take()
    assert taken == pytest.approx(rate * seconds, abs=2.5)


def test_waiting_as_long_as_it_says_is_enough() -> None:
    clock = Clock()
    bucket = TokenBucket(3.0, 1, clock)
    bucket.take()
    for _ in range(50):
        clock.now += bucket.take() + 1e-9
        assert bucket.take() == 0.0
