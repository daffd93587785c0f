"""One pool in six formats makes one store: whole, in parts, and after a build that did not come to its end."""

from pathlib import Path

import pytest
from fakes import HashEncoder
from pool_formats import WRITERS

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import StoreBusy
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.generation.filters import matching_rows
from polyrank.index_builder.generation.manifest import FileEntry
from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.index_builder.store.generation_store import GenerationStore

pytestmark = pytest.mark.quick

OPTIONS = BuildOptions(index="exact")
ROWS = [
    Candidate(
        f"r{number}",
        f'Reply {number}; "as promised", it is on its way.\nYours',
        {
            "lang": ("de", "en")[number % 2],
            "price": number if number % 7 else number + 0.25,
            "sale": number % 3 == 0,
            "zip": f"{number:05}",
            **({"note": f"a note, {number}"} if number % 5 == 0 else {}),
        },
    )
    for number in range(60)
]
FIELDS = {
    "lang": {"kind": "text", "rows": 60},
    "price": {"kind": "number", "rows": 60},
    "sale": {"kind": "true/false", "rows": 60},
    "zip": {"kind": "text", "rows": 60},
    "note": {"kind": "text", "rows": 12},
}


def built(root: Path, pool: Path) -> tuple[str, dict[str, FileEntry]]:
    """Build; returns the generation and its files, after a look at what was said of the fields."""
    rows = read_pool([pool], root)
    generation = build(HashEncoder(), rows, root, OPTIONS).generation
    assert rows.fields.described() == {"fields": FIELDS, "repeated_texts": 0, "left_out": []}
    return generation, GenerationStore(root).verify(generation).files


@pytest.mark.parametrize("form", WRITERS)
def test_every_format_makes_the_same_files_and_finds_the_same_rows(tmp_path: Path, form: str) -> None:
    _, expected = built(tmp_path / "first", WRITERS["nested"](tmp_path, ROWS))
    generation, files = built(tmp_path / "second", WRITERS[form](tmp_path, ROWS))
    assert files == expected
    opened = GenerationStore(tmp_path / "second").open(generation)
    assert opened.candidates.rows(range(60)) == ROWS
    assert len(matching_rows(opened.candidates, {"price": {"gte": 50}})) == 10
    opened.close()


@pytest.mark.parametrize("form", WRITERS)
def test_every_format_makes_the_same_parts(tmp_path: Path, form: str) -> None:
    files = []
    for root, writer in ((tmp_path / "first", WRITERS["nested"]), (tmp_path / "second", WRITERS[form])):
        rows = read_pool([writer(tmp_path, ROWS)], root)
        made = build(HashEncoder(), rows, root, OPTIONS, parts=3).manifest
        assert rows.fields.described()["fields"] == FIELDS
        files.append(made.files)
    assert files[0] == files[1]


def test_a_build_from_one_format_goes_on_from_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "BATCH_ROWS", 16)
    _, expected = built(tmp_path / "whole", WRITERS["nested"](tmp_path, ROWS))

    def busy(stage: str, done: int, _total: int | None) -> None:
        if stage == "append" and done == 32:
            raise StoreBusy(tmp_path, "somebody")

    root = tmp_path / "store"
    with pytest.raises(StoreBusy):
        build(HashEncoder(), read_pool([WRITERS["columns"](tmp_path, ROWS)]), root, OPTIONS, progress=busy)
    result = build(HashEncoder(), read_pool([WRITERS["struct"](tmp_path, ROWS)]), root, OPTIONS)
    assert result.resumed == 32
    assert GenerationStore(root).verify(result.generation).files == expected
