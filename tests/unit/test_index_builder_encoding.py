from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder, pool

from polyrank.index_builder.building.encoding import ChunkTexts, EncodedChunk, VectorSource, encoded_by
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.representations import LateRows

OnDone = Callable[[int], None]
ENCODER = HashEncoder(longest=2)
encode = encoded_by(ENCODER)


def test_the_model_is_a_source_that_reports_each_of_its_batches() -> None:
    done: list[int] = []
    chunks = [ChunkTexts(100, ["a", "b", "c"], ["x", "yyy", "zz"], range(3)), ChunkTexts(103, ["d"], ["w"], [3])]
    source = encode(iter(chunks), done.append)
    chunk, made, truncated = next(source)
    assert chunk == chunks[0]
    assert (made.first == [ENCODER.vector(text) for text in ("x", "yyy", "zz")]).all()
    assert truncated == 1
    assert done == [3], "it reads no further than it is asked to"
    assert next(source).chunk == chunks[1]
    assert done == [3, 1]
    assert list(source) == []


def reading_ahead(chunks: Iterator[ChunkTexts], on_done: OnDone) -> Iterator[EncodedChunk]:
    yield from list(encode(chunks, on_done))


def swapped(chunks: Iterator[ChunkTexts], on_done: OnDone) -> Iterator[EncodedChunk]:
    one, other, *others = encode(chunks, on_done)
    yield from (other, one, *others)


def cut_short(chunks: Iterator[ChunkTexts], on_done: OnDone) -> Iterator[EncodedChunk]:
    yield from list(encode(chunks, on_done))[:-1]


def test_a_source_may_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "BATCH_ROWS", 4)
    told: list[tuple[str, int, int | None]] = []
    ahead = build(ENCODER, pool(10), tmp_path, vectors=reading_ahead, progress=lambda *each: told.append(each))
    steps = [(stage, done) for stage, done, _ in told if stage in ("encode", "append")]
    encoded = [("encode", done) for done in (0, 4, 8, 10)]
    assert steps == [*encoded, ("append", 0), ("encode", 10), ("append", 4), ("encode", 10), ("append", 8)]
    plain = build(ENCODER, pool(10), tmp_path)
    manifests = [GenerationStore(tmp_path).manifest(each.generation) for each in (ahead, plain)]
    assert manifests[0].files == manifests[1].files
    assert ahead.truncated == plain.truncated


@pytest.mark.parametrize(
    ("source", "message"),
    [(swapped, "from row 4 came where that from row 0 was due"), (cut_short, "of 8 candidates .* not of all")],
)
def test_a_source_must_give_every_chunk_in_order(tmp_path, monkeypatch, source: VectorSource, message: str) -> None:
    monkeypatch.setattr(candidates, "BATCH_ROWS", 4)
    with pytest.raises(BuildError, match=message):
        build(ENCODER, pool(10), tmp_path, vectors=source)
    assert list((tmp_path / "generations").iterdir()) == []


class Counting(HashEncoder):
    """Notes which texts it was asked to encode."""

    def __init__(self, **options: Any) -> None:
        super().__init__(longest=7, **options)  # "text 10" is not cut, "text 100" is
        self.asked: list[str] = []

    def represent_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> Any:
        self.asked += [bytes(each).decode() for each in candidates]
        return super().represent_candidates(candidates, on_done)


BEFORE = [Candidate(f"c{i}", f"text {90 + i}") for i in range(40)]
# Some are gone, others are moved, one has another id; "text 95" and "new" come twice, apart and side by side.
AFTER = [
    *[Candidate(each.id, each.text, {"moved": True}) for each in BEFORE[30:3:-1]],
    Candidate("again", "text 95"),
    *[Candidate(f"n{i}", text) for i, text in enumerate(("new", "new", "x", "text 500"))],
    *BEFORE[31:],
    Candidate("end", "new"),
]


def contents(root: Path, generation: str) -> dict[str, bytes]:
    path = GenerationStore(root).path(generation)
    files = {each.relative_to(path).as_posix(): each.read_bytes() for each in path.rglob("*") if each.is_file()}
    del files["manifest.json"]
    return files


@pytest.mark.parametrize("source", [None, reading_ahead])
@pytest.mark.parametrize("late", [None, LateRows(3, None), LateRows(2, 2)])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3)])
def test_a_rebuild_encodes_new_texts_alone_and_makes_the_same_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: VectorSource | None,
    late: LateRows | None,
    before: int,
    after: int,
) -> None:
    monkeypatch.setattr(candidates, "BATCH_ROWS", 4)
    build(HashEncoder(longest=7, late=late), BEFORE, tmp_path / "store", parts=before)
    model = Counting(late=late)
    ahead = None if source is None else lambda chunks, done: iter(list(encoded_by(model)(chunks, done)))
    again = build(model, AFTER, tmp_path / "store", parts=after, vectors=ahead)
    anew = build(HashEncoder(longest=7, late=late), AFTER, tmp_path / "empty", parts=after)
    assert contents(tmp_path / "store", again.generation) == contents(tmp_path / "empty", anew.generation)
    assert (again.truncated, anew.reused) == (anew.truncated, 0)
    assert anew.encoded == len({each.text for each in AFTER})
    assert again.encoded == len(model.asked)
    if ahead is None:
        assert sorted(model.asked) == ["new", "text 50", "x"], "of a text that is too long its beginning"
        [said] = again.reuse_notes
        assert said.startswith("3 texts encoded, ")
        assert 3 < again.reused <= len(AFTER) - 3
    else:  # it asks for chunks before those in front of them are written
        assert {"new", "text 50", "x"} <= set(model.asked)


def test_a_whole_pool_that_is_stored_is_not_encoded(tmp_path: Path) -> None:
    build(HashEncoder(), BEFORE, tmp_path)
    again = build(Counting(), BEFORE[::-1], tmp_path)
    assert (again.encoded, again.reused) == (0, len(BEFORE))


@pytest.mark.parametrize("name", ["embeddings.bin", "late.bin", "late.offsets", "texts.index", "candidates.arrow"])
def test_of_a_damaged_generation_nothing_is_taken(tmp_path: Path, name: str) -> None:
    late = LateRows(3, None)
    first = build(HashEncoder(longest=7, late=late), BEFORE, tmp_path / "store")
    file = GenerationStore(tmp_path / "store").path(first.generation) / name
    damaged = bytearray(file.read_bytes())
    damaged[-9] ^= 1
    file.write_bytes(damaged)
    again = build(HashEncoder(longest=7, late=late), AFTER, tmp_path / "store")
    anew = build(HashEncoder(longest=7, late=late), AFTER, tmp_path / "empty")
    assert contents(tmp_path / "store", again.generation) == contents(tmp_path / "empty", anew.generation)
    assert (again.encoded, again.reused, again.reuse_notes) == (anew.encoded, 0, [])
    [note] = again.notes
    assert note.startswith(f"all texts are encoded: generation {first.generation} is refused")
    assert name in note


class Int8(HashEncoder):
    precision, rounding = "int8", "int8-calibrated"


class Other(HashEncoder):
    backend = "other"


@pytest.mark.parametrize(("first", "second", "dtype"), [
    (HashEncoder(), HashEncoder(fingerprint="f" * 64), "float16"), (HashEncoder(), Other(), "float16"),
    (HashEncoder(), HashEncoder(), "float32"), (Int8(), Int8(), "float16"),
])  # fmt: skip
def test_of_another_model_runner_or_dtype_nothing_is_taken(
    tmp_path: Path, first: HashEncoder, second: HashEncoder, dtype: str
) -> None:
    build(first, BEFORE, tmp_path)
    again = build(second, BEFORE, tmp_path, BuildOptions(dtype=dtype))
    assert (again.encoded, again.reused, again.notes) == (len(BEFORE), 0, [])
