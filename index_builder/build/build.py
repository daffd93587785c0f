"""From a pool to a published generation.

The pool is read twice: once to check it and write the candidate table, so that a bad pool fails before any encoding and
the total is known; once from that table, a shard at a time, to encode. Memory does not grow with the pool but for the
FAISS index. Everything happens in a temporary directory that is renamed when it is complete; whatever ends the build
before then removes it. Only a kill cannot: then the next build takes over the finished shards that are also its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.build.assembly import Assembly
from polyrank.index_builder.build.stages import Progress, Stages
from polyrank.index_builder.build.vector_source import VectorSource, encoded_by
from polyrank.index_builder.errors import StoreUnavailable, disk_full_named
from polyrank.index_builder.index.choice import IndexSpec
from polyrank.index_builder.index.faiss_factory import check_factory
from polyrank.index_builder.index.recall import MIN_RECALL, Recall
from polyrank.index_builder.pool.pool import Candidate, Rejected
from polyrank.index_builder.redis_client import BUILDING_TIMEOUT_SECONDS
from polyrank.index_builder.store.copies import Copies
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.leftovers import discard
from polyrank.index_builder.vectors.codec import DTYPES
from polyrank.index_builder.vectors.encoder import Encode, Model, TextEncoder, encode_texts
from polyrank.index_builder.vectors.redis import RedisEmbeddings
from polyrank.model.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What was built.

    Attributes:
        generation: its id.
        count: candidates in it.
        rejected: bad rows left out, listed in `rejected_log`.
        truncated: texts cut to the model's length.
        resumed: candidates whose vectors a killed build had finished.
        index: what the pool is searched by.
        recall: how much of the true ranking that finds.
        warning: what there is to say of the recall.
        seconds: the whole build took.
    """

    generation: str
    count: int
    rejected: int
    rejected_log: Path | None
    truncated: int
    resumed: int
    index: IndexSpec
    recall: Recall
    warning: str | None
    seconds: float


def no_progress(_stage: str, _done: int, _total: int | None) -> None:
    """Nobody watches."""


def build(
    model: Model,
    pool: Iterable[Candidate | Rejected],
    root: Path,
    *,
    index: str = "auto",
    probes: Sequence[NDArray[np.float32]] = (),
    min_recall: float = MIN_RECALL,
    dtype: str = "float16",
    redis_url: str | None = None,
    activate: bool = True,
    max_rejected: float = 0.01,
    revision: int | None = None,
    progress: Progress = no_progress,
    vectors: VectorSource | None = None,
    params: Mapping[str, int] | None = None,
    replaces: str | None = None,
) -> BuildResult:
    """Encode a pool and publish it as a new generation.

    Args:
        model: a copy of it goes into the generation.
        pool: the rows, from `read_pool`.
        root: the store's directory; made if need be.
        index: one of `index_choice.KINDS`, or a FAISS factory string.
        probes: context vectors (M, D) of real contexts, by the same model: the index is searched so hard that it
            finds `min_recall` of their 10 best candidates. Without them its recall is measured by the pool's own
            vectors, and only reported.
        min_recall: recall@10 of the retrieval path against a scan, at least.
        dtype: "float16" or "float32", of the vectors on disk.
        redis_url: also copy the vectors there.
        activate: make the generation the active one.
        max_rejected: the share of rows that may be bad.
        revision: of the last update that the pool can reflect; None: of the store's last one, now.
        progress: told (stage, done, total) before each step: "read" (total unknown), "resume" where a killed build has
            left shards, then "encode" and "append" in turns, beginning behind those, "index", "recall" if there is
            one, "manifest", "redis" if asked for, "rename", "CURRENT". What it raises ends the build.
        vectors: where they come from; None: the model, a `CandidateEncoder`, makes them.
        params: search parameters of such an index that were found to be enough before.
        replaces: the active generation, of which this is a compaction: it takes that one's place, if it still has it.

    Raises:
        InvalidInput: an index that is unknown, does not fit the model's dimension or needs more candidates; an unknown
            dtype; probes of another model. All before anything is encoded.
        PoolError, StoreUnavailable, BuildBusy, LeaseLost, DiskFull: see there; nothing is left but the log of bad rows,
            or the generation itself, where it was published and could not be activated.
        BuildError: the model gave vectors that are not finite or not of its dimension; the recall is not reached;
            likewise.
        CompactionOvertaken: what it was to replace is not active any more; likewise.
    """
    _check(model, index, probes, dtype)
    store, stages = GenerationStore(root), Stages(progress)
    with disk_full_named(root), store.building(redis_url) as lease:
        generation = store.new_id(model.fingerprint)
        redis = _connect(redis_url, generation, model.dim, dtype)
        copies = Copies(root, redis_url)
        leftover = store.clear(copies.forget)
        if revision is None:
            revision = store.updates.highest()  # before the pool is read: what comes later is given to the generation
        temporary = store.begin(generation)
        try:
            work = Assembly(model, temporary, dtype, stages, vectors or _made_by(model), leftover)
            ingested = work.read(pool, store.rejected_log(generation), max_rejected)
            work.fill(index, params or {}, ingested, revision, probes, min_recall)
            if redis is not None:
                copies.note(generation)
                work.copy_to(redis)
            stages("rename", 0, 1)
            store.publish(temporary, lease)
        except BaseException:
            if temporary.exists():
                discard(temporary, copies.forget)
            elif generation not in store.ids():  # the next builder has removed it, and what was copied until then
                with suppress(StoreUnavailable):
                    copies.forget(generation)
            raise
        finally:
            if redis is not None:
                redis.close()
        if replaces is not None:
            stages("CURRENT", 0, 1)
            store.replace_active(replaces, generation, lease, copies.forget)
        elif activate:
            stages("CURRENT", 0, 1)
            store.make_active(store.manifest(generation), _encode_with(model), lease)
    seconds = stages.finish()
    return BuildResult(
        generation,
        ingested.count,
        ingested.rejected,
        ingested.log,
        work.truncated,
        work.resumed,
        work.index,
        work.recall,
        work.recall.doubt(work.index, min_recall),
        seconds,
    )


def _check(model: Model, index: str, probes: Sequence[NDArray[np.float32]], dtype: str) -> None:
    check_factory(index, model.dim)
    if any(codes.shape[1:] != (model.dim,) or not np.isfinite(codes).all() for codes in probes):
        raise InvalidInput(f"probes must be finite vectors of {model.dim} components")
    if dtype not in DTYPES:
        raise InvalidInput(f"unknown dtype {dtype!r}; use one of {', '.join(DTYPES)}")


def _made_by(model: Model) -> VectorSource:
    assert isinstance(model, TextEncoder), "else somebody has to bring the vectors"
    return encoded_by(model)


def _encode_with(model: Model) -> Encode | None:
    return partial(encode_texts, model) if isinstance(model, TextEncoder) else None


def _connect(url: str | None, generation: str, dim: int, dtype: str) -> RedisEmbeddings | None:
    """Before any work: a Redis that is down should not cost the encoding."""
    if url is None:
        return None
    store = RedisEmbeddings(url, generation, dim, dtype, BUILDING_TIMEOUT_SECONDS)
    store.ping()
    return store
