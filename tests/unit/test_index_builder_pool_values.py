"""When a date or a time is; texts that show nothing, stand for nothing, are HTML, or stand for true and false."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from polyrank.index_builder.pool.values import (
    are_true_and_false,
    bound,
    has_tags,
    instant,
    is_false,
    says_nothing,
    seems_a_date,
    shown,
)

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)


@pytest.mark.parametrize("text", [
    "2026-11-28T12:00:00Z", "2026-11-28t12:00z", "2026-11-28 12:00", "2026-11-28 12:00:00 UTC",
    "2026-11-28 12:00:00+00", "2026-11-28T14:00:00,000+0200", "2026-11-28T06:30:00.000000 -05:30",
])  # fmt: skip
def test_one_instant_has_many_forms(text: str) -> None:
    begin = (NOON - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert instant(text) == (begin, begin + 1)


def test_a_day_lasts_from_midnight_to_midnight_in_utc() -> None:
    day = instant("2026-11-28")
    assert (day.begin, day.end) == (instant("2026-11-28T00:00Z").begin, instant("2026-11-29T00:00Z").begin)
    assert instant("9999-12-31") is not None
    assert instant("0001-01-01T00:00+14:00") is not None


@pytest.mark.parametrize("text", [
    *("2026-11-31", "2026-11", "20261128", "2026-W48-6", "28.11.2026", "2026-11-28T25:00", "now", ""),
    *(
        "2026-11-28T12:00+01:00[Europe/Berlin]", "v2026-11-28",
        "2026-11-28Z", "2026-11-28-7", "２０２６-11-28", "2026-11-28T12",
    ),
])  # fmt: skip
def test_other_texts_are_no_instants(text: str) -> None:
    assert instant(text) is None


@pytest.mark.parametrize(("text", "time"), [
    ("now", NOON), ("now-7d", NOON - timedelta(days=7)),
    ("now+90m", NOON + timedelta(minutes=90)), ("now-2w", NOON - timedelta(weeks=2)),
    ("now-24h", NOON - timedelta(days=1)), ("now+30s", NOON + timedelta(seconds=30)),
])  # fmt: skip
def test_now_and_what_is_before_or_after_it(text: str, time: datetime) -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=9)))
    assert bound(text, NOON) == bound(text, elsewhere) == time.isoformat()


def test_other_bounds_are_as_they_are() -> None:
    for text in ("2026-11-28", "now-1y", "now -7d", "nowhere", "now/d", ""):
        assert bound(text, NOON) == text


@pytest.mark.parametrize(("text", "seems"), [
    ("31.10.2026", True), ("31.10.26 17:00", True), ("10/31/2026 5:00 PM", True), ("2026/10/31", True),
    ("2026年10月31日", True), ("31. Oktober 2026", True), ("31 de octubre de 2026", True),
    ("Sat, 31 Oct 2026 10:00:00 +0100", True), ("2026-10-31", True), ("1.2.3", False),
    ("192.168.10.1", False), ("until 31.10.2026", False), ("Room 12", False), ("5-10 days", False),
])  # fmt: skip
def test_what_seems_to_be_a_date(text: str, seems: bool) -> None:
    assert seems_a_date(text) is seems


@pytest.mark.parametrize("text", ["", " \n", "\u200b", "\ufeff \u200b\u2060", "\xa0"])
def test_nothing_is_shown(text: str) -> None:
    assert shown(text) == ""


@pytest.mark.parametrize(("text", "kept"), [(" a ", "a"), ("\u200ba b\ufeff", "a b"), ("👨\u200d👩", "👨\u200d👩")])
def test_what_is_shown_is_kept(text: str, kept: str) -> None:
    assert shown(text) == kept


def test_what_programs_write_for_nothing() -> None:
    assert all(map(says_nothing, ("NaN", "None", " NULL", "\\N", "<NA>", "undefined")))
    assert not any(map(says_nothing, ("", "no", "none of them", "0", "nano")))


def test_tags() -> None:
    assert has_tags("a<br/>b")
    assert not any(map(has_tags, ("a < b", "<3", "i <- 5", "<>")))


@pytest.mark.parametrize("cell", ["false", "FALSCH", " Non ", "hayır", "HAYIR", "いいえ", "НЕТ", "0", "0.0", "n"])
def test_a_no_is_false(cell: str) -> None:
    assert is_false(cell)


@pytest.mark.parametrize("cell", ["true", "WAHR", "oui", "1", "none", "", "falsch verbunden", "00"])
def test_nothing_else_is(cell: str) -> None:
    assert not is_false(cell)


def test_both_words_are_of_one_language() -> None:
    assert are_true_and_false({"ja", "nein"})
    assert are_true_and_false({"JA", "nej"})
    assert not are_true_and_false({"ja", "non"})
    assert not are_true_and_false({"ja"})
    assert not are_true_and_false({"nein", "no"})
