"""The counts of benchmarks/regression/structure.py over a tree made for it."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = """
def rank(request, *, deadline, timings=None):
    def late(deadline): return lambda timings: isinstance(request, Request)
    if isinstance(request.pool, SetServing) or isinstance(request.part, LocalPart | None):
        return isinstance(request, (Snapshot, int)), isinstance(request, PartMissing), is_live(request, Live)
"""


@pytest.fixture
def structure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "regression"))
    return importlib.import_module("structure")


def test_what_is_handed_on_and_questions_about_pools_are_counted(structure: ModuleType, tmp_path: Path) -> None:
    for package in ("service", "index_builder", "model", "tests"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "it.py").write_text(SOURCE if package == "service" else "x = 1\n", encoding="utf-8")
    files = structure.sources(tmp_path)
    assert [each.path for each in files] == ["service/it.py", "index_builder/it.py", "model/it.py"]
    assert structure.sizes(files)["lines"] == SOURCE.count("\n") + 2
    glue = structure.glue(files)
    assert (glue["parameters named deadline"], glue["parameters named timings"]) == (2, 2)
    assert sorted(glue["isinstance over pools"]) == ["service/it.py:4", "service/it.py:4", "service/it.py:5"]


def test_words_are_counted_as_wc_counts_them(structure: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "docs" / "how-to").mkdir(parents=True)
    (tmp_path / "README.md").write_text("# A name\n\n| a | b |\n", encoding="utf-8")
    (tmp_path / "docs" / "architecture.md").write_text("one two\nthree", encoding="utf-8")
    (tmp_path / "docs" / "how-to" / "go.md").write_text("one two\n", encoding="utf-8")
    assert structure.words(tmp_path) == {"words of README and docs": 8 + 3 + 2, "words of architecture.md": 3}
