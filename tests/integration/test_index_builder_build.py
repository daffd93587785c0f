import json
from pathlib import Path

import numpy as np
import pytest
from fakes import HashEncoder, assert_whole, pool
from redis_process import vector_keys

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.building.stages import EncodedContext
from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.pool.rows import read_pool
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.vectors.redis import HIT, RedisEmbeddings
from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("index", ["auto", "exact", "flat", "hnsw", "ivf", "IVF2,SQ8"])
@pytest.mark.usefixtures("small_batches")
def test_a_pool_file_becomes_the_active_generation(tmp_path: Path, index: str, dtype: str) -> None:
    wanted = pool(100)
    lines = [json.dumps({"id": each.id, "text": each.text, "metadata": each.metadata}) for each in wanted]
    lines[50:50] = ["not json", lines[7], '{"id": "x", "text": ""}']  # bad, a duplicate, empty
    (tmp_path / "pool.jsonl").write_text("\n".join(lines))
    encoder = HashEncoder(longest=6)  # "text 10" and on are cut
    result = build(
        encoder, read_pool([tmp_path / "pool.jsonl"]), tmp_path / "s",
        BuildOptions(index=index, dtype=dtype, max_rejected=0.03),
    )  # fmt: skip
    assert (result.count, result.rejected, result.truncated) == (100, 3, 90)
    assert result.rejected_log == tmp_path / "s" / "rejected" / result.generation / "rejected.jsonl"
    logged = [json.loads(line) for line in result.rejected_log.read_text().splitlines()]
    assert [each["line"] for each in logged] == [51, 52, 53]
    assert logged[1] == {"file": str(tmp_path / "pool.jsonl"), "line": 52, "reason": "the id 'c7' was seen before"}
    store = GenerationStore(tmp_path / "s")
    assert store.current() == result.generation
    [generation], refused = store.open_to_serve()
    assert refused == []
    assert_whole(generation, encoder, wanted)
    manifest = generation.manifest
    assert manifest.index.kind == {"auto": "exact", "IVF2,SQ8": "custom"}.get(index, index)
    assert (manifest.index, manifest.recall["recall@10"]) == (result.worst.index, result.worst.recall.at_10)
    assert (generation.index is None) == (manifest.index.kind == "exact")
    assert (generation.path / "index.faiss").exists() == (generation.index is not None)
    assert (manifest.dtype, manifest.dim, manifest.build.rejected, manifest.build.truncated) == (dtype, 8, 3, 90)
    measured = index in ("hnsw", "ivf", "IVF2,SQ8")
    assert (manifest.recall["probes"], manifest.recall["count"]) == (("pool", 100) if measured else ("none", 0))
    assert manifest.recall["recall@10"] == 1 or (index in ("ivf", "IVF2,SQ8") and measured)
    assert manifest.build.candidates_per_second > 0
    assert 0 < sum(manifest.build.seconds.values()) <= result.seconds
    if generation.index is not None:
        code = encoder.vector(wanted[7].text)[None]
        rows, _ = generation.index.search(code, 5)
        assert (
            rows[0] == np.argsort(-(code @ generation.embeddings.matrix.astype(np.float32).T)[0], kind="stable")[:5]
        ).any()


@pytest.mark.usefixtures("small_batches")
def test_progress_tells_every_step_before_it_begins(tmp_path: Path, redis_url: str) -> None:
    told: list[tuple[str, int, int | None]] = []
    build(
        HashEncoder(), pool(40), tmp_path, BuildOptions(redis_url=redis_url), progress=lambda *each: told.append(each)
    )
    assert told == [
        ("read", 0, None),
        *(step for done in (0, 16, 32) for step in (
            ("encode", done, 40),
            ("encode", min(done + 16, 40), 40),
            ("append", done, 40),
        )),
        ("index", 0, 1),
        ("manifest", 0, 1),
        *(("redis", done, 40) for done in (0, 16, 32)),
        ("rename", 0, 1),
        ("CURRENT", 0, 1),
    ]  # fmt: skip


def contexts(encoder: HashEncoder, count: int) -> list[EncodedContext]:
    codes = (np.stack([encoder.vector(f"said {n} {code}") for code in range(3)]) for n in range(count))
    return [EncodedContext(Conversation.of([f"said {n}"]), each) for n, each in enumerate(codes)]


def test_a_recall_that_is_not_reached_publishes_nothing(root: Path) -> None:
    store, encoder = GenerationStore(root), HashEncoder()
    before = store.ids()
    with pytest.raises(
        BuildError, match=r"recall@10 of PQ1x4 is 0\.\d+ on 50 probes even with depth 1600, below the 1 "
    ):
        build(encoder, pool(3000), root, BuildOptions(index="PQ1x4", probes=contexts(encoder, 50), min_recall=1.0))
    assert store.ids() == before
    assert list((root / "generations").glob(".tmp*")) == []


@pytest.mark.parametrize(("index", "why"), [
    ("hnws", "no FAISS factory string"), ("PQ3", "8 dimensions"),
    ("IVF41,SQ8", "at least 41 candidates"), ("ivfpq", "256"),
])  # fmt: skip
def test_an_index_that_cannot_be_built_costs_no_encoding(root: Path, index: str, why: str) -> None:
    encoder = HashEncoder()
    encoder.encode_candidates = lambda *_: pytest.fail("encoded")
    with pytest.raises(InvalidInput, match=why):
        build(encoder, pool(40), root, BuildOptions(index=index))


@pytest.mark.parametrize("probe", [np.zeros((2, 7), np.float32), np.zeros(8, np.float32), np.full((1, 8), np.nan)])
def test_probes_that_are_not_of_the_model_are_refused(root: Path, probe: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match="probes must be finite vectors of 8 components"):
        build(HashEncoder(), pool(40), root, BuildOptions(probes=[EncodedContext(Conversation.of(["hello"]), probe)]))


def test_a_good_pool_leaves_no_log(root: Path) -> None:
    assert build(HashEncoder(), pool(3), root).rejected_log is None
    assert not (root / "rejected").exists()


@pytest.mark.usefixtures("small_batches")
def test_redis_holds_a_copy_of_every_vector(root: Path, redis_url: str) -> None:
    result = build(HashEncoder(), pool(100), root, BuildOptions(redis_url=redis_url))
    generation = GenerationStore(root).open(result.generation)
    copy = RedisEmbeddings(redis_url, result.generation, 8, "float16", 5)
    fetched = copy.get_many([each.id for each in pool(100)])
    assert copy.count() == 100
    assert (fetched.status == HIT).all()
    assert (fetched.rows == generation.embeddings.matrix).all()
    GenerationStore(root).rollback()
    build(HashEncoder(), pool(3), root)
    build(HashEncoder(), pool(3), root)
    assert result.generation in GenerationStore(root).gc(keep=1, redis_url=redis_url)
    assert vector_keys(copy._client) == []
    copy.close()


def test_the_pool_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stage sees more than a batch: the longest list that reaches the model is one batch long."""
    monkeypatch.setattr(candidates, "BATCH_ROWS", 64)
    seen: list[int] = []
    encoder = HashEncoder()
    encode = encoder.encode_candidates
    encoder.encode_candidates = lambda ids, on_done=None: (seen.append(len(ids)), encode(ids, on_done))[1]
    build(encoder, iter(pool(1000)), tmp_path)
    assert max(seen) == 64
    assert sum(seen) == 1000
