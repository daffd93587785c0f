"""A column of times is read in one form, or not at all."""

import pytest

from polyrank.index_builder.convert.times import readings


def read(*times: str, order: str | None = None) -> list[float] | str | None:
    ways, bad = readings(lambda: times, order)
    return [ways[0](each) for each in times] if len(ways) == 1 else bad if not ways else None


@pytest.mark.parametrize("text", [
    "1767348000", "1767348000000", "1767348000000000", "1767348000000000000.0", "2026-01-02T10:00:00Z",
    "2026-01-02 10:00:00 UTC", "2026-01-02T11:00:00.000+01:00", "Fri, 02 Jan 2026 10:00:00 GMT",
    "Jan 2, 2026 at 10:00 AM", "02.01.2026 10:00", "02.01.26, 10:00:00", "2. 1. 2026. 10:00", "2026/01/02 10:00",
    "2 January 2026 10:00", "2 Jan 2026 10:00 am", "2026/1/2 上午10:00", "2026. 1. 2. 오전 10:00", "10 am 2026-01-02",
])  # fmt: skip
def test_forms_of_one_instant(text: str) -> None:
    assert read(text) == [1767348000.0]


@pytest.mark.parametrize("text", [
    "2 Jan 2026 10:00 pm", "2/1/26, 10:00 p.\u00a0m.",
    "02/01/2026 10:00\u202fPM", "٢/١/٢٠٢٦، ١٠:٠٠ م", "2026/1/2 下午10:00",
])  # fmt: skip
def test_halves_of_a_day_in_other_languages(text: str) -> None:
    assert read(text, order="day-first") == [1767348000.0 + 43_200]


@pytest.mark.parametrize("text", ["2026-02-01 10:00", "10:00 2026-02-01", "10 am 2026/02/01", "2026. 2. 1. 10:00"])
def test_the_order_of_days_and_months_is_not_that_behind_a_year(text: str) -> None:
    assert read(text, order="day-first") == read(text, order="month-first") == [1769940000.0]


def test_seconds_and_milliseconds_are_of_one_column() -> None:
    assert read("1767348000", "1767348060500", "7") == [1767348000, 1767348060.5, 7]


def test_one_day_above_12_tells_the_order_of_the_column() -> None:
    assert read("1/2/2026 10:00", "13/2/2026 10:00") == [1769940000.0, 1770976800.0]
    assert read("1/2/2026 10:00", "2/13/2026 10:00") == [1767348000.0, 1770976800.0]


def test_nothing_tells_the_order() -> None:
    assert read("1/2/2026 10:00", "3/4/2026 10:00") is None
    assert read("1/2/2026 10:00", order="month-first") == [1767348000.0]
    assert read("13/2/2026 10:00", "2/13/2026 10:00") == "2/13/2026 10:00"
    assert read("1/13/2026 10:00", order="day-first") == "1/13/2026 10:00"


@pytest.mark.parametrize(("times", "bad"), [
    (["2026-01-02", "1767348000"], "1767348000"), (["1767348000", "nan"], "nan"),
    (["2026-01-02 10:00", "soon"], "soon"), (["10:00"], "10:00"),
    (["May 2026"], "May 2026"), (["2026-01-02 10:00 CST"], "2026-01-02 10:00 CST"),
    (["2026-01-02 10:00", "x" * 10_000 + "1"], "x" * 10_000 + "1"),
])  # fmt: skip
def test_the_first_time_that_cannot_be_read_is_told(times: list[str], bad: str) -> None:
    assert read(*times) == bad
