"""The view "Talk": what it shows is what a direct call answers."""

import re
from typing import Any

import pytest
from browsing import Opens, Watch, ask, number, say, shown
from playwright.sync_api import Route, expect
from served import Served

DESCRIBED = """at => at.getAttribute("aria-describedby").split(" ")
    .map(id => document.getElementById(id).innerText).join()"""


@pytest.mark.parametrize("rerank", [False, True])
def test_it_shows_what_a_direct_call_answers(server: Served, opens: Opens, rerank: bool) -> None:
    page = opens(server.url)
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Persona").fill("w7 w8\n\nw9")
    page.get_by_label("Filter").fill('{"lang": ["en", "de"]}')
    page.get_by_label("Replies", exact=True).fill("7")
    page.get_by_label("Rerank").set_checked(rerank)
    ask(page, "w1 w2", "w3", "w4 w5")

    context = [
        {"role": "user", "text": "w1 w2"},
        {"role": "assistant", "text": "w3"},
        {"role": "user", "text": "w4 w5"},
    ]
    direct = server.rank(
        context=context, persona=["w7 w8", "w9"], filter={"lang": ["en", "de"]}, top_k=7, rerank=rerank
    ).json()
    assert len(direct["results"]) == 7
    parts = ("vector", "lexical", "cross") if rerank else ("vector", "lexical")
    assert shown(page) == [
        {
            "rank": str(each["rank"]),
            "text": each["text"],
            "id": each["id"],
            "scores": {"score": number(each["score"]), **{part: number(each["scores"][part]) for part in parts}},
        }
        for each in direct["results"]
    ]


def test_bars_are_what_a_part_adds_beyond_the_lowest(server: Served, opens: Opens) -> None:
    page = opens(server.url)
    results = ask(page, "w1 w2")["results"]
    shown(page)
    widths = page.locator(".reply").evaluate_all(
        "all => all.map(each => [...each.querySelectorAll('.bar span')].map(bar => parseFloat(bar.style.width)))"
    )
    columns = [[each["scores"][part] for each in results] for part in ("vector", "lexical")]
    widest = max(max(column) - min(column) for column in columns)
    for column, drawn in zip(columns, zip(*widths, strict=True), strict=True):
        assert list(drawn) == pytest.approx([100 * (value - min(column)) / widest for value in column], abs=0.01)


def test_the_bar_of_times_adds_up(server: Served, opens: Opens) -> None:
    page = opens(server.url)
    times = ask(page, "w1 w2")["timings_ms"]
    shown(page)
    expect(page.get_by_role("heading", name=f"{number(times['total'], 1)} ms")).to_be_visible()
    widths = page.locator(".stack span").evaluate_all("all => all.map(each => parseFloat(each.style.width))")
    assert sum(widths) == pytest.approx(100, abs=3)  # what is too short to be seen is left out
    names = page.locator(".timings dt").all_inner_texts()
    numbers = page.locator(".timings dd").all_inner_texts()
    told = {name: text for name, text in zip(names, numbers, strict=True) if name != "other"}
    assert told == {stage: number(ms, 1) for stage, ms in times.items() if ms >= 0.05 and stage != "total"}


def test_what_an_answer_lacks_is_a_chip(server: Served, opens: Opens) -> None:
    page = opens(server.url)
    answer = ask(page, *(" ".join(f"w{n}" for n in range(30)) for _ in range(3)))
    cut = answer["truncated"]
    assert cut["turns"] == 2
    about = page.get_by_role("list", name="About this answer")
    expect(about).to_contain_text("exact")
    expect(about).to_contain_text(f"truncated: {cut['turns']} turns")
    expect(about).to_contain_text(answer["generation"])


def test_degraded_is_a_chip(server: Served, opens: Opens) -> None:
    page = opens(server.url)

    def degraded(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "exact": False, "degraded": ["rerank_skipped_deadline"]})

    page.route("**/rank", degraded)
    ask(page, "w1")
    about = page.get_by_role("list", name="About this answer")
    expect(about).to_contain_text("approximate")
    expect(about).to_contain_text("degraded: rerank skipped deadline")


@pytest.mark.parametrize(
    ("given", "told"),
    [('{"lang": {"near": 1}}', "lang.near: is not one of gt, gte, lt, lte, exists"), ("{lang", "this is not JSON yet")],
)
def test_a_wrong_filter_is_told_at_its_field(server: Served, opens: Opens, watch: Watch, given: str, told: str) -> None:
    watch.tolerated.append("status of 422")
    page = opens(server.url)
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Filter").fill(given)
    say(page, "w1")
    field = page.get_by_label("Filter")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("alert")).to_contain_text(told)
    assert told in field.evaluate(DESCRIBED)
    field.fill('{"lang": "en"}')
    page.get_by_role("button", name="Ask again").click()
    shown(page)
    expect(field).not_to_have_attribute("aria-invalid", "true")


def test_a_number_that_the_server_refuses_is_told_at_its_field(server: Served, opens: Opens, watch: Watch) -> None:
    watch.tolerated.append("status of 422")
    page = opens(server.url)
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Replies", exact=True).fill("0")
    say(page, "w1")
    expect(page.get_by_role("alert")).to_have_text("must be 1 or more")
    expect(page.get_by_label("Replies", exact=True)).to_have_attribute("aria-invalid", "true")


def test_a_reply_is_used_and_the_talk_goes_on(server: Served, opens: Opens) -> None:
    page = opens(server.url)
    ask(page, "w1 w2")
    best = shown(page)[0]["text"]
    page.get_by_role("button", name="Use this reply, rank 1", exact=True).click()
    expect(page.get_by_text("Something was changed since")).to_be_visible()
    expect(page.get_by_label("What is said")).to_be_focused()
    with page.expect_request("**/rank") as asked:
        say(page, "w3")
    assert asked.value.post_data_json["context"] == [
        {"role": "user", "text": "w1 w2"},
        {"role": "assistant", "text": best},
        {"role": "user", "text": "w3"},
    ]
    shown(page)
    expect(page.get_by_text("Something was changed since")).to_have_count(0)


def test_turns_are_edited_and_removed(server: Served, opens: Opens) -> None:
    page = opens(server.url)
    ask(page, "w1", "w2", "w3")
    page.get_by_role("button", name="Remove turn 2").click()
    page.get_by_role("button", name="Edit turn 2").click()
    page.get_by_label("Edit turn 2").fill("w4 w5")
    page.get_by_label("Edit turn 2").press("Enter")
    page.get_by_role("button", name="Edit turn 1").click()
    page.get_by_label("Edit turn 1").fill("w9")
    page.get_by_label("Edit turn 1").press("Escape")
    with page.expect_request("**/rank") as asked:
        page.get_by_role("button", name="Rank anew").click()
    assert [turn["text"] for turn in asked.value.post_data_json["context"]] == ["w1", "w4 w5"]


def test_shift_and_enter_begin_a_line(server: Served, opens: Opens, watch: Watch) -> None:
    page = opens(server.url)
    page.get_by_label("What is said").fill("w1")
    page.get_by_label("What is said").press("Shift+Enter")
    page.get_by_label("What is said").press_sequentially("w2")
    expect(page.get_by_label("What is said")).to_have_value("w1\nw2")
    assert not [url for _, url in watch.asked if url.endswith("/rank")]


def test_no_reply_fits_the_filter(server: Served, opens: Opens) -> None:
    page = opens(server.url)
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Filter").fill('{"lang": "xx"}')
    say(page, "w1")
    expect(page.get_by_text("No reply fits")).to_be_visible()


def test_it_is_decided_whether_the_pool_answers(server: Served, opens: Opens, watch: Watch) -> None:
    watch.tolerated.append("status of 422")
    page = opens(server.url)
    page.get_by_text("Persona, filter").click()
    threshold = page.get_by_label("Answer if")
    threshold.fill("1")
    decision = ask(page, "w1 w2")["decision"]
    told = f"the first reply is right with probability {number(decision['probability'])}"
    expect(page.locator(".decision")).to_have_text(f"Does not answer\n{told}; 1 was asked for", use_inner_text=True)
    threshold.fill("0.001")
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".decision")).to_have_text(f"Answers\n{told}; 0.001 was asked for", use_inner_text=True)
    page.get_by_label("Filter").fill('{"lang": "xx"}')
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".decision")).to_contain_text("there is no reply; 0.001 was asked for")
    page.get_by_label("Filter").fill("")
    threshold.fill("2")
    page.get_by_role("button", name="Ask again").click()
    expect(page.get_by_role("alert")).to_have_text(["must be 1.0 or less"])
    threshold.fill("")
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".decision")).to_have_count(0)
    page.get_by_label("Rerank").check()
    expect(threshold).to_be_disabled()
    expect(page.get_by_text("cross is not calibrated")).to_be_visible()


def test_a_running_rerank_is_seen(server: Served, opens: Opens) -> None:
    page = opens(server.url, viewport={"width": 360, "height": 740})
    ask(page, "w1 w2")
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Rerank").check()
    held: list[Route] = []
    page.route("**/rank", lambda route: held.append(route))  # playwright marks what it is given
    page.get_by_role("button", name="Ask again").click()
    running = page.locator(".running")
    expect(running).to_have_text(re.compile("^Ranking, and reranking with cross …[1-9]"))
    expect(running).to_be_in_viewport()
    held[0].fallback()
    expect(running).to_have_count(0)
    assert "cross" in shown(page)[0]["scores"]


@pytest.mark.parametrize("size", [(1280, 900), (360, 740)])
def test_options_open_into_sight(server: Served, opens: Opens, size: tuple[int, int]) -> None:
    page = opens(server.url, viewport={"width": size[0], "height": size[1]})
    ask(page, *(" ".join(f"w{n}" for n in range(30)) for _ in range(5)))
    page.get_by_text("Persona, filter").click()
    expect(page.get_by_label("Persona")).to_be_in_viewport(ratio=1)
    expect(page.get_by_label("Compare")).to_be_in_viewport(ratio=1)


def test_what_is_wrong_with_a_turn_is_said_once(server: Served, opens: Opens, watch: Watch) -> None:
    watch.tolerated.append("status of 422")
    page = opens(server.url)

    def refuse(route: Route) -> None:
        found = [{"where": "context.0.text", "what": "is wrong"}]
        told = {"title": "Wrong", "status": 422, "detail": "wrong", "request_id": "r", "errors": found}
        route.fulfill(status=422, json=told, content_type="application/problem+json")

    page.route("**/rank", refuse)
    say(page, "w1")
    expect(page.get_by_role("alert")).to_have_text(["text: is wrong"])


def test_on_a_narrow_screen_a_mistake_comes_into_sight(server: Served, opens: Opens, watch: Watch) -> None:
    watch.tolerated.append("status of 422")
    page = opens(server.url, viewport={"width": 360, "height": 600})
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Replies", exact=True).fill("0")
    say(page, "w1")
    expect(page.get_by_role("alert")).to_have_text(["must be 1 or more"])
    expect(page.get_by_label("Replies", exact=True)).to_be_in_viewport()


def test_on_a_narrow_screen_the_replies_the_replies_come_into_sight(server: Served, opens: Opens) -> None:
    page = opens(server.url, viewport={"width": 320, "height": 600})
    ask(page, "w1 w2")
    expect(page.locator(".reply").first).to_be_in_viewport()
