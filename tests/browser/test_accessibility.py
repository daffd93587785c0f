"""WCAG 2.2 AA as far as axe sees it, everything by keyboard alone, 320 px, dark, and without motion."""

from typing import Any

import pytest
from browsing import Opens, ask, faults, shown, tab_to
from playwright.sync_api import expect
from served import Served

NARROW = {"width": 320, "height": 640}
WIDE = {"width": 1280, "height": 800}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_axe_finds_nothing_in_any_view(server: Served, opens: Opens, scheme: str, size: Any) -> None:
    page = opens(server.url, color_scheme=scheme, viewport=size, reduced_motion="reduce", bypass_csp=True)
    assert faults(page) == []
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Filter").fill("{")
    page.get_by_label("Rerank").check()
    page.get_by_label("What is said").fill("w1 w2")
    page.get_by_label("What is said").press("Enter")
    page.get_by_role("alert").wait_for()
    assert faults(page) == []
    page.get_by_label("Filter").fill("")
    ask(page, "w3")
    shown(page)
    page.get_by_role("button", name="Why rank 1", exact=True).click()
    expect(page.get_by_role("heading", name="What speaks for this reply")).to_be_visible()
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    for view, ready in (("Candidates", "50 candidates shown"), ("Index", "Build a generation")):
        page.get_by_role("link", name=view).click()
        expect(page.get_by_text(ready)).to_be_visible()
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    page.get_by_role("button", name="Key").click()
    assert faults(page) == []


def test_everything_goes_by_keyboard(own_server: Served, opens: Opens) -> None:
    page = opens(own_server.url, viewport=WIDE)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # "Skip to the content"
    expect(page.get_by_role("heading", name="Talk")).to_be_focused()
    tab_to(page, "What is said")
    page.keyboard.type("w1 w2")
    page.keyboard.press("Enter")
    shown(page)
    tab_to(page, "Why rank 1")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="What speaks for this reply")).to_be_visible()
    tab_to(page, page.locator(".codes tbody button").first.get_attribute("aria-label") or "")
    page.keyboard.press("Space")
    expect(page.get_by_role("heading", name="What code")).to_be_visible()
    page.get_by_role("button", name="Why rank 1", exact=True).focus()
    tab_to(page, "Use this reply, rank 1")
    page.keyboard.press("Enter")
    expect(page.get_by_label("What is said")).to_be_focused()
    page.keyboard.type("w3")
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(3)

    page.get_by_role("link", name="Talk").focus()
    tab_to(page, "Candidates")
    page.keyboard.press("Enter")
    tab_to(page, "Add a reply")
    page.keyboard.press("Enter")
    tab_to(page, "Text")
    page.keyboard.type("w4")
    tab_to(page, "Save")
    page.keyboard.press("Enter")
    expect(page.get_by_text("revision 1")).to_be_visible()

    page.get_by_role("link", name="Talk").focus()
    tab_to(page, "Index")
    page.keyboard.press("Enter")
    tab_to(page, "Roll back")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Roll back")).to_be_focused()


def test_what_changes_is_told_to_screen_readers(server: Served, opens: Opens) -> None:
    page = opens(server.url)
    ask(page, "w1 w2")
    expect(page.get_by_role("status").filter(has_text="10 replies")).to_have_count(1)
    expect(page.get_by_role("status").filter(has_text="Server: ready")).to_have_count(1)


def test_nothing_moves_where_that_is_not_wanted(server: Served, opens: Opens) -> None:
    for motion, moves in (("reduce", False), ("no-preference", True)):
        page = opens(server.url, reduced_motion=motion)
        ask(page, "w1 w2")
        shown(page)
        spent = page.locator(".bar span").first.evaluate("bar => getComputedStyle(bar).transitionDuration")
        assert (spent != "0s") is moves
