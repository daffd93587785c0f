"""Two generations side by side: each answers for itself, and the page tells what differs."""

from itertools import pairwise
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from browsing import Opens, Watch, number, say, signed
from playwright.sync_api import Locator, expect
from served import Served

TURNS = [{"role": "user", "text": "w1 w2"}]


def rows(side: Locator) -> list[tuple[str, str, str]]:
    return [
        (row.locator(".rank").inner_text(), row.locator(".text").inner_text(), row.locator(".number b").inner_text())
        for row in side.locator("li:has(.rank)").all()
    ]


def expected(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(str(each["rank"]), each["text"], number(each["score"])) for each in answer["results"]]


def test_live_and_trial_are_compared(own_server: Served, opens: Opens) -> None:
    index = own_server.client.get("/index").json()
    other = index["others"][0]["id"]
    page = opens(own_server.url, "index", bypass_csp=True)
    page.get_by_role("button", name=f"Try {other}").click()
    row = page.get_by_role("row").filter(has_text=other)
    expect(row).to_contain_text("on trial, ")
    expect(row.get_by_role("button")).to_have_text(["End the trial", "Activate"])
    page.get_by_role("link", name="Talk").click()
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Replies", exact=True).fill("30")
    page.get_by_label("Compare").check()
    say(page, "w1 w2")
    live, trial = page.get_by_role("region", name="Live"), page.get_by_role("region", name="Trial")
    expect(trial).to_be_visible()

    assert Axe().run(page).response["violations"] == []
    answers = {which: own_server.rank(context=TURNS, top_k=30, generation=which).json() for which in ("live", "trial")}
    assert (answers["live"]["generation"], answers["trial"]["generation"]) == (index["active"]["id"], other)
    assert rows(live) == expected(answers["live"])
    assert rows(trial) == expected(answers["trial"])
    expect(live).to_contain_text(answers["live"]["generation"])
    expect(trial).to_contain_text(other)

    before = {each["id"]: each for each in answers["live"]["results"]}
    after = {each["id"] for each in answers["trial"]["results"]}
    for row, each in zip(trial.locator("li:has(.rank)").all(), answers["trial"]["results"], strict=True):
        told = row.locator(".number .quiet").inner_text()
        if each["id"] not in before:
            assert told == "new"
        else:
            moved = before[each["id"]]["rank"] - each["rank"]
            sign = f"▲ {moved}" if moved > 0 else f"▼ {-moved}" if moved < 0 else "same rank"
            assert told == sign, "scores of two models have nothing in common"
    assert 0 < page.locator(".compare line").count() == len(after & before.keys())
    gone = live.get_by_text("gone", exact=True)
    expect(gone).to_have_count(len(before.keys() - after))

    page.set_viewport_size({"width": 320, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    for side in (live, trial):
        parts = [side.locator(part).bounding_box() for part in ("header", "ol", ".timings")]
        for above, below in pairwise(parts):
            assert above["y"] + above["height"] <= below["y"], "nothing lies over something else"

    page.get_by_role("link", name="Index").click()
    page.get_by_role("button", name="End the trial").click()
    expect(page.get_by_role("button", name=f"Try {other}")).to_be_visible()
    assert own_server.rank(context=TURNS, generation="trial").status_code == 409


def test_scores_of_one_reranker_are_compared(own_server: Served, opens: Opens) -> None:
    other = own_server.client.get("/index").json()["others"][0]["id"]
    assert own_server.client.post("/index/trial", json={"generation": other}).status_code == 200
    page = opens(own_server.url)
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Rerank").check()
    page.get_by_label("Compare").check()
    say(page, "w1 w2")
    trial = page.get_by_role("region", name="Trial")
    expect(trial).to_be_visible()
    answers = {
        which: own_server.rank(context=TURNS, rerank=True, generation=which).json() for which in ("live", "trial")
    }
    before = {each["id"]: each["score"] for each in answers["live"]["results"]}
    told = trial.locator(".number .quiet").all_inner_texts()
    expected = [
        f", {signed(each['score'] - before[each['id']])}" if each["id"] in before else "new"
        for each in answers["trial"]["results"]
    ]
    assert all(line.endswith(end) for line, end in zip(told, expected, strict=True)), (told, expected)
    assert before.keys() & {each["id"] for each in answers["trial"]["results"]}


def test_without_a_trial_the_page_says_so(server: Served, opens: Opens, watch: Watch) -> None:
    watch.tolerated.append("status of 409")
    page = opens(server.url)
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Compare").check()
    say(page, "w1")
    expect(page.get_by_role("alert")).to_contain_text("No generation is on trial")
