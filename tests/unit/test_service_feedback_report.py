"""What a log of feedback says of the replies, in figures and on a page."""

from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
from command_line import call
from feedback_logs import use, write_log
from hypothesis import given
from hypothesis import strategies as st
from report_pages import Page, require_self_contained
from service_fakes import build_store

from polyrank.index_builder.pool.rows import Candidate
from polyrank.service.cli.reports import write_feedback
from polyrank.service.feedback import report
from polyrank.service.feedback.records import Shown
from polyrank.service.feedback.report import FEW, SHOWN_OFTEN, Lack, Share, Untaken, figures

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)> \"'& \u202eright to left"
_POOL = [
    Candidate("a", "first", {"lang": "de", "price": 5, "id": "1"}),
    Candidate("b", "second", {"lang": "en"}),
    Candidate("c", HOSTILE, {"lang": HOSTILE}),
]
_DAY = 86400


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    build_store(root, _POOL)
    return root


@given(st.integers(0, 400).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))))
def test_the_interval_is_what_wilson_solved(counts: tuple[int, int]) -> None:
    """Its ends are the shares from which the one that was seen is 1.96 standard deviations away."""
    seen = Share(*counts)
    low, high = seen.interval()
    deviations = NormalDist().inv_cdf(0.975)
    assert 0 <= low <= high <= 1
    if seen.of:
        assert low - 1e-9 <= seen.value <= high + 1e-9
        for end in (low, high):
            assert seen.of * (seen.value - end) ** 2 == pytest.approx(deviations**2 * end * (1 - end), abs=1e-9)


def test_what_was_taken_is_counted_where_it_stood(store: Path) -> None:
    uses = [
        use(1, "Hi", ("chosen", "a")),
        use(2, "Hi", ("edited", "a", "better"), generation="h"),
        use(_DAY + 1, "Hi", ("chosen", "b")),
        use(_DAY + 2, "Hi", ("chosen", "unknown"), below=("unknown",)),
        use(_DAY + 3, "Hi", ("written", None, "mine"), shown="bca"),
        use(_DAY + 4, "Hi", ("none_good",)),
        use(_DAY + 5, "Hi", ("up", "a"), ("resolved",)),  # nobody knows what was sent
        use(_DAY + 6, "Hi", ("none_good",), shown=""),
        use(_DAY + 7, "Hi"),
    ]
    found = figures(write_log(store, uses))
    assert (found.rankings, found.judged, found.began, found.ended) == (9, 6, 1.0, _DAY + 7.0)
    assert found.first == Share(2, 6)
    assert found.generations == {"g": Share(1, 5), "h": Share(1, 1)}
    assert found.days == {"1970-01-01": Share(2, 2), "1970-01-02": Share(0, 4)}
    assert found.groups == {"lang": {"de": Share(2, 5), "en": Share(0, 1)}}, "one id and a price are no groups"
    assert found.sent == {1: 2, 2: 1, 0: 1, "written": 1, "none_good": 1}


def test_contexts_without_a_good_reply_are_grouped_by_what_tells_them_from_others(store: Path) -> None:
    missing = ["pay by voucher", "Pay  by voucher", "is the voucher valid", "the ship to Norway", "to Norway the 12"]
    uses = [use(number, said, ("none_good",)) for number, said in enumerate([*missing, "???", "the parcel"])]
    uses += [use(20 + number, f"where is the parcel {number}", ("chosen", "a")) for number in range(20)]
    found = figures(write_log(store, uses))
    assert found.lacks == [
        Lack(["voucher", "by", "pay"], 3, ["Pay  by voucher", "is the voucher valid"]),
        Lack(["norway", "to"], 2, ["the ship to Norway", "to Norway the 12"]),
    ]
    assert (found.alone, found.with_texts) == (2, 27)


def test_of_long_contexts_the_end_tells(store: Path) -> None:
    """All of them would take long; and the word that is cut in two counts for nothing."""
    uses = [use(number, f"voucher {'1 ' * 242}pay in Norway", ("none_good",)) for number in range(3)]
    uses += [use(20 + number, "the bill", ("chosen", "a")) for number in range(9)]
    found = figures(write_log(store, uses))
    assert [(each.words, each.contexts) for each in found.lacks] == [(["in", "norway", "pay"], 3)]


def test_replies_that_nobody_takes_are_named_with_their_text(store: Path) -> None:
    uses = [use(number, "Hi", ("chosen", "b")) for number in range(SHOWN_OFTEN)]
    uses += [use(50 + number, "Hi", ("none_good",), shown="bx") for number in range(SHOWN_OFTEN)]
    found = figures(write_log(store, uses))
    assert found.untaken == [
        Untaken("a", "first", SHOWN_OFTEN, SHOWN_OFTEN),
        Untaken("c", HOSTILE, SHOWN_OFTEN, 0),
        Untaken("x", None, SHOWN_OFTEN, 0),
    ]
    assert found.shown_often == 4


def test_the_page_shows_all_of_it_and_runs_nothing(capsys, store: Path, tmp_path: Path) -> None:
    uses = [use(number, HOSTILE, ("none_good",), shown="c") for number in range(FEW)]
    uses += [use(90 + number, "Hi", ("chosen", "a"), generation="new") for number in range(9)]
    given = ("--store", write_log(store, uses), "--output", tmp_path / "page.html", "--json")
    outcome = call(capsys, "feedback", "report", *given)
    assert outcome.result["first_taken"] == {"value": 9 / 39, **_ends(Share(9, 39))}
    page = Page(tmp_path / "page.html")
    require_self_contained(page)
    rows = [[cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in page.rows]
    assert ["g", "0.000 [0.000, 0.114]", "30"] in rows
    assert ["new", "1.000 [0.701, 1.000]", "9 (few)"] in rows
    assert "1 of 2 have fewer than 30 rankings with a known outcome, and are not drawn." in page.text
    assert [HOSTILE, "0.000 [0.000, 0.114]", "30"] in rows
    assert page.cards == [
        f"30 contexts alert, img, leftsuch as {HOSTILE}",
        f"c {HOSTILE}shown 39 times, 30 of them first",
    ]


def _ends(share: Share) -> dict[str, Any]:
    low, high = share.interval()
    return {"low": low, "high": high}


def test_a_page_of_little_says_what_is_missing(store: Path, tmp_path: Path) -> None:
    write_feedback(tmp_path / "empty.html", store, figures(tmp_path / "no log"))
    assert "No event says yet which replies were sent" in Page(tmp_path / "empty.html").text
    write_feedback(tmp_path / "ids.html", store, figures(write_log(store, [use(1, None, ("chosen", "a"))])))
    text = Page(tmp_path / "ids.html").text
    assert "Contexts are not recorded; polyrank serve --feedback texts records them" in text
    assert "Replies that were shown 10 times or more: 0." in text


def test_ids_that_callers_made_up_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_MOST_HELD", 20)
    uses = []
    for number in range(40 * SHOWN_OFTEN):
        ids = ["a", *(f"made up {number} {place}" for place in range(5)), *(["rare"] if number % 40 == 20 else [])]
        uses.append(use(number, "Hi", ("none_good",), shown=tuple(Shown(each, 0.0) for each in ids)))
    write_log(tmp_path, uses)
    found = figures(tmp_path)
    assert [(each.id, each.shown) for each in found.untaken] == [("a", 40 * SHOWN_OFTEN)]
    assert found.shown_often == 1, "what came ten times over all of the log is held no more than what came once"
