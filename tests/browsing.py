"""What tests of the page do in a browser, and what they watch."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Response, expect

from polyrank.service.settings import Settings

# What an element is called.
SEEN = "node => node.getAttribute('aria-label') ?? node.textContent.trim()"

# Opens the page of a server; keyword arguments are those of a browser's context.
Opens = Callable[..., Page]


class Watch:
    """What a page reports that it should not.

    Attributes:
        tolerated: patterns of console messages that the test provokes.
        asked: method and URL of every request.
    """

    def __init__(self) -> None:
        self.tolerated: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self._reports: list[str] = []

    def follow(self, page: Page, url: str) -> None:
        page.on("console", lambda message: self._reports.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self._reports.append(f"uncaught: {error}"))
        page.on("request", lambda request: self.asked.append((request.method, request.url)))
        page.on("request", lambda request: self._check(request.url, url))

    def _check(self, asked: str, url: str) -> None:
        if not asked.startswith(f"{url}/"):
            self._reports.append(f"foreign: {asked}")

    def found(self) -> list[str]:
        return [report for report in self._reports if not any(re.search(each, report) for each in self.tolerated)]


def say(page: Page, *turns: str) -> None:
    """Write turns and send each with Enter; who says it changes by itself."""
    for turn in turns:
        page.get_by_label("What is said").fill(turn)
        page.get_by_label("What is said").press("Enter")


def ask(page: Page, *turns: str) -> dict[str, Any]:
    """Write turns and return the answer to the last one, which the page shows."""

    count = page.locator(".turn").count() + len(turns)

    def is_last(answer: Response) -> bool:
        return answer.url.endswith("/rank") and len(answer.request.post_data_json["context"]) == count

    with page.expect_response(is_last) as answered:
        say(page, *turns)
    return dict(answered.value.json())


def number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def shown(page: Page) -> list[dict[str, Any]]:
    """The replies on the page, from top to bottom."""
    expect(page.locator(".results[aria-busy=false] .reply").first).to_be_visible()
    return [
        {
            "rank": reply.locator(".rank").evaluate("each => each.lastChild.data"),
            "text": reply.locator(".text").inner_text(),
            "id": reply.locator(".about code").inner_text(),
            "scores": dict(
                zip(reply.locator("dt").all_inner_texts(), reply.locator("dd").all_inner_texts(), strict=True)
            ),
        }
        for reply in page.locator(".reply").all()
    ]


def signed(value: float, digits: int = 3) -> str:
    return ("+" if round(value, digits) > 0 else "") + number(value, digits)


def tokens_shown(page: Page) -> list[tuple[float, float, str]]:
    """Number, share of the full colour, and kind of each token of the conversation, as it is drawn; marks have no
    colour."""
    drawn = page.locator(".strips li > *").evaluate_all(
        "all => all.map(each => [each.querySelector('b').innerText, each.style.getPropertyValue('--share'),"
        " each.className])"
    )
    return [(float(text.replace("\N{MINUS SIGN}", "-")), float(share or 0), kind) for text, share, kind in drawn]


def tab_to(page: Page, name: str) -> None:
    """Press Tab until the focus is on what is called so."""
    for _ in range(200):
        page.keyboard.press("Tab")
        focused = page.evaluate(f"({SEEN})(document.activeElement)")
        labels = page.evaluate("[...(document.activeElement.labels ?? [])].map(each => each.innerText).join()")
        if name in (focused, labels):
            return
    raise AssertionError(f"Tab never comes to {name}")


def faults(page: Page) -> list[tuple[str, str]]:
    """What axe finds wrong with a page."""
    found = Axe().run(page).response["violations"]
    return [(each["id"], node["html"]) for each in found for node in each["nodes"]]


def settings_of(store: Path, checkpoints: Path, **more: Any) -> Settings:
    return Settings(
        store=store, reranker=str(checkpoints / "cross"), model_root=checkpoints, threads=1, backend="torch",
        precision="float32", **more,
    )  # fmt: skip
