"""No key, a wrong one, one that may rank, and one that may all; and where a key is kept."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Opens, Watch, say, settings_of, shown
from playwright.sync_api import Page, expect
from served import Served, serve

from polyrank.service.app import create_app
from polyrank.service.auth import keys
from polyrank.service.auth.keys import Key

READER, BOSS = "reader-secret", "boss-secret"


@pytest.fixture(scope="module")
def guarded(store: Path, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    with keys.changing(file) as held:
        held += [
            Key(name="reader", sha256=keys.hashed(READER.encode()), scopes=("rank",)),
            Key(name="boss", sha256=keys.hashed(BOSS.encode()), scopes=("admin",)),
        ]
    with serve(create_app(settings_of(store, checkpoints, keys_file=file))) as served:
        yield served


@pytest.fixture(autouse=True)
def _refusals(watch: Watch) -> None:
    watch.tolerated += ["status of 401", "status of 403"]


def give(page: Page, key: str, keep: bool = False) -> None:
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill(key)
    dialog.get_by_label("Keep it until this tab is closed").set_checked(keep)
    dialog.get_by_role("button", name="Use this key").click()
    expect(dialog).to_have_count(0)


def test_each_key_may_what_it_may(guarded: Served, opens: Opens, watch: Watch) -> None:
    page = opens(guarded.url)
    expect(page.get_by_text("A key is needed.")).to_be_visible()
    say(page, "w1 w2")
    page.get_by_role("button", name="Enter a key").click()
    give(page, "wrong-secret")
    expect(page.get_by_text("The server does not know this key.")).to_have_count(1)
    page.get_by_role("button", name="Use another key").click()
    give(page, READER)
    assert shown(page)[0]["rank"] == "1", "what was asked without a key is asked again"
    page.get_by_role("link", name="Candidates").click()
    expect(page.get_by_text("This key may not do that: this needs an API key with the scope admin.")).to_be_visible()
    page.get_by_role("button", name="Use another key").click()
    give(page, BOSS)
    expect(page.get_by_text("50 candidates shown")).to_be_visible()
    page.get_by_role("link", name="Index").click()
    expect(page.get_by_role("heading", name="Serving")).to_be_visible()
    for _, url in watch.asked:
        assert "secret" not in url
    assert "secret" not in page.content()


def test_a_key_is_kept_only_where_that_was_asked_for(guarded: Served, opens: Opens) -> None:
    page = opens(guarded.url)
    page.get_by_role("button", name="Key", exact=True).click()
    give(page, READER)
    expect(page.get_by_text("poly · poly")).to_be_visible()
    assert page.evaluate("JSON.stringify([sessionStorage, localStorage, document.cookie])") == '[{},{},""]'
    page.reload()
    expect(page.get_by_text("A key is needed.")).to_be_visible()
    page.get_by_role("button", name="Key", exact=True).click()
    give(page, READER, keep=True)
    page.reload()
    say(page, "w1")
    shown(page)
    page.get_by_role("button", name="Key in use").click()
    page.get_by_role("button", name="Forget the key").click()
    expect(page.get_by_text("A key is needed.")).to_be_visible()
    assert page.evaluate("JSON.stringify(sessionStorage)") == "{}"


def test_what_no_header_can_carry_is_no_key(guarded: Served, opens: Opens) -> None:
    page = opens(guarded.url)
    page.get_by_role("button", name="Key", exact=True).click()
    page.get_by_label("Key", exact=True).fill("schl\u00fcssel")
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("alert").filter(has_text="a key has letters")).to_be_visible()
