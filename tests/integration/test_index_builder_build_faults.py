"""However a build ends, what was served before is untouched and nothing else is left."""

import errno
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from fakes import EVIDENCE, HashEncoder, assert_whole, pool
from redis_process import RedisProcess, vector_keys

from polyrank.index_builder.building import pipeline
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import (
    BuildBusy,
    BuildError,
    DiskFull,
    PoolEmpty,
    PoolInvalid,
    StoreUnavailable,
    TooManyRejected,
)
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.pool.rows import Rejected, read_pool
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.vectors.local import EmbeddingsWriter
from polyrank.index_builder.vectors.redis import HIT, RedisEmbeddings
from polyrank.model.errors import InvalidInput

pytestmark = pytest.mark.quick

REPOSITORY = Path(__file__).parents[2]


class NanEncoder(HashEncoder):
    """Gives one vector that is not a number."""

    value = np.nan

    def encode_candidates(self, candidates: Any, on_done: Any = None) -> Any:
        vectors = super().encode_candidates(candidates, on_done).copy()
        vectors[-1, 3] = self.value
        return vectors


def assert_untouched(root: Path) -> None:
    """Nothing but the first generation is there, and it is active and whole."""
    store = GenerationStore(root)
    assert [path.name for path in (root / "generations").iterdir()] == store.ids() == [store.current()]
    assert_whole(store.open(store.ids()[0]), HashEncoder(), pool(20))


def test_too_many_bad_rows_fail_before_any_encoding_and_are_listed(root: Path, tmp_path: Path) -> None:
    told = []
    rows = [*pool(98), *(Rejected("p.jsonl", line, "'text' is empty") for line in (99, 100))]
    with pytest.raises(TooManyRejected) as caught:
        build(HashEncoder(), rows, root, progress=lambda stage, *_: told.append(stage))
    assert set(told) == {"read"}
    assert str(caught.value) == (
        "2 of 100 rows are bad, more than the 1.00% allowed; the first: p.jsonl:99: 'text' is empty; "
        f"see {caught.value.log}"
    )
    assert len(caught.value.log.read_text().splitlines()) == 2
    assert (caught.value.log.name, caught.value.log.parents[1]) == ("rejected.jsonl", root / "rejected")
    assert_untouched(root)
    assert build(HashEncoder(), rows, root, BuildOptions(max_rejected=0.02)).rejected == 2


def test_a_small_pool_of_endless_bad_rows_is_given_up_early(root: Path, tmp_path: Path) -> None:
    squeezed = tmp_path / "pool.jsonl.zst"
    squeezed.write_bytes(zstandard.compress(b"1\n" * 2_000_000))
    assert squeezed.stat().st_size < 1000
    with pytest.raises(TooManyRejected, match="10001 of the first 10001 rows are bad") as caught:
        build(HashEncoder(), read_pool([squeezed]), root)
    assert caught.value.log.stat().st_size < 10_000 * 300
    assert_untouched(root)


def test_the_list_of_bad_rows_has_an_end_where_many_are_allowed(root: Path) -> None:
    rows = [*pool(3), *(Rejected("p.jsonl", line, "'text' is empty") for line in range(10_500))]
    built = build(HashEncoder(), rows, root, BuildOptions(max_rejected=1.0))
    assert built.rejected == 10_500
    assert len(built.rejected_log.read_bytes().splitlines()) == 10_000


def test_repeated_texts_take_no_bad_row_its_place_in_the_list(root: Path) -> None:
    repeated = (Rejected("p.jsonl", line, "seen before", is_bad=False) for line in range(10_500))
    rows = [*pool(3), *repeated, Rejected("p.jsonl", 10_500, "'text' is empty")]
    with pytest.raises(TooManyRejected, match="1 of 10504 rows are bad") as caught:
        build(HashEncoder(), rows, root, BuildOptions(max_rejected=0.0))
    listed = caught.value.log.read_bytes().splitlines()
    assert (len(listed), b"is empty" in listed[-1]) == (10_001, True)


def test_bad_rows_at_the_beginning_of_a_good_pool_do_not_end_it(root: Path) -> None:
    rows = [*(Rejected("p.jsonl", line, "'text' is empty") for line in range(50)), *pool(5000)]
    assert build(HashEncoder(), rows, root).rejected == 50


def test_a_chat_log_that_repeats_its_replies_is_no_bad_pool(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "replies.csv"
    log.write_text("text\nyes\nno\nyes\nYes, of course.\nyes\nno\n", encoding="utf-8")
    built = build(HashEncoder(), read_pool([log]), root)
    assert (built.manifest.count, built.rejected) == (3, 3)
    listed = [json.loads(line) for line in built.rejected_log.read_text(encoding="utf-8").splitlines()]
    assert [(row["line"], row["reason"]) for row in listed] == [
        (line, "the text, without an id, was seen before") for line in (4, 6, 7)
    ]
    log.write_text("id,text\na,yes\na,no\n", encoding="utf-8")
    with pytest.raises(TooManyRejected, match="1 of 2 rows are bad"):
        build(HashEncoder(), read_pool([log]), root)


def test_an_empty_pool_is_told(root: Path) -> None:
    with pytest.raises(PoolEmpty, match=r"holds no candidate$"):
        build(HashEncoder(), [], root)
    with pytest.raises(PoolEmpty, match=r"the bad rows: .*jsonl$"):
        build(HashEncoder(), [Rejected("p", 1, "bad")], root, BuildOptions(max_rejected=1.0))
    assert_untouched(root)


def test_a_pool_that_breaks_off_leaves_nothing(root: Path, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(PoolInvalid):
        build(HashEncoder(), read_pool([tmp_path / "p.jsonl.gz"]), root)
    assert_untouched(root)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 70_000.0])
@pytest.mark.usefixtures("small_batches")
def test_vectors_that_are_not_finite_are_refused(root: Path, value: float) -> None:
    encoder = NanEncoder()
    encoder.value = value
    with pytest.raises(BuildError, match="not finite in float16"):
        build(encoder, pool(40), root)
    assert_untouched(root)


def test_what_float16_cannot_hold_float32_can(root: Path) -> None:
    encoder = NanEncoder()
    encoder.value = 70_000.0
    result = build(encoder, pool(3), root, BuildOptions(dtype="float32"))
    assert GenerationStore(root).open(result.generation).embeddings.matrix[2, 3] == 70_000


def test_vectors_of_another_dimension_are_refused(root: Path) -> None:
    encoder = HashEncoder()
    encode = encoder.encode_candidates
    encoder.encode_candidates = lambda *given: encode(*given)[:, :5]
    with pytest.raises(BuildError, match=r"vectors of shape \(3, 5\), not \(3, 8\)"):
        build(encoder, pool(3, "other "), root)
    assert_untouched(root)


@pytest.mark.parametrize(
    ("options", "reason"), [({"index": "ifv"}, "index 'ifv'"), ({"dtype": "int8"}, "dtype 'int8'")]
)
def test_unknown_options_are_told_before_anything_is_read(root: Path, options: dict[str, str], reason: str) -> None:
    def never() -> Iterator[Any]:
        raise AssertionError
        yield

    with pytest.raises(InvalidInput, match=reason):
        build(HashEncoder(), never(), root, BuildOptions(**options))
    assert_untouched(root)


@pytest.mark.parametrize(
    "stage", ["read", "words", "encode", "append", "index", "recall", "manifest", "redis", "rename"]
)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_whatever_ends_a_build_leaves_nothing(root: Path, stage: str, error: type, redis_url: str) -> None:
    def fail(announced: str, _done: int, _total: int | None) -> None:
        if announced == stage:
            raise error

    encoder = HashEncoder(evidence=EVIDENCE)
    with pytest.raises(error):
        build(encoder, pool(40), root, BuildOptions(index="flat", redis_url=redis_url), progress=fail)
    assert_untouched(root)
    with RedisEmbeddings(redis_url, "x", 8, "float16", 5)._client as client:
        assert vector_keys(client) == []
    build(HashEncoder(), pool(40), root, BuildOptions(redis_url=redis_url))


def test_an_interrupt_before_the_pointer_leaves_a_whole_generation(root: Path) -> None:
    def fail(stage: str, _done: int, _total: int | None) -> None:
        if stage == "CURRENT":
            raise KeyboardInterrupt

    store = GenerationStore(root)
    before = store.current()
    with pytest.raises(KeyboardInterrupt):
        build(HashEncoder(), pool(40), root, progress=fail)
    assert store.current() == before
    assert_whole(store.open(store.ids()[1]), HashEncoder(), pool(40))


def _no_room(*_given: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "broken",
    [
        (candidates.CandidateWriter, "add"), (EmbeddingsWriter, "put_many"), (EmbeddingsWriter, "commit"),
        (os, "posix_fallocate"), (HashEncoder, "save"), (Manifest, "to_json"), (GenerationStore, "publish"),
    ],
    ids=lambda broken: f"{broken[0].__name__}.{broken[1]}",
)  # fmt: skip
def test_a_full_disk_is_one_clear_line_wherever_it_strikes(root: Path, broken: tuple[type, str], monkeypatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(*broken, _no_room)
        with pytest.raises(DiskFull) as caught:
            build(HashEncoder(evidence=EVIDENCE), pool(40), root, BuildOptions(index="flat"))
    assert str(caught.value) == (f"no room left under {root}: No space left on device; free some space and try again")
    assert_untouched(root)


@pytest.mark.parametrize(
    ("limit", "stage", "length"),
    [(300, "read", 2), (240_000, "words", 32), (200_000, "append", 2), (400_000, "index", 2)],
)
def test_the_operating_systems_own_refusal_is_one_clear_line(root: Path, limit: int, stage: str, length: int) -> None:
    """A file size limit in a child strikes the files of one stage: in pyarrow, NumPy, Python or FAISS.

    Each word is in 50 of 2000 texts, and takes three bytes of the table and four of a file of words.
    """
    script = f"""
        import resource, sys
        from itertools import product
        from pathlib import Path
        from fakes import EVIDENCE, HashEncoder
        from polyrank.index_builder.building.pipeline import BuildOptions, build
        from polyrank.index_builder.errors import DiskFull
        from polyrank.index_builder.pool.rows import Candidate
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        stages = []
        names = ["".join(each) for each in product("abcdefghijklmnopqrstuvwxyz0123456789", repeat=2)]
        texts = [" ".join(names[i // 50 * {length} :][:{length}]) for i in range(2000)]
        pool = [Candidate(f"c{{i}}", text, {{}}) for i, text in enumerate(texts)]
        try:
            build(
                HashEncoder(dim=64, evidence=EVIDENCE), pool, Path({str(root)!r}), BuildOptions(index="flat"),
                progress=lambda stage, *_: stages.append(stage),
            )
        except DiskFull as error:
            print(stages[-1], error)
            sys.exit(7)
    """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 7, child.stderr
    assert child.stdout == f"{stage} no room left under {root}: File too large; free some space and try again\n"
    assert child.stderr == ""
    assert_untouched(root)


def test_two_builders_do_not_meet(root: Path) -> None:
    refused: list[str] = []

    def intrude(stage: str, _done: int, _total: int | None) -> None:
        if stage == "index":
            with pytest.raises(BuildBusy) as caught:
                build(HashEncoder(), pool(3), root)
            refused.append(str(caught.value))

    result = build(HashEncoder(), pool(30), root, progress=intrude)
    assert len(refused) == 1
    assert refused[0].startswith(f"another build into {root} is running: process {os.getpid()} on ")
    assert_whole(GenerationStore(root).open(result.generation), HashEncoder(), pool(30))


def test_a_build_clears_away_what_a_killed_one_has_left(root: Path, redis_url: str) -> None:
    store = GenerationStore(root)
    left = store.new_id("ab" * 32)
    (store.begin(left) / "embeddings.bin").write_bytes(b"half")
    stale = RedisEmbeddings(redis_url, left, 8, "float16", 5)
    stale.put_many(["a"], np.ones((1, 8)))
    build(HashEncoder(), pool(3), root, BuildOptions(redis_url=redis_url))
    assert not list((root / "generations").glob(".tmp-*"))
    assert (stale.get_many(["a"]).status != HIT).all()
    stale.close()


def test_a_redis_that_is_down_costs_no_encoding(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    with pytest.raises(StoreUnavailable):
        build(
            HashEncoder(), pool(3), root, BuildOptions(redis_url="redis://127.0.0.1:1/0"),
            progress=lambda *each: told.append(each[0]),
        )  # fmt: skip
    assert told == []
    assert_untouched(root)


def test_a_redis_that_goes_down_meanwhile_fails_the_build_only(root: Path, redis_process: RedisProcess) -> None:
    def kill(stage: str, _done: int, _total: int | None) -> None:
        if stage == "redis":
            redis_process.kill()

    store = GenerationStore(root)
    before = store.current()
    with pytest.raises(StoreUnavailable):
        build(HashEncoder(), pool(40), root, BuildOptions(redis_url=redis_process.url), progress=kill)
    assert store.ids() == [before]
    (left,) = (root / "generations").glob(".tmp-*")  # reminds of the keys that could not be removed
    assert list(left.iterdir()) == []
    build(HashEncoder(), pool(40), root)
    assert not left.exists()


def test_what_does_not_fit_together_is_not_published(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write: Callable[..., None] = EmbeddingsWriter.put_many
    monkeypatch.setattr(
        EmbeddingsWriter, "put_many", lambda self, ids, vectors: write(self, ids[1:], vectors.take(range(1, len(ids))))
    )
    with pytest.raises(Exception, match=r"candidates\.arrow is of 40 candidates|the manifest says 40"):
        build(HashEncoder(), pool(40), root)
    assert_untouched(root)


def test_opening_what_was_assembled_is_part_of_the_build(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.Generation, "open", lambda *_given, **_named: _no_room())
    with pytest.raises(DiskFull):
        build(HashEncoder(), pool(3), root)
    monkeypatch.undo()
    assert isinstance(Generation.open(GenerationStore(root).path(GenerationStore(root).ids()[0])), Generation)
