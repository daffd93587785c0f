"""Candidates and generations are managed from the page, and the server agrees with what it shows."""

import json
import re
from pathlib import Path

from browsing import Opens, Watch, say, shown
from playwright.sync_api import Page, Route, expect
from served import Served
from service_fakes import pool


def confirm(page: Page, action: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=action).click()


def test_candidates_are_browsed_added_edited_and_removed(own_server: Served, opens: Opens) -> None:
    page = opens(own_server.url, "candidates")
    expect(page.get_by_text("50 candidates shown")).to_be_visible()
    page.get_by_role("button", name="Show more").click()
    expect(page.get_by_text("60 candidates shown")).to_be_visible()
    rows = own_server.client.get("/index/candidates").json()["candidates"]
    assert page.locator("tbody th").all_inner_texts() == [row["id"] for row in rows]
    assert page.locator("tbody td.text").all_inner_texts() == [row["text"] for row in rows]
    assert [json.loads(text) for text in page.locator(".metadata").all_inner_texts()] == [r["metadata"] for r in rows]

    page.get_by_role("button", name="Add a reply").click()
    page.get_by_label("Id", exact=True).last.fill("new")
    page.get_by_label("Text").fill("w1 w2 w39")
    page.get_by_label("Metadata").fill('{"lang": "new"}')
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved new: revision 1; it can be found now.")).to_be_visible()

    page.get_by_label("Filter").last.fill('{"lang": "new"}')
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("1 candidate shown")).to_be_visible()
    page.get_by_role("button", name="Edit new").click()
    page.get_by_label("Text").fill("w5")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("revision 2")).to_be_visible()
    expect(page.locator("tbody td.text")).to_have_text("w5")
    assert own_server.client.get("/index/candidates/new").json()["text"] == "w5"

    page.get_by_role("button", name="Remove new").click()
    confirm(page, "Cancel")
    assert own_server.client.get("/index/candidates/new").status_code == 200
    page.get_by_role("button", name="Remove new").click()
    confirm(page, "Remove")
    expect(page.get_by_text("Nothing found")).to_be_visible()
    assert own_server.client.get("/index/candidates/new").status_code == 404


def test_candidates_are_found_by_what_their_text_contains(server: Served, opens: Opens) -> None:
    page = opens(server.url, "candidates", viewport={"width": 360, "height": 740})
    expect(page.get_by_text("50 candidates shown")).to_be_visible()
    page.get_by_label("Contains").fill("W7")
    page.get_by_label("Filter").last.fill('{"lang": ["en", "de"]}')
    page.get_by_role("button", name="Show", exact=True).click()
    found = [each for each in pool(60) if "w7" in each.text and each.metadata["lang"] in ("en", "de")]
    assert 1 < len(found) < 20
    expect(page.locator("tbody th")).to_have_text([each.id for each in found])
    assert [text.lower() for text in page.locator("mark").all_inner_texts()] == ["w7"] * len(found)
    for button in page.get_by_role("button", name=f"Edit {found[0].id}"), page.locator("td.does button").last:
        box = button.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360, "nothing lies beside the screen"
    page.get_by_label("Contains").fill("nowhere")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("No candidate that matches this filter has this text.")).to_be_visible()


def test_a_search_of_a_large_pool_looks_at_so_many_at_a_time(server: Served, opens: Opens, watch: Watch) -> None:
    page = opens(server.url, "candidates")
    expect(page.get_by_text("50 candidates shown")).to_be_visible()

    def endless(route: Route) -> None:
        rows = [{"id": f"c{n}", "text": f"text {n}", "metadata": {}} for n in range(1000)]
        route.fulfill(json={"candidates": rows, "next": "g.0.1", "generation": "g", "revision": 0})

    page.route(re.compile(r"/index/candidates\?"), endless)
    page.get_by_label("Contains").fill("never")
    asked = len(watch.asked)
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("0 candidates shown of 10,000 candidates looked at")).to_be_visible()
    assert len(watch.asked) - asked == 10
    page.get_by_role("button", name="Look further").click()
    expect(page.get_by_text("0 candidates shown of 20,000 candidates looked at")).to_be_visible()


def test_only_what_can_work_is_offered(server: Served, opens: Opens) -> None:
    """The server has one generation, and no root for pools."""
    page = opens(server.url, "index")
    expect(page.get_by_text("This server was started without --pool-root")).to_be_visible()
    expect(page.get_by_role("button", name="Roll back")).to_have_count(0)
    expect(page.get_by_role("button", name="Start")).to_have_count(0)


def test_what_cannot_be_saved_is_told_at_its_field(own_server: Served, opens: Opens, watch: Watch) -> None:
    watch.tolerated.append("status of 4")
    page = opens(own_server.url, "candidates")
    page.get_by_role("button", name="Add a reply").click()
    page.get_by_label("Text").fill(" ")
    page.get_by_label("Metadata").fill('{"$lang": "en"}')
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_label("Text")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Metadata")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Metadata")).to_have_value('{"$lang": "en"}')


def test_generations_are_switched_and_rolled_back(own_server: Served, opens: Opens) -> None:
    index = own_server.client.get("/index").json()
    poly, bi = index["active"]["id"], index["others"][0]["id"]
    page = opens(own_server.url, "index")
    expect(page.get_by_role("heading", name=f"Serving {poly}")).to_be_visible()
    page.get_by_role("button", name=f"Activate {bi}").click()
    confirm(page, "Activate")
    expect(page.get_by_role("heading", name=f"Serving {bi}")).to_be_visible()
    assert own_server.client.get("/readyz").json()["generation"] == bi
    page.get_by_role("link", name="Talk").click()
    say(page, "w1")
    shown(page)
    expect(page.get_by_role("list", name="About this answer")).to_contain_text(bi)
    page.get_by_role("link", name="Index").click()
    page.get_by_role("button", name="Roll back").click()
    confirm(page, "Roll back")
    expect(page.get_by_role("heading", name=f"Serving {poly}")).to_be_visible()
    assert own_server.client.get("/readyz").json()["generation"] == poly


def test_a_rebuild_is_followed_to_its_end(own_server: Served, opens: Opens, tmp_path: Path) -> None:
    write_pool(tmp_path / "more.jsonl", 2_000)
    page = opens(own_server.url, "index")
    page.evaluate(FOLLOW)
    page.get_by_label("Pool").fill("more.jsonl")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("button", name="A job is running")).to_be_disabled()
    expect(page.locator(".jobs .chip").first).to_have_text("succeeded", timeout=60_000)
    served = own_server.client.get("/index").json()["active"]
    assert served["count"] == 2_000
    expect(page.get_by_role("heading", name=f"Serving {served['id']}")).to_be_visible()
    for stage, values in page.evaluate("window.followed").items():
        assert values == sorted(values), f"the progress of {stage} fell"


def test_a_job_is_cancelled(own_server: Served, opens: Opens, tmp_path: Path) -> None:
    write_pool(tmp_path / "huge.jsonl", 100_000)
    before = own_server.client.get("/readyz").json()["generation"]
    page = opens(own_server.url, "index")
    page.get_by_label("Pool").fill("huge.jsonl")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("button", name="Cancel").click()
    confirm(page, "Cancel the job")
    expect(page.locator(".jobs .chip").first).to_have_text("cancelled", timeout=60_000)
    expect(page.get_by_role("button", name="Start")).to_be_enabled()
    assert own_server.client.get("/readyz").json()["generation"] == before


def test_what_cannot_be_built_is_told_at_its_field(own_server: Served, opens: Opens, watch: Watch) -> None:
    watch.tolerated.append("status of 422")
    page = opens(own_server.url, "index")
    page.get_by_label("Pool").fill("../elsewhere.jsonl")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("Pool")).to_have_value("../elsewhere.jsonl")


# Notes the numbers of each stage whenever the page is drawn anew.
FOLLOW = """() => {
  window.followed = {};
  new MutationObserver(() => {
    for (const bar of document.querySelectorAll("progress[value]"))
      (window.followed[bar.labels[0].innerText] ??= []).push(bar.value / bar.max);
  }).observe(document.body, {subtree: true, childList: true, attributes: true, characterData: true});
}"""


def write_pool(file: Path, count: int) -> None:
    rows = ({"id": each.id, "text": each.text} for each in pool(count))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
