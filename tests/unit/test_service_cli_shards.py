"""`polyrank shards`, and what `polyrank store` and `polyrank build` do with a pool in several parts."""

from pathlib import Path

import pytest
from command_line import call
from fakes import HashEncoder, pool

from polyrank.index_builder.building.pipeline import BuildOptions, build
from polyrank.index_builder.store.generation_store import GenerationStore

Capture = pytest.CaptureFixture[str]


def cut(root: Path, salt: str = "") -> str:
    return build(HashEncoder(), pool(40, salt), root, BuildOptions(index="exact"), parts=2).manifest.id


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_round_trip(capsys: Capture, store: Path) -> None:
    first, second = cut(store), cut(store, "new ")
    told = call(capsys, "store", "list", "--store", store, "--json").result
    assert told["current"] == second
    assert [each["id"] for each in told["generations"]] == [first, second]
    assert [part["slots"] for part in told["generations"][0]["parts"]] == ["0000-2048", "2048-4096"]
    assert sum(part["count"] for part in told["generations"][0]["parts"]) == told["generations"][0]["count"] == 40
    assert call(capsys, "store", "verify", "--store", store, "--json").result["verified"] == [first, second]
    assert call(capsys, "store", "rollback", "--store", store, "--json").result == {"current": first}
    moved = call(capsys, "shards", "move", "--store", store, "--to", "3", "--json").result
    assert moved == {"current": GenerationStore(store).current(), "count": 40, "parts": 3}
    assert call(capsys, "store", "activate", "--store", store, second, "--json").result == {"current": second}
    assert call(capsys, "store", "gc", "--store", store, "--keep", "1") == (0, f"removed 1: {first}\n", "")
    said = call(capsys, "store", "list", "--store", store).out
    assert f"* {second}  40 candidates in 2 parts, exact, hash" in said
    assert "40 candidates in 3 parts" in said


def test_damage_is_told(capsys: Capture, store: Path) -> None:
    made = cut(store)
    (store / "generations" / made / "parts" / "0" / "ids.index").write_bytes(b"")
    for action in ("verify", "list"):
        assert "part 0000-2048: ids.index has 0 bytes" in call(capsys, "store", action, "--store", store).out


def test_a_pool_is_built_into_parts(capsys: Capture, store: Path, tmp_path: Path) -> None:
    file = tmp_path / "pool.jsonl"
    file.write_text("".join(f'{{"text": "the number {n} alone"}}\n' for n in range(30)) + '{"text": ""}\n')
    built = ["build", "--model", "lexical", "--pool", file, "--store", store, "--max-rejected", "0.1"]
    made = call(capsys, *built, "--shards", "3", "--json").result
    assert (made["generation"], made["count"], made["rejected"]) == (GenerationStore(store).current(), 30, 1)
    assert sum(part["count"] for part in made["parts"]) == 30
    said = call(capsys, *built, "--shards", "2", "--no-activate")
    assert "is published: 30 candidates in 2 parts" in said.out
    assert GenerationStore(store).current() == made["generation"]
    assert "parts" not in call(capsys, *built, "--json").result
    assert "--shards: must be a whole number from 1 to 256, not '0'" in call(capsys, *built, "--shards", "0").misuse
