"""The content of a generation, written step by step into its temporary directory."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.build.ingest import Ingested, ingest
from polyrank.index_builder.build.stages import Stages
from polyrank.index_builder.build.vector_source import VectorSource
from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.index.choice import IndexSpec, choose_index
from polyrank.index_builder.index.faiss_factory import check_rows
from polyrank.index_builder.index.faiss_index import CandidateIndex
from polyrank.index_builder.index.recall import EXACT, Recall, measured
from polyrank.index_builder.pool.pool import Candidate, Rejected
from polyrank.index_builder.store.candidates import CandidateTable
from polyrank.index_builder.store.generation import (
    CANDIDATES_FILE,
    INDEX_FILE,
    MODEL_DIRECTORY,
    TEMPORARY_PREFIX,
    Generation,
    describe_files,
)
from polyrank.index_builder.store.leftovers import Journal, Leftover, Shard, content_digest, journal_of, source_digest
from polyrank.index_builder.store.manifest import MANIFEST_FILE, BuildStats, Manifest, ModelReference
from polyrank.index_builder.vectors.codec import DTYPES, rounded
from polyrank.index_builder.vectors.encoder import Model
from polyrank.index_builder.vectors.local import LocalEmbeddings
from polyrank.index_builder.vectors.redis import RedisEmbeddings
from polyrank.model.durable import sync_directory


class Assembly:
    """The steps of one build, within its temporary directory.

    Attributes:
        truncated: texts cut to the model's length.
        resumed: candidates whose vectors a killed build had finished.
        index: what was built.
        recall: how much of the true ranking it finds.
    """

    index: IndexSpec
    recall: Recall

    def __init__(
        self,
        model: Model,
        directory: Path,
        dtype: str,
        stages: Stages,
        vectors: VectorSource,
        leftover: Leftover | None,
    ) -> None:
        self._model, self._directory, self._dtype, self._stages = model, directory, dtype, stages
        self._vectors, self._leftover = vectors, leftover
        self._journal: Journal | None = None
        self.truncated = self.resumed = 0

    def read(self, pool: Iterable[Candidate | Rejected], log: Path, max_rejected: float) -> Ingested:
        """Write the candidate table."""
        self._stages("read", 0, None)
        table = self._directory / CANDIDATES_FILE
        return ingest(pool, table, log, max_rejected, lambda rows: self._stages("read", rows, None))

    def fill(
        self,
        index: str,
        params: Mapping[str, int],
        ingested: Ingested,
        revision: int,
        probes: Sequence[NDArray[np.float32]],
        min_recall: float,
    ) -> None:
        """Write vectors, index, model and manifest, and see that they fit together."""
        spec = replace(choose_index(index, ingested.count, self._model.dim), params=dict(params))
        check_rows(spec, ingested.count, self._model.dim)
        self._table = CandidateTable(self._directory / CANDIDATES_FILE)
        self._store = LocalEmbeddings(self._directory, self._model.dim, self._dtype, create=True)
        try:
            self._encode(len(self._table))
            self._store.commit()
            self.index, self.recall = self._index(spec, probes, min_recall)
        except BaseException:
            self._store.close()
            raise
        self._stages("manifest", 0, 1)
        self._model.save(self._directory / MODEL_DIRECTORY)
        self._write_manifest(ingested, revision, min_recall)
        Generation.open(self._directory, verify=False).close()

    def _encode(self, count: int) -> None:
        """Shard after shard; a batch of the candidate table is a shard of the matrix."""
        kept = self._take_over(self._leftover) if self._leftover else 0
        done = self.resumed
        for ids, texts in islice(self._table.batches(), kept, None):
            self._stages("encode", done, count)
            made, truncated = self._vectors(done, ids, texts, lambda done: self._stages("encode", done, count))
            self._stages("append", done, count)
            self._append(ids, texts, self._rounded(made, len(ids)), truncated)
            done += len(ids)

    def _take_over(self, leftover: Leftover) -> int:
        """Copy the first shards of a killed build, those that fit model, dtype and table; then remove what it left.

        Returns:
            how many shards.
        """
        attempts, shards = leftover.journal()
        kept: list[Shard] = []
        dtype, dim, total = DTYPES[self._dtype], self._model.dim, sum(shard.rows for shard in shards)
        with leftover.matrix.open("rb") as matrix:
            for shard, (ids, texts) in zip(shards, self._table.batches(), strict=False):
                self._stages("resume", self.resumed, total)
                vectors = matrix.read(len(ids) * dim * dtype.itemsize)
                if shard != self._shard(ids, texts, vectors, shard.truncated):
                    break
                self._store.put_many(ids, np.frombuffer(vectors, dtype).reshape(-1, dim))
                kept.append(shard)
                self.resumed += shard.rows
                self.truncated += shard.truncated
        if kept:
            self._store.sync()
            self._journal = self._begin_journal(attempts + 1, kept)  # only now: until then the old one knows more
        leftover.discard()
        return len(kept)

    def _begin_journal(self, attempts: int, shards: Sequence[Shard]) -> Journal:
        sync_directory(self._directory)
        return Journal(journal_of(self._directory), attempts, shards)

    def _append(self, ids: Sequence[str], texts: Sequence[str], vectors: NDArray[Any], truncated: int) -> None:
        self.truncated += truncated
        self._store.put_many(ids, vectors)
        self._store.sync()
        self._journal = self._journal or self._begin_journal(1, [])
        self._journal.append(self._shard(ids, texts, vectors.data, truncated))

    def _shard(self, ids: Sequence[str], texts: Sequence[str], vectors: bytes | memoryview, truncated: int) -> Shard:
        source = source_digest(self._model.fingerprint, self._model.backend, self._dtype, ids, texts)
        return Shard(len(ids), truncated, source, content_digest(vectors, truncated))

    def _rounded(self, vectors: NDArray[Any], count: int) -> NDArray[Any]:
        """In the store's dtype, one row after the other."""
        if vectors.shape != (count, self._model.dim):
            raise BuildError(f"the model gave vectors of shape {vectors.shape}, not {(count, self._model.dim)}")
        return np.ascontiguousarray(rounded(vectors, self._dtype))

    def _index(
        self, spec: IndexSpec, probes: Sequence[NDArray[np.float32]], min_recall: float
    ) -> tuple[IndexSpec, Recall]:
        """Build and save the index, if there is one, and measure its recall."""
        self._stages("index", 0, 1)
        if spec.factory is None:
            return spec, EXACT
        built = CandidateIndex.build(spec, self._store.matrix)
        built.save(self._directory / INDEX_FILE)
        self._stages("recall", 0, 1)
        built, recall = measured(built, self._store.matrix, probes, min_recall)
        return built.spec, recall

    def _write_manifest(self, ingested: Ingested, revision: int, min_recall: float) -> None:
        assert self._journal is not None, "a pool has at least one shard"
        model, encoding = self._model, self._stages.seconds.get("encode", 0.0)
        manifest = Manifest(
            id=self._directory.name.removeprefix(TEMPORARY_PREFIX),
            created_at=datetime.now(UTC).isoformat(),
            model=ModelReference(model.name, model.architecture, model.fingerprint),
            backend=model.backend,
            dim=model.dim,
            dtype=self._dtype,
            count=ingested.count,
            revision=revision,
            index=self.index,
            recall=self.recall.described(min_recall),
            files=describe_files(self._directory),
            build=BuildStats(
                seconds={stage: round(seconds, 6) for stage, seconds in self._stages.seconds.items()},
                candidates_per_second=round((ingested.count - self.resumed) / max(encoding, 1e-9), 3),
                rejected=ingested.rejected,
                truncated=self.truncated,
                attempts=self._journal.attempts,
            ),
        )
        (self._directory / MANIFEST_FILE).write_bytes(manifest.to_json())

    def copy_to(self, redis: RedisEmbeddings) -> None:
        """Put every vector into Redis."""
        done = 0
        for ids, _ in self._table.batches():
            self._stages("redis", done, len(self._table))
            redis.put_many(ids, self._store.matrix[done : done + len(ids)])
            done += len(ids)
        redis.commit()
