"""Texts that look like markup or break layouts stay text, and the browser reports nothing."""

import pytest
from browsing import Opens, Watch, ask, shown
from playwright.sync_api import expect
from served import Served

MARKUP = """</script><img src=x onerror="alert(1)"><script>alert(2)</script><style>*{display:none}</style>&lt;b&gt;"""
RIGHT_TO_LEFT = "\u202eevil \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 (w1) \u2066x"
LONG = "w1" * 10_000
TEXTS = {"markup": MARKUP, "rtl": RIGHT_TO_LEFT, "long": LONG, "lines": "w1\n\n  w2\tw3"}


@pytest.fixture
def hostile(own_server: Served) -> Served:
    rows = [{"id": f"<b>{name}", "text": text, "metadata": {"<i>": text[:900]}} for name, text in TEXTS.items()]
    assert own_server.client.put("/index/candidates", json=rows).status_code == 200
    return own_server


def test_they_are_shown_as_they_are(hostile: Served, opens: Opens) -> None:
    page = opens(hostile.url, viewport={"width": 320, "height": 700})
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Replies", exact=True).fill("100")
    page.get_by_label("Persona").fill(MARKUP)
    ask(page, MARKUP, RIGHT_TO_LEFT, LONG)
    texts = {each["id"]: each["text"] for each in shown(page)}
    assert {f"<b>{name}": text for name, text in TEXTS.items()}.items() <= texts.items()
    assert page.locator(".turn p.text").all_inner_texts() == [MARKUP, RIGHT_TO_LEFT, LONG]
    assert page.locator("#app img, #app script, #app style, #app b, #app i").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    for name, text in TEXTS.items():
        reply = page.locator(".reply").filter(has=page.get_by_text(f"<b>{name}", exact=True))
        reply.get_by_role("button", name="Why").click()
        expect(reply.locator(".strips")).to_be_visible()
        told = "".join(reply.locator(".why > .strip li [dir]").all_inner_texts())
        assert told.startswith("[CLS]" + "".join(text.split())[:6])
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        assert reply.evaluate("reply => reply.offsetHeight") < 20_000
    assert page.locator("#app img, #app script, #app style, #app b:not(.strip b), #app i:not(.cells i)").count() == 0

    page.goto(f"{hostile.url}/playground#candidates")
    page.get_by_label("Id", exact=True).fill("<b>markup")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("1 candidate shown")).to_be_visible()
    assert page.locator("td.text").inner_text() == MARKUP
    page.get_by_role("button", name="Edit <b>markup").click()
    expect(page.get_by_label("Text")).to_have_value(MARKUP)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved <b>markup")).to_be_visible()
    assert hostile.client.get("/index/candidates/%3Cb%3Emarkup").json()["text"] == MARKUP


def test_half_a_character_is_refused_by_the_server_and_can_be_mended(
    server: Served, opens: Opens, watch: Watch
) -> None:
    watch.tolerated.append("status of 400")
    page = opens(server.url)
    page.get_by_label("What is said").evaluate(
        """box => { box.value = 'w1 ' + String.fromCharCode(0xD800) + ' w2';
                    box.dispatchEvent(new Event('input', {bubbles: true})); }"""
    )
    with page.expect_response("**/rank") as answered:
        page.get_by_label("What is said").press("Enter")
    assert b"\\ud800" in answered.value.request.post_data_buffer
    expect(page.get_by_role("alert")).to_contain_text("The body is not JSON")
    page.get_by_role("button", name="Edit turn 1").click()
    page.get_by_label("Edit turn 1").fill("w1 w2")
    page.get_by_label("Edit turn 1").press("Enter")
    page.get_by_role("button", name="Ask again").click()
    shown(page)
