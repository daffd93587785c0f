"""The counts of benchmarks/regression/structure.py over a tree made for it."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def structure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "regression"))
    return importlib.import_module("structure")


def test_lines_and_functions_are_counted(structure: ModuleType, tmp_path: Path) -> None:
    for package in ("service", "index_builder", "model", "tests"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "it.py").write_text("x = 1\n", encoding="utf-8")
    own = ["def one():", '    """Say."""', "    return 1", "async def two():", "    await it()", "    return 2", ""]
    (tmp_path / "service" / "it.py").write_text("\n".join(own), encoding="utf-8")
    size = structure.size(tmp_path)
    assert (size["lines of the three packages"], size["lines of tests"]) == (8, 1)
    assert size["largest file"] == (6, "service/it.py")
    assert (size["functions"], size["functions of one statement"]) == (2, 1)


def test_words_are_counted_as_wc_counts_them(structure: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "docs" / "how-to").mkdir(parents=True)
    (tmp_path / "README.md").write_text("# A name\n\n| a | b |\n", encoding="utf-8")
    (tmp_path / "docs" / "architecture.md").write_text("one two\nthree", encoding="utf-8")
    (tmp_path / "docs" / "how-to" / "go.md").write_text("one two\n", encoding="utf-8")
    assert structure.words(tmp_path) == {"words of README and docs": 8 + 3 + 2, "words of architecture.md": 3}
