"""What people say of replies: asked for where the server records rankings, and noted once the server has it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Opens, Watch, ask, faults, settings_of, shown, tab_to
from playwright.sync_api import Page, expect
from served import Served, serve

from polyrank.service.app import create_app
from polyrank.service.feedback.reading import uses

SIZES = {"wide": {"width": 1280, "height": 800}, "narrow": {"width": 360, "height": 740}}


@pytest.fixture
def recording(store: Path, checkpoints: Path, tmp_path: Path) -> Iterator[Served]:
    """A server that records, in a store of the test's own."""
    own = shutil.copytree(store, tmp_path / "store")
    with serve(create_app(settings_of(own, checkpoints, feedback="texts"))) as served:
        yield served


def told(server: Served) -> list[list[tuple[str, str | None]]]:
    """Of each ranking the kinds of what was said, with the ids of the replies."""
    return [[(event.kind, event.reply) for event in use.events] for use in uses(root_of(server))]


def root_of(server: Served) -> Path:
    root: Path = server.app.state.resources.store.root
    return root


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def test_where_nothing_is_recorded_nothing_is_asked(server: Served, opens: Opens, watch: Watch) -> None:
    page = opens(server.url)
    ask(page, "w1 w2")
    shown(page)
    press(page, "Use this reply, rank 1")
    expect(page.get_by_label("What is said")).to_be_focused()
    expect(page.locator(".thumb")).to_have_count(0)
    assert not [url for _, url in watch.asked if url.endswith("/feedback")]


def test_a_reply_that_is_used_and_thumbs_are_noted(recording: Served, opens: Opens) -> None:
    page = opens(recording.url)
    first, second, *_ = (reply["id"] for reply in ask(page, "w1 w2")["results"])
    shown(page)
    rows = page.locator(".reply")
    press(page, "Good reply, rank 1")
    expect(rows.nth(0).get_by_role("status")).to_have_text("Noted: good")
    press(page, "Bad reply, rank 1")
    expect(rows.nth(0).get_by_role("status")).to_have_text("Noted: bad")
    good, bad = (page.get_by_role("button", name=f"{word} reply, rank 1", exact=True) for word in ("Good", "Bad"))
    expect(good).to_have_attribute("aria-pressed", "false")
    expect(bad).to_have_attribute("aria-pressed", "true")
    press(page, "Use this reply, rank 2")
    expect(rows.nth(1).get_by_role("status")).to_have_text("Noted: used")
    press(page, "Use this reply, rank 3")  # it would answer something else: the conversation has gone on
    expect(page.locator(".turn")).to_have_count(3)
    expect(rows.nth(2).get_by_role("status")).to_have_text("")
    assert told(recording) == [[("up", first), ("down", first), ("chosen", second)]]
    ask(page, "w3")
    expect(page.get_by_text("Noted")).to_have_count(0)


def test_all_of_it_goes_by_keyboard(recording: Served, opens: Opens) -> None:
    page = opens(recording.url, viewport=SIZES["wide"])
    first = ask(page, "w1 w2")["results"][0]["id"]
    shown(page)
    tab_to(page, "Good reply, rank 1")
    page.keyboard.press("Space")
    expect(page.get_by_text("Noted: good")).to_be_visible()
    tab_to(page, "Use this reply, rank 1")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Noted: used")).to_be_visible()
    expect(page.get_by_label("What is said")).to_be_focused()
    assert told(recording) == [[("up", first), ("chosen", first)]]


def test_what_did_not_arrive_is_sent_again_as_the_same_event(recording: Served, opens: Opens, watch: Watch) -> None:
    watch.tolerated.append("ERR_FAILED")
    page = opens(recording.url)
    ask(page, "w1 w2")
    shown(page)
    sent: list[Any] = []
    page.on("request", lambda each: sent.append(each.post_data_json) if each.url.endswith("/feedback") else None)
    page.route("**/feedback", lambda route: route.abort())
    press(page, "Good reply, rank 2")
    expect(page.get_by_role("alert").filter(has_text="Nobody answers")).to_be_visible()
    page.unroute("**/feedback")
    press(page, "Try again")
    expect(page.get_by_text("Noted: good")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    assert sent[0] == sent[1]
    assert [len(events) for events in told(recording)] == [1]


def test_turns_of_one_conversation_are_recorded_as_such_and_comparisons_are_not(
    recording: Served, opens: Opens, watch: Watch
) -> None:
    watch.tolerated.append("status of 409")
    page = opens(recording.url)
    for turn in ("w1", "w2"):  # one after the other: a next turn calls off a request that is still under way
        ask(page, turn)
    press(page, "Start over")
    last = ask(page, "w3")["ranking_id"]
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Compare").check()
    with page.expect_response(lambda answer: answer.url.endswith("/rank") and answer.ok):
        press(page, "Ask again")
    # Rankings are written after their answers, and before an event that comes later.
    event = {"ranking_id": last, "kind": "resolved", "event_id": "e0"}
    recording.client.post("/feedback", json={"events": [event]}).raise_for_status()
    names = [use.ranking.conversation for use in uses(root_of(recording))]
    assert len(names) == 3
    assert names[0] == names[1] != names[2]


def edit(page: Page, turn: int, text: str) -> None:
    press(page, f"Edit turn {turn}")
    page.get_by_label(f"Edit turn {turn}").fill(text)
    press(page, "Done")


def test_what_the_assistant_edits_and_writes_is_noted(recording: Served, opens: Opens) -> None:
    page = opens(recording.url)
    first = ask(page, "w1 w2")["results"][0]["id"]
    shown(page)
    press(page, "Use this reply, rank 1")
    expect(page.get_by_text("Noted: used")).to_be_visible()
    edit(page, 2, "w4 w5")
    said = page.locator(".turn").get_by_role("status")
    expect(said.nth(1)).to_have_text("Noted: edited")
    ask(page, "w6")
    shown(page)
    ask(page, "w7")  # the assistant writes this one
    expect(said.nth(3)).to_have_text("Noted: written")
    edit(page, 4, "w7 w8")
    edit(page, 3, "w9")
    edit(page, 4, "w1")  # what it was written for is not there any more
    expect(page.get_by_text("Something was changed since.")).to_be_visible()
    page.get_by_role("radio", name="Assistant").check()
    ask(page, "w2")  # the replies shown are for something else
    shown(page)
    events = told(recording)
    assert [[kind for kind, _ in each] for each in events[:2]] == [["chosen", "edited"], ["written", "written"]]
    assert events[0] == [("chosen", first), ("edited", first)]
    assert [event.text for use in uses(root_of(recording)) for event in use.events] == [None, "w4 w5", "w7", "w7 w8"]
    assert not any(events[2:])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_is_accessible_and_fits(recording: Served, opens: Opens, scheme: str, size: str) -> None:
    given: dict[str, Any] = {"viewport": SIZES[size], "color_scheme": scheme}
    page = opens(recording.url, reduced_motion="reduce", bypass_csp=True, **given)
    ask(page, "w1 w2")
    shown(page)
    press(page, "Good reply, rank 1")
    expect(page.get_by_text("Noted: good")).to_be_visible()
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]
