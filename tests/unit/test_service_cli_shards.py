"""`polyrank shards`, and what `polyrank store` and `polyrank build` do with a store that is cut into parts."""

from pathlib import Path

import pytest
from command_line import call
from fakes import HashEncoder, pool

from polyrank.index_builder.building.pipeline import BuildOptions, build
from polyrank.index_builder.scale.cutting import build_parts
from polyrank.index_builder.scale.sets import PartsStore

Capture = pytest.CaptureFixture[str]


def cut(root: Path, salt: str = "") -> str:
    return build_parts(HashEncoder(), pool(40, salt), root, 2, BuildOptions(index="exact")).made.id


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
    assert moved == {"current": PartsStore(store).current(), "count": 40, "parts": 3}
    assert call(capsys, "store", "activate", "--store", store, second, "--json").result == {"current": second}
    assert call(capsys, "store", "gc", "--store", store, "--keep", "1") == (0, f"removed 1: {first}\n", "")
    said = call(capsys, "store", "list", "--store", store).out
    assert f"* {second}  40 candidates in 2 parts, exact, hash" in said
    assert "40 candidates in 3 parts" in said


def test_damage_is_told(capsys: Capture, store: Path) -> None:
    made = cut(store)
    sets = PartsStore(store)
    part = sets.read(made).parts[0]
    directory = sets.part(part.slots).path(part.generation)
    (directory / "ids.index").write_bytes(b"")
    assert f"part {part.name}: " in call(capsys, "store", "verify", "--store", store).out
    (directory / "manifest.json").unlink()
    assert "manifest.json is missing" in call(capsys, "store", "list", "--store", store).out
    (store / "generations" / made / "manifest.json").write_text("{}")
    assert "refused: " in call(capsys, "store", "list", "--store", store).out


def test_what_is_not_cut_is_refused_with_what_to_do(capsys: Capture, store: Path, tmp_path: Path) -> None:
    build(HashEncoder(), pool(5), store)
    assert "build --shards" in call(capsys, "shards", "move", "--store", store, "--to", "2").failure()
    assert "is no directory" in call(capsys, "store", "list", "--store", tmp_path / "none").failure(2)


def test_what_needs_a_whole_store_says_so(capsys: Capture, store: Path) -> None:
    cut(store)
    assert "is cut into parts" in call(capsys, "rank", "--store", store, "hello").failure()
    for action in ("compact", "gc"):
        refused = call(capsys, "store", action, "--store", store, "--redis", "redis://localhost").failure(2)
        assert "--redis: the vectors of parts" in refused
    collecting = ["store", "gc", "--store", store]
    assert "--keep: must be a whole number from 1 to 10,000" in call(capsys, *collecting, "--keep", "0").misuse


def test_a_pool_is_built_into_parts(capsys: Capture, store: Path, tmp_path: Path) -> None:
    file = tmp_path / "pool.jsonl"
    file.write_text("".join(f'{{"text": "the number {n} alone"}}\n' for n in range(30)) + '{"text": ""}\n')
    built = ["build", "--model", "lexical", "--pool", file, "--store", store, "--max-rejected", "0.1"]
    made = call(capsys, *built, "--shards", "3", "--json").result
    assert (made["generation"], made["count"], made["rejected"]) == (PartsStore(store).current(), 30, 1)
    assert sum(part["count"] for part in made["parts"]) == 30
    said = call(capsys, *built, "--shards", "2", "--no-activate")
    assert "is published: 30 candidates in 2 parts" in said.out
    assert PartsStore(store).current() == made["generation"]
    assert "is cut into parts" in call(capsys, *built).failure()
    assert "--redis does not go with --shards" in call(
        capsys, *built, "--shards", "2", "--redis", "redis://localhost"
    ).failure(2)
    assert "--shards: must be a whole number from 1 to 256, not '0'" in call(capsys, *built, "--shards", "0").misuse
