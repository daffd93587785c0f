"""The table of settings in docs/operations.md: kept in the repository, complete, and true."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from polyrank.service.settings import PREFIX, Settings

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_in_the_repository_is_this_one(generate: ModuleType) -> None:
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    assert generate.with_table(page) == page, "it has changed; run: make docs"


def test_every_setting_says_what_it_means() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_every_setting_has_a_row_and_every_flag_is_a_setting(generate: ModuleType) -> None:
    table = generate.settings_table()
    assert all(f"| `{PREFIX}{name.upper()}` |" in table for name in Settings.model_fields)
    assert set(generate.flags()) <= set(Settings.model_fields)
    assert "| `redis_url` | `--redis` |" in table


def test_a_page_without_a_place_for_the_table_is_refused(generate: ModuleType) -> None:
    with pytest.raises(ValueError, match="0 places"):
        generate.with_table("# Operations\n")
