"""The page of one pool of several."""

from pathlib import Path

from browsing import Opens, Watch, ask, settings_of, shown
from playwright.sync_api import expect
from served import Served, serve
from service_fakes import pool

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.service.app import create_app


def test_another_pool_is_chosen(store: Path, checkpoints: Path, tmp_path: Path, opens: Opens, watch: Watch) -> None:
    watch.tolerated.append(r"^foreign: \S+/pools/shop/")
    build(polyrank.load(checkpoints / "bi"), pool(20), tmp_path / "shop")
    settings = settings_of(store, checkpoints).model_copy(
        update={"store": {"support": store, "shop": tmp_path / "shop"}}
    )
    with serve(create_app(settings)) as served:
        page = opens(f"{served.url}/pools/support", "index")
        expect(page.get_by_text("60", exact=True)).to_be_visible()
        assert page.get_by_label("Pool").locator("option").all_inner_texts() == ["support", "shop"]
        page.get_by_label("Pool").select_option("shop")
        expect(page.get_by_text("20", exact=True)).to_be_visible()
        assert page.url == f"{served.url}/pools/shop/playground#index"
        page.get_by_role("link", name="Talk").click()
        answer = ask(page, "w1 w2 w3")
        assert [each["id"] for each in shown(page)] == [each["id"] for each in answer["results"]]


def test_a_single_pool_has_no_choice(server: Served, opens: Opens) -> None:
    page = opens(server.url)
    expect(page.locator(".server")).to_contain_text("ready")
    expect(page.get_by_label("Pool")).to_have_count(0)
