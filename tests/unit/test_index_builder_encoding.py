from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import HashEncoder, pool

from polyrank.index_builder.building.encoding import ChunkTexts, EncodedChunk, VectorSource, encoded_by
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.store.generation_store import GenerationStore

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
    [
        (swapped, "from row 4 came where that from row 0 was due"),
        (cut_short, "of 8 candidates .* not of all"),
    ],
)
def test_a_source_must_give_every_chunk_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: VectorSource, message: str
) -> None:
    monkeypatch.setattr(candidates, "BATCH_ROWS", 4)
    with pytest.raises(BuildError, match=message):
        build(ENCODER, pool(10), tmp_path, vectors=source)
    assert list((tmp_path / "generations").iterdir()) == []
