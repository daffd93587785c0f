"""The pages that docs/generate.py writes are kept in the repository, complete and up to date."""

import os
from pathlib import Path
from types import ModuleType

import pytest
import scripts

from polyrank.service.settings import PREFIX, Settings

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("settings", "cli", "metrics", "http")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    return scripts.loaded("docs/generate.py")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_in_the_repository_is_up_to_date(generate: ModuleType, name: str) -> None:
    path = DOCS / "reference" / f"{name}.md"
    page = path.read_text(encoding="utf-8")
    assert generate.renewed(page, generate.pages()[path]) == page, "the code has changed; run: make docs"


def test_every_setting_says_what_it_means() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_every_setting_has_a_row_and_every_flag_is_a_setting(generate: ModuleType) -> None:
    table = generate.settings_table()
    assert all(f"| `{PREFIX}{name.upper()}` |" in table for name in Settings.model_fields)
    assert set(generate.flags()) <= set(Settings.model_fields)
    assert "| `POLYRANK_REDIS_URL` | `--redis` |" in table


def test_help_does_not_depend_on_the_terminal(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    narrow = generate.command_help()
    monkeypatch.setenv("COLUMNS", "200")
    assert generate.command_help() == narrow
    assert os.environ["COLUMNS"] == "200"
    assert "\npolyrank store gc --store STORE\n" in narrow


def test_what_stands_elsewhere_is_named_alone(generate: ModuleType) -> None:
    first, second = (
        "usage: a\n\noptions:\n  --x X  one\n  --y Y  two\n         lines\n",
        "  --y Y  two\n         lines\n",
    )
    assert generate._without(first, second).endswith("options:\n  --x X  one\n\nas in polyrank train:\n  --y\n")


def test_what_actions_share_is_told_once(generate: ModuleType) -> None:
    first = "usage: a b --x X\n\noptions:\n  --x X  one\n  --y Y  two\n  --z    three\n"
    second = "usage: a c --x X\n\noptions:\n  --x X    one\n  --z      three\n"
    third = "usage: a d\n\noptions:\n  --z  three\n"
    assert generate._group("usage: a\n", [first, second, third]) == (
        "usage: a\n\na b --x X\n\noptions:\n  --x X  one\n  --y Y  two\n\na c --x X\n\na d\n"
        "\noptions of all actions:\n  --z    three\n"
    )


def test_metrics_have_their_exposed_names_and_labels(generate: ModuleType) -> None:
    table = generate.metrics_table()
    assert "| `polyrank_http_requests_total` | counter | `route`; `method`; `code` |" in table
    assert "| `polyrank_degraded_total` | counter | `reason`: " in table
    assert "_created" not in table


def test_routes_are_listed_with_what_they_do_and_need(generate: ModuleType) -> None:
    table = generate.routes_table()
    assert "| `POST /rank` | Rank candidates" in table
    assert "conversation. | `rank` |" in table


@pytest.mark.parametrize("page", ["# Settings\n", "# Settings\n{mark}{mark}"])
def test_a_page_without_exactly_one_mark_is_refused(generate: ModuleType, page: str) -> None:
    with pytest.raises(ValueError, match="marks"):
        generate.renewed(page.format(mark=generate.MARK), "new")
